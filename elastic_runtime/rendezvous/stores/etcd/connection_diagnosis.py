"""Why nothing answers that we understand: asked once more, by plain means.

gRPC says "unavailable" for a server that is down, for one with a certificate that we do not
trust, and for one that is no etcd at all. The first may come back, the others never will, and the
person who typed the address wants to know which it is. So before the first contact, each host is
asked for ``/version`` over HTTP/1.1, which etcd answers on the same port, also without a password.
"""

from __future__ import annotations

import http
import http.client
import json
import socket
import ssl
from typing import TYPE_CHECKING

from elastic_runtime.limits import ETCD_DIAGNOSIS_TIMEOUT

if TYPE_CHECKING:
    from elastic_runtime.config import Endpoint, Tls


def access_refusal(endpoint: Endpoint) -> str:
    """Why the store will never take us; "" if it may yet, or if that is not known.

    Blocks for at most a second or so a host. Only what all hosts agree in is a refusal.
    """
    reasons = [_ask(endpoint, host) for host in endpoint.hosts]
    return "; ".join(reasons) if all(reasons) else ""


def etcd_complaint(endpoint: Endpoint) -> str:
    """What the store itself says is wrong with it, as ``ALARM NOSPACE``; "" if nothing is.

    Blocks for at most a second or so a host.
    """
    for host in endpoint.hosts:
        name, _, port = host.rpartition(":")
        where = name.strip("[]"), int(port)
        try:
            context = tls_context(endpoint.tls) if endpoint.secure else None
            answer = json.loads(_fetch(where, context, "/health")[1])
            if str(answer["health"]) != "true":
                return f"{host} is not healthy: {answer.get('reason') or 'it does not say why'}"
        except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
            continue
    return ""


def tls_context(tls: Tls) -> ssl.SSLContext:
    """A TLS client with these files.

    Raises:
        ssl.SSLError: they are no certificates, or the key does not fit.
    """
    context = ssl.create_default_context(cafile=tls.ca or None)
    if tls.cert:
        # An empty password, as the default would ask for one on the terminal.
        context.load_cert_chain(tls.cert, tls.key or None, password="")
    return context


def _ask(endpoint: Endpoint, host: str) -> str:
    name, _, port = host.rpartition(":")
    where = name.strip("[]"), int(port)
    try:
        return _judge(host, *_fetch(where, tls_context(endpoint.tls) if endpoint.secure else None))
    except ssl.SSLCertVerificationError as error:
        why = error.verify_message
        return f"the certificate of {host} is not trusted ({why}): check the CA and the host name"
    except ssl.SSLError as error:
        if _is_alert(error):
            return f"{host} does not accept our TLS certificate: check --etcd-cert and --etcd-key"
    except http.client.RemoteDisconnected:
        pass
    except http.client.BadStatusLine:
        return f"what listens at {host} is no etcd: it does not speak HTTP"
    except (OSError, http.client.HTTPException):
        return ""
    # It hung up: it expects TLS, or none, or it is a proxy whose etcd is not there yet.
    if endpoint.secure:
        return f"{host} does not speak TLS: write etcd:// not etcds://" if _is_plain(where) else ""
    return f"{host} speaks TLS only: write etcds:// not etcd://" if _speaks_tls(where) else ""


def _fetch(
    where: tuple[str, int], context: ssl.SSLContext | None, path: str = "/version"
) -> tuple[int, bytes]:
    connection = (
        http.client.HTTPSConnection(*where, timeout=ETCD_DIAGNOSIS_TIMEOUT, context=context)
        if context
        else http.client.HTTPConnection(*where, timeout=ETCD_DIAGNOSIS_TIMEOUT)
    )
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read(4096)
    finally:
        connection.close()


def _is_plain(where: tuple[str, int]) -> bool:
    try:
        return b"etcdserver" in _fetch(where, None)[1]
    except (OSError, http.client.HTTPException):
        return False


def _is_alert(error: ssl.SSLError) -> bool:
    return "ALERT" in (error.reason or "")


def _speaks_tls(where: tuple[str, int]) -> bool:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        with socket.create_connection(where, timeout=ETCD_DIAGNOSIS_TIMEOUT) as plain:
            context.wrap_socket(plain).close()
    except ssl.SSLError as error:
        return _is_alert(error)  # it wants a certificate of ours
    except OSError:
        return False
    return True


def _judge(host: str, status: int, body: bytes) -> str:
    if status >= http.HTTPStatus.INTERNAL_SERVER_ERROR:
        return ""  # a proxy whose etcd is not there
    try:
        version = json.loads(body)["etcdserver"]
    except (ValueError, KeyError, TypeError):
        return f"what listens at {host} is no etcd: it answers /version with HTTP {status}"
    if str(version).startswith(("0.", "1.", "2.")):
        return f"{host} is etcd {version}, which has no v3 API"
    return ""
