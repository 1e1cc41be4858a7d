"""What Slurm says about this node, as settings: below all that people say themselves. Pure.

In an allocation the nodes of the step are those of the job. In an array that is one job, each
element is a node; whether it is one only the user knows, as most arrays are many jobs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastic_runtime.cli.slurm.slurm_task import is_task, read_task
from elastic_runtime.errors import UsageError
from elastic_runtime.reporting.json_lines import CONSOLE
from elastic_runtime.topology import topology_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from elastic_runtime.cli.flags.setting_sources import Settings
    from elastic_runtime.cli.slurm.slurm_task import SlurmTask

AUTO, JOB, ARRAY, OFF = "auto", "job", "array", "off"
# Above the ports of services, below those that clients get by themselves (as of Linux).
_FIRST_PORT, _PORTS, _APART = 15000, 10000, 1009
# Seconds in which the nodes of an allocation, which start at once, are waited for.
_ALL_HERE = 60
# Slurm's own (--signal) beside those that end any agent.
_SIGNALS = "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1,SIGUSR2"

Said = tuple[str, str]  # the variable, and the text of the value


def slurm_settings(
    task: SlurmTask, how: str, *, endpoint: bool, host_of: Callable[[str], str]
) -> dict[str, Said]:
    """The settings of a node that is a task of Slurm's, by dest, each with where it is from.

    Args:
        task: what its environment says.
        how: ``array``: the elements of the array are the nodes of one job; else those of the step.
        endpoint: people have named a store.
        host_of: where a node of Slurm's is reached.

    Raises:
        UsageError: such a task cannot be a node.
    """
    if task.tasks_here > 1:
        raise UsageError(
            f"srun has started {task.tasks_here} tasks on {task.node}: elastic-run starts the "
            "workers of a node itself (--nproc-per-node), so give srun --ntasks-per-node=1"
        )
    said = _of_array(task, endpoint) if how == ARRAY else _of_step(task, endpoint, host_of)
    # Whoever is queued again, or starts late, has nothing left to do once the run is done. What is
    # printed goes to a file that people read.
    if task.in_step and task.topology:  # a batch script is on one of the nodes, and starts all
        said["node_topology"] = ("SLURM_TOPOLOGY_ADDR", topology_text(task.topology))
    return {
        **said,
        "log_format": ("SLURM_JOB_ID", CONSOLE),
        "signals_to_handle": ("SLURM_JOB_ID", _SIGNALS),
        "once": ("SLURM_JOB_ID", "1"),
        "patient": ("SLURM_JOB_ID", "1"),
    }


def run_of(job: str, step: int = 0) -> str:
    """The run id of a job, or of one that is an array; further steps have one of their own."""
    return f"slurm-{job}.{step}" if step else f"slurm-{job}"


def port_of(job: int, step: int = 0) -> int:
    """Where the store of a job listens on the node that hosts it; steps may run side by side."""
    return _FIRST_PORT + (job + step * _APART) % _PORTS


def _of_array(task: SlurmTask, endpoint: bool) -> dict[str, Said]:
    if not task.array:
        raise UsageError("SLURM_ARRAY_JOB_ID is not set, so this is no array")
    if task.job_nodes > 1:
        raise UsageError(
            f"each element is one node of the job, and this one has {task.job_nodes}"
            ": give sbatch --nodes=1"
        )
    if not endpoint:
        raise UsageError(
            "any element may start first, or be the only one, so none can host "
            "the store: name an etcd with --rdzv-endpoint"
        )
    return {
        "rdzv_id": ("SLURM_ARRAY_JOB_ID", run_of(str(task.array))),
        "node_name": ("SLURM_ARRAY_TASK_ID", f"element-{task.index}"),
        "max": ("SLURM_ARRAY_TASK_COUNT", str(task.elements)),
    }


def _of_step(task: SlurmTask, endpoint: bool, host_of: Callable[[str], str]) -> dict[str, Said]:
    said = {
        "rdzv_id": ("SLURM_JOB_ID", run_of(str(task.job), task.step)),
        "node_name": ("SLURMD_NODENAME", task.node),
    }
    if len(task.nodes) == 1:
        return said
    said |= {
        "max": ("SLURM_JOB_NODELIST", str(len(task.nodes))),
        "last_call": ("SLURM_JOB_NODELIST", str(_ALL_HERE)),
    }
    if endpoint:
        return said
    if not task.in_step:  # it starts the nodes, and hosts their store
        return {**said, "listen": ("SLURM_JOB_ID", f":{port_of(task.job)}")}
    first = f"{host_of(task.nodes[0])}:{port_of(task.job, task.step)}"
    return {**said, "rdzv_endpoint": ("SLURM_JOB_NODELIST", f"c10d://{first}")}


def under_slurm(
    settings: Settings,
    environ: Mapping[str, str],
    pid: int,
    host_of: Callable[[str], str],
    *,
    typed: bool = False,
) -> tuple[Settings, SlurmTask | None]:
    """The settings of a process with what Slurm says of it, and which task it is.

    Args:
        settings: what people say; ``--slurm`` says whether and how Slurm is asked.
        environ: the environment of the process.
        pid: its id.
        host_of: where a node of Slurm's is reached.
        typed: its input is a terminal.

    Returns:
        The settings as they are and None, if it is no task of Slurm's or is not to be one.

    Raises:
        UsageError: such a task cannot be a node, or this is none although ``--slurm`` says so.
    """
    asked = settings.of("slurm")
    how = str(asked.value)
    alone = settings["standalone"] or settings["local_nodes"] > 1
    if how == OFF or (how == AUTO and (alone or not is_task(environ, pid, typed=typed))):
        return settings, None
    try:
        task = read_task(environ)
        where = settings.of("node_topology")
        if where.given and not task.in_step and task.job_nodes > 1:
            raise UsageError(
                f"{where} is about one node, and this batch script starts {task.job_nodes}: leave "
                "it out, or have a file on each say it (--node-topology-file)"
            )
        endpoint = settings.given("rdzv_backend") or settings.given("rdzv_endpoint")
        said = slurm_settings(task, how, endpoint=endpoint, host_of=host_of)
        if settings.given("node_topology_file"):
            said.pop("node_topology", None)
    except UsageError as error:
        raise UsageError(f"{asked}: {error}" if asked.given else str(error)) from None
    return settings.with_places(said), task


def no_task(settings: Settings, environ: Mapping[str, str]) -> list[str]:
    """What to tell who types a command in a shell of Slurm's, and may mean the nodes of its job."""
    job, nodes = environ.get("SLURM_JOB_ID"), environ.get("SLURM_JOB_NUM_NODES", "1")
    alone = settings["standalone"] or settings["local_nodes"] > 1
    if not job or settings["slurm"] != AUTO or alone or nodes == "1":
        return []
    srun = "srun --ntasks-per-node=1 --no-kill --kill-on-bad-exit=0"
    said = f"this is a shell of Slurm's job {job}, whose {nodes} nodes are not used"
    return [f"{said}: {srun} elastic-run … starts a node on each"]


def starts_step(task: SlurmTask, settings: Settings) -> bool:
    """Whether a process is the batch script that starts the nodes, and none of them itself."""
    asked = settings.given("slurm") or settings["requeue"]
    return not task.in_step and (task.job_nodes > 1 or asked)
