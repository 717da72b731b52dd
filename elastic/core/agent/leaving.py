"""How this node leaves: drains, `--join-timeout`, the end of the job, and the exit (pure).

A drain is a request to leave: a signal, a preemption notice, or an operator's order in the store. A running node
announces it on its key, and the leader plans a generation without it. If the leader does not react, or the deadline of
the drain is near, the node stops its workers on its own. It records how they ended, deletes its key, and exits.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from elastic.core.agent.actions import CloseSession, ExitAgent, LogLine, ReportVerdict, StopWorkers
from elastic.core.agent.state import AgentState, PendingDrain, Phase, StopKind
from elastic.core.agent.store import TransactionAnswered, ViewChanged, may_write, send
from elastic.core.model import FinalStatus, Member, MemberState
from elastic.core.transactions import deregister, update_member

DRAIN_PATIENCE_S = 5.0
"""A draining node stops its workers on its own if the leader has not reacted after this time."""
RECORD_PATIENCE_S = 5.0
"""A leaving node tries for this long to record its outcome and to delete its key."""


class DrainRequested(Struct, frozen=True):
    """A request to this agent to leave and to exit with `exit_code`; `reason` names its source in words.

    `deadline`: the time on this node's clock at which the node must be gone, None if there is none. Its workers have
    until `state.DEADLINE_SPARE_S` before that.
    """

    exit_code: int
    reason: str
    deadline: float | None = None


def on_drain(agent: AgentState, event: DrainRequested) -> None:
    """Take the first drain; a later one can only bring its deadline forward."""
    drain = agent.leaving.drain
    if drain is None:
        agent.leaving.drain = PendingDrain(agent.now, event.exit_code, event.reason, event.deadline)
    elif event.deadline is not None and (drain.deadline is None or event.deadline < drain.deadline):
        agent.leaving.drain = replace(drain, deadline=event.deadline)


def read_order(agent: AgentState, event: ViewChanged) -> None:
    """Take an operator's order as a drain, unless it was for an earlier node with the same name."""
    stored = agent.view.leaves.get(agent.me.node)
    registered = agent.registration.registered
    if stored is None or not registered or stored.mod_revision <= agent.leaving.orders_read_to:
        return
    agent.leaving.orders_read_to = stored.mod_revision
    deadline = None if stored.value.within_s is None else agent.now + stored.value.within_s
    on_drain(agent, DrainRequested(0, stored.value.reason, deadline))


def on_announced(agent: AgentState, event: TransactionAnswered) -> None:
    """Note that the store shows the drain of this node, unless it refused the transaction."""
    agent.leaving.announced |= bool(event.succeeded)


def on_deregistered(agent: AgentState, event: TransactionAnswered) -> None:
    """Note that this node's key is deleted; if the store refused, the node had none."""
    agent.leaving.deregistered = True


def job_ended(agent: AgentState) -> bool:
    """There is a verdict, other than the one that this node's registration replaced."""
    verdict, registered = agent.view.verdict, agent.registration.create_revision
    return verdict is not None and not agent.may_run_again and verdict.mod_revision > registered


def drains(agent: AgentState) -> bool:
    """This node has been asked to leave."""
    return agent.leaving.drain is not None


def timed_out(agent: AgentState) -> bool:
    """No generation with this node has formed within `--join-timeout`."""
    return agent.now >= timeout_at(agent)


def unanswered(agent: AgentState) -> bool:
    """The leader has not reacted to the drain in time."""
    return agent.now >= unanswered_at(agent)


def out_of_time(agent: AgentState) -> bool:
    """The workers have used up the time that the drain's deadline leaves them, and some still run."""
    return agent.now >= kill_at(agent) and not agent.workers.gone and agent.workers.stop is not StopKind.CUT_SHORT


def drain_recorded(agent: AgentState) -> bool:
    """The node drains, and the end of its workers is recorded, or it has tried for long enough."""
    return agent.leaving.drain is not None and (_is_recorded(agent) or agent.now >= give_up_at(agent))


def has_left(agent: AgentState) -> bool:
    """The node's outcome is recorded and its key is deleted, or it has tried for long enough."""
    away = agent.leaving.deregistered or not agent.registration.registered
    return (away and _is_recorded(agent)) or agent.now >= give_up_at(agent)


def _is_recorded(agent: AgentState) -> bool:
    return agent.workers.outcome_wanted == agent.workers.outcome_written


def timeout_at(agent: AgentState) -> float:
    """The time at which `--join-timeout` ends."""
    limit_s = agent.limits.join_timeout_s
    return agent.leaving.idle_since + limit_s if limit_s is not None else float("inf")


def unanswered_at(agent: AgentState) -> float:
    """When the node stops its workers although the leader has not reacted to the drain."""
    drain = agent.leaving.drain
    return drain.unheard_at(DRAIN_PATIENCE_S) if drain is not None else float("inf")


def kill_at(agent: AgentState) -> float:
    """When the workers of a draining node must be gone."""
    drain = agent.leaving.drain
    return drain.workers_until if drain is not None else float("inf")


def give_up_at(agent: AgentState) -> float:
    """When the node leaves although the store has not accepted its outcome."""
    return agent.entered_at + RECORD_PATIENCE_S


