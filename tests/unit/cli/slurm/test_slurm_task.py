"""What a task of Slurm's learns from its environment, and which settings follow from that."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from elastic_runtime.cli.slurm.host_list import expand_hosts
from elastic_runtime.cli.slurm.slurm_settings import no_task, starts_step, under_slurm
from elastic_runtime.cli.slurm.slurm_task import SlurmTask, is_task, read_task
from elastic_runtime.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from elastic_runtime.cli.flags.setting_sources import Settings
    from tests.unit.cli.conftest import SettingsOf


def _variables(text: str) -> dict[str, str]:
    """Slurm's, without the beginning of their names."""
    return {f"SLURM_{name}": value for name, value in (one.split("=") for one in text.split())}


# As Slurm 22.05 sets them for the second of three tasks.
STEP = {
    **_variables("JOB_ID=17 JOB_NAME=train JOB_NODELIST=n[0-2] JOB_NUM_NODES=3 NODEID=1 PROCID=1"),
    **_variables("STEP_ID=0 STEP_NODELIST=n[0-2] STEP_NUM_TASKS=3 STEP_TASKS_PER_NODE=1(x3)"),
    **_variables("TASK_PID=400"),
    "SLURMD_NODENAME": "n1",
}
ELEMENT = {
    **STEP,
    **_variables("JOB_ID=21 JOB_NODELIST=n2 JOB_NUM_NODES=1 NODEID=0"),
    **_variables("STEP_NODELIST=n2 STEP_NUM_TASKS=1 STEP_TASKS_PER_NODE=1"),
    **_variables("ARRAY_JOB_ID=17 ARRAY_TASK_ID=3 ARRAY_TASK_COUNT=8 RESTART_COUNT=2"),
    "SLURMD_NODENAME": "n2",
}
# What the batch script of a job has.
BATCH = {name: value for name, value in STEP.items() if "STEP" not in name}
ALONE = {**BATCH, **_variables("JOB_NODELIST=n0 JOB_NUM_NODES=1")}


def test_a_task_of_a_step() -> None:
    task = read_task(STEP)
    assert task == SlurmTask(job=17, nodes=("n0", "n1", "n2"), node="n1", job_nodes=3)
    assert task.name == "17"


def test_an_element_of_an_array() -> None:
    task = read_task(ELEMENT)
    assert (task.array, task.index, task.elements, task.restarts) == (17, 3, 8, 2)
    assert task.nodes == ("n2",)
    assert task.name == "17_3"


def test_a_batch_script_has_the_nodes_of_the_job() -> None:
    task = read_task({**BATCH, "SLURM_NODEID": "0", "SLURMD_NODENAME": "n0"})
    assert not task.in_step
    assert task.nodes == ("n0", "n1", "n2")


@pytest.mark.parametrize(
    ("text", "place", "tasks"), [("2(x3),1", 2, 2), ("2(x3),1", 3, 1), ("1,4", 1, 4), ("", 0, 1)]
)
def test_the_tasks_of_a_node(text: str, place: int, tasks: int) -> None:
    environ = {**STEP, "SLURM_STEP_TASKS_PER_NODE": text, "SLURM_NODEID": str(place)}
    assert read_task(environ).tasks_here == tasks


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({}, True),
        ({"SLURM_JOB_ID": ""}, False),
        ({"SLURM_PROCID": ""}, False),  # salloc's own shell
        # A person's shell in a job, and a task of the same job.
        ({"SLURM_JOB_NAME": "bash", "SLURM_STEP_NUM_TASKS": "1"}, False),
        ({"SLURM_JOB_NAME": "bash", "SLURM_STEP_NUM_TASKS": "1", "SLURM_TASK_PID": "5"}, True),
        ({"SLURM_JOB_NAME": "interactive"}, True),
    ],
)
def test_what_a_person_starts_in_a_job_is_no_task(changes: dict[str, str], found: bool) -> None:
    assert is_task({**STEP, **changes}, pid=5) is found


