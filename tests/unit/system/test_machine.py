"""What a machine has, and what a control group leaves of it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from elastic_runtime.config import MemoryLimit
from elastic_runtime.system import machine

if TYPE_CHECKING:
    from pathlib import Path


def test_this_machine() -> None:
    assert 0 < machine.available_memory() <= machine.total_memory()
    assert machine.boot_id() == machine.boot_id() != ""


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with 1000 KiB, of which 600 are available, and a group in a group."""
    (tmp_path / "meminfo").write_text("MemTotal: 1000 kB\nMemAvailable: 600 kB\n")
    (tmp_path / "cgroup").write_text("0::/outer/inner\n")
    (tmp_path / "groups/outer/inner").mkdir(parents=True)
    monkeypatch.setattr(machine, "_MEMORY", tmp_path / "meminfo")
    monkeypatch.setattr(machine, "_OWN_GROUP", tmp_path / "cgroup")
    monkeypatch.setattr(machine, "_GROUPS", tmp_path / "groups")
    return tmp_path / "groups"


def limit(group: Path, most: str, used: int, cache: int) -> None:
    (group / "memory.max").write_text(f"{most}\n")
    (group / "memory.current").write_text(f"{used}\n")
    (group / "memory.stat").write_text(f"anon 5\ninactive_file {cache}\n")


def test_without_limits_all_of_it(groups: Path) -> None:
    limit(groups / "outer/inner", "max", 1000, 0)
    assert (machine.total_memory(), machine.available_memory()) == (1000 << 10, 600 << 10)


def test_the_narrowest_limit_counts(groups: Path) -> None:
    limit(groups / "outer", "400000", 350_000, 100_000)
    limit(groups / "outer/inner", "500000", 100_000, 0)
    assert (machine.total_memory(), machine.available_memory()) == (400_000, 150_000)
    limit(groups / "outer", "400000", 450_000, 0)
    assert machine.available_memory() == 0


def test_shares() -> None:
    assert MemoryLimit(share=0.25).within(1000) == 250
    assert MemoryLimit(bytes=70).within(1000) == 70
    assert MemoryLimit().within(1000) == 0


@pytest.mark.parametrize(
    ("ranks", "share"),
    [("", 1.0), ("1", 1.0), ("2", 0.5), ("1000", 0.0), ("0", 1.0), ("many", 1.0)],
)
def test_ranks_of_a_node_share_its_cores(
    ranks: str, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
    assert machine.own_cores() == max(1, int(len(os.sched_getaffinity(0)) * share))
