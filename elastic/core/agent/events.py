"""What an agent's core is told (pure values).

Events come from the store, the session, the nursery, signals, links and the clock. Both the real agent and the
simulation speak exactly these and the `actions`.
"""

from __future__ import annotations

from msgspec import Struct

from elastic.core.kv import KeyValue
from elastic.core.model import WorkerExit
from elastic.core.transactions import Transaction
from elastic.core.view import StoreView


class ViewChanged(Struct, frozen=True):
    """The mirror of the store changed. `listing` counts the complete listings so far."""

    view: StoreView
    listing: int


class LeaseGranted(Struct, frozen=True):
    """A lease was granted by a request sent at `sent_at`."""

    lease: int
    ttl_s: float
    sent_at: float


class LeaseGrantFailed(Struct, frozen=True):
    """No lease could be had now; the core asks again after a pause."""


class LeaseRefreshed(Struct, frozen=True):
    """The lease was refreshed by a request sent at `sent_at`.

    After that this node's key in the store had the modification revision `key_revision`, 0: none that hangs on it.
    """

    lease: int
    ttl_s: float
    sent_at: float
    key_revision: int


class SessionLost(Struct, frozen=True):
    """The store says that the lease is gone."""

    lease: int
    reason: str


class TransactionAnswered(Struct, frozen=True):
    """What became of a transaction. `succeeded` None: the answer was lost.

    `older`: who registered last before this registration, as it was then (revisions 0: only its key is known), None if
    that is not known.
    """

    transaction: Transaction
    succeeded: bool | None
    revision: int = 0
    older: KeyValue | None = None


class PredecessorFound(Struct, frozen=True):
    """The answer to `FindPredecessor`: the newest member registered before that revision, None if there is none.

    `failed` says that the store did not answer.
    """

    before_revision: int
    node: str | None
    create_revision: int = 0
    failed: bool = False


class WorkerExited(Struct, frozen=True):
    """A worker ended. `own`: by itself, before a signal of ours reached it.

    `also`: it had raised an exception by itself before it was signalled, and was about to end.
    """

    g: int
    exit: WorkerExit
    own: bool
    also: bool = False


class WorkersListen(Struct, frozen=True):
    """This node's workers of generation g can all be asked to finish a step and to save before they leave."""

    g: int


class WorkersHung(Struct, frozen=True):
    """These workers make no steps any more, the one that is furthest behind first. Nothing was done to them yet."""

    g: int
    exits: tuple[WorkerExit, ...]


class PeersUnreachable(Struct, frozen=True):
    """Workers of generation g wait, and these other nodes of it are not reached from here; () once they are again.

    `exits`: it has lasted too long, and these workers cannot go on with those nodes. Nothing was done to them yet.
    """

    g: int
    nodes: tuple[str, ...]
    exits: tuple[WorkerExit, ...] = ()


class WorkersGone(Struct, frozen=True):
    """Every process of this node's workers of generation g is gone. `step`: the highest that one reported, or -1."""

    g: int
    step: int = -1


class NodePrepared(Struct, frozen=True):
    """This node can start workers at once: its nursery has loaded what they need."""


class DrainRequested(Struct, frozen=True):
    """This agent is to leave, and ends with `exit_code`; `reason` says in words who or what asks for it.

    `deadline`: the time of our clock at which this node may be gone, None if nobody has named one. Its workers get
    until `state.DEADLINE_SPARE_S` before that.
    """

    exit_code: int
    reason: str
    deadline: float | None = None


class LinksChanged(Struct, frozen=True):
    """The watched nodes whose link is up now."""

    nodes: frozenset[str]


class LinksAnswered(Struct, frozen=True):
    """The answer to `AskLinks`: the nodes that were heard; every other has not answered in time."""

    number: int
    nodes: frozenset[str]


class VouchAsked(Struct, frozen=True):
    """A node that this one follows, or that follows it, asks for its word: it does not reach the store now."""

    node: str


class Vouched(Struct, frozen=True):
    """A node grants this one the right to run generation g for some seconds from `asked_at`, a time of our clock."""

    node: str
    g: int
    asked_at: float
    seconds: float


class InboundLinksChanged(Struct, frozen=True):
    """The nodes that have a link to this one, by their own word; the oldest link first."""

    nodes: tuple[str, ...]


class NodeLookedUp(Struct, frozen=True):
    """The answer to `LookUpNode`: whether that node is registered; None if etcd did not say."""

    node: str
    registered: bool | None


class ProcessProvenDead(Struct, frozen=True):
    """A link showed that a member's process is dead. It can be wrong.

    `closed_at`: when the link closed, 0.0 if that is not known.
    """

    node: str
    create_revision: int
    host: str
    closed_at: float = 0.0


class NodeProvenDead(Struct, frozen=True):
    """This very machine shows that nothing of the node is left. It is never wrong."""

    node: str


class Tick(Struct, frozen=True):
    """The time that the core asked for has come."""


Event = (
    ViewChanged | LeaseGranted | LeaseGrantFailed | LeaseRefreshed | SessionLost | TransactionAnswered |
    PredecessorFound | WorkerExited | WorkersListen | WorkersHung | PeersUnreachable | WorkersGone | NodePrepared |
    DrainRequested | LinksChanged | LinksAnswered | VouchAsked | Vouched | InboundLinksChanged | NodeLookedUp |
    ProcessProvenDead | NodeProvenDead | Tick
)  # fmt: skip
