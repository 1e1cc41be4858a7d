"""What a task of Slurm's learns from its environment."""

from __future__ import annotations

import pytest

from elastic_runtime.cli.slurm.slurm_task import SlurmTask, is_task, read_task
from elastic_runtime.errors import UsageError

# As Slurm 22.05 sets them for the second of three tasks.
STEP = {
    "SLURM_JOB_ID": "17",
    "SLURM_JOB_NAME": "train",
    "SLURM_JOB_NODELIST": "n[0-2]",
    "SLURM_JOB_NUM_NODES": "3",
    "SLURM_NODEID": "1",
    "SLURM_PROCID": "1",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NODELIST": "n[0-2]",
    "SLURM_STEP_NUM_TASKS": "3",
    "SLURM_STEP_TASKS_PER_NODE": "1(x3)",
    "SLURM_TASK_PID": "400",
    "SLURMD_NODENAME": "n1",
}
ELEMENT = {
    **STEP,
    "SLURM_JOB_ID": "21",
    "SLURM_JOB_NODELIST": "n2",
    "SLURM_JOB_NUM_NODES": "1",
    "SLURM_NODEID": "0",
    "SLURM_STEP_NODELIST": "n2",
    "SLURM_STEP_NUM_TASKS": "1",
    "SLURM_STEP_TASKS_PER_NODE": "1",
    "SLURMD_NODENAME": "n2",
    "SLURM_ARRAY_JOB_ID": "17",
    "SLURM_ARRAY_TASK_ID": "3",
    "SLURM_ARRAY_TASK_COUNT": "8",
    "SLURM_RESTART_COUNT": "2",
}


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
    batch = {name: value for name, value in STEP.items() if "STEP" not in name}
    task = read_task({**batch, "SLURM_NODEID": "0", "SLURMD_NODENAME": "n0"})
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


def test_what_is_typed_is_no_task_whatever_the_job_is_called() -> None:
    """salloc --job-name dev srun --pty bash."""
    shell = {**STEP, "SLURM_JOB_NAME": "dev", "SLURM_TASK_PID": "4"}
    assert not is_task(shell, pid=5, typed=True)
    assert is_task(shell, pid=5)
    assert is_task({**shell, "SLURM_TASK_PID": "5"}, pid=5, typed=True)  # srun --pty elastic-run


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
