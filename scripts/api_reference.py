#!/usr/bin/env python3
"""Makes docs/api.md from the docstrings of the public names.

    .venv/bin/python scripts/api_reference.py

With --check it writes nothing, and ends with 1 if the file is not what it would write.
"""

from __future__ import annotations

import logging
import re
import sys
from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING

import griffe

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "api.md"

HEAD = """# API reference

What `import elastic_runtime as elastic` offers. This page is made from the docstrings by
`scripts/api_reference.py`; change them, not it. Times are in seconds and sizes in bytes where
nothing else is said.
"""

# What each part is about, and its names with those members that scripts call. Other members that
# have no underscore are for the runtime's own parts.
PARTS: dict[str, dict[str, tuple[str, ...]]] = {
    "Training": {
        "run": (),
        "State": (
            "step",
            "world",
            "stopped",
            "checkpoints",
            "at",
            "commit",
            "save",
            "stop",
            "resumed",
        ),
        "World": (),
        "busy": (),
        "ddp": (),
    },
    "Slow networks": {
        "DiLoCo": ("inner_steps", "step", "sync"),
        "LocalSGD": (),
    },
    "Checkpoints": {
        "load": (),
        "PerRank": (),
    },
    "Data": {
        "DataLoader": ("steps", "remaining", "go_to", "state_dict", "load_state_dict"),
        "data.steps.TrainingStep": ("weight", "weights", "backward", "total", "mean_loss"),
        "ShardedStream": ("steps", "state_dict", "load_state_dict"),
        "sample_rng": (),
    },
    "Lightning": {
        "lightning.ElasticStrategy": (),
        "lightning.ElasticCallback": (),
        "lightning.ElasticEnvironment": (),
    },
    "Hugging Face": {
        "transformers.ElasticTrainer": (),
        "transformers.ElasticMixin": ("train",),
        "transformers.ElasticOptions": (),
    },
    "Accelerate": {
        "accelerate.fresh_accelerator": (),
        "accelerate.ElasticAccelerator": ("prepare", "backward", "gather"),
    },
    "torchtitan": {
        "torchtitan.elastic": (),
        "torchtitan.elastic_dataloader": (),
        "torchtitan.ElasticTrainer": (),
        "torchtitan.ElasticMixin": ("global_batch",),
        "torchtitan.ElasticCheckpointManager": (),
    },
    "Starting a job from Python": {
        "launch": (),
        "JobConfig": ("with_",),
        "Entry": (),
        "Endpoint": (),
        "config.Timeouts": (),
        "config.Output": (),
        "config.MemoryLimit": (),
        "config.Tls": (),
    },
    "Errors": {"CheckpointError": ()},
}
GUIDES = {
    "Training": "tutorial.md",
    "Slow networks": "slow-networks.md",
    "Checkpoints": "checkpoints.md",
    "Data": "data.md",
    "Lightning": "lightning.md",
    "Hugging Face": "transformers.md",
    "Accelerate": "accelerate.md",
    "torchtitan": "torchtitan.md",
    "Starting a job from Python": "cli.md",
    "Errors": "operations.md#exit-codes",
}
TITLES = {
    griffe.DocstringSectionKind.parameters: "Arguments",
    griffe.DocstringSectionKind.attributes: "Attributes",
    griffe.DocstringSectionKind.raises: "Raises",
}
LONGEST = 90


def page() -> str:
    """The whole file."""
    package = griffe.load("elastic_runtime", search_paths=[str(ROOT)], docstring_parser="google")
    assert isinstance(package, griffe.Module)
    public = {str(name) for name in package.exports or ()} - {"__version__"}
    told = {name for names in PARTS.values() for name in names if "." not in name}
    if public != told:
        sys.exit(f"PARTS of {__file__} and __all__ differ: {sorted(public ^ told)}")
    places = _places(package)
    lines = [HEAD]
    for part, names in PARTS.items():
        links = " · ".join(f"[`{name}`](#{_anchor(name)})" for name in names)
        lines.append(f"- [{part}](#{_anchor(part)}): {links}")
    for part, names in PARTS.items():
        guide = GUIDES[part]
        lines.append(f"\n## {part}\n\nThe guide: [{guide.partition('#')[0]}]({guide}).")
        if part == "Errors":
            lines += ["", *_text(package["errors"].docstring.value)]
        for name, members in names.items():
            thing = package[places.get(name, name)]
            lines += ["", *_entry(f"### {name}", name, thing)]
            for member in members:
                title = f"#### {name}.{member}"
                lines += ["", *_entry(title, member, thing.all_members[member])]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip("\n") + "\n"


