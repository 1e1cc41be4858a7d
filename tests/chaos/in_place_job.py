"""The job of the chaos test in place: its history shows whether every step was done once.

It trains a small perceptron on made points. Each process appends what it does to a history of its
own, one JSON object a line (``tests/model/history.py`` says what they mean); a line is one write,
so that a history is whole wherever its process was killed.

It does what a test asks of one of its processes at a place of the next step; see ``Orders``.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import time
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Dataset

import elastic_runtime as elastic
from tests.chaos.faulty_disk import SlowFiles

BATCH = 8
# Three samples remain for the last step of an epoch: one of four ranks gets none.
SAMPLES = 12 * BATCH + 3
_SEED = 3
_FEATURES = 6
_TALE = 1 << 31


class Points(Dataset[tuple[int, torch.Tensor, torch.Tensor]]):
    """A smooth function of six numbers, with the index of each sample."""

    def __init__(self) -> None:
        made = torch.Generator().manual_seed(_SEED)
        self._inputs = torch.randn(SAMPLES, _FEATURES, generator=made, dtype=torch.float64)
        self._targets = torch.sin(self._inputs.sum(1, keepdim=True))

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor, torch.Tensor]:
        return index, self._inputs[index], self._targets[index]


def loader_of(**options: Any) -> elastic.DataLoader:
    """The samples in the order of the job."""
    return elastic.DataLoader(Points(), BATCH, seed=_SEED, **options)


def network() -> tuple[nn.Module, torch.optim.Adam]:
    """The perceptron and its optimizer, as every process starts with them."""
    torch.manual_seed(_SEED)
    model = nn.Sequential(nn.Linear(_FEATURES, 16), nn.Tanh(), nn.Linear(16, 1)).double()
    return model, torch.optim.Adam(model.parameters(), lr=1e-3, eps=1e-4)


def learn(model: nn.Module, optim: torch.optim.Optimizer, batch: Any, scale: float = 1.0) -> Any:
    """One step of training, up to the commit; returns this rank's part of the loss."""
    _, inputs, targets = batch
    loss = nn.functional.mse_loss(model(inputs), targets) * scale
    optim.zero_grad()
    loss.backward()
    optim.step()
    return loss.detach()


def tale_after(tale: int, indices: int) -> int:
    """What a script's own counter becomes with a step.

    Args:
        tale: what it was.
        indices: of all samples of the step, summed up.
    """
    return (31 * tale + indices + 1) % _TALE


def digest(model: nn.Module, optim: torch.optim.Optimizer) -> int:
    """A number for the bytes of all parameters and of Adam's state."""
    number = 0
    for param in model.parameters():
        # By name: who has loaded them may have them in another order.
        slots = sorted(optim.state.get(param, {}).items())
        for tensor in (param, *(slot for _, slot in slots)):
            number = zlib.crc32(tensor.detach().numpy().tobytes(), number)
    return number


class History:
    """What this process does, appended to a file of its own."""

    def __init__(self, directory: Path) -> None:
        born = time.monotonic_ns()
        self.name = f"{os.getpid()}-{born}"
        mode = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
        self._file = os.open(directory / self.name, mode, 0o600)
        self.write("born", pid=os.getpid(), mark=os.environ.get("ELASTIC_TEST_MARK", ""))

    def write(self, what: str, **fields: Any) -> None:
        """Notes something with the time, in one write."""
        line = {"what": what, "at": time.monotonic_ns(), **fields}
        os.write(self._file, f"{json.dumps(line)}\n".encode())


class Orders:
    """What a test asks of this process: a file named after its pid.

    It holds the place in a step where something is to be done, and what: ``hang``, ``die``, or
    ``error`` and a text: to die while the error file holds just that. It is noted before it is
    done. A file ``slow`` holds the seconds by which the next process begins later.

    Args:
        directory: of the files.
        history: of this process.
    """

    def __init__(self, directory: Path, history: History) -> None:
        self._directory, self._history = directory, history
        self._mine = directory / str(os.getpid())

    def come_late(self) -> None:
        """Waits before it begins, if it is the one to be slow."""
        claimed = self._directory / f"slow-{os.getpid()}"
        with suppress(FileNotFoundError):
            (self._directory / "slow").rename(claimed)
            time.sleep(float(claimed.read_text()))

    def obey(self, place: str) -> None:
        """Does what is asked for at this place, if anything is."""
        if not self._mine.exists():
            return
        where, what, *rest = json.loads(self._mine.read_text())
        if where != place:
            return
        self._mine.unlink()
        self._history.write("struck", kind="killed")
        if what == "hang":
            while True:
                time.sleep(60.0)
        if what == "error":
            Path(os.environ["TORCHELASTIC_ERROR_FILE"]).write_text(rest[0])
        os.kill(os.getpid(), signal.SIGKILL)


