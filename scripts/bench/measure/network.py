"""Machines that can be cut off: a network namespace for each node, joined by a switch.

The switch is a bridge in a namespace of its own, where no firewall rule of this machine applies.
Nothing but namespaces is made, and they vanish with all that is in them. Needs root.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Mapping

_NET = "10.231.77"


def why_not() -> str:
    """Says why there can be no namespaces here; "" if there can."""
    if os.geteuid() != 0:
        return "it needs root"
    return "" if shutil.which("ip") else "there is no ip command (package iproute2)"


class Network:
    """Namespaces for a few nodes. Use it in a ``with`` statement, around all that runs in it.

    Args:
        nodes: how many nodes it has room for.

    Attributes:
        host: address of this machine as the nodes see it.
    """

    host = f"{_NET}.1"

    def __init__(self, nodes: int) -> None:
        self._nodes = nodes
        self._name = f"elastic-{os.getpid()}"
        self._cut: set[int] = set()

    def __enter__(self) -> Self:
        try:
            self._make()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for name in (*map(self._space, range(self._nodes)), self._name):
            _ip("netns", "del", name, check=False)

    def address(self, node: int) -> str:
        """The address of a node."""
        return f"{_NET}.{10 + node}"

    def inside(self, node: int) -> list[str]:
        """What precedes a command so that it runs on the node."""
        return ["ip", "netns", "exec", self._space(node)]

    def environment(self) -> Mapping[str, str]:
        """What processes on a node need to find the network."""
        return {"GLOO_SOCKET_IFNAME": "eth0"}

    def cut(self, node: int) -> None:
        """From now on packets from and to the node vanish; nobody is told."""
        self._cut.add(node)
        self._switch("link", "set", f"node{node}", "nomaster")

    def mend(self) -> None:
        """Connects all nodes again."""
        for node in self._cut:
            self._switch("link", "set", f"node{node}", "master", "bridge")
        self._cut.clear()

    def _make(self) -> None:
        _ip("netns", "add", self._name)
        self._switch("link", "add", "bridge", "type", "bridge")
        self._switch("link", "set", "bridge", "up")
        here = f"el{os.getpid()}"
        self._plug("host")
        self._switch("link", "set", "host-inner", "netns", str(os.getpid()), "name", here)
        _ip("addr", "add", f"{self.host}/24", "dev", here)
        _ip("link", "set", here, "up")
        for node in range(self._nodes):
            space = self._space(node)
            _ip("netns", "add", space)
            self._plug(f"node{node}")
            self._switch("link", "set", f"node{node}-inner", "netns", space, "name", "eth0")
            _ip("-n", space, "addr", "add", f"{self.address(node)}/24", "dev", "eth0")
            _ip("-n", space, "link", "set", "eth0", "up")
            _ip("-n", space, "link", "set", "lo", "up")

    def _plug(self, name: str) -> None:
        """Makes a cable with one end, ``name``, in the switch."""
        self._switch("link", "add", name, "type", "veth", "peer", "name", f"{name}-inner")
        self._switch("link", "set", name, "master", "bridge", "up")

    def _switch(self, *words: str) -> None:
        _ip("-n", self._name, *words)

    def _space(self, node: int) -> str:
        return f"{self._name}-{node}"


def _ip(*words: str, check: bool = True) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise RuntimeError(f"ip {' '.join(words)}: {done.stderr.strip()}")
