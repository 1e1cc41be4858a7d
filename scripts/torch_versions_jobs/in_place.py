"""A DDP script that trains in place: the survivor keeps its process and its memory."""

from __future__ import annotations

from diary import SAVE_EVERY, STEPS, Diary
from torch.nn.parallel import DistributedDataParallel
from training import adam, network, train_one

import elastic_runtime as elastic


def main() -> None:
    """Trains until all steps are done and the killed worker is replaced."""
    diary = Diary()
    model = network()
    optim = adam(model)
    state = elastic.State(model=model, optim=optim)
    state.checkpoints(diary.folder / "saved", every=f"{SAVE_EVERY} steps")

    def train(world: elastic.World) -> None:
        ddp = DistributedDataParallel(model, init_sync=False)
        diary.begins(state.step)
        # Not before both are there again: the end of the survivor alone would prove less.
        while state.step < STEPS or world.size < 2:
            train_one(ddp, optim, state.step)
            state.commit()
            diary.step(state.step)

    elastic.run(train, state)
    diary.ends(state.step, model.parameters(), optim)


if __name__ == "__main__":
    main()