class Trainer:
    """The training loop, noted step by step.

    Args:
        history: where it is noted.
        orders: what a test asks for meanwhile.
        goal: a file that will hold the number of steps to make, once that is known.
        seconds: what a step takes beyond its work, about.
        shadow: whether an optimizer's step can be undone; then a counter of the script follows
            it, after a collective.
    """

    def __init__(
        self, history: History, orders: Orders, goal: Path, seconds: float, *, shadow: bool
    ) -> None:
        self.model, self.optim = network()
        self._history, self._orders, self._goal = history, orders, goal
        self._seconds = seconds
        self._draw = random.Random(history.name)
        self._loader = loader_of(num_workers=2)
        self.state = elastic.State(
            shadow=shadow, model=self.model, optim=self.optim, loader=self._loader, tale=0
        )
        self._tells = shadow

    def train(self, world: elastic.World) -> None:
        """Trains with these ranks until the goal is reached or the world changes."""
        state, note = self.state, self._history.write
        place = {"round": world.round, "rank": world.rank, "world": world.size}
        note("entered", **self._held(), **place)
        try:
            # Several small buckets, so that faults come between them.
            ddp = DistributedDataParallel(self.model, init_sync=False, bucket_cap_mb=0.0005)
            if self._reached():
                return
            for step in self._loader.steps():
                for batch in step:
                    self._step(ddp, batch, step.weight, world.round)
                if self._reached():
                    break
        finally:
            note("left", round=world.round, step=state.step)

    def _step(self, ddp: nn.Module, batch: Any, scale: float, number: int) -> None:
        state, note = self.state, self._history.write
        step = state.step + 1
        # A rank without a share takes a sample of another rank, with no weight.
        samples = batch[0].tolist() if scale else []
        note("begun", round=number, step=step, samples=samples)
        # Ranks come late, each at its time: so faults find them in every place, also between the
        # optimizer and the commit.
        time.sleep(self._draw.random() * self._seconds)
        self._orders.obey("before")
        learn(ddp, self.optim, batch, scale)
        time.sleep(self._draw.random() * self._seconds)
        self._orders.obey("between")
        indices = torch.tensor(sum(samples))
        dist.all_reduce(indices)
        if self._tells:
            state.tale = tale_after(state.tale, int(indices))
        try:
            state.commit()
        finally:
            if state.step == step:  # also where the round ends with this commit
                note("committed", round=number, **self._held())

    def _held(self) -> dict[str, int]:
        held = digest(self.model, self.optim)
        return {"step": self.state.step, "digest": held, "tale": self.state.tale}

    def _reached(self) -> bool:
        # Written once, and so far ahead that all ranks have seen it when they get there.
        return self._goal.exists() and self.state.step >= int(self._goal.read_text())


def main() -> None:
    """Trains until the goal and saves the weights."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=0.02, help="length of a step")
    parser.add_argument("--save-every", default="", help="nothing: no checkpoints")
    parser.add_argument("--shadow", action="store_true")
    args = parser.parse_args()

    folder: Path = args.folder
    history = History(folder / "histories")
    orders = Orders(folder / "orders", history)
    orders.come_late()
    trainer = Trainer(history, orders, folder / "goal", args.seconds, shadow=args.shadow)
    if args.save_every:
        SlowFiles(folder / "checkpoints", folder / "trouble", args.seconds)
        # How long a disk stays broken depends on how busy the machine is.
        trainer.state.checkpoints(
            folder / "checkpoints", every=args.save_every, keep=3, max_age="1h"
        )
    elastic.run(trainer.train, trainer.state)
    torch.save(trainer.model.state_dict(), folder / "weights" / f"{history.name}.pt")
    history.write("ended", step=trainer.state.step)


if __name__ == "__main__":
    main()
