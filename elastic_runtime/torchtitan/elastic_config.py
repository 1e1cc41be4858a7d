"""Makes an elastic job's config of one for torchtitan."""

from __future__ import annotations

import dataclasses
from typing import Any

from torchtitan.trainer import Trainer

from elastic_runtime.errors import UsageError
from elastic_runtime.torchtitan.checkpoint_manager import ElasticCheckpointManager
from elastic_runtime.torchtitan.elastic_trainer import ElasticMixin, ElasticTrainer
from elastic_runtime.torchtitan.sharing_loader import elastic_dataloader

_made: dict[type[Any], type[Any]] = {Trainer: ElasticTrainer}


def elastic(config: Any, **checkpoint: Any) -> Any:
    """The same job, in worlds that change.

    Example::

        def my_config():
            config = llama3_8b()
            config.training.global_batch_size = 64
            return elastic(config, every="5m", snapshots="30s")

    Args:
        config: of torchtitan's ``Trainer`` or a subclass of it; it is not changed.
        **checkpoint: fields of ``ElasticCheckpointManager.Config``. The others are those of the
            config's own manager, except that it is enabled.

    Returns:
        One with the same settings, of which ``build`` makes an ``ElasticTrainer``.

    Raises:
        UsageError: it is no such config, its data cannot be shared out anew, or a field is unknown.
    """
    of = getattr(config, "_owner", None)
    if not (isinstance(of, type) and issubclass(of, Trainer)):
        raise UsageError(
            f"elastic() takes the config of a torchtitan Trainer, not a {type(config).__name__}"
        )
    values = _values(config)
    values["dataloader"] = elastic_dataloader(values["dataloader"])
    values["checkpoint"] = _manager(values["checkpoint"], checkpoint)
    return _trainer(of).Config(**values)


def _manager(config: Any, changed: dict[str, Any]) -> Any:
    kind = ElasticCheckpointManager.Config
    fields = {field.name for field in dataclasses.fields(kind)}
    if unknown := changed.keys() - fields:
        raise UsageError(
            f"a checkpoint manager has no {', '.join(sorted(unknown))}; it has "
            f"{', '.join(sorted(fields))}"
        )
    kept = {name: value for name, value in _values(config).items() if name in fields}
    return kind(**{**kept, "enable": True, **changed})


def _trainer(of: type[Any]) -> type[Any]:
    """``of`` as an elastic trainer; made once for each class."""
    if issubclass(of, ElasticMixin):
        return of
    if of not in _made:
        config = dataclasses.make_dataclass(
            "Config", [], bases=(of.Config,), kw_only=True, slots=True
        )
        space = {"Config": config, "__module__": __name__}
        _made[of] = type(f"Elastic{of.__name__}", (ElasticMixin, of), space)
    return _made[of]


def _values(config: Any) -> dict[str, Any]:
    fields = (field.name for field in dataclasses.fields(config) if field.init)
    return {name: getattr(config, name) for name in fields}