@pytest.mark.parametrize(
    ("pid", "typed", "found"), [(4, True, False), (4, False, True), (5, True, True)]
)
def test_what_is_typed_is_no_task_but_srun_with_a_terminal(
    pid: int, typed: bool, found: bool
) -> None:
    """salloc --job-name dev srun --pty bash, or srun --pty elastic-run."""
    shell = {**STEP, **_variables(f"JOB_NAME=dev TASK_PID={pid}")}
    assert is_task(shell, pid=5, typed=typed) is found


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"SLURM_JOB_ID": ""}, "SLURM_JOB_ID is not set"),
        ({"SLURM_JOB_ID": "x"}, "SLURM_JOB_ID='x' is no number"),
        ({"SLURM_STEP_NODELIST": "n[1-"}, "SLURM_STEP_NODELIST: 'n[1-' is no list of hosts"),
        ({"SLURM_STEP_NODELIST": ""}, "SLURM_STEP_NODELIST is not set"),
        ({"SLURM_STEP_NODELIST": "(null)"}, "SLURM_STEP_NODELIST is not set"),
        ({"SLURM_STEP_NODELIST": "n[0-999999999]"}, "lists more than 131072 hosts"),
        ({"SLURM_JOB_ID": "9" * 5000}, "999' is no number"),
        ({"SLURM_JOB_ID": "\N{ARABIC-INDIC DIGIT THREE}"}, "is no number"),
    ],
)
def test_what_is_wrong_is_named(changes: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_task({**STEP, **changes})
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("address", "pattern", "levels"),
    [
        ("s0.s4.n1", "switch.switch.node", ("s0", "s4")),
        ("b2.n1", "block.node", ("b2",)),
        ("s0.s4.n1.lab.org", "switch.switch.node", ("s0", "s4")),  # the node's name has dots
        ("s0.s4.n1", "", ("s0", "s4")),  # a version that says no pattern
        ("s0.s[1-2].n1", "switch.switch.node", ("s0", "s[1-2]")),
        ("n1", "node", ()),
        ("n1.lab.org", "node", ()),
        ("", "", ()),
        ("s0..n1", "switch.switch.node", ()),
        ("s0.a/b.n1", "switch.switch.node", ()),
        (f"{'x' * 65}.n1", "switch.node", ()),
        (f"{'s.' * 11}n1", f"{'switch.' * 11}node", ("s",) * 8),
    ],
)
def test_where_a_node_is_in_the_network(
    address: str, pattern: str, levels: tuple[str, ...]
) -> None:
    said = {"SLURM_TOPOLOGY_ADDR": address, "SLURM_TOPOLOGY_ADDR_PATTERN": pattern}
    assert read_task({**STEP, **said}).topology == levels


_ETCD = "--rdzv-endpoint etcd://h"


def _host_of(node: str) -> str:
    return f"{node}.cluster"


def _under(settings: Settings, environ: Mapping[str, str]) -> tuple[Settings, Any]:
    """These settings under Slurm, and the task, if it is one."""
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
    found, task = _under(settings_of(), BATCH)
    assert starts_step(task, found)
    assert (found["listen"], found["max"]) == (":15017", 3)
    assert not found.given("rdzv_endpoint")
    # An etcd that people name is the store.
    found, _ = _under(settings_of(_ETCD), BATCH)
    assert not found.given("listen")
    # On one node there is nothing to start, unless it is asked for.
    for arguments, starts in (("", False), ("--slurm job", True), ("--requeue", True)):
        found, task = _under(settings_of(arguments), ALONE)
        assert starts_step(task, found) is starts


def test_elements_of_an_array_are_nodes_if_so_said(settings_of: SettingsOf) -> None:
    found, task = _under(settings_of(f"--slurm array {_ETCD}"), ELEMENT)
    assert (found["rdzv_id"], found["node_name"], found["max"]) == ("slurm-17", "element-3", 8)
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


_SWITCHES = {"SLURM_TOPOLOGY_ADDR": "s0.s4.n1", "SLURM_TOPOLOGY_ADDR_PATTERN": "switch.switch.node"}


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
    found, _ = _under(settings_of(), {**BATCH, **_SWITCHES})
    assert not found.given("node_topology")
    with pytest.raises(UsageError, match="--node-topology=z/r is about one node, and this batch"):
        _under(settings_of("--node-topology z/r"), BATCH)
    assert _under(settings_of("--node-topology z/r"), ALONE)[0]["node_topology"] == ("z", "r")


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1", "n1"),
        ("n[0-1]", "n0 n1"),
        ("n[08-10]", "n08 n09 n10"),
        ("n[1,3-4]", "n1 n3 n4"),
        ("gpu[1-2]-ib0", "gpu1-ib0 gpu2-ib0"),
        ("r[1-2]n[0-1]", "r1n0 r1n1 r2n0 r2n1"),
        ("login,n[0,2],a-b.example", "login n0 n2 a-b.example"),
        ("n[99-101]", "n99 n100 n101"),
    ],
)
def test_a_list_is_expanded(text: str, names: str) -> None:
    assert expand_hosts(text) == tuple(names.split())


@pytest.mark.parametrize("text", ["", "n[", "n[1-]", "n[a-b]", "n[3-1]", "n[]", "a,,b", "n]1["])
def test_what_is_no_list_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no list of hosts"):
        expand_hosts(text)
