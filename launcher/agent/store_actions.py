"""Performs the store actions of a node's core, and turns the store's answers into events for the core.

Each process that runs a core has one instance: the agent of `elastic-launch`, and torchrun's plugin. It owns the
mirror, the lease and its session, sends transactions, and logs once that etcd is unavailable and once that it is back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any, Final

from elastic.core.agent import actions
from elastic.core.agent import events as agent_events
from elastic.core.agent.state import AgentState
from elastic.core.keys import JobKeys
from elastic.core.kv import KeyRange
from elastic.core.transactions import Transaction
from elastic.core.view import StoreView
from elastic.core.view_reader import ViewReader
from elastic.errors import OutcomeUnknown, StoreDenied, StoreError, StoreUnavailable, TooLarge
from elastic.store import session
from elastic.store.mirror import Mirror
from elastic.store.protocol import Store
from launcher.agent.history_writer import HistoryWriter
from launcher.logs.logger import AgentLog
from launcher.peers.reachability import ProbeResponder
from launcher.system.clock import boottime
from launcher.system.time_limit import wait_at_most

CLOSING_LIMIT_S = 1.0
"""Time limit for revoking the lease; after that the lease expires on its own."""
REVOKE_AGAIN_S = 0.5
"""Pause before another attempt to revoke a lease, if the store did not answer."""
REFUSED_PAUSE_S = 1.0
"""Pause before a request is repeated that the store refused."""
DAMAGED_MAX = 32
"""Unreadable documents of nodes that are logged, each once: a client with write access can create any number."""
AWAY: Final[Mapping[type[StoreError], str]] = {
    StoreDenied: "refuses this node",
    TooLarge: "holds more than this node reads",
}
"""The reason why this node cannot use the store, by error; for any other error the store does not answer."""

StoreAction = (
    actions.SendTransaction
    | actions.MirrorKeys
    | actions.Relist
    | actions.FindMember
    | actions.LookUpNode
    | actions.OpenSession
    | actions.CloseSession
    | actions.RevokeLease
    | actions.RefreshLease
)
"""The actions that this module performs."""


class StoreActions:
    """One node's requests to the store. `put` takes events for the core; `learn` gets each view before the core."""

    def __init__(
        self,
        store: Store,
        facts: AgentState,
        agent_log: AgentLog,
        history: HistoryWriter,
        *,
        put: Callable[[agent_events.Event], None],
        learn: Callable[[StoreView], None],
        begin: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
        read_every: float = session.READ_EVERY,
        on_refresh_failed: Callable[[StoreError], None] = lambda _: None,
    ) -> None:
        """Take `begin`, which runs a coroutine as a task whose error ends the caller; `read_every` is the session's.

        `on_refresh_failed` gets the error of each failed renewal of the lease.
        """
        self._store = store
        self._facts = facts
        self._keys: JobKeys = facts.keys
        self._node = facts.me.node
        self._agent_log = agent_log
        self._history = history
        self._put = put
        self._learn = learn
        self._begin = begin
        self._read_every = read_every
        self._on_refresh_failed = on_refresh_failed
        self._reader = ViewReader(self._keys)
        self._prober = ProbeResponder(store, self._keys, self._node, agent_log)
        self._mirror = Mirror(store, on_change=self._mirrored, on_outage=lambda error: self._note_outage("view", error))
        self._complete = False
        self._session: asyncio.Task[None] | None = None
        self._refresh_now = asyncio.Event()
        self._lease: int | None = None
        self._damaged: set[str] = set()
        self._let_in = False
        """Whether the store has ever accepted a request of this node."""
        self._in_outage: set[str] = set()

    async def run(self) -> None:
        """Follow the store until cancelled."""
        self.perform(actions.MirrorKeys(complete=False))
        await self._mirror.run()

    def perform(self, action: StoreAction) -> None:
        """Start an action that the core requests; its result is an event."""
        match action:
            case actions.SendTransaction():
                self._begin(self._send(action.transaction))
            case actions.MirrorKeys():
                self._complete = action.complete
                self._mirror.follow(self._keys.everything if action.complete else self._keys.followed(self._node))
            case actions.Relist():
                self._mirror.refresh_soon()
            case actions.FindMember():
                self._begin(self._look(KeyRange.prefix(self._keys.members), agent_events.MemberFound))
            case actions.LookUpNode():
                member = KeyRange.key(self._keys.member(action.node))
                self._begin(self._look(member, partial(agent_events.NodeLookedUp, action.node)))
            case actions.OpenSession():
                self._begin(self._open_session(action.ttl_s))
            case actions.CloseSession():
                self._lease = action.lease
            case actions.RefreshLease():
                self._refresh_now.set()
            case actions.RevokeLease():
                self._begin(self._revoke(action.lease))

    async def give_back_lease(self) -> None:
        """Revoke the lease, so that the node is gone at once instead of when the lease expires."""
        if self._lease is not None:
            await wait_at_most(CLOSING_LIMIT_S, self._revoke(self._lease))

    def _mirrored(self, mirror: Mirror) -> None:
        if mirror.listed:
            view = self._reader.read(mirror.entries, mirror.revision, complete=self._complete)
            if view.schema is None:
                self._learn(view)
            self._put(agent_events.ViewChanged(view, mirror.listings))
            if self._prober.asked(
                mirror.entries, self._facts.registration.create_revision or None, self._facts.registration.lease
            ):
                self._begin(self._prober.answer())
            self._name_damaged(view)

    def _name_damaged(self, view: StoreView) -> None:
        """Log each unreadable document once; of those that the job does not depend on, only the first few."""
        for key in view.damaged:
            if key in self._damaged or (len(self._damaged) > DAMAGED_MAX and key not in view.unreadable):
                continue
            self._damaged.add(key)
            if len(self._damaged) > DAMAGED_MAX and key not in view.unreadable:
                self._agent_log.warning("more etcd keys cannot be parsed; elastic-ctl status lists all of them")
            else:
                self._agent_log.warning(f"ignoring etcd key {key}: cannot parse it; restore or delete it")

    def _note_outage(self, whose: str, error: StoreError | None) -> None:
        """Log once that etcd is unavailable, and once that it is back; the lease or the view detects it first."""
        before = bool(self._in_outage)
        (self._in_outage.discard if error is None else self._in_outage.add)(whose)
        if error is not None and not before:
            what = next((words for kind, words in AWAY.items() if isinstance(error, kind)), "does not answer")
            self._agent_log.info(f"etcd {what} ({error}); workers continue while their lease is valid")
        elif before and not self._in_outage:
            self._agent_log.info("etcd answers again")

    def _tolerate_denied(self, error: StoreError) -> None:
        """Treat a refusal as an outage, since permissions or space can be restored; at the start raise it."""
        if isinstance(error, StoreDenied):
            if not self._let_in:
                raise error
            self._note_outage("right", error)

    def _session_event(self, lease: int, event: session.SessionEvent) -> None:
        match event:
            case session.KeepaliveSucceeded():
                self._note_outage("lease", None)
                self._put(agent_events.LeaseRefreshed(lease, event.ttl_s, event.sent_at, event.key_revision))
            case session.LeaseLost():
                self._note_outage("lease", None)
                self._agent_log.info(f"lost this node's lease: {event.reason}")
                self._put(agent_events.SessionLost(lease, event.reason))
            case session.KeepaliveFailed():
                self._on_refresh_failed(event.error)
                self._note_outage("lease", event.error)

    async def _send(self, transaction: Transaction) -> None:
        try:
            result = await self._store.txn(transaction.compares, transaction.then)
        except StoreDenied as error:
            self._tolerate_denied(error)
            self._agent_log.debug(f"{transaction.kind}: {error}")
            await asyncio.sleep(REFUSED_PAUSE_S)
            self._put(agent_events.TransactionAnswered(transaction, None))
        except (OutcomeUnknown, StoreUnavailable) as error:
            self._agent_log.debug(f"{transaction.kind}: {error}")
            self._put(agent_events.TransactionAnswered(transaction, None))
        except StoreError as error:  # Its lease no longer exists; the session will also report that.
            self._agent_log.debug(f"{transaction.kind}: {error}")
            self._put(agent_events.TransactionAnswered(transaction, False, self._store.revision_seen))
        else:
            self._let_in = True
            self._note_outage("right", None)
            self._agent_log.debug(f"{transaction.kind}: {'done' if result.succeeded else 'something has changed'}")
            self._put(agent_events.TransactionAnswered(transaction, result.succeeded, result.revision))
            if result.succeeded:
                self._history.add(transaction)

    async def _look(self, wanted: KeyRange, answer: Callable[[bool | None], agent_events.Event]) -> None:
        """Report whether a range has any key; None if the store does not answer."""
        try:
            listing = await self._store.list(wanted, keys_only=True, limit=1)
        except StoreError as error:
            self._tolerate_denied(error)
            self._put(answer(None))
        else:
            self._put(answer(bool(listing.entries)))

    async def _open_session(self, ttl_s: float) -> None:
        if self._session is not None:
            self._session.cancel()
        sent_at = boottime()
        try:
            lease = await self._store.grant(ttl_s)
        except StoreError as error:
            self._tolerate_denied(error)
            self._agent_log.debug(f"no lease: {error}")
            self._put(agent_events.LeaseGrantFailed())
            return
        self._agent_log.debug(f"lease {lease.id:x} of {lease.ttl_s:g} s")
        self._lease = lease.id
        self._put(agent_events.LeaseGranted(lease.id, lease.ttl_s, sent_at))
        kept_alive = session.keep_alive(
            self._store,
            lease,
            self._keys.member(self._node),
            clock=boottime,
            on_event=lambda event: self._session_event(lease.id, event),
            refresh_now=self._refresh_now,
            read_every=self._read_every,
        )
        self._session = self._begin(kept_alive)

    async def _revoke(self, lease: int) -> None:
        """Revoke a lease, and retry if the store does not answer: restarts wait while the key of a dead node exists."""
        while True:
            try:
                return await self._store.revoke(lease)
            except (OutcomeUnknown, StoreUnavailable, StoreDenied) as error:
                self._agent_log.debug(f"cannot revoke a lease yet ({error})")
            except StoreError as error:
                self._agent_log.debug(f"cannot revoke a lease ({error}); it will expire")
                return None
            await asyncio.sleep(REVOKE_AGAIN_S)
