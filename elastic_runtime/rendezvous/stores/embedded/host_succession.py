"""Who may host the store, and who hosts it next: pure.

There must never be two hosts that both accept writes, or a job could continue twice. So a host
accepts writes only while it has a *quorum*: valid promises of enough *voters* to follow no other
host. Voters are the host and the first nodes that connected and may host (``MOST_VOTERS``: their
list is sent to every node). It is a leader lease with terms, and a list of voters that is changed
by joint consensus, as in Raft (Ongaro, "Consensus: Bridging Theory and Practice", 2014, chapters 4
and 6.4):

- The host sends *ticks* with its time and its *term*, a number that grows with each host. A voter
  that echoes a tick promises to vote for no other node for ``PROMISE`` seconds after it *received*
  the tick; the host counts them from when it *sent* the tick. So the host loses its quorum before
  the first voter is free again, also if processes are stopped in between. No node follows a lower
  term than before.
- A host needs half of the voters, itself included; a candidate needs more than half. So if two
  nodes are cut off from each other, the host continues and the other node waits.
- A *dead* voter is not counted. For the host, a voter is dead if it said goodbye, or if its
  connection ended without a message while its promise was valid: a node that is alive says that it
  disconnects. For a candidate, a voter is dead if its port refuses connections; but only within
  ``DEAD_WINDOW`` seconds after the death of a host that had answered the candidate just before.
  Later there may be another host, which has removed the candidate from the list.
- A voter is removed from the list only after a longer silence (``SILENCE``).
- While the list changes, most of both lists are needed. That ends when everybody on the former
  list knows the new one, except for the dead and for those whose silence was so long that they
  must count the dead. So a candidate that leaves out the dead knows the present list.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

# Seconds: of a voter's promise; between two ticks; after the death of a host in which a candidate
# need not count dead voters; after which a silent voter is removed. The last one is more than
# ``PROMISE`` and ``DEAD_WINDOW`` together.
PROMISE = 4.0
TICK = 1.0
DEAD_WINDOW = 8.0
SILENCE = 14.0
MOST_VOTERS = 9


class Voter(NamedTuple):
    """Who may host.

    Attributes:
        id: of one process of a node.
        where: ``host:port`` at which it listens until it ends.
    """

    id: str
    where: str


@dataclass(frozen=True, slots=True)
class Voters:
    """A list of voters.

    Attributes:
        version: grows with each change.
        now: in the order in which they connected; the first one that is alive hosts next.
        before: ids of the former list, while the change needs both; else empty.
    """

    version: int
    now: tuple[Voter, ...]
    before: frozenset[str] = frozenset()

    def enough(self, willing: Collection[str], dead: Collection[str], hosts: bool) -> bool:
        """Whether a node may host with these promises.

        Args:
            willing: ids of voters that have promised to follow it, itself included.
            dead: ids of voters that are certainly dead.
            hosts: it is the host already.
        """
        groups = (frozenset(one.id for one in self.now), self.before)
        return all(_enough(group.difference(dead), willing, hosts) for group in groups)


def _enough(group: Collection[str], willing: Collection[str], hosts: bool) -> bool:
    yes = 2 * len(frozenset(group).intersection(willing))
    return not group or yes > len(group) or (hosts and yes == len(group))


def first_in_line(voters: Voters, gone: Collection[str]) -> Voter | None:
    """The voter that becomes a candidate when the host is gone; None: no voter is left.

    Args:
        voters: the last list that is known.
        gone: addresses at which nothing answers, or nobody who would stand.
    """
    return next((one for one in voters.now if one.where not in gone), None)


@dataclass(frozen=True, slots=True)
class Ballot:
    """What a host or a candidate knows of its voters. Times are on its own clock.

    Attributes:
        me: its id.
        voters: the list.
        hosts: it was elected.
        heard: of each voter, when the last tick was sent that it has echoed.
        knows: of each voter, the version of the list that it has.
        present: connected nodes that are voters or may become one.
        dead: voters that are certainly dead.
        since: when it became a candidate.
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
        """Ids of the voters whose promise to this node is valid."""
        return {id for id, sent in self.heard.items() if now < sent + PROMISE}

    def fallen_silent(self, now: float) -> set[str]:
        """Ids of the voters that have echoed nothing for ``SILENCE`` seconds."""
        ids = {one.id for one in self.voters.now} | self.voters.before
        return {id for id in ids if now > self.heard.get(id, self.since) + SILENCE}

    def has_quorum(self, now: float) -> bool:
        """Whether it may accept writes now."""
        return self.voters.enough(self.promises(now), self.dead, self.hosts)


