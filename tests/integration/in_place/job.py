"""A job of real processes that train in place, what it notes, and how it is hurt."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tests import processes, zygote
from tests.integration.lost_errors import tell

if TYPE_CHECKING:
    from collections.abc import Callable

SCRIPTS = Path(__file__).with_name("scripts")
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "RES_OPTIONS": "timeout:1 attempts:1"}
PATIENCE = 90.0
ELASTIC_RUN = (sys.executable, "-m", "elastic_runtime")


class Note(NamedTuple):
    """A step that one rank has committed."""

    at: float
    pid: int
    node: str
    round: int
    rank: int
    size: int
    local_rank: int
    step: int


class Job:
    """One ``elastic-run`` that runs one of the scripts. At the end of ``with`` nothing is left.

    Args:
        folder: for notes, the log and checkpoints.
        script: one of ``scripts``.
        *options: of ``elastic-run``.
        kind: which kind of the script.
        seconds: length of a step.
        environ: more variables of its environment.
    """

    def __init__(
        self,
        folder: Path,
        script: str,
        *options: str,
        kind: str = "",
        seconds: float = 0.01,
        environ: dict[str, str] | None = None,
    ) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.mark = f"in-place-{uuid.uuid4().hex}"
        self._log = folder / "log"
        self._notes, self._events = _Lines(folder / "notes"), _Lines(self._log)
        self._script = str(SCRIPTS / script)
        words = ["--folder", str(folder), "--kind", kind, "--seconds", str(seconds)]
        command = [*ELASTIC_RUN, *options, str(SCRIPTS / script), *words]
        with self._log.open("ab") as log:
            self.process = zygote.start(
                command,
                env={**os.environ, **ENVIRONMENT, **(environ or {}), processes.MARKER: self.mark},
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def __enter__(self) -> Job:
        return self

    def __exit__(self, _: object, error: BaseException | None, *rest: object) -> None:
        processes.end(self.mark)
        self.process.wait()
        tell(error, self.log, self.story())

    # What is seen of it

    def said(self, what: str) -> list[dict[str, Any]]:
        """What the workers have noted under this name, in the order of time."""
        return [note for note in self._notes.read() if note["what"] == what]

    @staticmethod
    def read(folder: Path) -> list[dict[str, Any]]:
        """All that the workers of a script have noted in this folder."""
        return _Lines(folder / "notes").read()

    def steps(self) -> list[Note]:
        """All steps that all ranks have committed."""
        return [Note(**{f: note[f] for f in Note._fields}) for note in self.said("step")]

    def newest(self) -> dict[int, Note]:
        """The last step of each rank of the newest round that has made a step, by rank."""
        return _newest(self.steps())

    @property
    def step(self) -> int:
        """The furthest step."""
        return max((note.step for note in self.steps()), default=0)

    def events(self, name: str) -> list[dict[str, Any]]:
        """The events of this name that the agents have logged."""
        return [event for event in self._events.read() if event.get("event") == name]

    @property
    def log(self) -> str:
        """All that agents and workers have printed."""
        return self._log.read_text(errors="replace")

    def story(self) -> str:
        """The end of the log and of the notes, for messages."""
        notes = "\n".join(str(note) for note in self.steps()[-6:])
        return f"{self.log[-6000:]}\n{notes}"

    # What is waited for

    def wait(self, happened: Callable[[], Any], what: str, patience: float = PATIENCE) -> Any:
        """Waits until something is true, and returns it; fails if the job ends meanwhile."""

        def look() -> Any:
            ended = self.process.poll() is not None
            found = happened()
            assert found or not ended, f"it ended before {what}\n{self.story()}"
            return found

        return processes.wait_for(look, patience, what, self._stuck_story, pause=0.03)

    def _stuck_story(self) -> str:
        """The same, and where the workers are; they end with it."""
        said = len(self.log)
        processes.show_workers(self.mark, self._script)
        print(self.log[said:][:20_000])
        return self.story()

    def ranks(self, size: int, *, after: int = 0, more: int = 3) -> dict[int, Note]:
        """Waits until so many ranks have made steps together.

        Args:
            size: how many ranks.
            after: in a round after this one.
            more: how many steps in that round.

        Returns:
            The last step of each rank, by rank.
        """

        def together() -> dict[int, Note]:
            notes = self.steps()
            newest = _newest(notes)
            ready = len(newest) == size and all(
                note.size == size and note.round > after for note in newest.values()
            )
            if not ready:
                return {}
            number = newest[0].round
            made = sum(1 for note in notes if note.round == number and note.rank == 0)
            return newest if made >= more else {}

        found: dict[int, Note] = self.wait(together, f"{size} ranks after round {after}")
        return found

    def event(self, name: str, **fields: Any) -> dict[str, Any]:
        """Waits for an event with these fields."""

        def find() -> dict[str, Any]:
            for event in self.events(name):
                if fields.items() <= event.items():
                    return event
            return {}

        found: dict[str, Any] = self.wait(find, f"the event {name} {fields or ''}")
        return found

    # What is done to it

    def kill(self, *notes: Note, number: int = signal.SIGKILL) -> None:
        """A signal to the workers that have made these steps."""
        processes.send([note.pid for note in notes], number)

    def order(self, note: Note, what: str, seconds: float) -> None:
        """Has a worker sleep in the middle of a step, and waits until it does.

        Args:
            note: of the worker.
            what: ``sleep``, or ``busy``: it says that this is no hang.
            seconds: for so long.
        """
        begun = len(self.said(what))
        told = self.folder / "order"
        told.write_text(str(seconds))
        told.rename(self.folder / f"{what}-{note.pid}")
        self.wait(lambda: len(self.said(what)) > begun, f"{what} of {note}")

    def where(self) -> list[str]:
        """The options that find it."""
        words = shlex.split(self.event("job.join_command")["command"])
        at = words.index("--rdzv-endpoint")
        return words[at : at + 4]

    def join(self) -> subprocess.Popen[bytes]:
        """Starts another node, by the command that the job has shown."""
        command = shlex.split(self.event("job.join_command")["command"])
        environ = {**os.environ, **ENVIRONMENT, processes.MARKER: self.mark}
        with (self.folder / "joined").open("wb") as log:
            return zygote.start(
                command, env=environ, cwd=self.folder, stdout=log, stderr=subprocess.STDOUT
            )

    def nodes(self) -> dict[str, int]:
        """With ``--local-nodes``: the process of each node, by its name."""
        event = self.event("local.started")
        return dict(zip(event["nodes"], event["pids"], strict=True))

    def enough(self) -> None:
        """The workers are to end well."""
        (self.folder / "enough").touch()

    def end(self, patience: float = PATIENCE) -> int:
        """Waits for the end, and that nothing is left behind.

        Returns:
            The exit code.
        """
        code = processes.wait_for(
            lambda: None if (ended := self.process.poll()) is None else [ended],
            patience,
            "the end of the job",
            self.story,
        )[0]
        processes.wait_for(lambda: not processes.marked(self.mark), 10, "no process left")
        return int(code)

    def end_well(self) -> None:
        """Has the workers end well, and waits for it."""
        self.enough()
        assert self.end() == 0, self.story()

    def finish(self) -> None:
        """Ends it well, and checks what must always be true."""
        self.end_well()
        self.check()

    def check(self) -> None:
        """No step was lost that a survivor had committed, and all ranks ended alike."""
        rounds: dict[int, list[Note]] = {}
        for note in self.steps():
            rounds.setdefault(note.round, []).append(note)
        before: list[Note] = []
        for _, notes in sorted(rounds.items()):
            pids = {note.pid for note in notes}
            held = max((note.step for note in before if note.pid in pids), default=0)
            furthest = max((note.step for note in before), default=0)
            # A step may be committed and its worker end before it is noted.
            assert held < notes[0].step <= furthest + 3, f"{notes[0]} after step {held}"
            before = notes
        ends = {(note["step"], note["digest"]) for note in self.said("ended")}
        assert len(ends) == 1, ends


def _newest(notes: list[Note]) -> dict[int, Note]:
    number = max((note.round for note in notes), default=0)
    return {note.rank: note for note in notes if note.round == number}


class _Lines:
    """The objects of JSON among the lines of a file that grows; each line is read once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._place = 0
        self._found: list[dict[str, Any]] = []

    def read(self) -> list[dict[str, Any]]:
        """All that there is by now."""
        if self._path.exists():
            with self._path.open("rb") as file:
                file.seek(self._place)
                new = file.read()
            whole = new[: new.rfind(b"\n") + 1]
            self._place += len(whole)
            lines = whole.splitlines()
            self._found += [json.loads(n) for n in lines if n.startswith(b"{") and n.endswith(b"}")]
        return self._found
