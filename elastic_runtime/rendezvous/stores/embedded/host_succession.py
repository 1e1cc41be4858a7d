"""Who may host the store, and who hosts it next: pure.

There must never be two hosts that both take writes, or a job could go on twice. So a host takes
writes only while it has a *mandate*: promises of most of the *voters* to obey nobody else. Voters
are the host and the first nodes that came and may host (``MOST_VOTERS``: their list goes to every
node). It is a leader's lease with terms, and a list of voters that is changed by joint consensus,
as in Raft (Ongaro, "Consensus: Bridging Theory and Practice", 2014, chapters 4 and 6.4):

- The host sends *ticks* with its time and its *term*, the number of the host, which grows. A voter
  that echoes one has promised not to vote for anybody else for ``PROMISE`` seconds from when it
  came; the host counts them from when it was *sent*. So the host loses its mandate before the first
  voter is free again, whoever stands still meanwhile. Nobody obeys a lower term than before.
- A host needs half of the voters, itself included; whoever wants to become one needs more than
  half. So of two nodes that lose sight of each other the host goes on, and the other one waits.
- A *dead* voter counts no more. To the host that is one that said goodbye, or whose connection
  ended without a word while its promise held: who lives says that it parts. To the others it is one
  whose port refuses, but only for ``WITNESS`` seconds after the death of a host that had heard them
  a moment before. Later there may be another host, which has dropped them from the list.
- A voter is dropped from the list only after a longer silence (``SILENCE``).
- While the list changes, most of both lists are needed. That ends when everybody on the former
  list knows the new one, but for the dead and those who were silent for so long that they may
  not leave out the dead. So whoever is elected without the dead is elected by the present list.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

# Seconds that a voter's promise lasts; between two ticks; in which the dead need not be counted
# after the death of a host; after which a silent voter is dropped. The last is more than the sum of
# the promise and of that.
PROMISE = 4.0
PACE = 1.0
WITNESS = 8.0
SILENCE = 14.0
MOST_VOTERS = 9


class Voter(NamedTuple):
    """Who may host.

    Attributes:
        id: of one life of a node.
        where: ``host:port`` at which it listens as long as it lives.
    """

    id: str
    where: str


@dataclass(frozen=True, slots=True)
class Voters:
    """A list of voters.

    Attributes:
        version: grows with each change.
        now: in the order in which they came; the first one that lives is to host next.
        before: ids of those of the list before, as long as it counts as well.
    """

    version: int
    now: tuple[Voter, ...]
    before: frozenset[str] = frozenset()

    def enough(self, willing: Collection[str], dead: Collection[str], hosts: bool) -> bool:
        """Whether those who are willing make a host of the one who asks.

        Args:
            willing: ids of voters that obey it, itself included.
            dead: ids of voters that are certainly dead.
            hosts: it is the host already.
        """
        groups = (frozenset(one.id for one in self.now), self.before)
        return all(_enough(group.difference(dead), willing, hosts) for group in groups)


def _enough(group: Collection[str], willing: Collection[str], hosts: bool) -> bool:
    yes = 2 * len(frozenset(group).intersection(willing))
    return not group or yes > len(group) or (hosts and yes == len(group))


@dataclass(frozen=True, slots=True)
class Ballot:
    """What one who hosts, or stands for it, knows of its voters. Times are on its own clock.

    Attributes:
        me: its id.
        voters: the list.
        hosts: it was elected.
        heard: of each voter, when the last tick was sent that it has echoed.
        knows: of each voter, the version of the list that it has.
        present: voters, and who would like to be one, that are connected.
        dead: voters that are certainly dead.
        since: when it began to stand.
    """

    me: str
    voters: Voters
    hosts: bool = False
    heard: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    knows: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    present: Mapping[str, Voter] = field(default_factory=lambda: MappingProxyType({}))
    dead: frozenset[str] = frozenset()
    since: float = 0.0

    def promises(self, now: float) -> set[str]:
        """Who obeys this node and nobody else."""
        return {id for id, sent in self.heard.items() if now < sent + PROMISE}

    def fallen_silent(self, now: float) -> set[str]:
        """Voters that nothing was heard of for long."""
        ids = {one.id for one in self.voters.now} | self.voters.before
        return {id for id in ids if now > self.heard.get(id, self.since) + SILENCE}

    def may_write(self, now: float) -> bool:
        """Whether it has the mandate."""
        return self.voters.enough(self.promises(now), self.dead, self.hosts)


def begin(me: Voter) -> Ballot:
    """The ballot of one who founds a store: it is its only voter."""
    return Ballot(me.id, Voters(1, (me,)), hosts=True, present={me.id: me})


def stand(me: Voter, voters: Voters, dead: Collection[str], now: float) -> Ballot:
    """The ballot of one who wants to host after another.

    Args:
        me: it.
        voters: the list that it knows.
        dead: voters that need not be counted.
        now: the moment.
    """
    gone = frozenset(dead) - {me.id}
    return Ballot(me.id, voters, present={me.id: me}, dead=gone, since=now)


def came(ballot: Ballot, voter: Voter, voters: Voters | None) -> Ballot:
    """Somebody is connected that may host, and has this list."""
    if voters is not None and not ballot.hosts and voters.version > ballot.voters.version:
        ballot = replace(ballot, voters=voters)
    present = {**ballot.present, voter.id: voter}
    return replace(ballot, present=present, dead=ballot.dead - {voter.id})


def echoed(ballot: Ballot, id: str, sent: float, version: int) -> Ballot:
    """A voter has echoed the tick that was sent at a moment, and has this list."""
    sent = max(sent, ballot.heard.get(id, sent))
    heard, knows = {**ballot.heard, id: sent}, {**ballot.knows, id: version}
    return replace(ballot, heard=heard, knows=knows)


def ended(ballot: Ballot, id: str, now: float, goodbye: bool, silently: bool) -> Ballot:
    """The connection of a voter has ended.

    Args:
        ballot: the ballot before.
        id: the voter.
        now: when.
        goodbye: it said that it leaves for good.
        silently: it was closed at the other end, and nothing was said.
    """
    present = {other: voter for other, voter in ballot.present.items() if other != id}
    died = goodbye or (silently and id in ballot.promises(now))
    dead = ballot.dead | {id} if died else ballot.dead
    heard = {other: sent for other, sent in ballot.heard.items() if not (died and other == id)}
    return replace(ballot, present=present, dead=dead, heard=heard)


def turn(ballot: Ballot, now: float) -> Ballot:
    """What follows at this moment: an election, a change of the list."""
    if not ballot.may_write(now):
        return ballot
    ballot = replace(ballot, hosts=True)
    voters = ballot.voters
    if voters.before:
        know = {id for id, version in ballot.knows.items() if version >= voters.version}
        alive = voters.before - ballot.dead
        # One that does not know it could be elected by the former list, without all that die now.
        waited_for = alive - ballot.fallen_silent(now) - {ballot.me}
        if _enough(alive, know, hosts=True) and waited_for <= know:
            voters = Voters(voters.version + 1, voters.now)
    elif (wanted := _wanted(ballot, now)) != voters.now:
        before = frozenset(voter.id for voter in voters.now)
        voters = Voters(voters.version + 1, wanted, before)
    return replace(ballot, voters=voters)


def _wanted(ballot: Ballot, now: float) -> tuple[Voter, ...]:
    """Voters that can be counted on: those who are there first, then those who came after them."""
    promised, gone = ballot.promises(now), ballot.fallen_silent(now) | ballot.dead
    stay = [one for one in ballot.voters.now if one.id not in gone]
    ids = {one.id for one in stay}
    new = [one for one in ballot.present.values() if one.id in promised and one.id not in ids]
    return tuple([*stay, *new][:MOST_VOTERS])
