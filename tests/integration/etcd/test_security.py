"""Passwords, certificates, and servers that are no etcd: what is let in, and what is said."""

from __future__ import annotations

import http.server
import threading
from typing import TYPE_CHECKING, Any

import pytest

from elastic_runtime.config import Endpoint, Tls
from elastic_runtime.errors import EXIT_STORE_UNREACHABLE, StoreUnavailable, UsageError
from elastic_runtime.rendezvous.store_contract import Found, Lost, Refused
from elastic_runtime.rendezvous.stores.etcd.etcd_adapter import EtcdStore
from elastic_runtime.rendezvous.stores.etcd.etcd_errors import StoreRefused
from tests.etcd_server import EtcdProcess, free_port
from tests.integration.etcd import certificates
from tests.integration.etcd.listening import Listening, allow, endpoint
from tests.strangers import speaking

if TYPE_CHECKING:
    from tests.conftest import NewEtcd
    from tests.etcd_server import EtcdServer
    from tests.integration.etcd.certificates import Certificates

pytestmark = pytest.mark.etcd

PASSWORD = "correct horse"


def _refused(where: Endpoint) -> str:
    """The reason with which a store is refused; a read must say the same."""
    with Listening(where) as node:
        node.store.start(node.key, node.ear)
        why: str = node.ear.hears(Refused).why
        with pytest.raises(StoreRefused) as refusal:
            node.store.read("")
        assert refusal.value.exit_code == EXIT_STORE_UNREACHABLE
        assert str(refusal.value) == why
        assert isinstance(refusal.value, StoreUnavailable)
        return why


# ---------------------------------------------------------------- passwords


@pytest.fixture
def locked(new_etcd: NewEtcd) -> EtcdServer:
    """An etcd that asks for a user and a password."""
    server = new_etcd()
    allow(server.endpoint, f"trainer:{PASSWORD}", "readwrite", "/test/")
    return server


def test_a_user_with_the_right_password_works_and_signs_in_again(locked: EtcdServer) -> None:
    where = endpoint(locked.endpoint, user="trainer", password=PASSWORD)
    with Listening(where) as node:
        node.start()
        node.register(b"me")
        node.until(lambda values: values == {node.key: b"me"})
        mark = len(node.ear.events)
        # etcd keeps tokens in memory: after a restart ours is worth nothing.
        locked.restart()
        node.ear.hears(Found, mark)
        node.put("round", b"on")
        node.until(lambda values: values == {node.key: b"me", "round": b"on"})
        assert not any(isinstance(event, Refused) for event in node.ear.events)


def test_who_is_not_let_in_is_told_why_and_no_password_is_repeated(locked: EtcdServer) -> None:
    why = _refused(endpoint(locked.endpoint, user="trainer", password="tr0ub4dor"))
    assert "invalid user ID or password" in why
    assert "tr0ub4dor" not in why
    assert "name one with --etcd-user" in _refused(endpoint(locked.endpoint))
    without_right = Endpoint(
        "etcd", (locked.endpoint,), "elsewhere", user="trainer", password=PASSWORD
    )
    assert "permission denied" in _refused(without_right)


def test_a_password_for_an_etcd_without_passwords_does_no_harm(etcd: EtcdServer) -> None:
    with Listening(endpoint(etcd.endpoint, user="anybody", password="anything")) as node:
        node.start()
        node.put("job", b"1")
        node.until(lambda values: values == {"job": b"1"})


# ---------------------------------------------------------------- certificates


