"""torch's ``RendezvousHandler`` on top of a ``Participant``.

torch's agent only ever asks: it enters a round with ``next_rendezvous`` and polls
``num_nodes_waiting`` while its workers are healthy. So every reason to leave a round (a member is
gone, a change is planned, the job is over) is reported by that number. It counts restarts by
itself; the job's own budget stays untouched.
"""

from __future__ import annotations

import atexit
import sys
import threading
import time
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

from torch.distributed import TCPStore
from torch.distributed.elastic.rendezvous.api import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousGracefulExitError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousStateError,
    RendezvousStoreInfo,
    RendezvousTimeoutError,
)

from elastic_runtime.defaults import AGENT_BEAT
from elastic_runtime.errors import (
    EXIT_FAILED,
    EXIT_NOT_ENOUGH_NODES,
    RecordError,
    StoreUnavailable,
)
from elastic_runtime.limits import GOODBYE_TIMEOUT, HOST_STAYS
from elastic_runtime.protocol.records import (
    JOB,
    OUTCOME,
    PLANNED,
    FaultReport,
    JobRecord,
    OutcomeRecord,
)
from elastic_runtime.rendezvous.core.membership_events import Done, Goodbye, Join, LeftRound
from elastic_runtime.rendezvous.core.notices import (
    Conflict,
    Ended,
    Excluded,
    Fenced,
    Sealed,
    StoreState,
    StoreTimeout,
    Switch,
)
from elastic_runtime.rendezvous.participant import NodeIdentity, Participant
from elastic_runtime.rendezvous.probe import ProbeServer
from elastic_runtime.rendezvous.store_contract import ABSENT, Expect, Put, Transaction
from elastic_runtime.system import threads
from elastic_runtime.system.listening import where_reached
from elastic_runtime.system.torch_tcp_store import connect_store

if TYPE_CHECKING:
    import socket

    from elastic_runtime.protocol.round_records import RoundRecord
    from elastic_runtime.rendezvous.core.notices import Notice
    from elastic_runtime.rendezvous.policy import Policy
    from elastic_runtime.rendezvous.store_contract import Store

# Seconds: that connecting to a round's store may take (torch asks for the name of the host that it
# connects to, which takes 5 s where a resolver drops the query), and one answer of it (the exit
# barrier sets its own); that the end of the job is waited for.
_CONNECT = 6.0
_READ = 60.0
_END = 3.0
_FAREWELL = 1.0
_LOOK_AGAIN = 0.05


