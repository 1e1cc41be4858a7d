"""What ``accelerate config`` has written, as the variables that ``accelerate launch`` makes of it.

``Accelerator``, and trainers that are built on it, read their settings from there. What is about
where processes run is for elastic-run to decide. A test compares the variables with those that
accelerate's own launcher sets.
"""

from __future__ import annotations

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
# What elastic-run decides in its own way, and by which option.
_ELASTIC = {
    "main_process_ip": "--rdzv-endpoint",
    "main_process_port": "--rdzv-endpoint",
}
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


def accelerate_settings(config: Config, workers: int) -> AccelerateSettings:
    """What a configuration means for the workers.

    Args:
        config: as ``accelerate config`` writes it.
        workers: how many each node has.

    Raises:
        UsageError: it is for something that elastic-run does not start.
    """
    if config.get("compute_environment", "LOCAL_MACHINE") != "LOCAL_MACHINE":
        raise UsageError(
            f"compute_environment {config['compute_environment']} is not started by elastic-run; "
            "LOCAL_MACHINE is"
        )
    kind = str(config.get("distributed_type", "NO"))
    if kind in _REFUSED:
        raise UsageError(
            f"distributed_type {kind}: elastic-run does not set up {_REFUSED[kind]}; leave "
            "--accelerate-config out, and have the script do it"
        )
    environ = {**_precision(config), **_dynamo(config), **_machine(config)}
    if kind == "FSDP":
        environ |= {"ACCELERATE_USE_FSDP": "true", **_fsdp(_section(config, "fsdp_config"))}
    return AccelerateSettings(environ, list(_notes(config, workers)))


def _section(config: Config, name: str) -> Config:
    found = config.get(name) or {}
    if not isinstance(found, Mapping):
        raise UsageError(f"{name} is {found!r:.40}, and must be a mapping")
    return found


def _precision(config: Config) -> dict[str, str]:
    old = "fp16" if config.get("fp16") else "no"
    precision = str(config.get("mixed_precision") or old).lower()
    if precision not in ("no", "fp16", "bf16", "fp8"):
        raise UsageError(f"mixed_precision {precision}: no, fp16, bf16 and fp8 are there")
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
    said = {key.removeprefix("dynamo_"): str(value) for key, value in section.items()}
    values = {**_DYNAMO, **said}
    values["backend"] = values["backend"].upper()
    return {f"ACCELERATE_DYNAMO_{key.upper()}": value for key, value in values.items()}


def _machine(config: Config) -> dict[str, str]:
    environ = {}
    if config.get("use_cpu"):
        environ["ACCELERATE_USE_CPU"] = "true"
    if config.get("debug"):
        environ["ACCELERATE_DEBUG_MODE"] = "true"
    if config.get("enable_cpu_affinity"):
        environ["ACCELERATE_CPU_AFFINITY"] = "1"
    if config.get("gpu_ids") not in (None, "all"):
        environ["CUDA_VISIBLE_DEVICES"] = str(config["gpu_ids"])
    return environ


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


def _notes(config: Config, workers: int) -> Iterator[str]:
    processes, machines = config.get("num_processes"), config.get("num_machines") or 1
    if isinstance(processes, int) and processes > 0 and isinstance(machines, int):
        each = max(1, processes // machines)
        if each != workers:
            yield f"num_processes {processes} has no effect: --nproc-per-node {each} would be it"
    for key, option in _ELASTIC.items():
        if config.get(key) is not None:
            yield f"{key} has no effect: {option} says where nodes meet"
            break
    for key in _WITHOUT_EFFECT:
        if config.get(key):
            yield f"{key} has no effect: elastic-run does not pass it on"
    if str(config.get("downcast_bf16", "no")).lower() not in ("no", "false"):
        yield "downcast_bf16 has no effect: it is for TPUs"
    known = (*_KNOWN, *_ELASTIC, *_WITHOUT_EFFECT)
    if unknown := [key for key in config if key not in known]:
        yield f"not known, and without effect: {', '.join(map(str, unknown))}"
