"""``elasticctl``: which commands there are, and how they end.

What they do is in the modules that the table names; each is imported when it is called, so that
every command answers at once.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING

import click

from elastic_runtime import __version__
from elastic_runtime.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USAGE, ElasticError
from elastic_runtime.reporting.console import mute, open_missing

if TYPE_CHECKING:
    from collections.abc import Sequence

# The module of each command, below elastic_runtime.cli.
_COMMANDS = {
    "checkpoint": "ctl.checkpoint_commands",
    **dict.fromkeys(("events", "runs", "scale", "status"), "ctl.run_commands"),
    **dict.fromkeys(("delete", "jobs", "logs", "resume", "suspend"), "kube.kube_commands"),
    "sbatch": "slurm.sbatch_command",
    "submit": "kube.submit_command",
}


class _Commands(click.Group):
    """Imports a command when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(name for name in _COMMANDS if _is_there(name))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in _COMMANDS:
            return _load(cmd_name)
        # For the name that is nearest to what was typed.
        self.commands.update({name: _load(name) for name in self.list_commands(ctx)})
        return None


def _load(name: str) -> click.Command:
    module = importlib.import_module(f"elastic_runtime.cli.{_COMMANDS[name]}")
    command: click.Command = getattr(module, name)
    return command


def _is_there(name: str) -> bool:
    """Whether what a command needs is installed; the plugin for kubectl has not all of it."""
    try:
        _load(name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == __package__.partition(".")[0]:
            raise
        return False
    return True


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="elasticctl")
def cli() -> None:
    """Looks at elastic jobs, and changes them, through their store or on a Kubernetes cluster."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs ``elasticctl``.

    Args:
        argv: the arguments; None means those of the process.

    Returns:
        The exit code.
    """
    open_missing()
    arguments = sys.argv[1:] if argv is None else list(argv)
    try:
        result = cli.main(arguments, prog_name="elasticctl", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except click.exceptions.NoArgsIsHelpError as shown:
        click.echo(shown.format_message())
        return EXIT_USAGE
    except click.ClickException as error:
        asked = getattr(error, "ctx", None)
        more = f" ({asked.command_path} --help tells more)" if asked else ""
        return _fail(error.format_message().removesuffix(".") + more, EXIT_USAGE)
    except ElasticError as error:
        return _fail(str(error), error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # as in "elasticctl events | head"
        mute(sys.stdout)
        return 0
    except OSError as error:  # as on a full disk
        mute(sys.stdout)
        return _fail(f"cannot write or read: {error}", EXIT_FAILED)


def _fail(message: str, code: int) -> int:
    try:
        click.echo(f"elasticctl: error: {message}", err=True)
    except OSError:
        mute(sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
