"""How torch finds our handlers, and what it may give them."""

from __future__ import annotations

import subprocess
import sys

import pytest
from torch.distributed.elastic.rendezvous import RendezvousParameters, registry
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

from elastic_runtime.config import RDZV_CONF_TIMEOUTS, Endpoint, Timeouts, Tls
from elastic_runtime.errors import UsageError
from elastic_runtime.rendezvous.torchrun.handler_entry_points import (
    C10D,
    ETCD_V3,
    endpoint_of,
    times_of,
)


@pytest.mark.parametrize("name", [ETCD_V3, C10D])
def test_torch_finds_the_handlers_by_name(name: str) -> None:
    handler = get_rendezvous_handler(RendezvousParameters(name, "127.0.0.1:1", "run", 1, 2))
    assert handler.get_backend() == name
    assert handler.get_run_id() == "run"
    assert not handler.use_agent_store
    assert not handler.is_closed()
    handler.shutdown()


def test_torch_may_register_the_handlers_again(caplog: pytest.LogCaptureFixture) -> None:
    registry._register_out_of_tree_handlers()  # as at its import
    assert not caplog.records


def test_who_only_uses_torch_does_not_load_the_rendezvous() -> None:
    program = (
        "import sys, torch.distributed.elastic.rendezvous.registry\n"
        "print(*(m for m in sys.modules if m.startswith('elastic_runtime')))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    loaded = set(done.stdout.decode().split())
    assert "elastic_runtime.rendezvous.torchrun.handler_entry_points" in loaded
    assert not loaded & {
        "elastic_runtime.rendezvous.core.node_state",
        "elastic_runtime.rendezvous.stores.embedded.embedded_adapter",
    }
    assert b"Exception" not in done.stderr


def params(endpoint: str, **conf: object) -> RendezvousParameters:
    return RendezvousParameters("x", endpoint, "run", 1, 2, **conf)


@pytest.mark.parametrize(
    ("name", "given", "endpoint"),
    [
        (ETCD_V3, params("h"), Endpoint("etcd", ("h:2379",))),
        (ETCD_V3, params("h:1,[::1]:2, k"), Endpoint("etcd", ("h:1", "[::1]:2", "k:2379"))),
        (
            ETCD_V3,
            params("h:1", protocol="https", ca_cert="a", ssl_cert="b", ssl_cert_key="c"),
            Endpoint("etcd", ("h:1",), secure=True, tls=Tls("a", "b", "c")),
        ),
        (
            ETCD_V3,
            params("h:1", prefix="/p/", user="u", password="w"),
            Endpoint("etcd", ("h:1",), prefix="p", user="u", password="w"),
        ),
        (C10D, params("h"), Endpoint("c10d", ("h:29400",))),
        (C10D, params("h:1", is_host="false"), Endpoint("c10d", ("h:1",), hosted_here=True)),
        (C10D, params("h:1", is_host="1"), Endpoint("c10d", ("h:1",))),
    ],
)
def test_endpoints(name: str, given: RendezvousParameters, endpoint: Endpoint) -> None:
    assert endpoint_of(name, given) == endpoint


@pytest.mark.parametrize(
    ("name", "text"), [(ETCD_V3, ""), (ETCD_V3, "h:x"), (ETCD_V3, ":1"), (C10D, "a:1,b:2")]
)
def test_wrong_endpoints(name: str, text: str) -> None:
    with pytest.raises(UsageError, match="--rdzv-endpoint"):
        endpoint_of(name, params(text))


def test_times_have_units_as_elsewhere() -> None:
    given = params("h", join_timeout="7", lease_ttl="2.5", fence_timeout=".5h", timeout="900")
    assert times_of(given) == Timeouts(join_timeout=7.0, lease_ttl=2.5, fence_timeout=1800.0)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("option", sorted(RDZV_CONF_TIMEOUTS.keys() - {"timeout"}))
def test_no_option_leads_to_a_former_name(option: str) -> None:
    assert getattr(times_of(params("h", **{option: "2.5"})), RDZV_CONF_TIMEOUTS[option]) == 2.5


@pytest.mark.parametrize("text", ["soon", "0", "-1", "1e400", "inf", "99999d"])
def test_wrong_times_and_endless_ones(text: str) -> None:
    with pytest.raises(UsageError, match=rf"--rdzv-conf join_timeout={text}"):
        times_of(params("h", join_timeout=text))
