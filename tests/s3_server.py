"""A real S3 server for tests: moto's, in a process of its own on a free port."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_READY = re.compile(r"Running on (http://127\.0\.0\.1:\d+)")
_START = "from moto.server import main; main(['-H', '127.0.0.1', '-p', '0'])"


@contextmanager
def s3_server() -> Iterator[Mapping[str, str]]:
    """Runs a server.

    Yields:
        What the environment of its clients has to say.
    """
    server = subprocess.Popen(
        [sys.executable, "-u", "-c", _START],
        stderr=subprocess.STDOUT,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "MOTO_S3_DEFAULT_KEY_BUFFER_SIZE": str(64 << 20)},
    )
    assert server.stdout is not None
    try:
        lines = []
        for line in server.stdout:
            lines.append(line)
            if found := _READY.search(line):
                break
        else:
            raise AssertionError(f"no S3 server: {''.join(lines)}")
        # The server goes on talking; nobody reads it, and its pipe must not fill up.
        drain = subprocess.Popen(["cat"], stdin=server.stdout, stdout=subprocess.DEVNULL)
        try:
            yield {
                "AWS_ENDPOINT_URL": found[1],
                "AWS_ACCESS_KEY_ID": "testing-access",
                "AWS_SECRET_ACCESS_KEY": "testing-secret",
                "AWS_DEFAULT_REGION": "us-east-1",
                "AWS_EC2_METADATA_DISABLED": "true",
            }
        finally:
            server.kill()
            drain.wait(10)
    finally:
        server.kill()
        server.wait(10)
        server.stdout.close()
