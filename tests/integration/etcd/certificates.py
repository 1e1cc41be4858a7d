"""Certificates for TLS tests, made by openssl: a CA, a server, a client, and a foreign CA."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_CURVE = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


@dataclass(frozen=True)
class Certificates:
    """Where they lie; each ``<name>.pem`` has its key beside it in ``<name>.key``."""

    directory: Path

    def pem(self, name: str) -> str:
        """The path of a certificate."""
        return str(self.directory / f"{name}.pem")

    def key(self, name: str) -> str:
        """The path of its key."""
        return str(self.directory / f"{name}.key")


def make(directory: Path) -> Certificates:
    """Makes ``ca``, ``server`` (for 127.0.0.1 and localhost), ``client`` and ``foreign``."""
    made = Certificates(directory)
    directory.chmod(0o755)
    for name in ("ca", "foreign"):
        _openssl(
            *("req", "-x509", *_CURVE, "-days", "2", "-subj", f"/CN=test {name}"),
            *("-keyout", made.key(name), "-out", made.pem(name)),
        )
    names = directory / "names"
    names.write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
    for name in ("server", "client"):
        request = str(directory / f"{name}.csr")
        subject = ("-subj", f"/CN=test {name}")
        _openssl("req", "-new", *_CURVE, *subject, "-keyout", made.key(name), "-out", request)
        _openssl(
            *("x509", "-req", "-in", request, "-days", "2", "-extfile", str(names)),
            *("-CA", made.pem("ca"), "-CAkey", made.key("ca"), "-CAcreateserial"),
            *("-out", made.pem(name)),
        )
        (directory / f"{name}.key").chmod(0o644)
    return made


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)
