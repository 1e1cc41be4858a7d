"""A proof holds for one side of one connection and for what was said, and for nothing else."""

from __future__ import annotations

from dataclasses import replace

from elastic_runtime.protocol.peer_proof import (
    NONCE,
    PROBES,
    PROOF,
    SNAPSHOTS,
    Exchange,
    key_for,
    new_nonce,
    new_secret,
)

SECRET = new_secret()
HERE = Exchange(key_for(PROBES, SECRET), new_nonce(), new_nonce())


def test_who_knows_the_secret_can_prove_it() -> None:
    assert HERE.is_asked(HERE.asking(b"step?"), b"step?")
    assert HERE.is_answered(HERE.answering(b"7"), b"7")
    assert (len(HERE.asking()), len(HERE.server)) == (PROOF, NONCE)


def test_what_was_said_cannot_be_changed_nor_said_back() -> None:
    assert not HERE.is_asked(HERE.asking(b"step?"), b"stop!")
    assert not HERE.is_answered(HERE.asking(b"7"), b"7"), "the side that speaks is in it"
    assert not HERE.is_asked(HERE.answering(b"7"), b"7")


def test_a_recorded_proof_is_worth_nothing_elsewhere() -> None:
    for other in (replace(HERE, server=new_nonce()), replace(HERE, client=new_nonce())):
        assert not other.is_asked(HERE.asking())
        assert not other.is_answered(HERE.answering())


def test_the_key_of_one_purpose_is_none_for_another() -> None:
    assert not replace(HERE, key=key_for(SNAPSHOTS, SECRET)).is_asked(HERE.asking())
    assert not replace(HERE, key=key_for(PROBES, new_secret())).is_asked(HERE.asking())


def test_who_knows_no_secret_believes_nobody() -> None:
    nobody = replace(HERE, key=key_for(PROBES, ""))
    assert nobody.key == ""
    assert not nobody.is_asked(nobody.asking())
    assert not nobody.is_answered(nobody.answering())
