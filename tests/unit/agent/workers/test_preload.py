"""What is imported ahead, and what must not be."""

from __future__ import annotations

import gc
import sys
from typing import TYPE_CHECKING

import pytest

from elastic_runtime.agent.workers import preload

if TYPE_CHECKING:
    from pathlib import Path


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def found(root: Path, script: str = "train.py") -> list[str]:
    return list(preload.imports_of(root / script, root))


def test_installed_modules_at_the_top(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "train.py": "import numpy as np, json\n"
            "from sklearn import datasets, nothing_of_this_name\n"
            "from concurrent.futures import ThreadPoolExecutor\n"
            "import no_such_distribution\n"
            "def main():\n    import pickle\n"
            "if __name__ == '__main__':\n    import csv\n"
        },
    )
    assert found(tmp_path) == ["numpy", "json", "sklearn", "sklearn.datasets", "concurrent.futures"]


def test_own_modules_are_read_but_not_imported(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "train.py": "import model\nfrom package import part\nfrom package.deep import thing\n",
            "model.py": "import numpy\nimport train\nraise SystemExit\n",
            "package/__init__.py": "",
            "package/part.py": "from . import sibling\nfrom .deep import thing\n",
            "package/sibling.py": "import json\n",
            "package/deep/__init__.py": "from ..other import x\n",
            "package/other.py": "import pickle\n",
        },
    )
    assert sorted(found(tmp_path)) == ["json", "numpy", "pickle"]
    assert "model" not in sys.modules


def test_own_modules_hide_installed_ones(tmp_path: Path) -> None:
    write(tmp_path, {"train.py": "import numpy\n", "numpy.py": "import json\n"})
    assert found(tmp_path) == ["json"]


@pytest.mark.parametrize(
    "text", ["def f(:", "\0", "import " + "(" * 5000, "# -*- coding: none -*-"]
)
def test_what_cannot_be_parsed_is_left_to_the_worker(tmp_path: Path, text: str) -> None:
    write(tmp_path, {"train.py": text})
    assert found(tmp_path) == []


def test_what_a_package_imports_when_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As transformers: its parts are imported with the first name that is taken of them.
    package = tmp_path / "site" / "lazy_of_this_test"
    asked = (
        "from importlib import import_module\n"
        "def __getattr__(name):\n    return import_module('lazy_of_this_test.heavy')\n"
    )
    write(package, {"__init__.py": asked, "heavy.py": ""})
    monkeypatch.syspath_prepend(str(package.parent))
    monkeypatch.setattr(preload, "_places", lambda: [str(package.parent)])
    monkeypatch.setattr(preload, "ALWAYS", ())
    monkeypatch.setattr(preload, "_canary", lambda: "")
    monkeypatch.setattr(gc, "freeze", lambda: None)
    write(tmp_path, {"train.py": "from lazy_of_this_test import Trainer, nothing\n"})
    done = preload.preload(str(tmp_path / "train.py"), str(tmp_path), ())
    assert done.modules == ("lazy_of_this_test",)
    assert "lazy_of_this_test.heavy" in sys.modules


def test_adapters_are_imported_as_a_whole(tmp_path: Path) -> None:
    write(tmp_path, {"train.py": "from elastic_runtime.transformers import ElasticTrainer\n"})
    assert "elastic_runtime.transformers" in found(tmp_path)
    write(tmp_path, {"train.py": "import elastic_runtime as elastic\n"})
    assert "elastic_runtime.transformers" not in found(tmp_path)


def test_what_does_not_survive_a_fork_is_not_imported(tmp_path: Path) -> None:
    write(tmp_path, {"train.py": "import grpc\nfrom grpc import aio\nimport json\n"})
    assert found(tmp_path) == ["json"]


def test_our_own_worker_parts_and_never_the_agent(tmp_path: Path) -> None:
    write(tmp_path, {"train.py": "import elastic_runtime as elastic\n"})
    names = found(tmp_path)
    assert "elastic_runtime.checkpoint.checkpointer" in names
    assert not [name for name in names if ".agent" in name or ".rendezvous" in name]


def test_a_module_is_found_without_importing_its_package(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "pack/__init__.py": "raise SystemExit",
            "pack/__main__.py": "",
            "pack/train.py": "",
            "single.py": "",
        },
    )
    assert preload.source_of("pack.train", tmp_path) == tmp_path / "pack" / "train.py"
    assert preload.source_of("pack", tmp_path) == tmp_path / "pack" / "__main__.py"
    assert preload.source_of("single", tmp_path) == tmp_path / "single.py"
    assert preload.source_of("pack.none", tmp_path) is None
    assert preload.source_of("single.none", tmp_path) is None
    assert preload.source_of("no_such_module", tmp_path) is None


def test_a_neighbour_that_a_fork_would_not_find(tmp_path: Path) -> None:
    write(tmp_path, {"json.py": "", "data.py": "", "torch/__init__.py": "", "numpy/notes.txt": ""})
    loaded = ["json", "torch.nn", "numpy", "__main__"]
    assert preload.shadows(tmp_path, loaded) == {"json.py", "torch"}
    assert preload.shadows(tmp_path / "nowhere", loaded) == set()


def test_what_is_installed() -> None:
    assert preload.is_installed("numpy.linalg")
    assert preload.is_installed("os")
    assert not preload.is_installed("tests")
    assert not preload.is_installed("no_such_distribution")


def test_nothing_is_collected_during_the_imports_and_again_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "watches_the_collector.py").write_text("import gc\nWAS_ON = gc.isenabled()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(preload, "ALWAYS", ())
    for question in ("_unfit", "_canary"):
        monkeypatch.setattr(preload, question, lambda *_: "")
    done = preload.preload("", str(tmp_path), ("watches_the_collector", "no_such_module"))
    gc.unfreeze()
    assert done.modules == ("watches_the_collector",)
    assert sys.modules.pop("watches_the_collector").WAS_ON is False
    assert gc.isenabled()
