"""The variables of a file of ``accelerate config`` are those that its own launcher would set."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils.launch import prepare_multi_gpu_env

from elastic_runtime.cli.flags.accelerate_config import accelerate_settings
from elastic_runtime.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

ONE = range(1, 2)  # node
PLAIN = {"distributed_type": "MULTI_GPU", "num_processes": 2, "mixed_precision": "bf16"}
COMPILED = {
    **PLAIN,
    **yaml.safe_load("{mixed_precision: 'no', gpu_ids: '0,1', debug: true}"),
    "dynamo_config": yaml.safe_load("""{dynamo_backend: INDUCTOR, dynamo_mode: reduce-overhead,
        dynamo_use_dynamic: true, dynamo_use_fullgraph: false}"""),
}
SHARDED = {
    **PLAIN,
    "distributed_type": "FSDP",
    "fsdp_config": yaml.safe_load("""{fsdp_version: 2, fsdp_reshard_after_forward: false,
        fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP, fsdp_activation_checkpointing: true,
        fsdp_transformer_layer_cls_to_wrap: Block, fsdp_state_dict_type: SHARDED_STATE_DICT}"""),
}
# As the questions of `accelerate config` leave it, for two machines.
ASKED = yaml.safe_load("""{compute_environment: LOCAL_MACHINE, debug: false, use_cpu: false,
    distributed_type: MULTI_GPU, downcast_bf16: 'no', enable_cpu_affinity: false, gpu_ids: all,
    machine_rank: 0, main_process_ip: 10.0.0.1, main_process_port: 29500, num_machines: 2,
    main_training_function: main, mixed_precision: bf16, num_processes: 8, rdzv_backend: static,
    same_network: true, tpu_env: [], tpu_use_cluster: false, tpu_use_sudo: false}""")


@pytest.mark.parametrize("config", [PLAIN, COMPILED, SHARDED])
def test_they_are_those_of_accelerate(config: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(config))
    arguments = launch_command_parser().parse_args(["--config_file", str(path), "train.py"])
    arguments, *_ = _validate_launch_command(arguments)
    before = dict(os.environ)
    theirs = prepare_multi_gpu_env(arguments)
    set_by_it = {name: v for name, v in theirs.items() if before.get(name) != v}
    set_by_it.pop("OMP_NUM_THREADS", None)  # elastic-run has a rule of its own
    assert accelerate_settings(config, 2, ONE) == (set_by_it, [])


def test_what_has_no_effect_is_named() -> None:
    environ, notes = accelerate_settings(ASKED, 1, ONE)
    assert environ["ACCELERATE_MIXED_PRECISION"] == "bf16"
    assert not any(name.startswith(("FSDP", "CUDA")) for name in environ)
    assert notes == [
        "num_processes 8 has no effect: --nproc-per-node 4 would be it",
        "num_machines 2 has no effect: --min and --max say how many nodes train",
        "main_process_ip and main_process_port: no effect, --rdzv-endpoint says where nodes meet",
    ]
    here = {**ASKED, "main_process_ip": None, "main_process_port": None}
    assert accelerate_settings(here, 4, range(1, 3)).notes == []


def test_each_other_section_is_named() -> None:
    config = {
        "deepspeed_config": {"zero_stage": 2},
        "parallelism_config": {"x": 1},
        "tpu_name": "t",
        "downcast_bf16": True,
        "colour": "red",
    }
    _, notes = accelerate_settings(config, 1, ONE)
    assert [note.partition(" has no")[0] for note in notes] == [
        *("deepspeed_config", "parallelism_config", "tpu_name", "downcast_bf16"),
        "not known, and without effect: colour",
    ]


def test_machines_and_older_names() -> None:
    config = {"use_cpu": True, "enable_cpu_affinity": True, "fp16": True, "dynamo_backend": "eager"}
    environ = accelerate_settings(config, 1, ONE).environ
    assert environ["ACCELERATE_USE_CPU"] == "true" and environ["ACCELERATE_CPU_AFFINITY"] == "1"
    assert environ["ACCELERATE_MIXED_PRECISION"] == "fp16"
    assert environ["ACCELERATE_DYNAMO_BACKEND"] == "EAGER"


def test_words_that_yaml_reads_otherwise() -> None:
    # NO without quotes is false; and somebody may have quoted a switch.
    config = {"dynamo_config": {"dynamo_backend": False, "dynamo_mode": None}, "use_cpu": "false"}
    environ = accelerate_settings({**config, "fp16": "no", "gpu_ids": ""}, 1, ONE).environ
    assert environ["ACCELERATE_DYNAMO_BACKEND"] == "NO"
    assert environ["ACCELERATE_DYNAMO_MODE"] == "default"
    assert environ["ACCELERATE_MIXED_PRECISION"] == "no"
    assert not environ.keys() & {"ACCELERATE_USE_CPU", "CUDA_VISIBLE_DEVICES"}


def test_many_unknown_settings_make_one_line() -> None:
    config = {f"name {number}\nis": 1 for number in range(9)}
    (note,) = accelerate_settings(config, 1, ONE).notes
    assert note.endswith("name 3 is, name 4 is and 4 more")
    sharded = {"distributed_type": "FSDP", "fsdp_config": {"fsdp_new_thing": 1}}
    settings = accelerate_settings(sharded, 1, ONE)
    assert settings.environ["FSDP_NEW_THING"] == "1" and "new_thing" in settings.notes[0]


@pytest.mark.parametrize("given", ["0,1", "0, 1", [0, 1]])
def test_devices(given: object) -> None:
    environ = accelerate_settings({"gpu_ids": given}, 1, ONE).environ
    assert environ["CUDA_VISIBLE_DEVICES"] == "0,1"


def test_settings_of_fp8() -> None:
    config = {"mixed_precision": "fp8", "fp8_config": {"backend": "TE", "fp8_margin": 0}}
    environ = accelerate_settings(config, 1, ONE).environ
    assert (environ["ACCELERATE_FP8_BACKEND"], environ["ACCELERATE_FP8_MARGIN"]) == ("TE", "0")


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"distributed_type": "DEEPSPEED"}, "does not set up DeepSpeed; leave --accelerate-config"),
        ({"distributed_type": "MEGATRON_LM"}, "does not set up Megatron-LM"),
        ({"distributed_type": "XLA"}, "does not set up TPUs"),
        ({"compute_environment": "AMAZON_SAGEMAKER"}, "AMAZON_SAGEMAKER is not started by"),
        ({"mixed_precision": "int8"}, "mixed_precision int8: choose one of no, fp16"),
        ({"distributed_type": "FSDP", "fsdp_config": [1]}, "fsdp_config is"),
        ({"distributed_type": "deepspeed"}, "does not set up DeepSpeed"),
        ({"distributed_type": "LOCAL"}, "distributed_type LOCAL is not known"),
        ({"distributed_type": "FSDP", "fsdp_config": {"A B=C": 1}}, "no name of a setting"),
        ({"dynamo_config": {"mode": "a\0b"}}, "which is no value of a variable"),
        ({"use_cpu": "maybe"}, "use_cpu is 'maybe', and must be true or false"),
        ({"num_processes": "two"}, "num_processes is 'two', and must be a number"),
        ({"num_machines": 0}, "num_machines is 0"),
        ({"gpu_ids": "first"}, "gpu_ids is 'first', and must be all, or numbers"),
    ],
)
def test_what_would_train_otherwise_is_refused(config: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        accelerate_settings(config, 1, ONE)
