"""Which settings come from Slurm, and which people keep for themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from elastic_runtime.cli.slurm.slurm_settings import no_task, starts_step, under_slurm
from elastic_runtime.errors import UsageError
from tests.unit.cli.slurm.test_slurm_task import ELEMENT, STEP

if TYPE_CHECKING:
    from collections.abc import Mapping

    from elastic_runtime.cli.flags.setting_sources import Settings
    from elastic_runtime.cli.slurm.slurm_task import SlurmTask
    from tests.unit.cli.conftest import SettingsOf

_ETCD = "--rdzv-endpoint etcd://h"


def _host_of(node: str) -> str:
    return f"{node}.cluster"


def _under(settings: Settings, environ: Mapping[str, str]) -> tuple[Settings, SlurmTask | None]:
    return under_slurm(settings, environ, 1, _host_of)


def _found(settings_of: SettingsOf, arguments: str = "", **changes: str) -> Settings:
    return _under(settings_of(arguments), {**STEP, **changes})[0]


def test_the_nodes_of_a_step_are_those_of_the_job(settings_of: SettingsOf) -> None:
    found = _found(settings_of)
    assert (found["rdzv_id"], found["node_name"], found["max"]) == ("slurm-17", "n1", 3)
    assert found["rdzv_endpoint"] == "c10d://n0.cluster:15017"
    assert "SIGUSR1" in found["signals_to_handle"]
    assert found["log_format"] == "console"
    assert str(found.of("max")) == "SLURM_JOB_NODELIST=3"


def test_each_step_of_a_job_is_a_run_of_its_own(settings_of: SettingsOf) -> None:
    """They may run one after the other, or side by side."""
    steps = [_found(settings_of, SLURM_STEP_ID=step) for step in ("0", "1", "2")]
    assert [step["rdzv_id"] for step in steps] == ["slurm-17", "slurm-17.1", "slurm-17.2"]
    assert len({step["rdzv_endpoint"] for step in steps}) == 3


def test_what_people_say_comes_first(settings_of: SettingsOf) -> None:
    found = _found(settings_of, f"{_ETCD} --run-id r7 --max 2 --last-call 0")
    assert (found["rdzv_endpoint"], found["rdzv_id"]) == ("etcd://h", "r7")
    assert (found["max"], found["last_call"], found["node_name"]) == (2, 0, "n1")


def test_a_batch_script_starts_the_nodes_and_hosts_their_store(settings_of: SettingsOf) -> None:
    batch = {name: value for name, value in STEP.items() if "STEP" not in name}
    found, task = _under(settings_of(), batch)
    assert task is not None
    assert starts_step(task, found)
    assert (found["listen"], found["max"]) == (":15017", 3)
    assert not found.given("rdzv_endpoint")
    # An etcd that people name is the store.
    found, _ = _under(settings_of(_ETCD), batch)
    assert not found.given("listen")
    # On one node there is nothing to start, unless it is asked for.
    alone = {**batch, "SLURM_JOB_NODELIST": "n0", "SLURM_JOB_NUM_NODES": "1"}
    for arguments, starts in (("", False), ("--slurm job", True), ("--requeue", True)):
        found, task = _under(settings_of(arguments), alone)
        assert task is not None
        assert starts_step(task, found) is starts


def test_elements_of_an_array_are_nodes_if_so_said(settings_of: SettingsOf) -> None:
    found, task = _under(settings_of(f"--slurm array {_ETCD}"), ELEMENT)
    assert (found["rdzv_id"], found["node_name"], found["max"]) == ("slurm-17", "element-3", 8)
    assert task is not None
    assert task.name == "17_3"
    # Else they are jobs of their own, as in most arrays.
    found, _ = _under(settings_of(), ELEMENT)
    assert (found["rdzv_id"], found["max"]) == ("slurm-21", None)


def test_who_types_it_in_a_shell_of_a_job_is_told_how_its_nodes_are_used(
    settings_of: SettingsOf,
) -> None:
    """The shell of an salloc, which is no task."""
    shell = {"SLURM_JOB_ID": "17", "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_NAME": "interactive"}
    assert _under(settings_of(), shell)[1] is None
    (told,) = no_task(settings_of(), shell)
    assert "Slurm's job 17, whose 2 nodes are not used: srun" in told
    for arguments in ("--standalone", "--local-nodes 2", "--slurm off"):
        assert no_task(settings_of(arguments), shell) == []
    assert no_task(settings_of(), {**shell, "SLURM_JOB_NUM_NODES": "1"}) == []
    assert no_task(settings_of(), {}) == []


@pytest.mark.parametrize("arguments", ["--slurm off", "--local-nodes 2", "--standalone"])
def test_who_does_not_want_it_gets_nothing(settings_of: SettingsOf, arguments: str) -> None:
    found, task = _under(settings_of(arguments), STEP)
    assert task is None
    assert not found.given("rdzv_id")


@pytest.mark.parametrize(
    ("arguments", "changes", "said"),
    [
        ("", {"SLURM_STEP_TASKS_PER_NODE": "2(x3)"}, "--ntasks-per-node=1"),
        ("--slurm array", {}, "--slurm=array: SLURM_ARRAY_JOB_ID is not set"),
        ("--slurm array", ELEMENT, "name an etcd with --rdzv-endpoint"),
        (f"--slurm array {_ETCD}", {**ELEMENT, "SLURM_JOB_NUM_NODES": "2"}, "sbatch --nodes=1"),
        ("", {"SLURM_HET_SIZE": "2"}, "a heterogeneous job"),
        ("--slurm job", {"SLURM_JOB_ID": ""}, "--slurm=job: this is no task of Slurm's"),
    ],
)
def test_what_cannot_be_a_node_is_refused(
    settings_of: SettingsOf, arguments: str, changes: dict[str, str], said: str
) -> None:
    with pytest.raises(UsageError) as caught:
        _found(settings_of, arguments, **changes)
    assert said in str(caught.value)


_SWITCHES = {
    "SLURM_TOPOLOGY_ADDR": "s0.s4.n1",
    "SLURM_TOPOLOGY_ADDR_PATTERN": "switch.switch.node",
}


def test_where_a_node_is_comes_from_its_switches(settings_of: SettingsOf) -> None:
    found = _found(settings_of, **_SWITCHES)
    assert found["node_topology"] == ("s0", "s4")
    assert str(found.of("node_topology")) == "SLURM_TOPOLOGY_ADDR=s0/s4"
    array, _ = _under(settings_of(f"--slurm array {_ETCD}"), {**ELEMENT, **_SWITCHES})
    assert array["node_topology"] == ("s0", "s4")
    # What people say comes first, a file included.
    found = _found(settings_of, "--node-topology z/r", **_SWITCHES)
    assert found["node_topology"] == ("z", "r")
    found = _found(settings_of, "--node-topology-file where", **_SWITCHES)
    assert not found.given("node_topology")
    assert not _found(settings_of).given("node_topology")


def test_a_batch_script_is_in_one_place_and_its_nodes_in_others(settings_of: SettingsOf) -> None:
    batch = {name: value for name, value in STEP.items() if "STEP" not in name}
    found, _ = _under(settings_of(), {**batch, **_SWITCHES})
    assert not found.given("node_topology")
    with pytest.raises(UsageError, match="--node-topology=z/r is about one node, and this batch"):
        _under(settings_of("--node-topology z/r"), batch)
    alone = {**batch, "SLURM_JOB_NODELIST": "n0", "SLURM_JOB_NUM_NODES": "1"}
    assert _under(settings_of("--node-topology z/r"), alone)[0]["node_topology"] == ("z", "r")
