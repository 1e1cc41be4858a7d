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
    parts = {"model": model, "optim": optim}
    ckpt = elastic.Checkpointer(diary.folder / "saved", parts, every=f"{SAVE_EVERY} steps")
    state = elastic.State(**parts)

    def train(world: elastic.World) -> None:
        ddp = DistributedDataParallel(model, init_sync=False)
        diary.begins(state.step)
        # Not before both are there again: the end of the survivor alone would prove less.
        while state.step < STEPS or world.size < 2:
            train_one(ddp, optim, state.step)
            state.commit()
            diary.step(state.step)
        ckpt.save()

    elastic.run(train, state, checkpointer=ckpt)
    diary.ends(state.step, model.parameters(), optim)


if __name__ == "__main__":
    main()
