"""Where pods find the fake API server: TLS, at an address that containers can reach."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import subprocess
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


class Door:
    """A door to a server on 127.0.0.1.

    Args:
        url: of the server.
        address: where it listens.
        port: the same.
        directory: gets ``server.pem``, the certificate, and its key.
    """

    def __init__(self, url: str, address: str, port: int, directory: Path) -> None:
        self._port = int(url.rpartition(":")[2])
        pem, key = str(directory / "server.pem"), str(directory / "server.key")
        subprocess.run(
            [
                *("openssl", "req", "-x509", "-newkey", "ec", "-nodes", "-days", "2"),
                *("-pkeyopt", "ec_paramgen_curve:prime256v1", "-subj", "/CN=test cluster"),
                *("-addext", f"subjectAltName=IP:{address}", "-keyout", key, "-out", pem),
            ],
            check=True,
            capture_output=True,
        )
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(pem, key)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        opened = asyncio.start_server(self._meet, address, port, ssl=tls)
        self._server = asyncio.run_coroutine_threadsafe(opened, self._loop).result(20)

    def close(self) -> None:
        """Ends it with all that go through."""
        asyncio.run_coroutine_threadsafe(self._shut(), self._loop).result(20)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _shut(self) -> None:
        self._server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            await asyncio.gather(_pump(reader, inner_writer), _pump(inner_reader, writer))
        finally:
            inner_writer.transport.abort()
            writer.transport.abort()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError, ssl.SSLError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    # Half a connection is of no use to HTTP.
    writer.transport.abort() if writer.transport.is_closing() else writer.close()