def give_up_drained_at(agent: AgentState) -> float:
    """`give_up_at` for a draining node, otherwise infinity."""
    return give_up_at(agent) if agent.leaving.drain is not None else float("inf")


def stop_timeout_s(agent: AgentState) -> float:
    """Seconds that workers have after SIGTERM when nothing is broken."""
    return max(min(agent.limits.stop_timeout_s, kill_at(agent) - agent.now), 0.0)


def report_verdict(agent: AgentState) -> None:
    """Report how the job ended, and take the exit code for that."""
    assert agent.view.verdict is not None
    verdict = agent.view.verdict.value
    agent.act(ReportVerdict(verdict, late=agent.registration.joined_at is None))
    agent.leaving.exit_code = 1 if verdict.status is FinalStatus.FAILED else 0
    _end_unless_joined(agent)


def leave_drained(agent: AgentState) -> None:
    """End with the exit code of the drain, at once where nothing has been joined."""
    drain = agent.leaving.drain
    assert drain is not None
    agent.leaving.exit_code = drain.exit_code
    if agent.phase is Phase.JOINING:
        comes = agent.registration.joined_at is None and drain.deadline is not None
        agent.act(LogLine(f"{drain.reason}: {'this node does not join' if comes else 'leaving'}, the job stays open"))
    _end_unless_joined(agent)


def leave_by_timeout(agent: AgentState) -> None:
    """Report that no generation with this node has formed, and leave."""
    limit = f"{agent.limits.join_timeout_s:g} s (--join-timeout)"
    words = f"no generation with this node formed in {limit}; exiting, the job stays open"
    agent.act(LogLine(words, final=True))
    agent.leaving.exit_code = 4
    _end_unless_joined(agent)


def _end_unless_joined(agent: AgentState) -> None:
    """Exit at once if this node has no key in the store; other nodes enter `Phase.LEAVING` first."""
    if agent.phase is Phase.JOINING:
        end(agent)


def exit_agent(agent: AgentState) -> None:
    """Report that this node has left, and end: nothing of it is left in the store."""
    drain = agent.leaving.drain
    if drain is not None and agent.leaving.exit_code == drain.exit_code and not job_ended(agent):
        named = drain.deadline is not None or drain.exit_code < 128  # The sender of a signal knows the reason.
        because = f" ({drain.reason})" if named else ""
        agent.act(LogLine(f"left{because}; the job stays open"))
    end(agent)


def end(agent: AgentState) -> None:
    """Revoke the lease, and end this agent."""
    if agent.registration.lease is not None:
        agent.act(CloseSession(agent.registration.lease))
    agent.act(ExitAgent(agent.leaving.exit_code))


def stop_drained(agent: AgentState) -> None:
    """Stop the workers as in a planned change, because the leader has not reacted to the drain."""
    agent.workers.forced, agent.workers.stop = True, StopKind.PLANNED
    if agent.now < kill_at(agent):
        agent.act(LogLine("the leader did not acknowledge the drain: stopping this node's workers"))
    why = "for a planned change: this node drains"
    agent.act(StopWorkers(agent.workers.g, stop_timeout_s(agent), why, planned=True))


def stop_out_of_time(agent: AgentState) -> None:
    """Kill the workers: the deadline of the drain is near."""
    drain, workers = agent.leaving.drain, agent.workers
    assert drain is not None
    workers.forced, workers.stop = True, StopKind.CUT_SHORT
    agent.act(LogLine(f"deadline reached ({drain.reason}): killing this node's workers", warn=True))
    agent.act(StopWorkers(workers.g, 0.0, f"because the deadline was reached: {drain.reason}"))


def generation_runs(agent: AgentState) -> bool:
    """A generation runs, with this node or without it."""
    go, generation = agent.view.go, agent.generation
    return go is not None and generation is not None and go.value.g == generation.g


def restart_timeout(agent: AgentState) -> None:
    """Restart `--join-timeout`, which counts from the last moment at which a generation ran."""
    agent.leaving.idle_since = agent.now


def may_announce(agent: AgentState) -> bool:
    """The drain has not been announced yet, and the workers run or save.

    Workers that save may wait for those of other nodes, which the leader asks to save once it knows of the drain.
    """
    leaving = agent.leaving
    pending = leaving.drain is not None and not leaving.announced and (agent.phase is Phase.RUNNING or agent.saves)
    return pending and agent.registration.registered and may_write(agent)


def announce(agent: AgentState) -> None:
    """Announce the drain on this node's key."""
    registration = agent.registration
    member, lease = draining_member(agent), registration.lease or 0
    send(agent, update_member(agent.keys, agent.view, agent.me.node, registration.create_revision, member, lease))


def draining_member(agent: AgentState) -> Member:
    """The document of this node while it drains."""
    reason = agent.leaving.drain.reason if agent.leaving.drain is not None else ""
    return replace(agent.me.member, state=MemberState.DRAINING, drain_reason=reason)


def may_deregister(agent: AgentState) -> bool:
    """This node leaves, and its key still exists."""
    pending = agent.phase is Phase.LEAVING and not agent.leaving.deregistered
    return pending and agent.registration.registered and may_write(agent)


def delete_key(agent: AgentState) -> None:
    """Delete this node's key, so that the others need not wait for its lease to end."""
    leader = agent.view.leader if agent.leads else None
    send(agent, deregister(agent.keys, agent.me.node, agent.registration.create_revision, leader))
