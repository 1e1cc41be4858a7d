"""From settings to the ``JobConfig`` of this node: pure, but for counting processors."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from elastic_runtime.cli.flags import value_types
from elastic_runtime.cli.flags.torchrun_parser import import_torch
from elastic_runtime.cli.flags.value_types import POSITIVE_SECONDS, SECONDS, ValueType
from elastic_runtime.config import (
    LAST_PORT,
    LOOPBACK,
    MAY_BE_ZERO,
    RDZV_CONF_TIMEOUTS,
    Endpoint,
    Entry,
    InvalidSetting,
    JobConfig,
    Output,
    Timeouts,
)
from elastic_runtime.errors import UsageError
from elastic_runtime.system.torch_version import choose_regroup, has_gpus, installed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from elastic_runtime.cli.flags.node_bounds import Bounds
    from elastic_runtime.cli.flags.setting_sources import Settings

# Keys of --rdzv-conf beside ``RDZV_CONF_TIMEOUTS``. The rest has no meaning here.
_KEEP_ALIVE = ("keep_alive_interval", "keep_alive_max_attempt")
_TORCHS_ATTEMPTS = 3.0
_TORCHS_LOGS = "default"
_TORCHS_INTERVAL = 5.0
_DEVICES = "CUDA_VISIBLE_DEVICES"

# Fields of ``JobConfig`` that an option of another name sets.
_OPTION_OF = {"workers": "nproc_per_node"}

# Fields of ``JobConfig`` that an option of the same name sets, just as it was given.
_AS_GIVEN = (
    *(
        "min_workers",
        "node_unit",
        "node_name",
        "node_life",
        "node_topology",
        "resuming",
        "once",
        "leave_code",
        "patient",
    ),
    *(
        "max_restarts",
        "preload",
        "cold",
        "role",
        "virtual_local_rank",
        "event_log_handler",
        "snapshot_memory",
    ),
    *("regroup", "log_format", "log_file"),
)

_WITHOUT_MEANING = {
    "monitor_interval": "the agent waits for events and does not poll",
    "start_method": "workers are forked from a warm server, or started afresh with --cold",
    "node_rank": "ranks are given out by the rendezvous",
    "master_addr": "the address of rank 0 is agreed on in each round",
    "master_port": "the port of rank 0 is agreed on in each round",
}


@dataclass(frozen=True)
class TorchrunVariables:
    """What torchrun reads from the environment beside ``PET_*``."""

    shutdown_timeout: str = ""
    line_prefix: str = ""
    health_port: str = ""
    visible_devices: str | None = None

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> TorchrunVariables:
        """Reads them."""
        return cls(
            shutdown_timeout=environ.get("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", ""),
            line_prefix=environ.get("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", ""),
            health_port=environ.get("TORCHELASTIC_HEALTH_CHECK_PORT", ""),
            visible_devices=environ.get(_DEVICES),
        )


def job_config(
    settings: Settings,
    entry: Entry,
    endpoint: Endpoint,
    run_id: str,
    bounds: Bounds,
    variables: TorchrunVariables,
) -> JobConfig:
    """Puts the settings of a node together.

    Raises:
        UsageError: a setting is out of bounds.
    """
    _check_logs_specs(settings)
    workers = _workers(settings)
    _check_devices(settings, workers, variables)
    choose_regroup(settings["regroup"], installed(), gpus=has_gpus())  # or it is refused
    values = dict(
        entry=entry,
        endpoint=endpoint,
        run_id=run_id,
        min_nodes=bounds.low,
        max_nodes=bounds.high,
        workers=workers,
        node_topology_file=""
        if settings.given("node_topology")
        else settings["node_topology_file"],
        local_addr=settings["local_addr"] or "",
        timeouts=_timeouts(settings, variables),
        output=_output(settings, variables),
        signals=settings["signals_to_handle"],
        numa_binding=settings["numa_binding"] or "",
        health_port=_health_port(variables),
        metrics_port=_metrics_port(settings),
        metrics_host=settings["metrics_host"] or LOOPBACK,  # "" would be every address
        **{name: settings[name] for name in _AS_GIVEN},
    )
    try:
        return JobConfig(**values)
    except InvalidSetting as error:
        raise _refusal(settings, error) from None


def _refusal(settings: Settings, error: InvalidSetting) -> UsageError:
    """The error with the place where its value was given."""
    (name, value), *_ = error.values.items()
    given, conf = settings.of(_OPTION_OF.get(name, name)), settings.of("rdzv_conf")
    if given.given:
        said = str(given)
    elif name in {RDZV_CONF_TIMEOUTS.get(key) for key in conf.value or {}}:
        said = str(conf)
    else:
        said = f"{given.option.flags[0]}={value}"
    return UsageError(f"{said}: {error.why}")


def _workers(settings: Settings) -> int:
    given = settings.of("nproc_per_node")
    try:
        return _count(given.value)
    except ValueError as error:
        # torch says "Cuda is not available." for a known word, and repeats an unknown one.
        missing = f"{str(error).rstrip('.')} here; give a number, or cpu"
        why = missing if "available" in str(error) else f"it is not {given.option.value_type.what}"
        raise UsageError(f"{given}: {why}") from None


def _count(text: str) -> int:
    with suppress(ValueError):
        return int(text)
    # Only torch knows how many devices there are.
    import_torch()
    from torch.distributed.run import determine_local_world_size

    workers: int = determine_local_world_size(text)
    return workers


def _check_devices(settings: Settings, workers: int, variables: TorchrunVariables) -> None:
    """With ``--virtual-local-rank`` each worker gets a device of its own."""
    devices = variables.visible_devices
    if not settings["virtual_local_rank"] or devices is None or workers <= devices.count(",") + 1:
        return
    raise UsageError(
        f"{settings.of('virtual_local_rank')}: each of the {workers} workers needs a device of its "
        f"own, and {_DEVICES}={devices!r} names fewer: name more, or lower --nproc-per-node"
    )


def check_with_torch(settings: Settings, config: JobConfig) -> None:
    """Checks what only torch can tell, and imports it for that if something is to be checked.

    Raises:
        UsageError: a setting cannot be used on this machine, or with this torch.
    """
    if config.numa_binding:
        _check_numa(settings, config.workers)
    if settings.given("event_log_handler"):
        _check_event_log(settings)


def _check_numa(settings: Settings, workers: int) -> None:
    """A worker's GPU decides which processors are near the worker."""
    import_torch()
    from torch.cuda import device_count

    if (gpus := device_count()) < workers:
        remedy = "lower --nproc-per-node" if gpus else "leave it out"
        raise UsageError(
            f"{settings.of('numa_binding')} binds each worker to the processors near a GPU of its "
            f"own, and torch sees {gpus or 'none'} here for {workers}: {remedy}"
        )


