"""The registration of this node: its lease, its key under that lease, and what happens when either is gone (pure)."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from elastic.core.admission import AdmissionPlan, Applicant, join
from elastic.core.agent import leaving
from elastic.core.agent.actions import FindMember, LogLine, OpenSession
from elastic.core.agent.state import AgentState, Phase, Standing
from elastic.core.agent.store import ASK_AGAIN_S, TransactionAnswered, ViewChanged, may_write, send
from elastic.core.transactions import unless_superseded

GRANT_RETRY_S = 0.5
LOOKUP_LIMIT_S = 5.0
"""After this time without an answer the agent reads again whether any node is registered."""


class NodePrepared(Struct, frozen=True):
    """This node can start workers at once: its nursery has loaded what they need."""


class LeaseGranted(Struct, frozen=True):
    """A lease was granted by a request sent at `sent_at`."""

    lease: int
    ttl_s: float
    sent_at: float


class LeaseGrantFailed(Struct, frozen=True):
    """No lease was granted; the core retries after a pause."""


class LeaseRefreshed(Struct, frozen=True):
    """The lease was refreshed by a request sent at `sent_at`.

    `key_revision` is the mod revision of this node's key in the store afterwards, 0 if no such key has this lease.
    """

    lease: int
    ttl_s: float
    sent_at: float
    key_revision: int


class SessionLost(Struct, frozen=True):
    """The lease is gone, according to the store."""

    lease: int
    reason: str


class MemberFound(Struct, frozen=True):
    """The answer to `FindMember`: whether any node is registered, None if the store did not answer."""

    exists: bool | None


def on_member_found(agent: AgentState, event: MemberFound) -> None:
    """Note the answer, or retry after a pause."""
    agent.registration.lookup_again_at = agent.now + ASK_AGAIN_S
    if event.exists is not None:
        agent.registration.members_exist = event.exists


def on_prepared(agent: AgentState, event: NodePrepared) -> None:
    """Allow the registration from now on."""
    agent.registration.prepared = True


def on_granted(agent: AgentState, event: LeaseGranted) -> None:
    """Take the lease."""
    registration = agent.registration
    registration.step("lease granted")
    registration.lease, registration.lease_ttl_s = event.lease, event.ttl_s
    registration.unproven_refresh = (event.sent_at, event.ttl_s)


def on_grant_failed(agent: AgentState, event: LeaseGrantFailed) -> None:
    """Retry after a pause."""
    agent.registration.step("lease failed")
    agent.registration.grant_again_at = agent.now + GRANT_RETRY_S


def on_refreshed(agent: AgentState, event: LeaseRefreshed) -> None:
    """Extend the run deadline by the refreshed lease, if this node's key is attached to it.

    The key must be in the store as the watch has shown it: otherwise the other nodes may see a change that this node
    misses, because its watch receives no messages.
    """
    registration = agent.registration
    if event.lease != registration.lease:
        return
    if not registration.registered:
        registration.unproven_refresh = (event.sent_at, event.ttl_s)
        return
    own = agent.view.members.get(agent.me.node)
    if event.key_revision == (own.mod_revision if own is not None else registration.create_revision):
        _extend_deadline(agent, event.sent_at, event.ttl_s)
    else:
        agent.store.want_listing()


def on_session_lost(agent: AgentState, event: SessionLost) -> None:
    """Register again with another lease, unless an older lease is gone."""
    if event.lease == agent.registration.lease:
        agent.drop_lease()


def check_own_key(agent: AgentState, event: ViewChanged) -> None:
    """Take from the view whether this node is registered; the view is more reliable than any answer.

    One revision may arrive in parts, so only a later one without the key shows that the key is gone. The lease may
    still be valid: an operator or another program has deleted the key, damaged it, or detached it from the lease. This
    counts as the end of the lease.
    """
    own, registration = agent.view.members.get(agent.me.node), agent.registration
    if own is not None and registration.lease is not None and own.lease == registration.lease:
        _hold_key(agent, own.create_revision)
        registration.registered_at_revision = max(registration.registered_at_revision, own.create_revision)
    elif is_registered(agent) and agent.view.revision > registration.registered_at_revision:
        agent.drop_lease()
        if agent.phase is not Phase.LEAVING:
            agent.act(LogLine("this node's key was deleted from etcd or has another lease; registering again"))


def _hold_key(agent: AgentState, create_revision: int) -> None:
    registration = agent.registration
    registration.create_revision = create_revision
    registration.step("key seen")
    if registration.unproven_refresh is not None:
        _extend_deadline(agent, *registration.unproven_refresh)
        registration.unproven_refresh = None


def _extend_deadline(agent: AgentState, sent_at: float, ttl_s: float) -> None:
    outage_limit_s = agent.spec.etcd_outage_timeout_s
    agent.workers.run_deadline = agent.workers.run_deadline.refreshed(sent_at, ttl_s, outage_limit_s)


def on_answer(agent: AgentState, event: TransactionAnswered) -> None:
    """Note that this node is registered, or that something that the transaction compared has changed.

    In that case it tries again as soon as the watch shows the change. If a thousand nodes begin a job at the same time,
    all but one are refused first; none of them lists the store for that.
    """
    registration, lease = agent.registration, event.transaction.lease
    if not event.succeeded:
        registration.members_exist = None
        registration.outdated = agent.store.sent_at
    elif registration.lease is not None and lease == registration.lease:
        own = agent.view.members.get(agent.me.node)
        _hold_key(agent, own.create_revision if own is not None else event.revision)
        registration.registered_at_revision = event.revision
        if agent.phase is Phase.RUNNING:
            agent.act(LogLine("registered again; the workers kept running"))


def is_registered(agent: AgentState) -> bool:
    """The key of this node is in the store."""
    return agent.registration.registered


def is_unregistered(agent: AgentState) -> bool:
    """The key of this node is gone, or never existed."""
    return not agent.registration.registered


def is_refused(agent: AgentState) -> bool:
    """The job has refused this node."""
    return bool(agent.registration.refusal)


def report_joined(agent: AgentState) -> None:
    """Report that this node has joined the job."""
    again = agent.registration.joined_at is not None
    agent.act(LogLine("registered again" if again else f"joined the job as {agent.me.node}"))
    agent.registration.joined_at = agent.now


def report_refusal(agent: AgentState) -> None:
    """Report why the job refuses this node, and end."""
    agent.act(LogLine(agent.registration.refusal, final=True))
    agent.leaving.exit_code = 3
    leaving.end(agent)


def np_is_open(agent: AgentState) -> bool:
    """The user gave no np, and the job has no maximum."""
    np = agent.spec.np
    return not agent.me.np_given and np.unlimited and np != agent.me.spec.np


def adopt_np(agent: AgentState) -> None:
    """Remember that the job has no maximum: this node may be the first in an empty etcd."""
    agent.me = replace(agent.me, spec=replace(agent.me.spec, np=agent.spec.np))


def _wants_key(agent: AgentState) -> bool:
    """Return whether this node should be registered, and is not.

    A node whose workers save before they stop needs its lease for that. A job that has ended admits no node.
    """
    if is_registered(agent):
        return False
    return agent.phase in (Phase.JOINING, Phase.RUNNING) or (agent.saves and agent.view.verdict is None)


def needs_lease(agent: AgentState) -> bool:
    """This node should be registered, has no lease, and has not asked for one."""
    registration = agent.registration
    idle = registration.standing is Standing.NO_LEASE and agent.now >= registration.grant_again_at
    return idle and agent.view.revision > 0 and _wants_key(agent)


def open_session(agent: AgentState) -> None:
    """Ask for a lease."""
    agent.registration.step("lease asked")
    agent.act(OpenSession(agent.spec.lease_ttl_s))


def may_register(agent: AgentState) -> bool:
    """This node has a lease, and can be registered now."""
    ready = agent.registration.lease is not None and not agent.store.replaced
    return ready and _wants_key(agent) and may_write(agent)


def register(agent: AgentState) -> None:
    """Register, or report why not; first find out whether any member lives if that matters and is not known."""
    registration = agent.registration
    registration.attempts += 1
    plan = _join_plan(agent)
    for line in (*plan.lines, *plan.warnings):
        if line not in registration.reported_lines:
            registration.reported_lines = (*registration.reported_lines, line)
            agent.act(LogLine(line, warn=line in plan.warnings))
    if plan.refusal:
        if agent.phase is Phase.JOINING:  # A node with workers tries again: damaged documents may be restored.
            registration.refusal = plan.refusal
    elif plan.transaction is not None:
        if registration.prepared:  # A node that is in a generation starts its workers at once.
            alone = agent.workers.gone
            send(agent, plan.transaction if alone else unless_superseded(agent.keys, agent.view, plan.transaction))
    elif agent.now >= registration.lookup_again_at:
        registration.lookup_again_at = agent.now + LOOKUP_LIMIT_S
        agent.act(FindMember())


def _join_plan(agent: AgentState) -> AdmissionPlan:
    registration = agent.registration
    leaves = agent.leaving.drain is not None and agent.phase is Phase.STOPPING
    me = replace(agent.me, member=leaving.draining_member(agent)) if leaves else agent.me
    return join(
        Applicant(
            agent.keys,
            agent.view,
            me,
            incarnation=f"{agent.me.incarnation}-{registration.attempts}",
            lease=registration.lease or 0,
            somebody_lives=registration.members_exist,
            again=agent.may_run_again,
            fresh=registration.joined_at is None,
        )
    )


def register_again_at(agent: AgentState) -> float:
    """When to try again to register if no event happens."""
    idle = agent.store.inflight is None and agent.store.behind_since is None
    if not idle or not _wants_key(agent):
        return float("inf")
    return max(agent.registration.grant_again_at, agent.now + ASK_AGAIN_S)
