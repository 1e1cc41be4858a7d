"""The file of ``--accelerate-config``, and a hint for those who expect it to be read."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elastic_runtime.cli.flags.accelerate_config import accelerate_settings
from elastic_runtime.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from elastic_runtime.cli.flags.accelerate_config import AccelerateSettings
    from elastic_runtime.cli.flags.setting_sources import Setting
    from elastic_runtime.config import JobConfig

DEFAULT, NONE = "default", "none"
# Bytes; such a file has some hundred.
_LARGEST_FILE = 1 << 20
_USES_IT = re.compile(
    r"^\s*(?:from|import)\s+(?:elastic_runtime\.)?(?:accelerate|transformers|trl)\b", re.MULTILINE
)


def read_accelerate_file(
    given: Setting, config: JobConfig, environ: Mapping[str, str]
) -> AccelerateSettings | None:
    """What the option asks for.

    Args:
        given: the option.
        config: of the node.
        environ: says where accelerate keeps its own file.

    Returns:
        None if no file is to be read.

    Raises:
        UsageError: the file cannot be read, or elastic-run does not start what it is for.
    """
    if given.value in ("", NONE):
        return None
    path = default_path(environ) if given.value == DEFAULT else Path(given.value)
    try:
        nodes = range(config.min_nodes, config.max_nodes + 1)
        return accelerate_settings(_read(path), config.workers, nodes)
    except UsageError as error:
        where = f"{given} ({path})" if given.value == DEFAULT else str(given)
        raise UsageError(f"{where}: {error}") from None


def hint(given: Setting, script: str, environ: Mapping[str, str]) -> str:
    """What to say to those who have settings for accelerate, and have not asked for them.

    Args:
        given: the option.
        script: what is to run.
        environ: says where accelerate keeps its file, and whether its settings are there already.
    """
    path = default_path(environ)
    asked = given.given or any(name.startswith("ACCELERATE_") for name in environ)
    if asked or not path.is_file() or not _uses_accelerate(script):
        return ""
    return (
        f"the settings of accelerate config in {path} are not used; --accelerate-config default "
        "uses them, and --accelerate-config none says no more about it"
    )


def default_path(environ: Mapping[str, str]) -> Path:
    """Where ``accelerate config`` writes if it is not told."""
    cache = environ.get("XDG_CACHE_HOME") or "~/.cache"
    home = environ.get("HF_HOME") or f"{cache}/huggingface"
    return Path(home).expanduser() / "accelerate" / "default_config.yaml"


def _uses_accelerate(script: str) -> bool:
    try:
        with Path(script).open(errors="replace") as file:
            return _USES_IT.search(file.read(_LARGEST_FILE)) is not None
    except OSError:
        return False  # no file, but a module or a program


def _read(path: Path) -> Mapping[str, Any]:
    if path.exists() and not path.is_file():  # a pipe would be waited for
        raise UsageError("it is no file")
    try:
        with path.open("rb") as file:
            text = file.read(_LARGEST_FILE + 1)
    except OSError as error:
        why = f"it cannot be read: {error.strerror}; accelerate config writes such a file"
        raise UsageError(why) from None
    if len(text) > _LARGEST_FILE:
        raise UsageError("it is too large for a file of settings")
    try:
        import yaml
    except ImportError:
        raise UsageError(
            "reading it needs PyYAML; pip install 'elastic-runtime[accelerate]'"
        ) from None
    try:
        found = yaml.safe_load(text)
    # Dates and numbers that cannot be, and too many brackets, are other errors than YAML's.
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UsageError(f"it is no YAML: {' '.join(str(error).split())}") from None
    if not isinstance(found, dict):
        raise UsageError("it has no settings by name; accelerate config writes such a file")
    return found
