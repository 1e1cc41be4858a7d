"""What every store may count on."""

from __future__ import annotations

import pytest

from elastic_runtime.rendezvous.store_contract import Put, Transaction


@pytest.mark.parametrize(
    ("puts", "deletes"),
    [
        ((Put("a", b"1"), Put("b", b""), Put("a", b"2")), ()),
        ((Put("a", b""),), ("b", "a")),
    ],
)
def test_a_transaction_writes_each_key_once(
    puts: tuple[Put, ...], deletes: tuple[str, ...]
) -> None:
    with pytest.raises(ValueError, match="writes one of these keys twice: \\['a', 'a', 'b'\\]"):
        Transaction(puts=puts, deletes=deletes)


def test_what_is_removed_may_be_named_twice() -> None:
    assert Transaction(deletes=("a", "a")).deletes == ("a", "a")
