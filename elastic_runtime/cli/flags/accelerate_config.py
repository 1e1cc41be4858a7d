"""What ``accelerate config`` has written, as the variables that ``accelerate launch`` makes of it.

``Accelerator``, and trainers that are built on it, read their settings from there. What is about
where processes run is for elastic-run to decide. A test compares the variables with those that
accelerate's own launcher sets.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from elastic_runtime.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

Config = Mapping[str, Any]


class AccelerateSettings(NamedTuple):
    """What a file says.

    Attributes:
        environ: variables for the workers.
        notes: what of it has no effect, a line each.
    """

    environ: dict[str, str]
    notes: list[str]


# What trains otherwise than the script expects if it is left out.
_REFUSED = {
    "DEEPSPEED": "DeepSpeed",
    "MEGATRON_LM": "Megatron-LM",
    "XLA": "TPUs",
    "TPU": "TPUs",
}
# Accelerate's launcher sets these whether they are in the file or not; "": only if they are.
_DYNAMO = {
    "backend": "NO",
    "mode": "default",
    "use_fullgraph": "False",
    "use_dynamic": "False",
    "use_regional_compilation": "False",
}
_FSDP = {
    "version": "1",
    "sharding_strategy": "FULL_SHARD",
    "reshard_after_forward": "true",
    "offload_params": "false",
    "min_num_params": "100000000",
    "auto_wrap_policy": "",
    "transformer_layer_cls_to_wrap": "",
    "backward_prefetch": "",
    "state_dict_type": "",
    "forward_prefetch": "false",
    "use_orig_params": "true",
    "cpu_ram_efficient_loading": "true",
    "sync_module_states": "true",
    "activation_checkpointing": "false",
    "activation_checkpointing_offload": "false",
    "ignored_modules": "",
}
_IN_LOWER_CASE = (
    *("reshard_after_forward", "offload_params", "forward_prefetch", "use_orig_params"),
    *("cpu_ram_efficient_loading", "sync_module_states", "activation_checkpointing"),
    "activation_checkpointing_offload",
)
_OTHER_NAMES = {"transformer_layer_cls_to_wrap": "TRANSFORMER_CLS_TO_WRAP"}
_KEY = re.compile(r"\w{1,80}", re.ASCII)
_MOST_NAMED = 5
_PLACES = ("main_process_ip", "main_process_port")
_WITHOUT_EFFECT = (
    *("deepspeed_config", "megatron_lm_config", "mpirun_config", "parallelism_config"),
    *("tpu_name", "tpu_zone", "tpu_env", "tpu_vm", "tpu_use_cluster", "tpu_use_sudo"),
    *("commands", "command_file"),
)
_KNOWN = (
    *("compute_environment", "distributed_type", "mixed_precision", "fp16", "use_cpu", "debug"),
    *("num_processes", "num_machines", "machine_rank", "gpu_ids", "enable_cpu_affinity"),
    *("dynamo_config", "dynamo_backend", "fsdp_config", "fp8_config", "downcast_bf16"),
    *("rdzv_backend", "same_network", "main_training_function"),
)


def accelerate_settings(config: Config, workers: int, nodes: range) -> AccelerateSettings:
    """What a configuration means for the workers.

    Args:
        config: as ``accelerate config`` writes it.
        workers: how many each node has.
        nodes: how many nodes there may be.

    Raises:
        UsageError: it is for something that elastic-run does not start.
    """
    if config.get("compute_environment", "LOCAL_MACHINE") != "LOCAL_MACHINE":
        raise UsageError(
            f"compute_environment {config['compute_environment']} is not started by elastic-run; "
            "LOCAL_MACHINE is"
        )
    kind = str(config.get("distributed_type") or "NO").upper()
    if kind not in ("NO", "FSDP", *_REFUSED) and not kind.startswith("MULTI_"):
        raise UsageError(f"distributed_type {kind:.40} is not known")
    if kind in _REFUSED:
        raise UsageError(
            f"distributed_type {kind}: elastic-run does not set up {_REFUSED[kind]}; leave "
            "--accelerate-config out, and have the script do it"
        )
    environ = {**_precision(config), **_dynamo(config), **_machine(config)}
    if kind == "FSDP":
        environ |= {"ACCELERATE_USE_FSDP": "true", **_fsdp(_section(config, "fsdp_config"))}
    for name, value in environ.items():
        if not value.isprintable():
            raise UsageError(f"{name} would be {value!r:.40}, which is no value of a variable")
    return AccelerateSettings(environ, list(_notes(config, workers, nodes)))


def _section(config: Config, name: str) -> Config:
    found = config.get(name) or {}
    if not isinstance(found, Mapping):
        raise UsageError(f"{name} is {found!r:.40}, and must have settings by name")
    for key in found:
        if not _KEY.fullmatch(str(key)):
            raise UsageError(f"{name}: {key!r:.40} is no name of a setting")
    return found


def _precision(config: Config) -> dict[str, str]:
    old = "fp16" if _switch(config, "fp16") else "no"
    precision = str(config.get("mixed_precision") or old).lower()
    if precision not in ("no", "fp16", "bf16", "fp8"):
        raise UsageError(f"mixed_precision {precision}: choose one of no, fp16, bf16 and fp8")
    environ = {"ACCELERATE_MIXED_PRECISION": precision}
    if precision == "fp8":
        for key, value in _section(config, "fp8_config").items():
            name = key.removeprefix("fp8_").upper()
            if value is not None and name != "OVERRIDE_LINEAR_PRECISION":
                environ[f"ACCELERATE_FP8_{name}"] = str(value)
    return environ


def _dynamo(config: Config) -> dict[str, str]:
    section = {**_section(config, "dynamo_config")}
    if "dynamo_backend" in config:  # as older versions wrote it
        section.setdefault("backend", config["dynamo_backend"])
    said = {k.removeprefix("dynamo_"): str(v) for k, v in section.items() if v is not None}
    values = {**_DYNAMO, **said}
    # An unquoted NO is false in YAML.
    values["backend"] = values["backend"].upper().replace("FALSE", "NO")
    return {f"ACCELERATE_DYNAMO_{key.upper()}": value for key, value in values.items()}


def _machine(config: Config) -> dict[str, str]:
    environ = {}
    if _switch(config, "use_cpu"):
        environ["ACCELERATE_USE_CPU"] = "true"
    if _switch(config, "debug"):
        environ["ACCELERATE_DEBUG_MODE"] = "true"
    if _switch(config, "enable_cpu_affinity"):
        environ["ACCELERATE_CPU_AFFINITY"] = "1"
    if config.get("gpu_ids") not in (None, "", "all"):
        environ["CUDA_VISIBLE_DEVICES"] = _devices(config["gpu_ids"])
    return environ


def _switch(config: Config, name: str) -> bool:
    word = str(config.get(name) or "no").lower()
    if word not in ("true", "yes", "false", "no"):
        raise UsageError(f"{name} is {word!r:.40}, and must be true or false")
    return word in ("true", "yes")


def _devices(given: Any) -> str:
    listed = given if isinstance(given, list) else str(given).split(",")
    numbers = [str(one).strip() for one in listed]
    if not all(number.isdigit() for number in numbers):
        raise UsageError(f"gpu_ids is {given!r:.40}, and must be all, or numbers such as 0,1")
    return ",".join(numbers)


def _count(config: Config, name: str) -> int:
    """A number of processes or machines; 0 if there is none."""
    given = config.get(name)
    if given is None or given == -1:  # so it is written if a scheduler is to say it
        return 0
    if not isinstance(given, int) or isinstance(given, bool) or given < 1:
        raise UsageError(f"{name} is {given!r:.40}, and must be a number")
    return given


def _fsdp(section: Config) -> dict[str, str]:
    said = {key.removeprefix("fsdp_"): str(v) for key, v in section.items() if v is not None}
    values = {**_FSDP, **said}
    return {
        f"FSDP_{_OTHER_NAMES.get(key, key.upper())}": (
            value.lower() if key in _IN_LOWER_CASE else value
        )
        for key, value in values.items()
        if value
    }


def _notes(config: Config, workers: int, nodes: range) -> Iterator[str]:
    processes, machines = _count(config, "num_processes"), _count(config, "num_machines")
    each = max(1, processes // (machines or 1))
    if processes and each != workers:
        yield f"num_processes {processes} has no effect: --nproc-per-node {each} would be it"
    if machines and machines not in nodes:
        yield f"num_machines {machines} has no effect: --min and --max say how many nodes train"
    if places := [key for key in _PLACES if config.get(key) is not None]:
        yield f"{' and '.join(places)}: no effect, --rdzv-endpoint says where nodes meet"
    for key in _WITHOUT_EFFECT:
        if config.get(key):
            yield f"{key} has no effect: elastic-run does not pass it on"
    if str(config.get("downcast_bf16", "no")).lower() not in ("no", "false"):
        yield "downcast_bf16 has no effect: it is for TPUs"
    known = (*_KNOWN, *_PLACES, *_WITHOUT_EFFECT)
    if unknown := [f"{key!s:.40}".split() for key in config if key not in known]:
        more = f" and {len(unknown) - _MOST_NAMED} more" if len(unknown) > _MOST_NAMED else ""
        named = ", ".join(" ".join(words) for words in unknown[:_MOST_NAMED])
        yield f"not known, and without effect: {named}{more}"
    fsdp = [key.removeprefix("fsdp_") for key in _section(config, "fsdp_config")]
    if unknown_there := [key for key in fsdp if key not in _FSDP][:_MOST_NAMED]:
        yield f"fsdp_config: not known here, and passed on: {', '.join(unknown_there)}"
