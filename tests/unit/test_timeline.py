"""The picture of a fault: each step where it was, and in words for those who cannot see it."""

from __future__ import annotations

from xml.etree import ElementTree

from scripts.timeline import Step, Story, draw

SVG = "{http://www.w3.org/2000/svg}"


def steps(round: int, workers: tuple[int, ...], numbers: range, began: float) -> list[Step]:
    """Steps of 25 ms, one after the other."""
    return [
        Step(worker, round, n, began + i * 0.025, began + (i + 1) * 0.025)
        for i, n in enumerate(numbers)
        for worker in workers
    ]


STORY = Story(
    (
        *steps(1, (0, 1, 2), range(1, 6), -0.135),
        *steps(2, (0, 2), range(6, 16), 0.05),
        *steps(3, (0, 1, 2), range(16, 22), 0.35),
    ),
    back=0.04,
)


def test_each_step_is_in_the_picture() -> None:
    picture = ElementTree.fromstring(draw(STORY))
    numbers = [int(e.text or 0) for e in picture.iter(f"{SVG}text") if e.get("class") == "number"]
    assert sorted(set(numbers)) == list(range(1, 22))
    assert [numbers.count(n) for n in (1, 6, 16)] == [3, 2, 3]


def test_the_picture_says_what_the_fault_cost() -> None:
    picture = ElementTree.fromstring(draw(STORY))
    said = picture.findtext(f"{SVG}desc") or ""
    assert "85 ms after the last step" in said  # from -10 ms to 75 ms
    assert "75 ms pass from one step to the next" in said
    words = [element.text for element in picture.iter(f"{SVG}text")]
    assert "85 ms without a step" in words
