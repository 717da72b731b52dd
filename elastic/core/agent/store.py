"""The store as this agent sees it: the mirror, the one transaction in flight, and when to list again (pure)."""

from __future__ import annotations

import dataclasses
import zlib

from msgspec import Struct
from msgspec.structs import replace

from elastic.core.agent.actions import Relist, SendTransaction
from elastic.core.agent.state import AgentState, Relisting
from elastic.core.model import Generation
from elastic.core.transactions import Transaction
from elastic.core.view import StoreView

ASK_AGAIN_S = 0.5
"""Pause before a request to the store that had no result is repeated."""
SEEN_BY_ITS_WRITER = ("register", "lead", "say", "evict", "form", "go", "verdict")
"""Transactions that change keys which every agent follows: the next one waits until the view shows them."""


class ViewChanged(Struct, frozen=True):
    """The mirror of the store changed. `listing` counts the complete listings so far."""

    view: StoreView
    listing: int


class TransactionAnswered(Struct, frozen=True):
    """The result of a transaction. `succeeded` None: the answer was lost."""

    transaction: Transaction
    succeeded: bool | None
    revision: int = 0


def on_view(agent: AgentState, event: ViewChanged) -> None:
    """Take the view, and detect that it is that of another store."""
    store, former = agent.store, agent.generation
    store.looks += 1
    if event.listing != store.listing:
        if _shows_another_store(agent, event.view):
            store.floor = 0
        store.relist = Relisting.NONE
    store.listing = event.listing
    if not store.first_revision:
        agent.leaving.orders_read_to = store.first_revision = max(event.view.revision, 1)
    if event.view.schema is not None:  # The documents cannot be read; keep the last readable ones.
        store.view = dataclasses.replace(store.view, revision=event.view.revision, schema=event.view.schema)
        return
    store.view = event.view
    incarnation = event.view.incarnation.value if event.view.incarnation is not None else None
    # A damaged or deleted incarnation alone is no other store; an empty store has no spec and no generation either.
    empty = event.view.spec is None and event.view.generation is None
    known = agent.keys.incarnation not in event.view.damaged and (incarnation is not None or empty)
    if known and store.incarnation is not None and incarnation != store.incarnation:
        _begin_in_another_store(agent, former)
    if known and (incarnation is not None or agent.workers.gone):
        store.incarnation = incarnation


def _shows_another_store(agent: AgentState, listed: StoreView) -> bool:
    """Return whether a listing that was requested long after this agent's last write is older than that write.

    This may be the only symptom: the store was emptied before it showed that write, and had no incarnation before.
    """
    return agent.now >= late_at(agent) and listed.revision < agent.store.floor


def _begin_in_another_store(agent: AgentState, former: Generation | None) -> None:
    """Drop what is valid only in the former store, but keep what its workers still need until they are gone."""
    agent.store.floor = agent.registration.registered_at_revision = agent.leaving.orders_read_to = 0
    agent.workers.run_deadline = agent.workers.run_deadline.lost()
    agent.drop_lease()
    if former is not None:
        agent.memory = replace(agent.memory, size_before=len(former.members))
    if agent.workers.gone:
        agent.forget_store()
    else:
        agent.store.replaced = True


def on_answer(agent: AgentState, event: TransactionAnswered) -> None:
    """Note what the answer to a transaction implies for the mirror: what it must show, and whether it must list."""
    store, kind = agent.store, event.transaction.kind
    if store.inflight is event.transaction:
        store.inflight = None
    if event.succeeded is None:
        store.listing_wanted = store.listing + 1
        store.want_listing()
    elif event.succeeded and kind in SEEN_BY_ITS_WRITER:
        store.floor = max(store.floor, event.revision)
    elif not event.succeeded and kind not in ("register", "lead"):  # Others were faster, and the watch shows it.
        store.floor = max(store.floor, event.revision)
        store.want_listing()
        agent.registration.members_exist = None


def send(agent: AgentState, transaction: Transaction) -> None:
    """Send a transaction; the next one waits for its answer."""
    agent.store.inflight = transaction
    agent.store.sent_at = (agent.store.looks, agent.store.listing)
    agent.act(SendTransaction(transaction))


def may_write(agent: AgentState) -> bool:
    """Return whether a transaction can be sent now: none is in flight, and the view is up to date."""
    return agent.store.inflight is None and agent.view.revision > 0 and not is_behind(agent)


def is_behind(agent: AgentState) -> bool:
    """Return whether the view does not yet show what this agent has written, or why a transaction was refused."""
    store = agent.store
    return store.view.revision < store.floor or store.listing < store.listing_wanted or _awaits_winner(agent)


def _awaits_winner(agent: AgentState) -> bool:
    """Return whether this node's registration was refused and the view does not yet show the one that was faster.

    Spec and incarnation are written together, but their watches may show them one after the other.
    """
    store, outdated = agent.store, agent.registration.outdated
    half = (store.view.spec is None) != (store.view.incarnation is None)
    return outdated is not None and store.listing == outdated[1] and (store.looks == outdated[0] or half)


def keep_up(agent: AgentState) -> None:
    """Note since when the view has been behind, and request another listing if that has lasted too long."""
    if not is_behind(agent):
        agent.store.behind_since = None
    elif agent.store.behind_since is None:
        agent.store.behind_since = agent.now
    elif agent.now >= late_at(agent):
        agent.store.want_listing()


def late_at(agent: AgentState) -> float:
    """When the view has been behind for too long; infinity while it is not behind.

    Each agent waits for a different time, so that not all of them list at once.
    """
    if agent.store.behind_since is None:
        return float("inf")
    spread = 1 + zlib.crc32(agent.me.node.encode()) % 1024 / 1024
    return agent.store.behind_since + agent.limits.watch_patience_s * spread


def needs_listing(agent: AgentState) -> bool:
    """Return whether another listing is wanted and has not been requested yet."""
    return agent.store.relist is Relisting.WANTED


def list_again(agent: AgentState) -> None:
    """Ask the mirror for another listing."""
    agent.store.relist = Relisting.ASKED
    agent.act(Relist())
