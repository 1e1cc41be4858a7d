"""The benchmark's job once more, in place: survivors of a fault keep their process and memory."""

from __future__ import annotations

import argparse
import time

from torch.nn.parallel import DistributedDataParallel
from workload import BATCH, Points, StepLog, hold_ballast, network, train_one

import elastic_runtime as elastic


def main() -> None:
    """Trains until ``--steps`` are done or somebody ends it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--notes", required=True, help="directory for the logs of steps")
    parser.add_argument("--checkpoint", help="not used: the state is in the ranks' memory")
    parser.add_argument("--steps", type=int, default=1 << 30)
    args = parser.parse_args()
    hold_ballast()

    model, optim = network()
    points = Points(1 << 16)
    loader = elastic.DataLoader(points, BATCH, num_workers=2)
    state = elastic.State(model=model, optim=optim, loader=loader)

    def train(world: elastic.World) -> None:
        ddp = DistributedDataParallel(model, init_sync=False)
        log = StepLog(args.notes, first_step=state.step)
        for step in loader.steps(steps=args.steps):
            for batch in step:
                train_one(ddp, optim, batch, weight=step.weight)
            number, at = state.step, time.monotonic_ns()
            try:
                state.commit()
            finally:
                # Also where the world changes here. A step that a fault undoes before its commit
                # is not lost: it never counted.
                log.completed(number, at)

    elastic.run(train, state)


if __name__ == "__main__":
    main()
