"""The replay of an epoch counts what it says."""

from __future__ import annotations

from scripts.bench.samples import Count, Replay, compare, elastic, restarted, skipping


def test_samples_are_counted() -> None:
    assert Count.of("x", [0, 1, 1, 1, 4], size=6) == Count("x", repeated=2, never=3)


def test_ours_sees_each_sample_once_and_the_others_do_not() -> None:
    replay = Replay(size=1009, batch=8, worlds=(4, 3, 2, 4), steps=6, seed=1)
    assert sorted(elastic(replay)) == list(range(1009))
    first, second, ours = compare(replay)
    assert (first.repeated > 400, first.never) == (True, 0)
    assert second.never > 200
    assert (ours.repeated, ours.never) == (0, 0)


def test_without_changes_only_padding_is_repeated() -> None:
    replay = Replay(size=1009, batch=8, worlds=(4,), steps=6, seed=1)
    for run in (restarted, skipping):
        assert Count.of("", run(replay), 1009) == Count("", repeated=3, never=0)
