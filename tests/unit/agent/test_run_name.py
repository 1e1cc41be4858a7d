"""torch's agent class gets a rendezvous that has names and does nothing."""

from __future__ import annotations

import pytest

from elastic_runtime.agent.run_name import RunName


def test_it_has_names_and_never_makes_a_round() -> None:
    name = RunName("etcd", "run")
    assert (name.get_backend(), name.get_run_id()) == ("etcd", "run")
    assert not name.is_closed() and name.num_nodes_waiting() == 0
    with pytest.raises(RuntimeError, match="rounds come from the participant"):
        name.next_rendezvous()
