"""``--accelerate-config``: which file is read, and who is told that there is one."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from elastic_runtime.cli.run.accelerate_file import default_path, hint, read_accelerate_file
from elastic_runtime.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from elastic_runtime.cli.flags.setting_sources import Setting
    from tests.unit.cli.conftest import SettingsOf

CONFIG: Any = SimpleNamespace(workers=1, min_nodes=1, max_nodes=1)
TEXT = "distributed_type: 'NO'\nmixed_precision: bf16\nnum_processes: 1\n"


def asked(settings_of: SettingsOf, what: str) -> Setting:
    return settings_of(f"--accelerate-config {what}" if what else "").of("accelerate_config")


def test_nothing_is_read_unless_it_is_asked_for(settings_of: SettingsOf) -> None:
    for what in ("", "none"):
        assert read_accelerate_file(asked(settings_of, what), CONFIG, {}) is None


@pytest.mark.parametrize("suffix", ["yaml", "json"])
def test_a_file_that_is_named(settings_of: SettingsOf, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"c.{suffix}"
    path.write_text(TEXT if suffix == "yaml" else '{"mixed_precision": "bf16"}')
    found = read_accelerate_file(asked(settings_of, str(path)), CONFIG, {})
    assert found is not None and found.environ["ACCELERATE_MIXED_PRECISION"] == "bf16"
    assert not found.notes


@pytest.mark.parametrize(
    ("variable", "below"), [("HF_HOME", ""), ("XDG_CACHE_HOME", "huggingface"), ("HOME", "")]
)
def test_the_file_of_the_user(
    settings_of: SettingsOf,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    variable: str,
    below: str,
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    environ = {variable: str(tmp_path)}
    where = tmp_path / (".cache/huggingface" if variable == "HOME" else below) / "accelerate"
    assert default_path(environ) == where / "default_config.yaml"
    where.mkdir(parents=True)
    default_path(environ).write_text(TEXT)
    assert read_accelerate_file(asked(settings_of, "default"), CONFIG, environ)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (None, "cannot be read: No such file"),
        ("a: [1", "it is no YAML"),
        ("", "it has no settings"),
        ("- 1", "it has no settings"),
        ("x" * (1 << 21), "too large"),
        ("distributed_type: DEEPSPEED", "does not set up DeepSpeed"),
        ("a: 2020-13-45", "it is no YAML"),
        ("[" * 5000, "it is no YAML"),
        ("!!python/object/apply:os.system ['true']", "it is no YAML"),
    ],
)
def test_bad_files_are_named(
    settings_of: SettingsOf, tmp_path: Path, text: str | None, why: str
) -> None:
    path = tmp_path / "c.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UsageError, match=rf"--accelerate-config=\S*c\.yaml: .*{why}"):
        read_accelerate_file(asked(settings_of, str(path)), CONFIG, {})


def test_a_pipe_is_not_waited_for(settings_of: SettingsOf, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="it is no file"):
        read_accelerate_file(asked(settings_of, str(tmp_path / "pipe")), CONFIG, {})


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("from accelerate import Accelerator", True),
        ("import transformers", True),
        ("from elastic_runtime.accelerate import fresh_accelerator", True),
        ("from elastic_runtime import State", False),
        ("# import accelerate", False),
    ],
)
def test_who_has_settings_and_does_not_ask_for_them_is_told(
    settings_of: SettingsOf, tmp_path: Path, line: str, told: bool
) -> None:
    environ = {"HF_HOME": str(tmp_path)}
    script = tmp_path / "train.py"
    script.write_text(f"import os\n{line}\n")
    assert not hint(asked(settings_of, ""), str(script), environ)  # there are none
    default_path(environ).parent.mkdir()
    default_path(environ).write_text(TEXT)
    said = hint(asked(settings_of, ""), str(script), environ)
    assert ("--accelerate-config default uses them" in said) is told
    assert not hint(asked(settings_of, "none"), str(script), environ)
    assert not hint(asked(settings_of, ""), "module.name", environ)
    with_some = {**environ, "ACCELERATE_MIXED_PRECISION": "no"}
    assert not hint(asked(settings_of, ""), str(script), with_some)
