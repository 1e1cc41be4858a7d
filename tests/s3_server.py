"""A real S3 server for tests: moto's, in a process of its own on a free port."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_READY = re.compile(r"Running on (http://127\.0\.0\.1:\d+)")
_START = """
import sys
from moto.core import DEFAULT_ACCOUNT_ID
from moto.s3.models import s3_backends
from moto.server import main
port, *buckets = sys.argv[1:]
for bucket in buckets:
    s3_backends[DEFAULT_ACCOUNT_ID]["aws"].create_bucket(bucket, "us-east-1")
main(["-H", "127.0.0.1", "-p", port])
"""


def client_environ(url: str) -> dict[str, str]:
    """What the environment of clients of a server at this URL has to say."""
    return {
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": "testing-access",
        "AWS_SECRET_ACCESS_KEY": "testing-secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }


@contextmanager
def s3_server(port: int = 0, buckets: Sequence[str] = ()) -> Iterator[Mapping[str, str]]:
    """Runs a server.

    Args:
        port: at which; 0: a free one.
        buckets: are there from the beginning.

    Yields:
        What the environment of its clients has to say.
    """
    server = subprocess.Popen(
        [sys.executable, "-u", "-c", _START, str(port), *buckets],
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
            yield client_environ(found[1])
        finally:
            server.kill()
            drain.wait(10)
    finally:
        server.kill()
        server.wait(10)
        server.stdout.close()
