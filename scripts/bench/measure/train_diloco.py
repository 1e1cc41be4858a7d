"""The benchmark's job over a slow network, with ``elastic.DiLoCo``."""

from __future__ import annotations

import argparse
import copy

import torch
from diloco_notes import BEGIN, GIVEN_UP, INNER, OUTER, READY, Notes, inner_step, network

import elastic_runtime as elastic


def main() -> None:
    """Trains until somebody ends it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--notes", required=True)
    parser.add_argument("--sync-every", type=int, required=True)
    parser.add_argument("--width", type=int, required=True)
    parser.add_argument("--pause", type=float, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)

    model = network(args.width)
    replica = copy.deepcopy(model)
    inner = torch.optim.AdamW(replica.parameters(), lr=1e-3)
    outer = torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
    state = elastic.State(model=model, outer=outer)
    diloco = elastic.DiLoCo(state, replica, inner=inner, outer=outer, sync_every=args.sync_every)
    notes = Notes(args.notes)
    made = at = 0  # inner steps of this process since the sync that was the at-th one

    def train(world: elastic.World) -> None:
        nonlocal made, at
        notes.add(READY, world.size)
        if state.step == at and diloco.inner_steps < made:
            notes.add(GIVEN_UP, made - diloco.inner_steps)
        while True:
            inner_step(replica, inner, args.width, args.pause)
            if diloco.inner_steps == args.sync_every - 1:
                notes.add(BEGIN, state.step)
            made, at = diloco.inner_steps + 1, state.step
            if diloco.step():
                notes.add(OUTER, state.step)
            notes.add(INNER, state.step)

    elastic.run(train, state)


if __name__ == "__main__":
    main()