def _check_event_log(settings: Settings) -> None:
    given = settings.of("event_log_handler")
    import_torch()
    from torch.distributed.elastic.events.handlers import get_logging_handler

    try:
        get_logging_handler(given.value)
    except KeyError:
        raise UsageError(
            f"{given}: torch knows no such handler of events; null and console are there"
        ) from None


def _check_logs_specs(settings: Settings) -> None:
    """Turns away classes that decide by torchrun's counts of restarts where log files lie."""
    given = settings.of("logs_specs")
    if given.given and given.value != _TORCHS_LOGS:
        raise UsageError(
            f"{given}: logs lie in a directory for each round and rank here; use --log-dir with "
            "--redirects or --tee, or collect standard output"
        )


def _timeouts(settings: Settings, variables: TorchrunVariables) -> Timeouts:
    conf = settings.of("rdzv_conf")
    found: dict[str, float] = _from_conf(conf.value or {}, str(conf))
    for name in (field.name for field in fields(Timeouts) if field.name in settings):
        own = settings.of(name)
        if own.given and (name not in found or own.level >= conf.level):
            found[name] = own.value
    grace = _grace(settings, variables)
    if grace is not None:
        found["grace"] = grace
    try:
        return Timeouts(**found)
    except InvalidSetting as error:
        raise _refusal(settings, error) from None


