"""A plain script's groups are tended without its doing, for as long as the agent's lease."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from elastic_runtime.system.tcp_keepalive import ENV_PEER_TIMEOUT
from tests import zygote
from tests.integration.in_place.job import ELASTIC_RUN, ENVIRONMENT

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.users_start

# What a group connects here, on one machine, is not to another host; so the script adds one.
_SCRIPT = """
import os, socket
import torch.distributed as dist
from torch.distributed import distributed_c10d

server = socket.create_server(("127.0.0.2", 0))
lines = []
gloo = distributed_c10d.ProcessGroupGloo

class Connects(gloo):
    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        lines.append(socket.create_connection(server.getsockname()))

distributed_c10d.ProcessGroupGloo = Connects
dist.init_process_group("gloo")
print("patience", lines[0].getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT))
dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    ("asked", "patience", "options"), [("7", 7000, ()), (None, 5000, ("--cold",))]
)
def test_a_plain_script_need_not_know(
    tmp_path: Path, asked: str | None, patience: int, options: tuple[str, ...]
) -> None:
    script = tmp_path / "train.py"
    script.write_text(_SCRIPT)
    environ = {**os.environ, **ENVIRONMENT}
    environ.pop(ENV_PEER_TIMEOUT, None)
    if asked is not None:
        environ[ENV_PEER_TIMEOUT] = asked
    done = zygote.run(
        [*ELASTIC_RUN, "--nproc-per-node", "1", *options, str(script)],
        env=environ,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"patience {patience}" in done.stdout + done.stderr
