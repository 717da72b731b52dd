"""The actions that an agent's core requests (pure values).

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
    """Revoke the lease of another node, which is proven dead or evicted."""

    lease: int


class RefreshLease(Struct, frozen=True):
    """Refresh this node's lease now instead of at its next interval. Answered by `LeaseRefreshed`."""


class LinkTarget(NamedTuple):
    """The address on which a member's agent listens, and the create revision of the registration that contains it.

    `dialable`: a leader has had a link to this agent, so a refused connection shows that it is dead.
    """

    host: str
    port: int
    create_revision: int
    dialable: bool = False


class WatchLinks(Struct, frozen=True):
    """Keep a link to each of these nodes and to no other. `LinksChanged` and `ProcessProvenDead` report about them."""

    targets: Mapping[str, LinkTarget]


class DoubtLinks(Struct, frozen=True):
    """Ping every linked node at once and every `every_s` seconds; 0.0: stop.

    A node that does not answer counts as not linked (`LinksChanged`).
    """

    every_s: float


class SetHeartbeats(Struct, frozen=True):
    """Send a heartbeat to every watched node every `every_s` seconds, and watch for silence.

    `every_s` 0.0: send none, and only answer those of other nodes. `timeout_s`: a node that has sent nothing for this
    time is silent (`SilenceChanged`); 0.0: no node ever is.
    """

    every_s: float
    timeout_s: float


class TryPeer(Struct, frozen=True):
    """Find out whether a silent node answers a new connection: this agent tries, and asks the `helpers` to try.

    `limit_s`: the seconds for which each of them tries. Answered by `PeerTried`.
    """

    number: int
    node: str
    target: LinkTarget
    helpers: tuple[str, ...]
    limit_s: float


class SilenceStep(StrEnum):
    """The state of the suspicion of a silent node."""

    SUSPECTED = "suspected"
    CLEARED = "cleared"
    EVICTED = "evicted"


class NoteSilence(Struct, frozen=True):
    """Report to monitors and to the history that a node is suspected, cleared or evicted.

    The node has sent nothing for `silent_s` seconds. `by`: the nodes that were asked to try it; for a cleared node,
    those that reach it; for an evicted node, those that do not.
    """

    step: SilenceStep
    node: str
    host: str
    silent_s: float
    by: tuple[str, ...] = ()


class AskVouch(Struct, frozen=True):
    """Ask the nodes that watch this one to extend its run deadline for generation g. `Vouched` answers, or nothing."""

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
    """Read whether any node is registered. Answered by `MemberFound`."""


class Relist(Struct, frozen=True):
    """List the store again, because the mirror is behind or an answer was lost."""


class StartWorkers(Struct, frozen=True):
    """Start this node's workers of the generation. The run deadline has not passed."""

    generation: Generation
    go: Go
    m_id: int
    incarnation: str
    restarts_max: int


class PublishClusterSpec(Struct, frozen=True):
    """Pass a new revision of the cluster spec to this node's processes, which continue."""

    generation: ClusterSpec


class StopWorkers(Struct, frozen=True):
    """Send SIGTERM to the workers' process groups, and SIGKILL after `stop_timeout_s`. Answered by `WorkersGone`.

    `why` is written to their logs after the word "stopped": "because rank=[4] failed on host h, see workerlog.4". In a
    `planned` stop nothing is broken: workers that listen are asked to save and to exit before any signal. A second,
    unplanned stop ends this at once.
    """

    g: int
    stop_timeout_s: float
    why: str
    planned: bool = False


class ExtendRunDeadline(Struct, frozen=True):
    """Set the time, on this node's clock, at which the nursery kills every worker; a later call extends it."""

    t: float


class LogLine(Struct, frozen=True):
    """One log line for people. `detail` lines are shown only with --verbose.

    `warn` lines, which are warnings, and `final` lines, which say why the agent exits, are shown even with --quiet.
    """

    text: str
    detail: bool = False
    warn: bool = False
    final: bool = False


class ReportFailure(Struct, frozen=True):
    """Show people the root cause of a generation's failure, and what happens next."""

    cause: Cause
    note: str


class ReportVerdict(Struct, frozen=True):
    """Show people how the job ended. `late`: this node tried to join after the end."""

    verdict: Verdict
    late: bool


class ExitAgent(Struct, frozen=True):
    """End this agent with an exit code."""

    code: int


Action = (
    OpenSession | CloseSession | RevokeLease | RefreshLease | WatchLinks | DoubtLinks | SetHeartbeats | TryPeer |
    NoteSilence | AskVouch | CloseInbound | LookUpNode |
    SendTransaction | MirrorKeys | FindMember | Relist | StartWorkers | PublishClusterSpec | StopWorkers |
    ExtendRunDeadline | LogLine | ReportFailure | ReportVerdict | ExitAgent
)  # fmt: skip