def _from_conf(conf: Mapping[str, str], source: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for key, field in RDZV_CONF_TIMEOUTS.items():
        if key in conf:
            kind = SECONDS if field in MAY_BE_ZERO else POSITIVE_SECONDS
            found[field] = _seconds(source, key, conf[key], kind)
    if any(key in conf for key in _KEEP_ALIVE):
        # torch takes a node for dead after so many silent intervals: that is what a lease is.
        interval, attempts = (
            _seconds(source, key, conf[key], POSITIVE_SECONDS) if key in conf else default
            for key, default in zip(_KEEP_ALIVE, (_TORCHS_INTERVAL, _TORCHS_ATTEMPTS), strict=True)
        )
        found.setdefault("lease_ttl", interval * attempts)
    return found


def _seconds(source: str, key: str, text: str, kind: ValueType) -> float:
    try:
        return float(kind.read(text))
    except ValueError:
        raise UsageError(f"{source}: {key}={text!r} is not {kind.what}") from None


def _grace(settings: Settings, variables: TorchrunVariables) -> float | None:
    ours = settings.of("grace")
    # An option since torch 2.12.
    torchruns = settings.of("shutdown_timeout") if "shutdown_timeout" in settings else ours
    if torchruns is not ours and ours.given and ours.level == torchruns.level:
        raise UsageError(f"{ours} and {torchruns} say the same thing: keep one of them")
    if ours.given or torchruns.given:
        return float(max(ours, torchruns, key=lambda setting: setting.level).value)
    if not variables.shutdown_timeout:
        return None
    try:
        return value_types.seconds(variables.shutdown_timeout)
    except ValueError:
        said = f"TORCH_ELASTIC_SHUTDOWN_TIMEOUT={variables.shutdown_timeout!r}"
        raise UsageError(f"{said} is not {value_types.SECONDS.what}") from None


def _output(settings: Settings, variables: TorchrunVariables) -> Output:
    return Output(
        log_dir=settings["log_dir"],
        keep=settings["keep_logs"],
        redirects=settings["redirects"],
        tee=settings["tee"],
        ranks=settings["local_ranks_filter"],
        stdout_filters=tuple(settings["duplicate_stdout_filters"]),
        stderr_filters=tuple(settings["duplicate_stderr_filters"]),
        prefix=_line_prefix(settings, variables),
    )


def _line_prefix(settings: Settings, variables: TorchrunVariables) -> str:
    dest = "log_line_prefix_template"  # an option since torch 2.14
    chosen: str = (settings[dest] if dest in settings else "") or variables.line_prefix
    return chosen


def _health_port(variables: TorchrunVariables) -> int:
    if not variables.health_port:
        return 0
    try:
        return int(value_types.PORT.read(variables.health_port))
    except ValueError:
        said = f"TORCHELASTIC_HEALTH_CHECK_PORT={variables.health_port!r}"
        raise UsageError(f"{said} is not {value_types.PORT.what}") from None


def _metrics_port(settings: Settings) -> int:
    given, nodes = settings.of("metrics_port"), settings["local_nodes"]
    if given.value and given.value + nodes - 1 > LAST_PORT:
        raise UsageError(f"{given}: {nodes} nodes need a port each, and {LAST_PORT} is the last")
    return int(given.value)


def notes(settings: Settings) -> list[str]:
    """What was asked for and has no meaning here, one line each."""
    lines = [
        f"{settings.of(dest)} has no effect: {why}"
        for dest, why in _WITHOUT_MEANING.items()
        if settings.given(dest)
    ]
    if settings["preload"] and settings["cold"]:
        lines.append(f"{settings.of('preload')} has no effect with {settings.of('cold')}")
    if settings.given("ssh") and not (settings.given("hosts") or settings.given("discover")):
        lines.append(f"{settings.of('ssh').source} has no effect without --hosts or --discover")
    known = (*RDZV_CONF_TIMEOUTS, *_KEEP_ALIVE)
    unknown = [key for key in settings["rdzv_conf"] or {} if key not in known]
    if unknown:
        lines.append(f"{settings.of('rdzv_conf').source}: no meaning here: {', '.join(unknown)}")
    return lines
