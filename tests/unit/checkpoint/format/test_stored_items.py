"""Contents of which all places are known."""

from __future__ import annotations

from elastic_runtime.checkpoint.format.stored_items import Known, StoredValue


def test_all_is_found_whatever_is_asked_for() -> None:
    stored = {"a": StoredValue("rank-0.distcp")}
    assert Known(stored).find({}) == Known(stored).stored == stored
    assert not StoredValue().file, "nobody has asked where it is"
