"""Fields of an object as users write it; each error names the path of its field."""

from __future__ import annotations

from typing import Any

import pytest

from elastic_runtime.controller.spec.field_reader import InvalidSpec, Section

SPEC = {
    "size": 3,
    "name": "one",
    "on": True,
    "list": ["a"],
    "inner": {"size": 4},
    "nothing": None,
}


def _section() -> Section:
    return Section.of({"spec": SPEC}, "spec")


def test_what_is_there_is_read() -> None:
    section = _section()
    assert section.path == "spec"
    assert section.whole("size") == 3
    assert section.text("name") == "one"
    assert section.switch("on") is True
    assert section.items("list") == ["a"]
    assert section.choice("name", ("one", "two")) == "one"
    inner = section.section("inner")
    assert (inner.path, inner.whole("size")) == ("spec.inner", 4)


@pytest.mark.parametrize("name", ["nothing", "absent"])
def test_a_field_that_is_null_is_one_that_is_not_there(name: str) -> None:
    section = _section()
    assert section.whole(name) is None
    assert section.text(name) == ""
    assert section.switch(name) is False
    assert section.items(name) == ()
    assert section.choice(name, ("a", "b"), "b") == "b"
    assert section.section(name, needed=False).values == {}


@pytest.mark.parametrize(
    ("read", "error"),
    [
        (lambda s: s.section("absent"), "spec.absent: it is missing"),
        (lambda s: s.section("size"), "spec.size: 3 is not an object"),
        (lambda s: s.section("inner").text("size"), "spec.inner.size: 4 is not a text"),
        (lambda s: s.whole("on"), "spec.on: True is not a whole number"),
        (lambda s: s.whole("name"), "spec.name: 'one' is not a whole number"),
        (lambda s: s.whole("size", least=4), "spec.size: 3 is less than 4"),
        (lambda s: s.whole("size", most=2), "spec.size: 3 is more than 2"),
        (lambda s: s.switch("size"), "spec.size: 3 is neither true nor false"),
        (lambda s: s.items("name"), "spec.name: 'one' is not a list"),
        (lambda s: s.choice("name", ("a", "b")), "'one' is not known: it is one of a, b"),
        (lambda s: s.choice("absent", ("a", "b")), "None is not known: it is one of a, b"),
    ],
)
def test_what_does_not_fit_is_named_by_its_path(read: Any, error: str) -> None:
    with pytest.raises(InvalidSpec, match=r"^spec\.") as raised:
        read(_section())
    assert str(raised.value).endswith(error)
    assert str(raised.value) == f"{raised.value.field}: {raised.value.why}"