def first_host(me: Voter) -> Ballot:
    """The ballot of the node that creates a store: it is the only voter."""
    return Ballot(me.id, Voters(1, (me,)), hosts=True, present={me.id: me})


def candidate(me: Voter, voters: Voters, dead: Collection[str], now: float) -> Ballot:
    """The ballot of a node that wants to replace a lost host.

    Args:
        me: the node.
        voters: the list that it knows.
        dead: ids of voters that need not be counted.
        now: the present time.
    """
    gone = frozenset(dead) - {me.id}
    return Ballot(me.id, voters, present={me.id: me}, dead=gone, since=now)


def voter_connected(ballot: Ballot, voter: Voter, voters: Voters | None) -> Ballot:
    """A node has connected that may host, and knows this list (None: it knows none)."""
    if voters is not None and not ballot.hosts and voters.version > ballot.voters.version:
        ballot = replace(ballot, voters=voters)
    present = {**ballot.present, voter.id: voter}
    return replace(ballot, present=present, dead=ballot.dead - {voter.id})


def tick_echoed(ballot: Ballot, id: str, sent: float, version: int) -> Ballot:
    """A voter has echoed the tick that was sent at this time, and has this version of the list."""
    sent = max(sent, ballot.heard.get(id, sent))
    heard, knows = {**ballot.heard, id: sent}, {**ballot.knows, id: version}
    return replace(ballot, heard=heard, knows=knows)


def voter_disconnected(
    ballot: Ballot, id: str, now: float, goodbye: bool, silently: bool
) -> Ballot:
    """The connection of a voter has ended.

    Args:
        ballot: the ballot before.
        id: the voter.
        now: when.
        goodbye: it said that it leaves the job.
        silently: the other end closed it without a message.
    """
    present = {other: voter for other, voter in ballot.present.items() if other != id}
    died = goodbye or (silently and id in ballot.promises(now))
    dead = ballot.dead | {id} if died else ballot.dead
    heard = {other: sent for other, sent in ballot.heard.items() if not (died and other == id)}
    return replace(ballot, present=present, dead=dead, heard=heard)


def advance(ballot: Ballot, now: float) -> Ballot:
    """What follows now: the candidate is elected, or the list of voters changes."""
    if not ballot.has_quorum(now):
        return ballot
    ballot = replace(ballot, hosts=True)
    voters = ballot.voters
    if voters.before:
        know = {id for id, version in ballot.knows.items() if version >= voters.version}
        alive = voters.before - ballot.dead
        # A voter that does not know the new list could be elected by the former one, if enough of
        # the others died now.
        waited_for = alive - ballot.fallen_silent(now) - {ballot.me}
        if _enough(alive, know, hosts=True) and waited_for <= know:
            voters = Voters(voters.version + 1, voters.now)
    elif (wanted := _wanted(ballot, now)) != voters.now:
        before = frozenset(voter.id for voter in voters.now)
        voters = Voters(voters.version + 1, wanted, before)
    return replace(ballot, voters=voters)


def _wanted(ballot: Ballot, now: float) -> tuple[Voter, ...]:
    """The next list: present voters that are not silent, then connected nodes in their order."""
    promised, gone = ballot.promises(now), ballot.fallen_silent(now) | ballot.dead
    stay = [one for one in ballot.voters.now if one.id not in gone]
    ids = {one.id for one in stay}
    new = [one for one in ballot.present.values() if one.id in promised and one.id not in ids]
    return tuple([*stay, *new][:MOST_VOTERS])
