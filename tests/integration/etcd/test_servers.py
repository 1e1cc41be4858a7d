"""The servers that the other tests rely on do what is asked of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.etcd_server import EtcdProcess, etcdctl

if TYPE_CHECKING:
    from tests.conftest import NewEtcd
    from tests.etcd_server import EtcdCluster, EtcdServer


def _is_kept_unless_wiped(server: EtcdServer) -> None:
    etcdctl(server.endpoint, "put", "key", "value")
    server.kill()
    server.restart()
    assert etcdctl(server.endpoint, "get", "key") == "key\nvalue\n"
    server.restart(wipe=True)
    assert etcdctl(server.endpoint, "get", "key") == ""


def test_data_survives_a_kill_but_not_a_wipe(new_etcd: NewEtcd) -> None:
    _is_kept_unless_wiped(new_etcd())


def test_a_plain_process_does_the_same() -> None:
    server = EtcdProcess()
    try:
        _is_kept_unless_wiped(server)
    finally:
        server.close()


def test_a_cluster_elects_another_leader(etcd_cluster: EtcdCluster) -> None:
    old = etcd_cluster.leader()
    old.kill()
    etcdctl(etcd_cluster.leader().endpoint, "put", "key", "value")
    old.restart()
    assert etcdctl(old.endpoint, "get", "key") == "key\nvalue\n"
