"""The examples of the documents, as they stand there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from torch.distributed import distributed_c10d

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
ELASTIC_RUN = ["-m", "elastic_runtime", "--nproc-per-node=2"]


def python_blocks(document: Path) -> list[str]:
    """The Python blocks of a document."""
    text = document.read_text()
    return re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def examples(document: str) -> dict[str, str]:
    """The Python blocks of a document, by the name of the file in their first line."""
    blocks = python_blocks(DOCS / document)
    named = [(re.match(r"# (\w+\.py)\n", block), block) for block in blocks]
    assert all(name for name, _ in named), f"an example of {document} has no name: nothing runs it"
    return {name[1]: block for name, block in named if name}


def run_example(document: str, name: str, folder: Path, *launcher: str) -> str:
    """What an example of a document prints."""
    return run(examples(document)[name], name, folder, *launcher)


def run(script: str, name: str, folder: Path, *launcher: str) -> str:
    """What a script prints that must end well."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(script)
    done = subprocess.run(
        [sys.executable, *launcher, name],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


# What each prints under elastic-run.
EXAMPLES = {
    "tutorial.md": {
        "plain.py": r"accuracy 0\.[89]\d",
        "restarts.py": r"accuracy 0\.[89]\d after 48 steps",
        "in_place.py": r"48 steps, the last of 2 workers",
        "tokens.py": r"8 steps",
    },
    "in-place.md": {
        "train.py": r"accuracy 0\.[89]\d after 48 steps",
        "gan.py": r"distance .* after 20 steps",
        "kept.py": r"20 steps",
        "typed.py": r"2 classes, best 0\.0",
    },
    "lightning.md": {
        "lightning_train.py": r"accuracy (?:0\.9\d|1\.00) after 48 steps",
        "own_order.py": r"\[9\d\.0, 9\d\.0, 9\d\.0\]",
        "lightning_restarts.py": r"48 steps",
        "fabric_train.py": r"48 steps",
    },
    "transformers.md": {
        "hf_train.py": r"loss [0-3]\.\d\d over 96 steps",
        "sft_train.py": r"18 steps",
    },
    "accelerate.md": {
        "accelerate_train.py": r"accuracy (?:0\.[89]\d|1\.00) after 48 steps",
        "accelerate_restart.py": r"48 steps",
    },
}


def test_no_document_has_examples_that_nothing_runs() -> None:
    shown = {path.name for path in DOCS.glob("*.md") if "```python\n" in path.read_text()}
    # data.md: integration/data
    assert shown == {
        *("accelerate.md", "checkpoints.md", "data.md", "in-place.md"),
        "torchtitan.md",  # integration/torchtitan
        *("lightning.md", "slow-networks.md", "transformers.md", "tutorial.md"),
    }


@pytest.mark.parametrize("document", EXAMPLES)
def test_all_examples_are_run(document: str) -> None:
    assert examples(document).keys() == EXAMPLES[document].keys()


@pytest.mark.parametrize(
    ("document", "name"), [(d, name) for d in EXAMPLES for name in EXAMPLES[d]]
)
def test_example(document: str, name: str, tmp_path: Path) -> None:
    text = run_example(document, name, tmp_path, *ELASTIC_RUN)
    found = re.findall(EXAMPLES[document][name], text)
    assert len(found) == 2 if document == "in-place.md" else found, text  # once on each rank
    if name == "train.py":  # again, in another world: nothing is left to do
        text = run_example(document, name, tmp_path)
        assert re.findall(EXAMPLES[document][name], text) == found[:1], text


def test_example_of_slow_networks(tmp_path: Path) -> None:
    assert examples("slow-networks.md").keys() == {"diloco_train.py"}
    result = r"accuracy (0\.9\d|1\.00) after 13 syncs and 128 inner steps"
    for launcher in (ELASTIC_RUN, []):  # the second time from the checkpoint
        text = run_example("slow-networks.md", "diloco_train.py", tmp_path, *launcher)
        assert len(re.findall(result, text)) == (2 if launcher else 1), text


CHECKPOINTS = ("train.py", "load.py")


def test_examples_of_checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert tuple(examples("checkpoints.md")) == CHECKPOINTS
    script, loads = CHECKPOINTS
    text = run_example("checkpoints.md", script, tmp_path, *ELASTIC_RUN)
    assert re.search(r"from step 0 to 60, best loss 0\.0\d", text), text
    monkeypatch.setenv("STEPS", "90")
    text = run_example("checkpoints.md", script, tmp_path)
    assert re.search(r"from step 60 to 90, best loss 0\.0\d", text), text
    text = run_example("checkpoints.md", loads, tmp_path)  # the newest of several
    assert re.search(r"step-90\.term-\d+: weights from 0\.9\d to 1\.\d\d", text), text


MADE_BEFORE = """
import torch

torch.manual_seed(1)
points = torch.randn(128, 8)
dataset = torch.utils.data.TensorDataset(points, (points.sum(dim=1) > 0).long())
model = torch.nn.Linear(8, 2)
optim = torch.optim.SGD(model.parameters(), lr=0.1)
schedule = torch.optim.lr_scheduler.StepLR(optim, 5)
accuracy = lambda model: float((model(points).argmax(1) == dataset.tensors[1]).float().mean())
"""


@pytest.mark.users_start
@pytest.mark.golden("the example of the README")
def test_the_example_of_the_readme_saves_its_last_step(tmp_path: Path) -> None:
    script = MADE_BEFORE + python_blocks(ROOT / "README.md")[-1]
    run(script, "train.py", tmp_path, *ELASTIC_RUN)
    saved = [found.parent.name for found in tmp_path.glob("runs/digits/*/MANIFEST.json")]
    assert "step-20" in [name.partition(".")[0] for name in saved], saved  # 10 epochs of 2


def test_symptoms_are_messages_of_the_code() -> None:
    table = (DOCS / "in-place.md").read_text().partition("## Troubleshooting")[2]
    symptoms = re.findall(r"^\| `([^`]+)`", table, re.MULTILINE)
    source = "".join(file.read_text() for file in (ROOT / "elastic_runtime").rglob("*.py"))
    source += Path(distributed_c10d.__file__).read_text()  # and torch's own of process groups
    source = re.sub(r'"\s*\n\s*f?"', "", source)  # a message over several lines
    assert len(symptoms) > 10
    assert [symptom for symptom in symptoms if symptom not in source] == []