def _places(package: griffe.Module) -> dict[str, str]:
    """Where each public name is defined, as __init__ imports it for type checkers."""
    prefix = f"{package.name}."
    return {
        name: member.target_path.removeprefix(prefix)
        for name, member in package.members.items()
        if member.is_alias
    }


def _anchor(title: str) -> str:
    return title.lower().replace(" ", "-").replace(".", "")


def _entry(title: str, name: str, thing: griffe.Object) -> Iterator[str]:
    yield title
    signatures = list(_signatures(name, thing))
    if signatures:
        yield from ("", "```py", *signatures, "```")
    yield ""
    if thing.docstring is not None:
        yield from _docstring(thing.docstring)
    init = thing.members.get("__init__")
    if init is not None and init.docstring is not None:
        yield ""
        yield from _docstring(init.docstring)


def _signatures(name: str, thing: griffe.Object) -> Iterator[str]:
    if isinstance(thing, griffe.Function):
        if any(str(decorator.value) == "contextmanager" for decorator in thing.decorators):
            name = f"with {name}"
            yield from _signature(name, list(thing.parameters), ":")
            return
        for one in thing.overloads or [thing]:
            yield from _signature(name, list(one.parameters), f" -> {one.returns or None}")
    elif isinstance(thing, griffe.Class) and not name.endswith("Error"):
        yield from _signature(name, list(thing.parameters), "")
    elif isinstance(thing, griffe.Attribute):
        yield f"{name}: {thing.annotation}"


def _signature(name: str, parameters: list[griffe.Parameter], end: str) -> list[str]:
    words, starred = [], False
    for parameter in parameters:
        if parameter.name == "self":
            continue
        if parameter.kind is griffe.ParameterKind.keyword_only and not starred:
            starred = True
            words.append("*")
        if parameter.kind is griffe.ParameterKind.var_positional:
            starred = True
        words.append(_parameter(parameter))
    line = f"{name}({', '.join(words)}){end}"
    if len(line) <= LONGEST:
        return [line]
    return [f"{name}(", *(f"    {word}," for word in words), f"){end}"]


def _parameter(parameter: griffe.Parameter) -> str:
    stars = {
        griffe.ParameterKind.var_positional: "*",
        griffe.ParameterKind.var_keyword: "**",
    }.get(parameter.kind, "")
    shown = stars + parameter.name
    if parameter.annotation is not None:
        shown += f": {parameter.annotation}"
    if parameter.default is not None and not stars:
        shown += f" = {parameter.default}" if parameter.annotation else f"={parameter.default}"
    return shown


def _docstring(docstring: griffe.Docstring) -> Iterator[str]:
    first = True
    for section in docstring.parsed:
        if not first:
            yield ""
        first = False
        if section.kind is griffe.DocstringSectionKind.text:
            yield from _text(section.value)
        elif section.kind is griffe.DocstringSectionKind.returns:
            said = " ".join(item.description for item in section.value)
            yield f"**Returns:** {_inline(said)}"
        else:
            yield f"**{TITLES[section.kind]}:**\n"
            for item in section.value:
                name = getattr(item, "name", "") or str(item.annotation)
                if name.endswith(","):  # "min_nodes, max_nodes: ..." is two names, and no type
                    name += f" {item.annotation}"
                yield f"- `{name}`: {_inline(item.description)}"


def _text(text: str) -> Iterator[str]:
    """Paragraphs as they are; what is indented after a double colon as a block."""
    for paragraphs in re.split(r"(?<=::)\n\n((?:    .*\n|\n)+)", text + "\n"):
        if paragraphs.startswith("    "):
            language = "" if "├" in paragraphs else "py"
            yield from (f"\n```{language}", dedent(paragraphs).strip("\n"), "```\n")
        else:
            plain = re.sub(r"\n*^::$", "", paragraphs.strip("\n"), flags=re.MULTILINE)
            plain = re.sub(r"::$", ":", plain).replace("``", "`")
            yield from (plain,) if plain else ()


def _inline(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip().replace("``", "`")


def main() -> None:
    """Writes the page, or compares it."""
    logging.getLogger("griffe").setLevel(logging.ERROR)  # it minds "rank, world: ..."
    made = page()
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(made)
    elif not PAGE.exists() or PAGE.read_text() != made:
        sys.exit(f"{PAGE.relative_to(ROOT)} is out of date: run scripts/api_reference.py")


if __name__ == "__main__":
    main()
