"""The outcome of this node's workers, and when it is recorded in the store (pure)."""

from __future__ import annotations

from elastic.core.agent.state import AgentState, Phase
from elastic.core.agent.store import TransactionAnswered, may_write, send
from elastic.core.agent.workers.cluster_spec import trainers_ok
from elastic.core.agent.workers.exits import all_ok
from elastic.core.model import Outcome, OutcomeKind, Stamp
from elastic.core.transactions import record_outcome

RECORD_AGAIN_S = 10.0
"""An outcome that other nodes wait for is recorded again after this time, and then after twice as long each time, in
case an operator or another program has deleted or damaged it."""
RECORD_AGAIN_MAX_S = 600.0


def record_done(agent: AgentState) -> None:
    """Record that the workers have finished, while other processes of this node continue."""
    agent.workers.outcome_wanted = (agent.workers.g, own_outcome(agent, over=False))


def finish_killed(agent: AgentState) -> None:
    """Record that the workers were killed."""
    agent.workers.forced = True
    finish(agent)


def finish(agent: AgentState) -> None:
    """Record how the workers ended."""
    workers = agent.workers
    agent.leaving.idle_since = agent.now
    if agent.store.replaced:
        agent.forget_store()
        return
    workers.finished = max(workers.finished, workers.start)
    workers.outcome_wanted = (workers.g, own_outcome(agent, over=True))


def own_outcome(agent: AgentState, *, over: bool) -> Outcome:
    """Return how the workers of this node ended; `over` if all of them have ended."""
    workers = agent.workers
    failed = sorted((worker for worker in workers.own_exits if worker.code != 0), key=lambda worker: worker.secondary)
    ok = all_ok(agent) or trainers_ok(agent)
    ended = OutcomeKind.FAILED if failed else OutcomeKind.OK if ok else OutcomeKind.STOPPED
    return Outcome(
        ended=ended,
        over=over,
        host=agent.me.member.host,
        forced=workers.forced and ended is not OutcomeKind.OK,  # They ended well before they could be stopped.
        exits=tuple(failed),
        also=tuple(workers.also_exits),
        step=workers.step,
        since=workers.since,
        ran_s=round(agent.now - workers.started_at, 3),
        unreached=workers.unreached,
    )


def _is_idle(agent: AgentState) -> bool:
    return agent.workers.gone and not agent.store.replaced


def _former_start(agent: AgentState) -> Stamp | None:
    """The start of this node in the generation before the newest one, None if it had none."""
    before = agent.generation.before if agent.generation is not None else None
    return before.start(agent.me.node) if before is not None else None


def never_started(agent: AgentState) -> bool:
    """This node has no outcome for its start in the generation before, and the gate waits for one."""
    former, wanted = _former_start(agent), agent.workers.outcome_wanted
    said = (wanted[0], wanted[1].since) if wanted is not None else (0, 0)
    return former is not None and said < former and _is_idle(agent)


def record_never_started(agent: AgentState) -> None:
    """Record that no process of that start runs."""
    former = _former_start(agent)
    assert former is not None
    _want_stopped(agent, former)


def _withdrawn_start(agent: AgentState) -> Stamp | None:
    return agent.generation.withdrawn_start(agent.me.node) if agent.generation is not None else None


def leaves_unstarted(agent: AgentState) -> bool:
    """This node must end a start and has not recorded its end, which the other nodes wait for."""
    start = _withdrawn_start(agent)
    return start is not None and start > agent.workers.finished and _is_idle(agent)


def record_leaves_unstarted(agent: AgentState) -> None:
    """Record that no process of that start runs."""
    start = _withdrawn_start(agent)
    assert start is not None
    _want_stopped(agent, start)


def _want_stopped(agent: AgentState, start: Stamp) -> None:
    agent.workers.finished = max(agent.workers.finished, start)
    stopped = Outcome(ended=OutcomeKind.STOPPED, over=True, host=agent.me.member.host, since=start[1])
    agent.workers.outcome_wanted = (start[0], stopped)


def may_record(agent: AgentState) -> bool:
    """There is an outcome to record, or to record again."""
    workers = agent.workers
    says = workers.outcome_wanted != workers.outcome_written or agent.now >= record_again_at(agent)
    readable = agent.view.incarnation is not None  # Without it, this may not be the store of these workers.
    wanted = workers.outcome_wanted is not None and not agent.store.replaced
    return wanted and says and readable and may_write(agent)


def record(agent: AgentState) -> None:
    """Record how the workers ended."""
    assert agent.workers.outcome_wanted is not None
    send(agent, record_outcome(agent.keys, agent.view, agent.me.node, *agent.workers.outcome_wanted))


def record_again_at(agent: AgentState) -> float:
    """When this node records its outcome again; infinity unless other nodes wait for it."""
    generation, workers = agent.generation, agent.workers
    wanted = workers.outcome_wanted
    waits = agent.phase in (Phase.DONE, Phase.GATED) and agent.registration.registered
    if not waits or generation is None or wanted is None or wanted != workers.outcome_written or not wanted[1].over:
        return float("inf")
    before = generation.before.g if generation.before is not None else 0
    return workers.recorded_at + workers.record_again_s if wanted[0] in (generation.g, before) else float("inf")


def on_answer(agent: AgentState, event: TransactionAnswered) -> None:
    """Note that the outcome is recorded, or that the store refused it.

    An outcome before the end (`over` false) may be refused because the incarnation did not match. If it is refused
    again, an earlier attempt whose answer was lost has written it. The servers of a job continue until the first
    outcome of its workers is recorded.
    """
    workers, outcome = agent.workers, event.transaction.outcome
    if event.succeeded:
        again = workers.outcome_written == outcome
        workers.record_again_s = min(2 * workers.record_again_s, RECORD_AGAIN_MAX_S) if again else RECORD_AGAIN_S
        workers.outcome_written, workers.recorded_at = outcome, agent.now
    elif outcome is not None and not outcome[1].over:
        if outcome == workers.outcome_refused:
            workers.outcome_written = outcome
        workers.outcome_refused = outcome
