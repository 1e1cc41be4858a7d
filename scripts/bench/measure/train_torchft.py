"""The benchmark's job over a slow network, with torchft's ``DiLoCo``: one replica.

It runs with an interpreter that has torchft. What it notes is learned by wrapping two methods of
torchft's manager.
"""

from __future__ import annotations

import argparse
import os
import socket
from datetime import timedelta
from typing import Any

# torchft tells others to come to this machine's name; they are all on this machine.
socket.gethostname = lambda: "127.0.0.1"
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

import torch  # noqa: E402
from diloco_notes import (  # noqa: E402
    BEGIN,
    GIVEN_UP,
    INNER,
    OUTER,
    READY,
    Notes,
    inner_step,
    network,
)
from torchft import Manager, ProcessGroupGloo  # noqa: E402
from torchft.local_sgd import DiLoCo  # noqa: E402

# Shorter ones than torchft's own, as a user sets them who wants faults to cost little.
TIMEOUT = timedelta(seconds=5)
HEARTBEAT = timedelta(milliseconds=50)


def manager_of(model: torch.nn.Module, inner: torch.optim.Optimizer, name: str) -> tuple[Any, Any]:
    """torchft's manager of this replica, and the store that it needs."""

    def save() -> dict[str, Any]:
        return {"model": model.state_dict(), "inner": inner.state_dict()}

    def load(state: dict[str, Any]) -> None:
        model.load_state_dict(state["model"])
        inner.load_state_dict(state["inner"])

    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=TIMEOUT),
        load_state_dict=load,
        state_dict=save,
        min_replica_size=1,
        use_async_quorum=False,  # DiLoCo wants it so
        timeout=TIMEOUT,
        quorum_timeout=timedelta(minutes=10),
        connect_timeout=TIMEOUT,
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        lighthouse_addr=os.environ["TORCHFT_LIGHTHOUSE"],
        replica_id=name,
        hostname="127.0.0.1",
        heartbeat_interval=HEARTBEAT,
        init_sync=False,  # all begin with the same model
    )
    return manager, store


def main() -> None:
    """Trains until somebody ends it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--notes", required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--sync-every", type=int, required=True)
    parser.add_argument("--width", type=int, required=True)
    parser.add_argument("--pause", type=float, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)

    notes = Notes(args.notes)
    model = network(args.width)
    inner = torch.optim.AdamW(model.parameters(), lr=1e-3)
    outer = torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
    manager, _store = manager_of(model, inner, args.name)
    begin, decide = manager.start_quorum, manager.should_commit

    def noted_begin(*words: Any, **named: Any) -> None:
        begin(*words, **named)
        notes.add(BEGIN, manager.current_step())  # who takes part is known, and it begins

    def noted_decision(*words: Any, **named: Any) -> bool:
        committed = bool(decide(*words, **named))
        # Without a commit the parameters are those of the last one again.
        notes.add(*((OUTER, manager.current_step()) if committed else (GIVEN_UP, args.sync_every)))
        return committed

    manager.start_quorum, manager.should_commit = noted_begin, noted_decision
    with DiLoCo(manager, [model], inner, outer, sync_every=args.sync_every):
        notes.add(READY)
        while True:
            inner_step(model, inner, args.width, args.pause)  # with the outer one in a hook
            notes.add(INNER, manager.current_step())


if __name__ == "__main__":
    main()
