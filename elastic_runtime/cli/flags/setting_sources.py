"""Where each setting comes from: flag > ``PET_*`` > ``ELASTIC_*`` > file > place > default.

``read_settings`` is pure apart from reading the named file; every value keeps its source, so
that an error can name it.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elastic_runtime.cli.flags import value_types
from elastic_runtime.errors import UsageError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from elastic_runtime.cli.flags.flag_options import Option


class Level(IntEnum):
    """The rank of a source; the highest one that says something wins.

    PLACE is where the job runs: a job of Slurm's, or a list of hosts.
    """

    DEFAULT = 0
    PLACE = 1
    FILE = 2
    ELASTIC = 3
    PET = 4
    FLAG = 5


# Bytes; a settings file has some hundred, and a device never ends.
_LARGEST_FILE = 1 << 20
VARIABLES = {Level.PET: "PET_", Level.ELASTIC: "ELASTIC_"}


@dataclass(frozen=True)
class Setting:
    """One value and where it is from.

    Attributes:
        option: the option.
        value: as the option's type of value makes it.
        level: the rank of its source.
        source: for messages: ``--max``, ``PET_MAX`` or ``job.toml: max``.
        text: the value as it would be typed.
    """

    option: Option
    value: Any
    level: Level = Level.DEFAULT
    source: str = ""
    text: str = ""

    @property
    def given(self) -> bool:
        """Whether it was asked for."""
        return self.level > Level.DEFAULT

    def __str__(self) -> str:
        """As in ``PET_MAX=4``, for messages."""
        if self.level is Level.FLAG and (
            self.option.value_type is value_types.SWITCH or not self.text
        ):
            return self.source
        between = " = " if self.level is Level.FILE else "="
        plain = not any(char.isspace() for char in self.text)
        return f"{self.source}{between}{self.text if plain else repr(self.text)}"


@dataclass(frozen=True)
class Settings:
    """All settings, by dest."""

    by_dest: Mapping[str, Setting]

    def __getitem__(self, dest: str) -> Any:
        """The value of an option."""
        return self.by_dest[dest].value

    def __contains__(self, dest: str) -> bool:
        """Whether there is such an option."""
        return dest in self.by_dest

    def of(self, dest: str) -> Setting:
        """The setting with its source."""
        return self.by_dest[dest]

    def given(self, dest: str) -> bool:
        """Whether any source but the default says something about it.

        Args:
            dest: of an option of ours, or of one that some version of torchrun has.
        """
        return dest in self.by_dest and self.by_dest[dest].given

    def with_places(self, said: Mapping[str, tuple[str, str]]) -> Settings:
        """The settings, and where nobody has said anything, what follows from where the job runs.

        Args:
            said: by dest, the variable and the text of its value.
        """
        found = dict(self.by_dest)
        for dest, (variable, text) in said.items():
            if not found[dest].given:
                found[dest] = _setting(found[dest].option, Level.PLACE, variable, text)
        return Settings(found)

    def without(self, dests: Iterable[str]) -> Settings:
        """The settings, and of some options what counts if nobody says anything."""
        found = dict(self.by_dest)
        for dest in dests:
            if dest in found:  # not every torchrun has all of them
                found[dest] = Setting(found[dest].option, found[dest].option.default)
        return Settings(found)

    def as_flags(self, *, without: Iterable[str] = ()) -> list[str]:
        """The flags that would say the same from another directory and environment."""
        skipped = set(without)
        return [
            flag
            for dest, setting in self.by_dest.items()
            if setting.given and setting.option.flags and dest not in skipped
            for flag in _as_flags(setting)
        ]

    def as_variables(self, *, without: Iterable[str] = ()) -> dict[str, str]:
        """The variables that say what has no flag."""
        skipped = set(without)
        return {
            VARIABLES[Level.ELASTIC] + dest.upper(): setting.text
            for dest, setting in self.by_dest.items()
            if setting.given and not setting.option.flags and dest not in skipped
        }


def _as_flags(setting: Setting) -> list[str]:
    flag = setting.option.flags[0]
    if setting.option.value_type is value_types.SWITCH:
        return [flag] if setting.value else []
    # A value that looks like a flag must not be taken for one.
    plain = setting.text and not setting.text.startswith("-")
    return [flag, setting.text] if plain else [f"{flag}={setting.text}"]


def read_settings(
    options: Mapping[str, Option], flags: Mapping[str, str], environ: Mapping[str, str]
) -> Settings:
    """Finds the value of every option.

    Args:
        options: all options, by dest.
        flags: the text of those given on the command line, by dest.
        environ: the environment; an empty variable says nothing.

    Raises:
        UsageError: a value is not what its option takes, or the file cannot be used.
    """
    config = options["config"]
    named = _from_text(config, flags, environ)
    file = _read_file(named, options) if named else {}
    found: dict[str, Setting] = {}
    for dest, option in options.items():
        setting = named if option is config else _from_text(option, flags, environ)
        found[dest] = setting or file.get(dest) or Setting(option, option.default)
    return Settings(found)


def _from_text(
    option: Option, flags: Mapping[str, str], environ: Mapping[str, str]
) -> Setting | None:
    if option.dest in flags:
        return _setting(option, Level.FLAG, option.flags[0], flags[option.dest])
    for level, prefix in VARIABLES.items():
        for name in option.names:
            variable = prefix + name.upper()
            if text := environ.get(variable):
                return _setting(option, level, variable, text)
    return None


def _setting(option: Option, level: Level, source: str, text: str) -> Setting:
    try:
        value = option.value_type.read(text)
    except ValueError:
        said = _said(level, source, text)
        raise UsageError(f"{said} is not {option.value_type.what}") from None
    return Setting(option, value, level, source, text)


def _said(level: Level, source: str, text: Any) -> str:
    return f"{source} = {text!r}" if level is Level.FILE else f"{source}={text!r}"


def _read_file(config: Setting, options: Mapping[str, Option]) -> dict[str, Setting]:
    path = Path(config.value)
    try:
        with path.open("rb") as file:
            text = file.read(_LARGEST_FILE + 1)
        if len(text) > _LARGEST_FILE:
            size = f"more than {_LARGEST_FILE} bytes"
            raise UsageError(f"{config} is not a file of settings: it has {size}")
        table = tomllib.loads(text.decode())
    except OSError as error:
        raise UsageError(f"{config} cannot be read: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: not TOML: {error}") from None
    by_name = {name: o for o in options.values() if o.from_file for name in o.names}
    settings: dict[str, Setting] = {}
    for name, value in table.items():
        option = by_name.get(name.replace("-", "_"))
        if option is None and isinstance(value, dict):
            raise UsageError(f"{path}: [{name}] is a table; settings stand without one, at the top")
        if option is None:
            known = [name.replace("_", "-") for name in by_name]
            hint = did_you_mean(name.replace("_", "-"), known)
            raise UsageError(f"{path}: unknown key {name!r}{hint}")
        if option.dest in settings:
            raise UsageError(f"{path}: {name} repeats {settings[option.dest].source}: keep one")
        settings[option.dest] = _from_file(option, path, name, value)
    return settings


def _from_file(option: Option, path: Path, name: str, value: Any) -> Setting:
    source = f"{path}: {name}"
    try:
        made = option.value_type.from_toml(value)
    except ValueError:
        said = _said(Level.FILE, source, value)
        raise UsageError(f"{said} is not {option.value_type.what}") from None
    return Setting(option, made, Level.FILE, source, ",".join(_texts(value)))


def _texts(value: Any) -> Iterator[str]:
    for part in value if isinstance(value, list) else [value]:
        yield str(part).lower() if isinstance(part, bool) else str(part)
