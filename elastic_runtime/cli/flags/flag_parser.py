"""The parser of ``elastic-run``: torchrun's, with the options of ``flag_options`` added.

Only the splitting of the command line is argparse's here. Environment, file and defaults are
read in ``setting_sources`` for all options alike; therefore every default is suppressed, and values
stay text until their source is known.
"""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from elastic_runtime import __version__
from elastic_runtime.cli.flags import value_types
from elastic_runtime.cli.flags.flag_options import (
    OURS,
    TORCHRUN_ALIASES,
    TORCHRUN_DEFAULTS,
    TORCHRUN_HELP,
    TORCHRUN_TYPES,
    Option,
)
from elastic_runtime.cli.flags.torchrun_parser import torchrun_parser
from elastic_runtime.errors import UsageError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_DESCRIPTION = """\
Trains a PyTorch script on nodes that may fail, leave and join. All of torchrun's options and
scripts work as they are. For each option: flag > PET_<NAME> > ELASTIC_<NAME> > file > default."""

_EPILOG = """\
examples:
  elastic-run --min 1 --max 4 train.py --epochs 3
  elastic-run --local-nodes 3 train.py
  elastic-run --min 2 --max 8 --rdzv-endpoint etcd://h1,h2,h3/team --run-id r7 train.py

exit codes: 0 done, 1 training failed, 2 usage, 3 not enough nodes in time,
            4 store unreachable, 5 left on request, 6 a defect"""

# What follows --listen and is its address: a port says so, and so do digits. A name alone could be
# the script; --listen=NAME makes it clear.
_ADDRESS = re.compile(
    r"([\w.-]*|\[[0-9a-fA-F:.]+\]|\*):\d+|\d{1,3}(\.\d{1,3}){3}|\[[0-9a-fA-F:.]+\]|localhost|\*"
)

# Options that no script has of its own. Behind the script they are its arguments, as with torchrun.
_NEVER_A_SCRIPTS = (
    *("--local-nodes", "--nnodes", "--nproc-per-node", "--standalone"),
    *("--rdzv-endpoint", "--rdzv-backend", "--rdzv-id", "--rdzv-conf"),
)

# The completion that it prints is that of the command torchrun, and would replace it (torch 2.14).
_TORCHRUNS_ALONE = "--print-completion"

# How argparse says it.
_SWITCH_WITH_VALUE = re.compile(r"argument (\S+): ignored explicit argument '(.*)'")
_NO_VALUE = re.compile(r"argument (\S+): expected one argument")


@dataclass(frozen=True)
class CommandLine:
    """A command line, split.

    Attributes:
        given: the text of each option that was given, by its dest; switches are "1".
        script: the script, module or program.
        args: everything after it, as it was typed.
    """

    given: Mapping[str, str]
    script: str
    args: tuple[str, ...]


class Parser:
    """Splits command lines of ``elastic-run``."""

    def __init__(self) -> None:
        self._parser = _Argparse(
            prog="elastic-run",
            usage="elastic-run [options] script [arguments of the script …]",
            description=_DESCRIPTION,
            epilog=_EPILOG,
            formatter_class=_Formatter,
            parents=[_without(torchrun_parser(), _TORCHRUNS_ALONE)],
            conflict_handler="resolve",
            argument_default=argparse.SUPPRESS,
        )
        theirs = _adopt(self._parser)
        _add(self._parser, OURS)
        self.options: dict[str, Option] = {o.dest: o for o in (*OURS, *theirs)}

    def split(self, argv: Sequence[str]) -> CommandLine:
        """Splits a command line (without the program's name).

        Raises:
            UsageError: an unknown or incomplete option, or no script.
            SystemExit: after ``--help`` or ``--version``.
        """
        found = vars(self._parser.parse_args(_with_listen_value(argv)))
        script, rest = found.pop("training_script"), found.pop("training_script_args")
        given = {dest: _text(value) for dest, value in found.items()}
        # From the original, since _with_listen_value may have touched what is the script's.
        return CommandLine(given, script, tuple(argv[len(argv) - len(rest) :]))

    def help(self) -> str:
        """What ``--help`` prints."""
        return self._parser.format_help()


def misplaced(line: CommandLine) -> list[str]:
    """What there is to say about options of ours that stand behind the script, one line each."""
    typed = {word.partition("=")[0].replace("_", "-") for word in line.args}
    return [
        f"{flag} stands after {line.script} and is an argument of it; elastic-run's own options "
        "stand before the script"
        for flag in _NEVER_A_SCRIPTS
        if flag in typed
    ]


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(value)
    return "1" if value is True else str(value)


def _with_listen_value(argv: Sequence[str]) -> list[str]:
    """Gives a bare ``--listen`` its empty value.

    argparse's own optional values would take the script for the address.
    """
    following = (*argv[1:], "")
    return [
        "--listen=" if token == "--listen" and not _is_address(after) else token
        for token, after in zip(argv, following, strict=False)
    ]


def _is_address(token: str) -> bool:
    return _ADDRESS.fullmatch(token) is not None


