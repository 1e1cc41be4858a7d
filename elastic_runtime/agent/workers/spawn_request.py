"""What a worker is started with: its request, its descriptors, and the way of its output."""

from __future__ import annotations

import mmap
import multiprocessing.spawn
import os
import pickle
from functools import partial
from string import Template
from typing import TYPE_CHECKING, Any

from elastic_runtime.agent.logs.worker_output import Filter, Stream, route
from elastic_runtime.agent.workers.fork_client import (
    environment_without_secrets,
    is_homeless,
    working_directory,
)
from elastic_runtime.config import FUNCTION, SCRIPT
from elastic_runtime.errors import UsageError
from elastic_runtime.reporting.json_lines import WORKER_LINE, LineEvents
from elastic_runtime.system import torch_private

if TYPE_CHECKING:
    from collections.abc import Mapping

    from elastic_runtime.agent.logs.worker_files import LogWriter
    from elastic_runtime.agent.workers.fork_server import Frame
    from elastic_runtime.agent.workers.roster import WorkerSpec
    from elastic_runtime.config import JobConfig
    from elastic_runtime.reporting.console import Console

DEFAULT_PREFIX = "[${role_name}${rank}]:"


class SpawnRequests:
    """Prepares the starts of workers.

    A function, its arguments and its return value travel as pickles through memory that this
    process shares with its own workers only.

    Args:
        config: the settings.
        consoles: where ``stdout`` and ``stderr`` are shown.
        logs: writes the log files.
        stdin: descriptor of what the first worker reads.
    """

    def __init__(
        self, config: JobConfig, consoles: Mapping[str, Console], logs: LogWriter, stdin: int
    ) -> None:
        self._config = config
        self._stdin = stdin
        self._logs = logs
        self._consoles = consoles
        self._payload: int | None = None
        self._results: dict[int, int] = {}

    def prepare(self, spec: WorkerSpec) -> tuple[Frame, list[int], list[Stream]]:
        """Opens all that a worker needs.

        Returns:
            The request to the fork server, the descriptors that go with it and are to be closed
            then, and the streams that are to be read.

        Raises:
            UsageError: the function cannot be sent, or the script is gone together with the
                working directory.
        """
        config = self._config
        self._look_for_script()
        if spec.worker_dir.logged:
            self._logs.call(spec.worker_dir.make)
        request: Frame = {
            "op": "start",
            "args": [],
            "env": environment_without_secrets(config, spec.env),
            "cwd": working_directory(),
            "cpus": None,
        }
        if config.numa_binding:
            request["cpus"] = self._processors(spec.local_rank)
        streams: list[Stream] = []
        descriptors = [self._input(spec.local_rank)]
        descriptors += [self._open(spec, name, streams) for name in ("stdout", "stderr")]
        if config.entry.kind == FUNCTION:
            descriptors += [os.dup(self._function()), os.dup(self._result_of(spec.local_rank))]
        else:
            request["args"] = [
                Template(str(arg)).safe_substitute(local_rank=spec.local_rank)
                for arg in config.entry.args
            ]
        return request, descriptors, streams

    def return_value(self, local_rank: int) -> Any:
        """What the function returned in the last worker of this local rank; None if nothing."""
        descriptor = self._results.get(local_rank)
        if descriptor is None or os.fstat(descriptor).st_size == 0:
            return None
        with mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) as value:
            return pickle.loads(value)

    def close(self) -> None:
        """Gives the shared memory back."""
        for descriptor in (self._payload, *self._results.values()):
            if descriptor is not None:
                os.close(descriptor)
        self._payload, self._results = None, {}

    def _processors(self, local_rank: int) -> list[int]:
        mode = self._config.numa_binding
        try:
            return torch_private.numa_cpus(local_rank, mode)
        except Exception as error:  # torch asks the driver and the kernel, and trusts both
            raise UsageError(
                f"--numa-binding={mode}: torch does not find the processors near the GPU of local "
                f"rank {local_rank} ({type(error).__name__}: {error}); leave it out"
            ) from None

    def _look_for_script(self) -> None:
        """Tells what is wrong before a worker looks for its script in a directory that is gone."""
        entry = self._config.entry
        if entry.kind == SCRIPT and not os.path.isabs(entry.target) and is_homeless():
            raise UsageError(
                f"the working directory was removed while the job ran, and {entry.target} with it:"
                " no worker can be started again; start the job in a directory that stays"
            )

    def _input(self, local_rank: int) -> int:
        """Opens what a worker's standard input is to be: the first one has that of the agent.

        A function has none, as with ``multiprocessing``. In the background of a terminal no worker
        has one: the kernel would not stop a worker that reads there, as it is in a session of its
        own, and what is typed for the shell would be lost to it.
        """
        kind = self._config.entry.kind
        if local_rank == 0 and kind != FUNCTION and not _is_in_background(self._stdin):
            return os.dup(self._stdin)
        return os.open(os.devnull, os.O_RDONLY)

    def _open(self, spec: WorkerSpec, name: str, streams: list[Stream]) -> int:
        """Opens what a worker's standard output or error is to be."""
        output = self._config.output
        way = route(output, spec.local_rank, name)
        file = self._logs.open(partial(spec.worker_dir.log, name)) if way.file else None
        if not way.console and file is None:
            return os.open(os.devnull, os.O_WRONLY)
        needles = output.stdout_filters if name == "stdout" else output.stderr_filters
        chosen = None
        if way.file and needles and output.shows(spec.local_rank):
            selected = self._logs.open(partial(spec.worker_dir.filtered, name))
            chosen = Filter(tuple(needle.encode() for needle in needles), selected)
        reading, writing = os.pipe()
        prefix = self.prefix(spec.local_rank, spec.global_rank)
        console = self._consoles[name] if way.console else None
        events = self._events(spec, name)
        streams.append(Stream(reading, prefix, console, file, chosen, events))
        return writing

    def _events(self, spec: WorkerSpec, stream: str) -> LineEvents | None:
        """What makes events of a worker's lines, where a program reads the agent's.

        That is standard error; standard output as well, if both lead to the same worker_dir.
        """
        if not self._consoles[stream].only_events:
            return None
        ranks = {"rank": spec.global_rank, "local_rank": spec.local_rank}
        node = self._config.node_name
        return LineEvents(WORKER_LINE, {"node": node, **ranks, "stream": stream})

    def prefix(self, local_rank: int, rank: int) -> bytes:
        """What is put before each line of a worker's.

        Args:
            local_rank, rank: the worker.
        """
        template = Template(self._config.output.prefix or DEFAULT_PREFIX)
        names = {"role_name": self._config.role, "rank": rank, "local_rank": local_rank}
        return template.safe_substitute(names).encode()

    def _function(self) -> int:
        """Memory that holds the pickled function; made once, for all workers and all rounds."""
        if self._payload is None:
            entry = self._config.entry
            try:
                call = pickle.dumps((entry.function, entry.args))
            except (pickle.PicklingError, AttributeError, TypeError) as error:
                raise UsageError(
                    f"{entry.name} and its arguments cannot be sent to the workers ({error}): use"
                    " a function at the top level of a module, and arguments that can be pickled"
                ) from None
            preparation = multiprocessing.spawn.get_preparation_data("worker")
            preparation["authkey"] = bytes(preparation["authkey"])
            self._payload = os.memfd_create("elastic-function")
            with open(self._payload, "wb", closefd=False) as stream:
                pickle.dump((preparation, call), stream)
        return self._payload

    def _result_of(self, local_rank: int) -> int:
        """Fresh memory for a worker's return value."""
        old = self._results.pop(local_rank, None)
        if old is not None:
            os.close(old)
        self._results[local_rank] = os.memfd_create("elastic-result")
        return self._results[local_rank]


def _is_in_background(descriptor: int) -> bool:
    """Whether this process would be stopped if it read from there."""
    try:
        return os.tcgetpgrp(descriptor) != os.getpgrp()
    except OSError:  # no terminal, or not the one that controls this process
        return False
