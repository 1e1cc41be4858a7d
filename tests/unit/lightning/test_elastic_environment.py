"""Ranks are those of the moment, and nothing is compared with what was written."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastic_runtime.lightning.elastic_environment import ElasticEnvironment

if TYPE_CHECKING:
    import pytest


def test_ranks_are_asked_for_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    found = ElasticEnvironment()
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert (found.global_rank(), found.world_size()) == (1, 4)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert (found.global_rank(), found.world_size()) == (0, 2)
    found.validate_settings(8, 16)


def test_without_a_launcher_it_is_a_world_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    found = ElasticEnvironment()
    ranks = (found.global_rank(), found.world_size(), found.local_rank(), found.node_rank())
    assert ranks == (0, 1, 0, 0)
    assert found.main_address == "127.0.0.1"
    assert found.main_port == found.main_port > 0
