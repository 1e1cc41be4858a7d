"""Machines that are none: ssh is a shell script here, and a node a few lines of Python."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from elastic_runtime.cli.hosts.listed_hosts import Host

# Says hello as a login shell does, and runs what ssh would run there.
_SSH = """#!/bin/sh
for last; do before=$host; host=$last; done
case $before in
  gone) echo "ssh: no route to $before" >&2; exit 255 ;;
  poor) echo "sh: python: not found" >&2; exit 127 ;;
esac
echo "Welcome to $before"
HOST=$before exec sh -c "$last"
"""
# Waits to be asked to leave, unless there is a file that says what to end with.
_NODE = r"""
import os, pathlib, signal, sys, time
folder, host = pathlib.Path(__file__).parents[3], os.environ["HOST"]
# Each at once: another node may print meanwhile.
signal.signal(signal.SIGTERM, lambda *_: (os.write(1, f"{host} leaves\n".encode()), os._exit(5)))
os.write(1, f"{host} trains {' '.join(sys.argv[1:])}\n".encode())
print("warning", file=sys.stderr, flush=True)
while not (folder / "end").exists():
    time.sleep(0.02)
os._exit(int((folder / "end").read_text()))
"""


def put_node(folder: Path, text: str) -> None:
    """Puts a package there in the place of ours whose node is such a program."""
    package = folder / "elastic_runtime" / "cli" / "run"
    package.mkdir(parents=True)
    for one in (package, *package.parents[:2]):
        (one / "__init__.py").write_text("")
    (package / "host_node.py").write_text(text)


def order(folder: Path, lock: str, *arguments: str) -> dict[str, Any]:
    """What the far end is told, for a node of that package."""
    return {
        "directory": str(folder),
        "arguments": list(arguments),
        "environment": {"PYTHONPATH": str(folder), "PYTHONSAFEPATH": "1"},
        "lock": f"{folder.name}-{lock}",
    }


class FarMachines:
    """What ``--ssh`` reaches.

    Args:
        folder: for the programs.

    Attributes:
        ssh: the client.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        put_node(folder, _NODE)
        program = folder / "ssh"
        program.write_text(_SSH)
        program.chmod(0o755)
        self.ssh = [str(program)]

    def order(self, host: Host) -> dict[str, Any]:
        """What the far end is told."""
        return order(self._folder, host.name, "--workers", str(host.workers))

    def end(self, code: int) -> None:
        """Has all nodes end with this code."""
        new = self._folder / "new"
        new.write_text(str(code))
        new.rename(self._folder / "end")
