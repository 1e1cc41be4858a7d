"""No snapshot is taken that does not fit, and it is said why."""

from __future__ import annotations

from dataclasses import replace

from elastic_runtime.checkpoint.snapshot.memory_budget import NodeMemory, memory_refusal
from elastic_runtime.reporting.wording import size

MIB = 1 << 20
NODE = NodeMemory(
    node="n0",
    machine="m0",
    needed=100 * MIB,
    beside=50 * MIB,
    kept=100 * MIB,
    limit=200 * MIB,
    free=1000 * MIB,
    available=1000 * MIB,
    total=2000 * MIB,
)


def kind(*nodes: NodeMemory) -> str:
    found = memory_refusal(nodes)
    return found.kind if found else ""


def test_it_fits() -> None:
    assert not kind(NODE)
    assert not kind(*[replace(NODE, machine=f"m{n}") for n in range(50)])


def test_the_one_before_is_kept_and_counts() -> None:
    found = memory_refusal([replace(NODE, kept=101 * MIB)])
    assert found is not None
    assert found.kind == "limit"
    assert "--snapshot-memory is 200 MiB; give it 201 MiB" in found.text


def test_nodes_of_one_machine_share_its_memory() -> None:
    assert not kind(*[replace(NODE, node=f"n{n}") for n in range(6)])
    # 7 x (100 + 50) MiB is more than what is available, 11 x 100 MiB more than is free.
    assert kind(*[replace(NODE, node=f"n{n}") for n in range(7)]) == "memory"
    assert kind(*[replace(NODE, node=f"n{n}") for n in range(11)]) == "tmpfs"


def test_a_part_of_the_memory_is_left_to_others() -> None:
    assert not kind(replace(NODE, available=250 * MIB))
    assert kind(replace(NODE, available=249 * MIB)) == "memory"


def test_a_small_tmpfs_is_told_how_to_grow() -> None:
    found = memory_refusal([replace(NODE, free=64 * MIB)])
    assert found is not None
    assert "/dev/shm has 64 MiB left" in found.text
    assert "--shm-size" in found.text


def test_sizes_for_people() -> None:
    sizes = [0, 1023, 1536, 999 * MIB, 1000 * MIB, 5 << 40]
    expected = ["0 bytes", "1023 bytes", "1.5 KiB", "999 MiB", "0.977 GiB", "5 TiB"]
    assert [size(count) for count in sizes] == expected


def test_what_is_told_is_json() -> None:
    assert NodeMemory(*NODE.encode()) == NODE
