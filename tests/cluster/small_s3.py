"""An object store that is just enough S3 for checkpoints: it runs in a pod of the tests.

Objects are in memory. So the tests need neither a StorageClass nor a volume that several pods can
write, and they see jobs go on from a store that outlives their pods. Nothing but Python is needed:
the file comes into the pod as a ConfigMap.
"""

from __future__ import annotations

import hashlib
import re
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

OBJECTS: dict[str, bytes] = {}
LOCK = threading.Lock()


class Handler(BaseHTTPRequestHandler):
    """Answers one client; a path is ``/bucket/key``, and every bucket exists."""

    protocol_version = "HTTP/1.1"

    def do_PUT(self) -> None:
        """Writes an object; with ``If-None-Match: *`` only where there is none."""
        body = self._body()
        with LOCK:
            taken = self.headers.get("If-None-Match") == "*" and self._path in OBJECTS
            if not taken and "/" in self._path:
                OBJECTS[self._path] = body
        if taken:
            self._refuse(412, "PreconditionFailed")
        else:
            self._answer(200, headers={"ETag": _tag(body)})

    def do_GET(self) -> None:
        """Reads an object, a part of one, or a list of them."""
        if "/" not in self._path:
            return self._list()
        found = OBJECTS.get(self._path)
        if found is None:
            return self._refuse(404, "NoSuchKey")
        headers = {"ETag": _tag(found), "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT"}
        asked = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        if asked is None:
            return self._answer(200, found, headers)
        first = int(asked[1]) if asked[1] else max(0, len(found) - int(asked[2]))
        last = min(int(asked[2]) if asked[1] and asked[2] else len(found), len(found) - 1)
        if first >= len(found):
            return self._refuse(416, "InvalidRange")
        headers["Content-Range"] = f"bytes {first}-{last}/{len(found)}"
        self._answer(206, found[first : last + 1], headers)

    do_HEAD = do_GET

    def do_DELETE(self) -> None:
        """Removes an object, whether it is there or not."""
        with LOCK:
            OBJECTS.pop(self._path, None)
        self._answer(204)

    def do_POST(self) -> None:
        """Removes many objects."""
        body = self._body().decode()
        if "delete" not in self._query:
            return self._refuse(501, "NotImplemented")
        with LOCK:
            for key in re.findall(r"<Key>(.*?)</Key>", body):
                OBJECTS.pop(f"{self._path}/{unescape(key)}", None)
        self._xml("<DeleteResult></DeleteResult>")

    def _list(self) -> None:
        """Answers ListObjectsV2, all in one page, or says that the bucket is there."""
        prefix = self._query.get("prefix", [""])[0]
        delimiter = self._query.get("delimiter", [""])[0]
        start = f"{self._path}/"
        with LOCK:
            keys = {path[len(start) :]: body for path, body in OBJECTS.items()}
        keys = {key: body for key, body in sorted(keys.items()) if key.startswith(prefix)}
        folders = dict.fromkeys(
            prefix + key[len(prefix) :].split(delimiter)[0] + delimiter
            for key in keys
            if delimiter and delimiter in key[len(prefix) :]
        )
        files = {k: v for k, v in keys.items() if not any(k.startswith(one) for one in folders)}
        entries = [
            f"<Contents><Key>{escape(key)}</Key><Size>{len(body)}</Size><ETag>{_tag(body)}</ETag>"
            "<LastModified>2026-01-01T00:00:00Z</LastModified></Contents>"
            for key, body in files.items()
        ]
        entries += [
            f"<CommonPrefixes><Prefix>{escape(one)}</Prefix></CommonPrefixes>" for one in folders
        ]
        count = f"<KeyCount>{len(files) + len(folders)}</KeyCount>"
        self._xml(
            f"<ListBucketResult><IsTruncated>false</IsTruncated>{count}{''.join(entries)}"
            "</ListBucketResult>"
        )

    @property
    def _path(self) -> str:
        return unquote(urlsplit(self.path).path).strip("/")

    @property
    def _query(self) -> dict[str, list[str]]:
        return parse_qs(urlsplit(self.path).query, keep_blank_values=True)

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _refuse(self, code: int, name: str) -> None:
        self._xml(f"<Error><Code>{name}</Code><Message>{name}</Message></Error>", code)

    def _xml(self, text: str, code: int = 200) -> None:
        document = f'<?xml version="1.0" encoding="UTF-8"?>{text}'
        self._answer(code, document.encode(), {"Content-Type": "application/xml"})

    def _answer(self, code: int, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self.send_response(code)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing: the log is for what goes wrong."""


def unescape(text: str) -> str:
    """A key as it was before it became XML."""
    return text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")


def _tag(body: bytes) -> str:
    return f'"{hashlib.md5(body, usedforsecurity=False).hexdigest()}"'


class Server(ThreadingHTTPServer):
    """Says nothing of clients that were killed."""

    def handle_error(self, request: object, client_address: object) -> None:
        """Tells what went wrong, unless it is a connection that broke."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


if __name__ == "__main__":
    Server(("", int(sys.argv[1])), Handler).serve_forever()