@pytest.fixture(scope="session")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Certificates of a CA of our own."""
    return certificates.make(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def tls_etcd(new_etcd: NewEtcd, certs: Certificates) -> EtcdServer:
    """An etcd that speaks TLS and asks for a client certificate."""
    return new_etcd(*_tls_flags(certs), scheme="https", mounts=[str(certs.directory)])


def _tls_flags(certs: Certificates) -> tuple[str, ...]:
    return (
        *("--cert-file", certs.pem("server"), "--key-file", certs.key("server")),
        *("--trusted-ca-file", certs.pem("ca"), "--client-cert-auth"),
    )


def _secure(hosts: str, **tls: str) -> Endpoint:
    return endpoint(hosts, secure=True, tls=Tls(**tls))


def test_the_right_certificates_work(tls_etcd: EtcdServer, certs: Certificates) -> None:
    ours = {"ca": certs.pem("ca"), "cert": certs.pem("client"), "key": certs.key("client")}
    port = tls_etcd.endpoint.rpartition(":")[2]
    # One address, several, and a name: the certificate must fit each of them.
    for hosts in (tls_etcd.endpoint, f"{tls_etcd.endpoint},127.0.0.1:1", f"localhost:{port}"):
        with Listening(_secure(hosts, **ours)) as node:
            node.start()
            node.register(b"me")
            node.until(lambda values, key=node.key: values == {key: b"me"})


def test_wrong_certificates_are_refused(tls_etcd: EtcdServer, certs: Certificates) -> None:
    ours = {"cert": certs.pem("client"), "key": certs.key("client")}
    why = _refused(_secure(tls_etcd.endpoint, ca=certs.pem("foreign"), **ours))
    assert "the certificate of 127.0.0.1" in why
    assert "is not trusted" in why
    why = _refused(_secure(tls_etcd.endpoint, ca=certs.pem("ca")))
    assert "does not accept our TLS certificate" in why
    theirs = {"cert": certs.pem("foreign"), "key": certs.key("foreign")}
    why = _refused(_secure(tls_etcd.endpoint, ca=certs.pem("ca"), **theirs))
    assert "does not accept our TLS certificate" in why


def test_tls_on_one_side_only_is_refused(
    tls_etcd: EtcdServer, etcd: EtcdServer, certs: Certificates
) -> None:
    assert "write etcds:// not etcd://" in _refused(endpoint(tls_etcd.endpoint))
    assert "write etcd:// not etcds://" in _refused(_secure(etcd.endpoint, ca=certs.pem("ca")))


def test_a_certificate_file_that_is_missing_is_named(tmp_path: Any) -> None:
    with pytest.raises(UsageError, match=r"nowhere\.pem cannot be read: No such file"):
        EtcdStore(_secure("127.0.0.1:1", ca=str(tmp_path / "nowhere.pem")), "run", 5, 1)


def test_certificate_files_that_do_not_fit_are_named(certs: Certificates) -> None:
    for wrong in (
        {"ca": certs.key("ca")},
        {"ca": certs.pem("ca"), "cert": certs.pem("client"), "key": certs.key("server")},
    ):
        with pytest.raises(UsageError, match="cannot be used") as refusal:
            EtcdStore(_secure("127.0.0.1:1", **wrong), "run", 5, 1)
        assert all(path in str(refusal.value) for path in wrong.values())


# ---------------------------------------------------------------- not an etcd


class _Silent(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


def test_a_web_server_is_no_etcd(tmp_path: Any) -> None:
    def handler(*arguments: Any) -> _Silent:
        return _Silent(*arguments, directory=str(tmp_path))

    with http.server.ThreadingHTTPServer(("127.0.0.1", free_port()), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        why = _refused(endpoint(f"127.0.0.1:{server.server_port}"))
        server.shutdown()
    assert "is no etcd: it answers /version with HTTP 404" in why


def test_another_protocol_is_no_etcd() -> None:
    with speaking(lambda connection: connection.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")) as where:
        assert "is no etcd: it does not speak HTTP" in _refused(endpoint(where))


def test_a_proxy_without_its_etcd_is_waited_for() -> None:
    unavailable = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n"
    for answer in (b"", unavailable):
        with (
            speaking(lambda connection, answer=answer: connection.sendall(answer)) as where,
            Listening(where) as node,
        ):
            node.store.start(node.key, node.ear)
            node.ear.hears(Lost)
            assert not any(isinstance(event, Refused) for event in node.ear.events)


def test_an_etcd_that_is_not_there_yet_is_waited_for() -> None:
    port = free_port()
    with Listening(f"127.0.0.1:{port}") as node:
        node.store.start(node.key, node.ear)
        why = node.ear.hears(Lost).why
        assert f"127.0.0.1:{port}" in why
        assert why.endswith("cannot be reached: Connection refused")
        server = EtcdProcess(port=port)
        try:
            node.ear.hears(Found)
            node.register(b"me")
            node.until(lambda values: values == {node.key: b"me"})
        finally:
            server.close()


def test_nobody_at_the_address_is_said_after_the_time_given() -> None:
    with Listening(f"127.0.0.1:{free_port()}", connect_timeout=0.5) as node:
        with pytest.raises(StoreUnavailable, match="cannot be reached") as failure:
            node.store.read("")
        assert not isinstance(failure.value, StoreRefused)
