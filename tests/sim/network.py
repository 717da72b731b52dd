"""The store over the network: requests, watches, listings and leases, each with what can go wrong on the way."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from elastic.core.agent.events import (
    LeaseGranted,
    LeaseGrantFailed,
    LeaseRefreshed,
    MemberFound,
    SessionLost,
    TransactionAnswered,
    ViewChanged,
)
from elastic.core.kv import KeyChange, KeyRange, WatchBatch
from elastic.core.transactions import Transaction
from elastic.core.view import StoreView
from elastic.errors import StoreError
from tests.sim.clockwork import Clockwork
from tests.sim.nodes import DEADLINE_S, KEYS, NEVER, RELIST_EVERY_S, Node, Observer

if TYPE_CHECKING:
    from tests.sim.world import World


class Network(Clockwork):
    """Between the nodes and the store."""

    def __init__(self, seed: int, *, defect: str = "") -> None:
        super().__init__(seed, defect=defect)
        self.observers: list[Observer] = []
        self._looks: list[Callable[[World], None]] = []
        self._senders: list[Observer] = []
        self._expiry_at = NEVER
        """No lease ends before this."""

    def observe(self, *observers: Observer) -> None:
        """Let these look at everything that happens from now on."""
        self._watched_by([*self.observers, *observers])

    def dismiss(self, kind: type[Observer]) -> None:
        """Let observers of this kind look no longer."""
        self._watched_by([observer for observer in self.observers if not isinstance(observer, kind)])

    def _watched_by(self, observers: list[Observer]) -> None:
        self.observers = observers
        self._senders = [one for one in observers if type(one).after_send is not Observer.after_send]
        self._looks = [one.after_event for one in observers if type(one).after_event is not Observer.after_event]

    @property
    def whole(self) -> World:
        """This world, as observers see it."""
        return cast("World", self)

    def reachable(self, node: Node) -> bool:
        """Whether a message from the node reaches the store now."""
        return self.store_up and not node.cut and not node.astray and node.alive and not node.frozen

    def _expire(self) -> None:
        if self.store_up:
            due = self.store.next_expiry()
            while due is not None and due <= self.now:
                holders = [node for node in self.nodes.values() if node.lease is not None]
                over = self.store.expire(self.now)
                for observer in self.observers:
                    observer.after_expiry(self.whole, [node for node in holders if node.lease in over])
                self.deliver()
                due = self.store.next_expiry()
            self._expiry_at = due if due is not None else NEVER

    def ask(
        self, node: Node, call: Callable[[], Callable[[], None]], lost: Callable[[], None], linger_s: float = 0.0
    ) -> None:
        """Send a request: `call` runs at the store and gives what the node does with the answer; or `lost`."""
        if not self.reachable(node):
            self.after(DEADLINE_S, lost)
            return
        number = self.store_number
        late = self.random.random() < self.late_answers

        def arrive() -> None:
            another = number != self.store_number and not late  # What lingers may reach the next store.
            if not self.store_up or another or (not node.alive and not late):
                if not late:
                    self.after(DEADLINE_S, lost)
                return
            answer = call()
            if late or node.cut:
                self.log(f"{node.name}: an answer is lost")
                if not late:
                    self.after(DEADLINE_S, lost)
            else:
                self.after(self.latency(), answer)

        if late:  # The request lingers on its way, longer than anybody waits for it, and may still be carried out.
            self.counts["fault late write"] += 1
            self.after(DEADLINE_S, lost)
            self.after(self.random.choice([self.latency(), self.random.uniform(0.5, 12.0)]), arrive)
        else:
            self.after(self.latency() + linger_s, arrive)

    def deliver(self) -> None:
        """Show every mirror what changed, each after its own delay."""
        for node in self.nodes.values():
            if node.alive and node.exit_code is None and node.store_number == self.store_number and node.ranges:
                if node.deaf or not self.reachable(node):
                    continue
                for batch in self._unseen(node):
                    changes, revision = batch.changes, batch.revision
                    delay = self.latency()
                    if self.now < node.slow_until:
                        self._show_later(node, self.random.uniform(0.0, 2.0), changes, revision)
                        continue
                    if not self.watch_faults:
                        self._show_later(node, delay, changes, revision)
                        continue
                    if self.random.random() < 0.03:
                        self.counts["fault late watch event"] += 1
                        delay = self.random.uniform(0.1, 3.0)
                    if self.random.random() < 0.03:
                        self.counts["fault repeated watch event"] += 1
                        self._show_later(node, delay + 0.2, changes, revision)
                    if self.random.random() < 0.01:
                        self.counts["fault lost watch event"] += 1
                        continue
                    self._show_later(node, delay, changes, revision)

    def _unseen(self, node: Node) -> list[WatchBatch]:
        """What changed in the ranges of a mirror since the revision that it shows; each batch is looked at once."""
        of, to, batches = node.unseen
        if of != (self.store_number, node.ranges) or to < node.revision:
            to, batches = node.revision, []
        batches = [batch for batch in batches if batch.revision > node.revision]
        batches += self.store.history(node.ranges, to + 1)
        node.unseen = (self.store_number, node.ranges), self.store.revision, batches
        return batches

    def _show_later(self, node: Node, delay: float, changes: tuple[KeyChange, ...], revision: int) -> None:
        """Show changes after a delay; one revision may come in two parts, as it does from etcd."""
        if len(changes) > 1 and self.random.random() < 0.3:
            self.counts["fault split watch event"] += 1
            self._show_part(node, delay, changes[:1], revision)
            self._show_part(node, delay + 0.001, changes[1:], revision)
        else:
            self._show_part(node, delay, changes, revision)

    def _show_part(self, node: Node, delay: float, changes: tuple[KeyChange, ...], revision: int) -> None:
        ranges, number = node.ranges, self.store_number

        def show() -> None:
            if node.ranges != ranges or node.store_number != number or not node.listed:
                return
            if node.frozen or not node.alive:
                return
            entries, fresh = dict(node.entries), False
            for change in changes:
                key, at = change.entry.key, change.entry.mod_revision
                held = entries.get(key)
                if at <= max(held.mod_revision if held else 0, node.graves.get(key, 0), node.listed_at):
                    continue
                fresh = True
                if change.deleted:
                    entries.pop(key, None)
                    node.graves[key] = at
                else:
                    entries[key] = change.entry
            if fresh:
                node.entries = entries
                node.revision = max(node.revision, revision)
                self._view_changed(node)

        self.after(delay, show)

    def _view_changed(self, node: Node) -> None:
        view: StoreView = node.reader.read(node.entries, node.revision, complete=node.complete)
        self.feed(node, ViewChanged(view, node.listing))

    def relist(self, node: Node) -> None:
        """Read the followed ranges anew; what comes back is the truth."""
        if not node.hears or node.exit_code is not None:
            return
        ranges = node.ranges

        def read() -> Callable[[], None]:
            entries = {entry.key: entry for span in ranges for entry in self.store.list(span).entries}
            revision, number = self.store.revision, self.store_number

            def answer() -> None:
                if node.ranges != ranges:
                    return
                if number == node.store_number and revision < node.revision:
                    self.relist(node)  # The watch has brought more meanwhile. A mirror puts the two together.
                    return
                node.entries, node.revision, node.store_number = entries, revision, number
                node.listed_at, node.graves, node.listed = revision, {}, True
                node.listing += 1
                self._view_changed(node)
                self.after(0.001, lambda: self._catch_up(node, ranges, revision))

            return answer

        self.ask(node, read, lambda: self.after(0.3, lambda: self.relist(node)) if node.ranges == ranges else None)

    def _catch_up(self, node: Node, ranges: tuple[KeyRange, ...], listed: int) -> None:
        """The watch begins at the listing: what happened since then is shown."""
        if node.ranges == ranges and node.store_number == self.store_number and self.reachable(node):
            for batch in self.store.history(ranges, listed + 1):
                self._show_later(node, self.latency(), batch.changes, batch.revision)

    def _tick_relist(self, node: Node) -> None:
        if node.alive and node.exit_code is None:
            node.deaf = False
            self.relist(node)
            self.after(RELIST_EVERY_S, lambda: self._tick_relist(node))

    def _revoke(self, lease: int) -> Callable[[], None]:
        self.store.revoke(lease)
        self.deliver()
        return lambda: None

    def _send(self, node: Node, transaction: Transaction) -> None:
        compares = [c for c in transaction.compares if not self._left_out(c.range.start, c.target.value)]
        facts = node.core.facts
        seen, remembered, created = facts.view, facts.memory, facts.registration.create_revision

        def call() -> Callable[[], None]:
            # Only now: a request that lingers arrives after others that were sent later.
            node.sent_view, node.sent_memory, node.sent_created = seen, remembered, created
            before = self.store.revision
            try:
                result = self.store.txn(compares, transaction.then)
            except StoreError:
                return lambda: self.feed(node, TransactionAnswered(transaction, False, self.store.revision))
            if result.revision > before:
                self.log(f"store {result.revision}: {transaction.kind} of {node.name}")
                for observer in self.observers:
                    observer.after_commit(self.whole, node, transaction)
                self.deliver()
            elif not result.succeeded:
                for observer in self.observers:
                    observer.after_refusal(self.whole, node, transaction)
            return lambda: self.feed(node, TransactionAnswered(transaction, result.succeeded, result.revision))

        linger_s = max((one.after_send(self.whole, node, transaction) for one in self._senders), default=0.0)
        self.ask(node, call, lambda: self.feed(node, TransactionAnswered(transaction, None)), linger_s)

    def _left_out(self, key: str, target: str) -> bool:
        """A defect that a test has put in: this compare is not made."""
        if self.defect == "no mod-revision compare":
            return target == "mod_revision" and key in (*KEYS.generations, KEYS.go)
        return self.defect == "no create-revision compare" and target == "create_revision" and KEYS.members in key

    def _grant(self, node: Node, ttl_s: float) -> None:
        sent_at = self.local(node)

        def call() -> Callable[[], None]:
            lease = self.store.grant(ttl_s, self.now)
            self._expiry_at = min(self._expiry_at, self.now + lease.ttl_s)
            number = self.store_number

            def answer() -> None:
                if number == self.store_number:
                    node.lease = lease.id
                self.feed(node, LeaseGranted(lease.id, lease.ttl_s, sent_at))

            return answer

        self.ask(node, call, lambda: self.feed(node, LeaseGrantFailed()))

    def _tick_session(self, node: Node) -> None:
        if not node.alive or node.exit_code is not None:
            return
        self.after(self.spec.lease_ttl_s / 4 / node.rate, lambda: self._tick_session(node))
        self._refresh(node)

    def _refresh(self, node: Node) -> None:
        """Refresh the lease of a node."""
        lease = node.lease
        if lease is None or not node.hears:
            return
        sent_at = self.local(node)

        def call() -> Callable[[], None]:
            ttl_s = self.store.refresh(lease, self.now) if node.lease == lease else 0.0
            number = self.store_number
            own = self.store.list(KeyRange.key(KEYS.member(node.name))).entries
            key_revision = own[0].mod_revision if own and own[0].lease == lease else 0

            def answer() -> None:
                if number != node.store_number:
                    self.relist(node)  # The session sees an answer of another store.
                if ttl_s > 0:
                    self.feed(node, LeaseRefreshed(lease, ttl_s, sent_at, key_revision))
                elif node.lease == lease:
                    node.lease = None
                    self.feed(node, SessionLost(lease, "its time ran out"))

            return answer

        self.ask(node, call, lambda: None)

    def _find_member(self, node: Node) -> None:
        def call() -> Callable[[], None]:
            found = self.store.list(KeyRange.prefix(KEYS.members), keys_only=True, limit=1).entries
            return lambda: self.feed(node, MemberFound(bool(found)))

        self.ask(node, call, lambda: self.feed(node, MemberFound(None)))
