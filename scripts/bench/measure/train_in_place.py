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
    sampler = elastic.ElasticBatchSampler(len(points), BATCH)
    state = elastic.State(model=model, optim=optim, sampler=sampler)
    loader = elastic.loader(points, sampler, num_workers=2)

    def train(world: elastic.World) -> None:
        ddp = DistributedDataParallel(model, init_sync=False)
        log = StepLog(args.notes, first_step=state.step)
        while state.step < args.steps:
            for batch in loader:
                train_one(ddp, optim, batch)
                step, at = state.step, time.monotonic_ns()
                try:
                    state.commit()
                finally:
                    # Also where the world changes here. A step that a fault undoes before its
                    # commit is not lost: it never counted.
                    log.completed(step, at)
                if state.step == args.steps:
                    break

    elastic.run(train, state)


if __name__ == "__main__":
    main()