def _without(parser: argparse.ArgumentParser, flag: str) -> argparse.ArgumentParser:
    """A parser without one of its options, if it has it."""
    action = parser._option_string_actions.get(flag)
    if action is not None:
        for spelling in action.option_strings:
            del parser._option_string_actions[spelling]
        action.container._remove_action(action)  # type: ignore[attr-defined]
    return parser


def _adopt(parser: argparse.ArgumentParser) -> list[Option]:
    """Takes the checking and the defaults out of torchrun's actions and returns them as options."""
    options = []
    for action in parser._actions:
        if not action.option_strings or isinstance(action, argparse._HelpAction):
            continue
        options.append(_as_option(action))
        action.type, action.choices, action.default = None, None, argparse.SUPPRESS
        action.help = TORCHRUN_HELP.get(action.dest, action.help)
    parser.add_argument(
        "--run-id", "--run_id", dest="rdzv_id", metavar="RUN_ID", help="the same as --rdzv-id"
    )
    parser.add_argument("--version", action="version", version=f"elastic-run {__version__}")
    return options


def _as_option(action: argparse.Action) -> Option:
    value_type = TORCHRUN_TYPES.get(action.dest)
    if value_type is None:
        value_type = _value_type_of(action)
    default = TORCHRUN_DEFAULTS.get(action.dest, action.default)
    if isinstance(default, str):
        default = value_type.read(default) if default else None
    return Option(
        dest=action.dest,
        value_type=value_type,
        default=default,
        flags=tuple(sorted(action.option_strings, key=lambda flag: not flag.startswith("--"))),
        aliases=TORCHRUN_ALIASES.get(action.dest, ()),
    )


def _value_type_of(action: argparse.Action) -> value_types.ValueType:
    if action.nargs == 0:
        return value_types.SWITCH
    if action.choices:
        return value_types.choice(*action.choices)
    known: dict[Callable[[str], Any] | str | None, value_types.ValueType] = {
        int: value_types.WHOLE,
        float: value_types.NUMBER,
    }
    return known.get(action.type, value_types.TEXT)


def _add(parser: argparse.ArgumentParser, options: Sequence[Option]) -> None:
    groups: dict[str, Any] = {}
    for option in (one for one in options if one.flags):
        group = groups.get(option.group)
        if group is None:
            group = groups[option.group] = parser.add_argument_group(option.group)
        if option.value_type is value_types.SWITCH:
            group.add_argument(
                *option.flags, dest=option.dest, action="store_true", help=option.help
            )
        else:
            group.add_argument(
                *option.flags,
                dest=option.dest,
                action="append" if option.value_type.many else "store",
                metavar=option.metavar,
                help=option.help,
            )


class _Argparse(argparse.ArgumentParser):
    """argparse with errors of one line, and with our groups before torchrun's in the help."""

    def error(self, message: str) -> NoReturn:
        if message.startswith("the following arguments are required: training_script"):
            message = "which script? Name one, or a module with -m"
        if switch := _SWITCH_WITH_VALUE.fullmatch(message):
            message = f"{switch[1]} is a switch and takes no value: leave ={switch[2]} out"
        elif option := _NO_VALUE.fullmatch(message):
            message = f"{option[1]} needs a value"
        _, said, rest = message.partition("unrecognized arguments: ")
        if said:
            message = self._unknown(rest.partition(" ")[0].partition("=")[0])
        raise UsageError(f"{message} (elastic-run --help shows all options)")

    def _unknown(self, typed: str) -> str:
        """What is said of an option that is none, or the beginning of several."""
        known = [name for name in self._option_string_actions if "_" not in name]
        begun = [name for name in known if name.startswith(typed)]
        if typed.startswith("--") and len(begun) > 1:
            return f"ambiguous option: {typed} could be {', '.join(begun[:6])}"
        return f"there is no option {typed}{did_you_mean(typed, known)}"

    def _get_option_tuples(self, option_string: str) -> list[Any]:
        """What an abbreviation stands for: nothing, if it could be several options.

        argparse looks at the whole command line for that, also at what is the script's, and would
        refuse an option of the script's that is the beginning of two of ours.
        """
        found: list[Any] = super()._get_option_tuples(option_string)
        return found if len(found) == 1 else []

    def format_help(self) -> str:
        formatter = self._get_formatter()
        formatter.add_usage(self.usage, self._actions, self._mutually_exclusive_groups)
        formatter.add_text(self.description)
        ours = [g for g in self._action_groups if g not in (self._positionals, self._optionals)]
        for group in (*ours, self._optionals):
            theirs = group is self._optionals
            formatter.start_section("torchrun's options, same meaning" if theirs else group.title)
            formatter.add_arguments(group._group_actions)
            formatter.end_section()
        formatter.add_text(self.epilog)
        return formatter.format_help()


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """One spelling an option; torch's parser has each with dashes and with underscores."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=30)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        flags = [flag for flag in action.option_strings if "_" not in flag]
        value = "" if action.nargs == 0 else f" {action.metavar or action.dest.upper()}"
        return ", ".join(flags) + value
