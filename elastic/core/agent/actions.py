"""What an agent's core asks for (pure values).

Actions go to the store, the session, the nursery, the links and to people; answers come back as `events`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

from msgspec import Struct

from elastic.core.model import Cause, Generation, Go, Verdict
from elastic.core.ps.model import ClusterSpec
from elastic.core.transactions import Transaction


class OpenSession(Struct, frozen=True):
    """Ask for a lease and keep it alive. Answered by `LeaseGranted` or `LeaseGrantFailed`."""

    ttl_s: float


class CloseSession(Struct, frozen=True):
    """Revoke the lease, without waiting."""

    lease: int


class RevokeLease(Struct, frozen=True):
    """Revoke the lease of a node whose death is proven."""

    lease: int


class RefreshLease(Struct, frozen=True):
    """Refresh this node's lease now, and not only at its next interval. Answered by `LeaseRefreshed`."""


class LinkTarget(NamedTuple):
    """Where a member's agent listens, and which registration of it says so.

    `dialable`: a leader has had a link to it, so that it is dead if nobody listens there.
    """

    host: str
    port: int
    create_revision: int
    dialable: bool = False


class WatchLinks(Struct, frozen=True):
    """Keep a link to each of these nodes, and to no other. `LinksChanged` and `ProcessProvenDead` tell of them."""

    targets: Mapping[str, LinkTarget]


class DoubtLinks(Struct, frozen=True):
    """Ask every linked node whether it is there, at once and every `every_s` seconds; 0.0: not any more.

    A node that does not answer counts as not linked (`LinksChanged`).
    """

    every_s: float


class SetHeartbeats(Struct, frozen=True):
    """Send a heartbeat to every watched node every `every_s` seconds, and watch for silence.

    `every_s` 0.0: send none, and only answer those that come. `timeout_s`: a node from which nothing was heard for
    this time is silent (`SilenceChanged`); 0.0: none is.
    """

    every_s: float
    timeout_s: float


class TryPeer(Struct, frozen=True):
    """Find out whether a silent node answers a new connection: this agent tries, and asks up to a few others to try.

    `limit_s`: the time for which each of them tries. Answered by `PeerTried`.
    """

    number: int
    node: str
    target: LinkTarget
    helpers: tuple[str, ...]
    limit_s: float


class SilenceStep(StrEnum):
    """How far the suspicion of a silent node has got."""

    SUSPECTED = "suspected"
    CLEARED = "cleared"
    EVICTED = "evicted"


class NoteSilence(Struct, frozen=True):
    """For monitors and the history: a node is suspected, cleared or evicted.

    It has sent nothing for `silent_s`. `by`: the nodes that were asked to try it; once it is cleared those that reach
    it, and once it is evicted those that do not.
    """

    step: SilenceStep
    node: str
    host: str
    silent_s: float
    by: tuple[str, ...] = ()


class AskVouch(Struct, frozen=True):
    """Ask whoever watches this node for the right to run generation g. Answered by `Vouched`, or not at all."""

    g: int


class CloseInbound(Struct, frozen=True):
    """Close the links that these nodes have to this one: they do not belong to the job."""

    nodes: tuple[str, ...]


class LookUpNode(Struct, frozen=True):
    """Read whether a node is registered. Answered by `NodeLookedUp`."""

    node: str


class SendTransaction(Struct, frozen=True):
    """Send a transaction. Answered by `TransactionAnswered`."""

    transaction: Transaction


class MirrorKeys(Struct, frozen=True):
    """Mirror everything (`complete`), or the job's documents and this node's own key."""

    complete: bool


class FindMember(Struct, frozen=True):
    """Look whether any node is registered. Answered by `MemberFound`."""


class Relist(Struct, frozen=True):
    """List again: the mirror is behind, or an answer was lost."""


class StartWorkers(Struct, frozen=True):
    """Start this node's workers of the generation. The right to run has been shown."""

    generation: Generation
    go: Go
    m_id: int
    incarnation: str
    restarts_max: int


class PublishClusterSpec(Struct, frozen=True):
    """The cluster spec that this node's processes belong to has another revision; they go on."""

    generation: ClusterSpec


class StopWorkers(Struct, frozen=True):
    """SIGTERM to the workers' groups, SIGKILL after `grace_s`. Answered by `WorkersGone`.

    `why` goes into their logs, after the word "stopped": "because rank=[4] failed on host h, see workerlog.4". In a
    `planned` stop nothing is broken: workers that listen are asked to save and to leave, before any signal. A second
    stop that is not planned ends that at once.
    """

    g: int
    grace_s: float
    why: str
    planned: bool = False


class ExtendRunDeadline(Struct, frozen=True):
    """The nursery kills every worker at this time of our clock, unless it is told a later one."""

    t: float


class LogLine(Struct, frozen=True):
    """One line for people. `detail` lines are shown with --verbose only, `warn` lines also with --quiet."""

    text: str
    detail: bool = False
    warn: bool = False


class ReportFailure(Struct, frozen=True):
    """Show people the cause of a generation's failure, and what happens next."""

    cause: Cause
    note: str


class ReportVerdict(Struct, frozen=True):
    """Show people how the job ended. `late`: this node came after the end."""

    verdict: Verdict
    late: bool


class ExitAgent(Struct, frozen=True):
    """This agent ends."""

    code: int


Action = (
    OpenSession | CloseSession | RevokeLease | RefreshLease | WatchLinks | DoubtLinks | SetHeartbeats | TryPeer |
    NoteSilence | AskVouch | CloseInbound | LookUpNode |
    SendTransaction | MirrorKeys | FindMember | Relist | StartWorkers | PublishClusterSpec | StopWorkers |
    ExtendRunDeadline | LogLine | ReportFailure | ReportVerdict | ExitAgent
)  # fmt: skip
