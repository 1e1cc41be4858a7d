"""Whoever may host the store: never two of them at a time, and one again after each loss."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from elastic_runtime.rendezvous.stores.embedded import host_succession as succession
from elastic_runtime.rendezvous.stores.embedded.host_succession import (
    DEAD_WINDOW,
    MOST_VOTERS,
    PROMISE,
    SILENCE,
    TICK,
    Ballot,
    Voter,
    Voters,
)

A, B, C, D = (Voter(name, f"{name}:1") for name in "abcd")


def ballot_of(*voters: Voter, hosts: bool = True, before: tuple[Voter, ...] = ()) -> Ballot:
    ids = frozenset(one.id for one in before)
    return Ballot(
        A.id, Voters(5, voters, ids), hosts=hosts, present={one.id: one for one in voters}
    )


def heard(ballot: Ballot, now: float, *voters: Voter) -> Ballot:
    for one in voters:
        ballot = succession.tick_echoed(ballot, one.id, now, ballot.voters.version)
    return ballot


@pytest.mark.parametrize(
    ("voters", "willing", "host", "challenger"),
    [
        ((A,), (A,), True, True),
        ((A, B), (A,), True, False),
        ((A, B), (A, B), True, True),
        ((A, B, C), (A,), False, False),
        ((A, B, C), (A, C), True, True),
        ((A, B, C, D), (A, B), True, False),
        ((A, B, C, D), (A, B, C), True, True),
    ],
)
def test_half_keeps_a_host_and_most_make_one(
    voters: tuple[Voter, ...], willing: tuple[Voter, ...], host: bool, challenger: bool
) -> None:
    for hosts, expected in ((True, host), (False, challenger)):
        assert heard(ballot_of(*voters, hosts=hosts), 10.0, *willing).has_quorum(11.0) == expected


def test_a_promise_counts_from_when_its_tick_was_sent() -> None:
    ballot = heard(ballot_of(A, B, C), 10.0, A, B)
    assert ballot.has_quorum(10.0 + PROMISE - 0.01)
    assert not ballot.has_quorum(10.0 + PROMISE)


@pytest.mark.parametrize(
    ("now", "silently", "counts"),
    [(11.0, True, False), (11.0, False, True), (10.0 + PROMISE, True, True)],
    ids=["dies", "parts", "has long been silent"],
)
def test_who_dies_while_its_promise_holds_counts_no_more(
    now: float, silently: bool, counts: bool
) -> None:
    ballot = heard(ballot_of(A, B, C), 10.0, A, B, C)
    for gone in (B, C):
        ballot = succession.voter_disconnected(
            ballot, gone.id, now, goodbye=False, silently=silently
        )
    assert heard(ballot, 20.0, A).has_quorum(20.0) is not counts


def test_most_of_the_former_list_are_needed_until_all_of_it_know_the_new_one() -> None:
    ballot = heard(ballot_of(A, D, before=(A, B, C)), 10.0, A, D)
    assert not ballot.has_quorum(10.0)
    ballot = heard(ballot, 10.0, B)
    assert succession.advance(ballot, 10.0).voters == ballot.voters  # A may die at this moment
    ballot = heard(ballot, 10.0, C)
    after = succession.advance(ballot, 10.0).voters
    assert (after.before, after.now, after.version) == (frozenset(), (A, D), 6)


def test_the_list_changes_only_when_nobody_can_be_elected_by_the_former_one() -> None:
    """If A, B and C die now, D, which leaves them out, would be all that is left of its list."""
    new = tuple(Voter(name, f"{name}:1") for name in "ef")
    ballot = heard(ballot_of(A, B, C, D, *new, before=(A, B, C, D)), 10.0, A, B, C, *new)
    ballot = succession.tick_echoed(ballot, D.id, 10.0, ballot.voters.version - 1)
    assert succession.advance(ballot, 10.0).voters.before == {"a", "b", "c", "d"}
    assert not succession.advance(heard(ballot, 11.0, D), 11.0).voters.before
    silent = heard(ballot, 10.1 + SILENCE, A, B, C, *new)
    assert not succession.advance(silent, 10.1 + SILENCE).voters.before


def test_the_list_takes_in_who_comes_and_drops_who_is_silent() -> None:
    ballot = heard(succession.first_host(A), 0.0, A)
    for one in (B, C):
        ballot = heard(succession.voter_connected(ballot, one, None), 0.0, one)
    ballot = succession.advance(succession.advance(ballot, 0.0), 0.0)
    assert ballot.voters.now == (A, B, C)
    ballot = succession.advance(heard(ballot, 0.0, A, B, C), 0.0)
    later = SILENCE + 0.1
    for _ in range(3):  # it is changed, known, and settled
        ballot = succession.advance(heard(ballot, later, A, B), later)
    assert (ballot.voters.now, ballot.voters.before) == ((A, B), frozenset())


def test_the_list_has_an_end() -> None:
    ballot = heard(succession.first_host(A), 0.0, A)
    for number in range(3 * MOST_VOTERS):
        one = Voter(f"n{number}", f"n{number}:1")
        ballot = heard(succession.voter_connected(ballot, one, None), 0.0, one)
    assert len(succession.advance(ballot, 0.0).voters.now) == MOST_VOTERS


# ---------------------------------------------------------------- all of them together


@dataclass
class Node:
    """One that may host, as ``store_hosting`` and ``store_server`` play it, in little."""

    me: Voter
    ballot: Ballot | None = None
    voters: Voters | None = None
    term: int = 0
    hosts_term: int = 0
    promised: str = ""
    until: float = 0.0
    answered: float = -100.0  # when it sent what its host has answered last
    witness: float = 0.0  # until when it need not count the dead
    runs: bool = True
    dead: bool = False
    mail: list[tuple[str, str, int, float, int]] = field(default_factory=list)


class Play:
    """Nodes, the time, and who sees whom."""

    def __init__(self, seed: int, count: int) -> None:
        self.chance = random.Random(seed)
        self.now = 0.0
        self.nodes = {f"n{i}": Node(Voter(f"n{i}", f"n{i}:1")) for i in range(count)}
        self.cut: set[frozenset[str]] = set()
        self.calm = 0.0
        first = self.nodes["n0"]
        first.ballot, first.hosts_term, first.promised = succession.first_host(first.me), 1, "n0"

    def sees(self, one: str, other: str) -> bool:
        return frozenset((one, other)) not in self.cut

    def turn(self) -> None:
        self.now += self.chance.choice((0.1, 0.5, TICK))
        for node in self.chance.sample(list(self.nodes.values()), len(self.nodes)):
            if node.runs and not node.dead and self.chance.random() < 0.8:
                self.read(node)
                self.act(node)

    def read(self, node: Node) -> None:
        """Takes in what has come, however old it is by now."""
        mail, node.mail = node.mail, []
        for kind, other, term, moment, version in mail:
            if kind == "tick":
                self.hear_tick(node, other, term, moment)
            elif node.ballot is not None and term == node.hosts_term:
                sender = self.nodes[other]
                node.ballot = succession.voter_connected(node.ballot, sender.me, sender.voters)
                node.ballot = succession.tick_echoed(node.ballot, other, moment, version)
                sender.answered = max(sender.answered, moment)

    def hear_tick(self, node: Node, host: str, term: int, moment: float) -> None:
        of = self.nodes[host].ballot
        if of is None or self.nodes[host].hosts_term != term or node.ballot is not None:
            return
        free = self.now >= node.until
        if not ((host == node.promised and term >= node.term) or (free and term > node.term)):
            return
        if host != node.promised:
            node.answered = -100.0
        node.promised, node.until, node.term = host, self.now + PROMISE, term
        if node.voters is None or of.voters.version > node.voters.version:
            node.voters = of.voters
        if self.sees(node.me.id, host):
            version = node.voters.version
            self.nodes[host].mail.append(("echo", node.me.id, term, moment, version))

    def act(self, node: Node) -> None:
        me = node.me.id
        if node.ballot is None:
            votes = node.voters is not None and node.me in node.voters.now
            if votes and self.now >= node.until and self.chance.random() < 0.3:
                self.stand(node)
            return
        if node.ballot.hosts or self.now >= node.until or node.promised == me:
            node.promised, node.until, node.term = me, self.now + PROMISE, node.hosts_term
            version = node.ballot.voters.version
            node.ballot = succession.tick_echoed(node.ballot, me, self.now, version)
        node.ballot = succession.advance(node.ballot, self.now)
        node.voters = node.ballot.voters
        seen = [one for one in self.nodes.values() if one is not node and self.sees(me, one.me.id)]
        highest = max((one.term for one in seen if not one.dead), default=0)
        if highest > node.hosts_term:
            if node.ballot.hosts and node.ballot.has_quorum(self.now):
                node.hosts_term = highest + 1  # it outbids
            else:
                node.ballot = None
                return
        for other in seen:
            other.mail.append(("tick", me, node.hosts_term, self.now, 0))
        over = node.ballot.dead and self.now >= node.witness
        if not node.ballot.hosts and (over or self.chance.random() < 0.1):
            node.ballot = None  # it gives up

    def stand(self, node: Node) -> None:
        assert node.voters is not None
        dead: set[str] = set()
        if self.now < node.witness:
            # Who is dead is seen by its port, by whoever sees its machine.
            dead = {id for id, one in self.nodes.items() if one.dead and self.sees(id, node.me.id)}
        node.ballot = succession.candidate(node.me, node.voters, dead, self.now)
        node.hosts_term = node.term + 1

    def befall(self) -> None:
        """Something happens to somebody."""
        node = self.chance.choice(list(self.nodes.values()))
        what = self.chance.random()
        if what < 0.3:
            node.runs = not node.runs
        elif what < 0.4:
            self.die(node)
        elif what < 0.7:
            other = self.chance.choice(list(self.nodes))
            self.cut ^= {frozenset((node.me.id, other))} if other != node.me.id else set()
        elif what < 0.8:
            self.cut.clear()
        elif what < 0.9:
            self.befall_many()
        elif sum(not one.dead for one in self.nodes.values()) < MOST_VOTERS:
            name = f"n{len(self.nodes)}"
            self.nodes[name] = Node(Voter(name, f"{name}:1"))

    def befall_many(self) -> None:
        """Several die at once, and those who are left lose sight of each other."""
        alive = [one for one in self.nodes.values() if not one.dead]
        for one in self.chance.sample(alive, len(alive) // 2):
            self.die(one)
        names = list(self.nodes)
        here = set(self.chance.sample(names, self.chance.randint(1, len(names))))
        for one in here:
            self.cut |= {frozenset((one, other)) for other in names if other not in here}

    def die(self, node: Node) -> None:
        node.dead = True
        for other in self.nodes.values():
            if not self.sees(other.me.id, node.me.id) or not other.runs or other.dead:
                continue
            if other.ballot is not None:
                other.ballot = succession.voter_disconnected(
                    other.ballot, node.me.id, self.now, goodbye=False, silently=True
                )
            elif other.promised == node.me.id and self.now < other.answered + PROMISE:
                other.until, other.witness = 0.0, self.now + DEAD_WINDOW

    def writers(self) -> list[str]:
        """Who would take a write at this very moment, standing still or not."""
        return [
            id
            for id, node in self.nodes.items()
            if not node.dead
            and node.ballot is not None
            and node.ballot.hosts
            and node.ballot.has_quorum(self.now)
        ]


@pytest.mark.parametrize("first", range(0, 400, 100))
def test_there_are_never_two_hosts_that_write(first: int) -> None:
    for seed in range(first, first + 100):
        play = Play(seed, count=2 + seed % 6)
        for _ in range(300):
            play.turn()
            if play.chance.random() < 0.15:
                play.befall()
            assert len(play.writers()) <= 1, f"seed {seed}, at {play.now:.1f}: {play.writers()}"


@pytest.mark.parametrize("seed", range(20))
def test_after_the_death_of_a_host_there_is_another(seed: int) -> None:
    play = Play(seed, count=3 + seed % 5)
    for _ in range(100):
        play.turn()
    (host,) = play.writers()
    play.die(play.nodes[host])
    for _ in range(300):
        play.turn()
    assert play.writers() != [host]
    assert len(play.writers()) == 1