class ElasticRendezvousHandler(RendezvousHandler):  # type: ignore[misc]
    """One torchrun agent's rendezvous.

    Args:
        name: of the backend, as registered with torch.
        run_id: names the run.
        store: a store that was not started yet.
        policy: the settings of the decisions.
        identity: who this node is, but for its probe port.
    """

    def __init__(
        self,
        name: str,
        run_id: str,
        store: Store,
        policy: Policy,
        identity: NodeIdentity,
    ) -> None:
        self._name = name
        self._run_id = run_id
        self._store = store
        self._where = where_reached(identity.address)
        self._probes = ProbeServer(
            self._where.address,
            lambda: {"node": self._participant.node},
            lambda: self._participant.secret,
        )
        identity = replace(identity, probe_port=self._probes.port)
        self._participant = Participant(store, policy, identity, self._hear)
        self._identity = identity
        self._listener: socket.socket | None = None
        self._round_store: TCPStore | None = None
        self._round: RoundRecord | None = None
        self._joined = False
        self._gone = threading.Event()
        self._crash = ""
        self._unwatch = threads.watch(self._crashed)
        # The last notices; guarded by this condition.
        self._noticed = threading.Condition()
        self._sealed: Sealed | None = None
        self._switch: Switch | None = None
        self._out = ""
        self._outcome: OutcomeRecord | None = None
        self._closed = ""  # why we have closed the job ourselves
        self._trouble: Conflict | StoreState | StoreTimeout | None = None

    # ------------------------------------------------------------ what torch asks

    def get_backend(self) -> str:
        """The name under which the handler is registered."""
        return self._name

    def get_run_id(self) -> str:
        """The run's id."""
        return self._run_id

    @property
    def use_agent_store(self) -> bool:
        """The rank-0 worker hosts the workers' store, on a port of its own each round."""
        return False

    def next_rendezvous(self) -> RendezvousInfo:
        """Enters the next round; blocks until there is one.

        Raises:
            RendezvousClosedError: the job is over.
            RendezvousConnectionError: the store does not answer.
            RendezvousGracefulExitError: the job ended well while this node was a spare.
            RendezvousStateError: another job holds the run id.
            RendezvousTimeoutError: too few nodes came together in time.
        """
        if self._gone.is_set():
            raise RendezvousClosedError("this handler was shut down")
        self._raise_if_over()
        self._begin()
        while True:
            sealed = self._wait_for_round()
            info = self._enter(sealed)
            if info is not None:
                self._round = sealed.round
                return info
            reason = f"{self._identity.name} cannot reach the store of round {sealed.round.number}"
            self._leave(sealed.round, reason)

    def num_nodes_waiting(self) -> int:
        """1 if the present round is to be left, for whatever reason; else 0."""
        with self._noticed:
            failed = self._outcome is not None and not self._outcome.succeeded
            return 1 if self._why_leave or self._out or failed or self._crash else 0

    @property
    def _why_leave(self) -> str:
        """Why the present round is to be left; an order may be of an earlier one."""
        if self._switch is None or self._round is None:
            return ""
        return self._switch.reason if self._switch.round == self._round.number else ""

    def is_closed(self) -> bool:
        """Whether the job is over."""
        with self._noticed:
            return bool(self._closed) or self._outcome is not None

    def set_closed(self) -> None:
        """Ends the job for all nodes, as failed, whether this one takes part in it or not.

        Where there is no job, none is made in order to be closed: only this handler is closed then.

        Raises:
            RendezvousConnectionError: the store does not answer, so no other node learns of it.
        """
        if not self._close_job(f"torchrun closed the rendezvous on {self._identity.name}"):
            raise RendezvousConnectionError(
                "the rendezvous is closed on this node only: the store does not answer"
            )

    def shutdown(self) -> bool:
        """Ends this node's part, and the job with it if this node has a part in it.

        torch calls this at the end of a run, with an exception on its way if it failed.

        Returns:
            Whether the store knows, if there is anything to know.
        """
        if self._gone.is_set():
            return True
        error = sys.exc_info()[1]
        if error is not None and self._joined:
            self._close_job(f"{self._identity.name}: {type(error).__name__}")
        elif self._round is not None:
            self._participant.say(Done(self._round.number))
            with self._noticed:
                self._noticed.wait_for(lambda: self._outcome is not None, _END)
        if self._joined and self.is_closed():
            # A store that is hosted here ends with this process, and the others have to read that
            # the job is over.
            self._participant.wait_for_others_to_leave(HOST_STAYS)
        return self._depart()

    # ------------------------------------------------------------ entering and leaving

    def _begin(self) -> None:
        if not self._joined:
            self._joined = True
            # torch does not call shutdown() for an agent that a signal ends.
            atexit.register(self._depart)
            threads.spawn(self._keep_beating, name="beats")
            self._participant.say(Join(self._reserve()))
            return
        with self._noticed:
            reason, out = self._why_leave, self._out
        if out:
            self._join_again()
        elif self._round is not None:
            self._leave(self._round, reason or f"the workers ended on {self._identity.name}")

    def _join_again(self) -> None:
        """The job continued without this node: it joins again as a new one."""
        with self._noticed:
            self._sealed, self._out = None, ""
        self._round, self._round_store = None, None
        self._participant.say(Join(self._reserve()))

    def _leave(self, last: RoundRecord, reason: str) -> None:
        with self._noticed:
            self._sealed = None
        self._round, self._round_store = None, None
        # To torch every restart is alike; it counts them itself.
        fault = FaultReport(last.number, PLANNED, reason)
        self._participant.say(LeftRound(last.number, fault, self._reserve()))

    def _wait_for_round(self) -> Sealed:
        while True:
            with self._noticed:
                self._noticed.wait_for(self._has_notice, AGENT_BEAT)
                sealed, out, trouble = self._sealed, self._out, self._trouble
            self._raise_if_over()
            if isinstance(trouble, Conflict):
                raise RendezvousStateError(trouble.message)
            if trouble is not None:
                raise RendezvousConnectionError(trouble.why)
            if out:
                self._join_again()
            elif sealed is not None:
                return sealed

    def _has_notice(self) -> bool:
        over = self._outcome or self._closed or self._crash
        return bool(self._sealed or self._out or self._trouble or over)

    def _enter(self, sealed: Sealed) -> RendezvousInfo | None:
        """Opens the round's store; None if its host is gone already."""
        last, rank = sealed.round, sealed.group_rank
        try:
            store = self._open_round_store(last, rank)
            store.set_timeout(timedelta(seconds=_READ))
            address = RendezvousStoreInfo.build(rank, store, self._identity.address)
        except (OSError, RuntimeError):
            return None
        self._round_store = store
        return RendezvousInfo(store, rank, last.size, address)

    def _open_round_store(self, last: RoundRecord, rank: int) -> TCPStore:
        listener, self._listener = self._listener, None
        if rank == 0 and listener is not None:
            return TCPStore(
                self._identity.address,
                last.store_port,
                is_master=True,
                wait_for_workers=False,
                timeout=timedelta(seconds=_CONNECT),
                master_listen_fd=listener.detach(),
            )
        if listener is not None:
            listener.close()
        return connect_store(last.members[0].address, last.store_port, _CONNECT)

    def _reserve(self) -> int:
        """Listens where this node would host the next round's store; returns the port."""
        if self._listener is not None:
            self._listener.close()
        self._listener = self._where.listen()
        return int(self._listener.getsockname()[1])

    # ------------------------------------------------------------ the end

    def _raise_if_over(self) -> None:
        with self._noticed:
            outcome, closed, crash = self._outcome, self._closed, self._crash
        if crash:
            raise RendezvousStateError(crash)
        if outcome is None:
            if closed:
                raise RendezvousClosedError(closed)
            return
        if outcome.exit_code == EXIT_NOT_ENOUGH_NODES:
            raise RendezvousTimeoutError(outcome.reason)
        if outcome.succeeded:
            raise RendezvousGracefulExitError(f"the job is over: {outcome.reason}")
        raise RendezvousClosedError(f"the job is over: {outcome.reason}")

    def _close_job(self, reason: str) -> bool:
        """Ends the job. Returns whether the store knows."""
        with self._noticed:
            if self._closed or self._outcome is not None:
                return True
            self._closed = reason
            self._noticed.notify_all()
        if self._joined and not self._wait_for_contact(GOODBYE_TIMEOUT):
            return False  # the others find out when they miss us
        self._participant.watch()
        try:
            self._write_end(reason)
        except (StoreUnavailable, RecordError):
            return False
        return True

    def _wait_for_contact(self, timeout: float) -> bool:
        """Whether the store is connected; a connection that was just lost may come back."""
        deadline = time.monotonic() + timeout
        while not self._participant.state.contact.connected:
            if time.monotonic() > deadline:
                return False
            self._gone.wait(_LOOK_AGAIN)
        return True

    def _write_end(self, reason: str) -> None:
        """Writes the end of the job, if there is one that has none."""
        found = {e.key: e for key in (JOB, OUTCOME) for e in self._store.read(key) if e.key == key}
        if JOB not in found:
            return
        incarnation, old = JobRecord.decode(JOB, found[JOB].value).incarnation, found.get(OUTCOME)
        if old is not None and OutcomeRecord.decode(OUTCOME, old.value).incarnation == incarnation:
            return
        record = OutcomeRecord(incarnation, False, EXIT_FAILED, reason, node=self._identity.name)
        expected = (Expect(OUTCOME, old.version if old else ABSENT),)
        # If one is there meanwhile, the job is over as well.
        self._store.apply(Transaction(expected, (Put(OUTCOME, record.encode()),)))

    def _depart(self) -> bool:
        if self._gone.is_set():
            return True
        self._gone.set()
        self._unwatch()
        atexit.unregister(self._depart)
        known = True
        if self._joined:
            self._participant.say(Goodbye())
            known = self._participant.wait_for_goodbye(_FAREWELL)
        self._participant.close()
        self._probes.close()
        if self._listener is not None:
            self._listener.close()
        return known

    # ------------------------------------------------------------ threads of others

    def _hear(self, notice: Notice) -> None:
        with self._noticed:
            match notice:
                case Sealed():
                    self._sealed = notice
                case Switch():
                    self._switch = notice
                case Excluded(reason) | Fenced(reason):
                    self._sealed, self._out = None, reason
                case Ended(outcome):
                    self._outcome = outcome
                case Conflict() | StoreTimeout() | StoreState(refused=True):
                    self._trouble = notice
            self._noticed.notify_all()

    def _crashed(self, crash: threads.Crash) -> None:
        path = threads.write_down(crash)
        with self._noticed:
            self._crash = (
                f"the rendezvous of {self._identity.name} has crashed: {crash.error} (in its "
                f"thread {crash.thread}); the traceback is in {path or 'no file'}"
            )
            self._noticed.notify_all()

    def _keep_beating(self) -> None:
        """torch's agent is silent for minutes where it waits; its process runs all the same."""
        while not self._gone.wait(AGENT_BEAT):
            self._participant.beat()
