"""``ElasticEnvironment``: ranks as elastic-run gives them, whatever number of nodes was written."""

from __future__ import annotations

import os
import socket

from lightning.fabric.plugins.environments import TorchElasticEnvironment

from elastic_runtime.worker.world import World


class ElasticEnvironment(TorchElasticEnvironment):  # type: ignore[misc]  # untyped for mypy
    """Lightning's own environment of launchers like torchrun, for a world whose size changes.

    Without a launcher it describes a world of one process.

    Example::

        Trainer(num_nodes=2, plugins=[ElasticEnvironment()], callbacks=[ElasticCallback("dir")])
    """

    @property
    def main_address(self) -> str:
        """Where ranks meet: as the launcher says."""
        return os.environ.setdefault("MASTER_ADDR", "127.0.0.1")

    @property
    def main_port(self) -> int:
        """The same; without a launcher any free one."""
        if "MASTER_PORT" not in os.environ:
            with socket.socket() as found:
                found.bind(("127.0.0.1", 0))
                os.environ["MASTER_PORT"] = str(found.getsockname()[1])
        return int(os.environ["MASTER_PORT"])

    def world_size(self) -> int:
        """How many ranks there are now."""
        return World.of_environment(os.environ).size

    def global_rank(self) -> int:
        """This one's rank now."""
        return World.of_environment(os.environ).rank

    def local_rank(self) -> int:
        """This worker's number on its node."""
        return World.of_environment(os.environ).local_rank

    def node_rank(self) -> int:
        """The number of this node now."""
        return World.of_environment(os.environ).node_rank

    def validate_settings(self, num_devices: int, num_nodes: int) -> None:
        """Accepts any number of nodes: the world may be smaller or larger now.

        Args:
            num_devices: of ``Trainer(devices=)``.
            num_nodes: of ``Trainer(num_nodes=)``.
        """
