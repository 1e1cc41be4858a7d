"""``ElasticEnvironment``: ranks as elastic-run gives them, whatever number of nodes was written."""

from __future__ import annotations

from lightning.fabric.plugins.environments import TorchElasticEnvironment


class ElasticEnvironment(TorchElasticEnvironment):  # type: ignore[misc]  # untyped for mypy
    """Lightning's own environment of launchers like torchrun, for a world whose size changes.

    Example::

        Trainer(num_nodes=2, plugins=[ElasticEnvironment()], callbacks=[ElasticCallback("dir")])
    """

    def validate_settings(self, num_devices: int, num_nodes: int) -> None:
        """Accepts any number of nodes: the world may be smaller or larger now.

        Args:
            num_devices: of ``Trainer(devices=)``.
            num_nodes: of ``Trainer(num_nodes=)``.
        """
