"""The gate before a generation's start: what keeps it closed, what is judged when it opens, what comes instead (pure).

Nobody starts while a node may still run an older world. `elastic.core.decide` has the rules before this one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import msgspec
from msgspec.structs import replace

from elastic.core import listed_hosts, quarantine
from elastic.core.membership.decision import (
    ConcludeJob,
    Decision,
    DecisionMemory,
    FormGeneration,
    OpenGate,
    Reason,
    WaitDecision,
)
from elastic.core.membership.next_generation import draining_text, failure_words, form, lost_words, reform
from elastic.core.membership.situation import BATCH_S, Situation, completed, earliest
from elastic.core.model import (
    ChangeReason,
    FinalStatus,
    Generation,
    GenerationMember,
    Go,
    Outcome,
    OutcomeKind,
    Predecessor,
    Verdict,
)
from elastic.core.restart_policy import HEALTHY_S, Judgement, judge
from elastic.core.run_deadline import CLOCK_ERROR
from elastic.core.text import duration_in_words, join_names, n_of_m, node_count, with_verb


def at_gate(q: Situation, generation: Generation) -> tuple[Decision, DecisionMemory]:
    """What becomes of a generation that has no go yet."""
    nodes = [place.node for place in generation.members]
    staying = q.staying(generation)
    before = generation.before
    outcomes = {} if before is None else {node: q.outcome(before.g, node) for node in before.nodes}
    if outcomes and all(o is not None and o.ended is OutcomeKind.OK and o.over for o in outcomes.values()) and before:
        return completed(q, before.g), q.memory
    lost = [node for node in nodes if not q.here(node)]
    broke = [node for node in lost if before is None or (node in outcomes and not _is_over(outcomes[node]))]
    draining = [node for node in nodes if q.draining(node)]
    joining_nodes = q.joining_nodes()[: max(q.spec.np.high - len(staying), 0)]
    if not staying:
        return reform(q, f"{join_names(nodes)} left before the start" if nodes else "nobody is in this world"), q.memory
    if broke:
        return form(
            q, Reason.GATE_LOST, ChangeReason.LOSS, lost_words(q, lost) + " before the start", staying
        ), q.memory
    if before is not None and (aborted := _abort_plan(q, generation, before, staying)) is not None:
        return aborted, q.memory
    if lost:
        return form(q, Reason.GATE_LEFT, ChangeReason.LEFT, _left_words(q, lost, outcomes), staying), q.memory
    if draining:
        return form(q, Reason.GATE_DRAINED, ChangeReason.DRAIN, draining_text(q, draining), staying), q.memory
    if joining_nodes:
        until = max(q.memory.ready_since[node] for node in joining_nodes) + BATCH_S
        if q.now >= until or was_falsely_dead(q, before, joining_nodes):
            return form(q, Reason.GATE_JOINED, ChangeReason.JOINED, with_verb(joining_nodes, "join"), staying), q.memory
    else:
        until = None
    if len(nodes) < q.spec.np.low:
        hosts = [place.host for place in generation.members]
        more = listed_hosts.missing_hosts_text(q.spec.ips, hosts, q.spec.np.low - len(nodes))
        text = f"{n_of_m(len(nodes), q.spec.np.low)} here, the least that may run; waiting for {more}"
        return WaitDecision(Reason.BELOW_MIN, text, until), q.memory
    closed = _gate_wait(q, generation, before, outcomes)
    if closed is not None:
        return replace(closed, until=earliest(closed.until, until)), q.memory
    return open_gate(q, generation, before, until)


def _is_over(outcome: Outcome | None) -> bool:
    return outcome is not None and outcome.over


def _left_words(q: Situation, gone: list[str], outcomes: Mapping[str, Outcome | None]) -> str:
    """Say who is gone that has no workers of the world before: some ended them and left, others died."""
    ended = [node for node in gone if node in outcomes and node not in q.view.members]
    others = [node for node in gone if node not in ended]
    words = ([f"{join_names(ended)} left"] if ended else []) + ([lost_words(q, others)] if others else [])
    return f"{', '.join(words)} before the start"


def was_falsely_dead(q: Situation, before: Predecessor | None, joining_nodes: list[str]) -> bool:
    """Tell whether a member of the world before was taken for dead and is back: it costs no restart of its own."""
    back = [node for node in joining_nodes if before is not None and node in before.nodes]
    return any(host in q.memory.distrusted for host in q.hosts(back))


def _abort_plan(
    q: Situation, generation: Generation, before: Predecessor, staying: list[GenerationMember]
) -> FormGeneration | None:
    """A planned stop in which a node was lost or ended its workers, or a worker failed, is no plan any more.

    The others need not wait: whoever still tries to finish a step in the broken group is stopped by a generation that
    is not planned.
    """
    if not generation.planned:
        return None
    outcomes = {node: q.outcome(before.g, node) for node in before.nodes}
    busy = [node for node, outcome in outcomes.items() if q.here(node) and (outcome is None or not outcome.over)]
    if not busy:
        return None
    lost = [node for node, outcome in outcomes.items() if outcome is None and not q.here(node)]
    if lost:
        return form(
            q, Reason.GATE_LOST, ChangeReason.LOSS, lost_words(q, lost) + " while workers were being stopped", staying
        )
    failed = [node for node, outcome in outcomes.items() if outcome is not None and outcome.ended is OutcomeKind.FAILED]
    if failed:
        return form(q, Reason.GATE_FAILED, ChangeReason.FAILURE, failure_words(q, before.g, failed), staying)
    ended = [node for node, outcome in outcomes.items() if outcome is not None and outcome.over and outcome.forced]
    if ended:
        text = f"{join_names(ended)} had to end its workers before all had saved"
        return form(q, Reason.GATE_STOPPED, ChangeReason.STOPPED, text, staying)
    return None


def _gate_wait(
    q: Situation, generation: Generation, before: Predecessor | None, outcomes: Mapping[str, Outcome | None]
) -> WaitDecision | None:
    """Why the gate must stay closed: somebody may still run the older world `before`."""
    if before is None:
        return None
    ended = {node for node, outcome in outcomes.items() if outcome is not None and outcome.over}
    running = [node for node in before.nodes if node not in ended and (node in q.view.members or q.vouched(node))]
    if running:
        times = [q.memory.absent_since[node] for node in running if node in q.memory.absent_since]
        until = min(times) + 2 * q.spec.lease_ttl_s if times else None
        return WaitDecision(
            Reason.STOPPING,
            f"waiting for {join_names(running)} to stop {'their' if len(running) > 1 else 'its'} old workers",
            until,
        )
    if any(place.node in ended for place in generation.members):
        return None  # A survivor has stopped, so no collective of the old world can go on.
    unproven = [node for node in before.nodes if node not in ended and node not in q.memory.dead]
    if not unproven:
        return None
    since = max(q.memory.absent_since.get(node, q.now) for node in unproven)
    longest = q.spec.store_outage_limit_s + q.spec.lease_ttl_s
    until = since + longest * (1 + CLOCK_ERROR) + q.policy.kill_s
    if q.now >= until:
        return None
    text = (
        f"{join_names(unproven)} vanished without a word and may still run for {until - q.now:.0f} s "
        f"(--store_outage_limit {q.spec.store_outage_limit_s:g})"
    )
    return WaitDecision(Reason.UNPROVEN, text, until)


def open_gate(
    q: Situation,
    generation: Generation,
    before: Predecessor | None,
    joining_nodes_at: float | None,
    *,
    charge: bool = True,
) -> tuple[Decision, DecisionMemory]:
    """The gate can open: judge what ended the world before, then go, pause, or end the job."""
    gate_since = q.memory.gate_since
    if gate_since is None or gate_since[0] != generation.g:
        gate_since = (generation.g, q.now)
    memory = replace(q.memory, gate_since=gate_since)
    judgement = Judgement(generation.budget)
    absent: tuple[str, ...] = ()
    if before is not None:
        absent = tuple(node for node in before.nodes if node not in q.view.members)
    if before is not None and charge:
        known = {node: stored for (g, node), stored in q.view.outcomes.items() if g == before.g}
        lost = frozenset(node for node in before.nodes if node not in known)
        healthy = max((stored.value.ran_s for stored in known.values()), default=0.0) >= HEALTHY_S
        judgement = judge(before, known, lost, generation.budget, q.spec, healthy=healthy)
    if (
        judgement.suspects
        and (without := excluding_hosts(dataclasses.replace(q, memory=memory), generation, judgement)) is not None
    ):
        return without, memory
    if judgement.fatal:
        verdict = Verdict(
            status=FinalStatus.FAILED,
            reason=judgement.fatal,
            run=q.spec.run,
            g=generation.g,
            tag="",
            at=0.0,
            cause=judgement.cause,
        )
        return ConcludeJob(Reason.EXHAUSTED, judgement.fatal, verdict), memory
    opens_at = gate_since[1] + judgement.pause_s
    if q.now < opens_at:
        text = f"pause of {judgement.pause_s:g} s after {judgement.budget.fruitless} failures without progress"
        return WaitDecision(Reason.BACKOFF, text, earliest(opens_at, joining_nodes_at)), memory
    master = _master(q, generation)
    if master is None:
        first = generation.members[0].node
        until = q.memory.absent_since.get(first, q.now) + 2 * q.spec.lease_ttl_s
        return WaitDecision(
            Reason.MISSING, f"waiting for {first}, where the others are to meet, to register again", until
        ), memory
    go = Go(
        g=generation.g,
        tag="",
        master=master,
        budget=quarantine.count_down(judgement.budget, memory.quarantine_deadlines, q.now),
        cause=judgement.cause,
        note=judgement.note,
    )
    return OpenGate(
        Reason.OPENED, f"generation {generation.g}: {node_count(len(generation.members))} ready", go, absent
    ), memory


def excluding_hosts(q: Situation, generation: Generation, judgement: Judgement) -> FormGeneration | None:
    """The same generation without the hosts whose workers keep failing; None if too few would be left."""
    suspects = frozenset(judgement.suspects)
    out = [entry for entry in judgement.budget_if_excluded.hosts if entry.host in suspects]
    deadlines = {**q.memory.quarantine_deadlines, **{(entry.host, entry.g): q.now + entry.left_s for entry in out}}
    q = dataclasses.replace(q, memory=replace(q.memory, quarantine_deadlines=deadlines))
    staying = [place for place in q.staying(generation) if place.host not in suspects]
    formed = form(q, Reason.QUARANTINED, ChangeReason.QUARANTINED, "", staying)
    hosts = {place.host for place in formed.generation.members}
    if len(staying) == len(q.staying(generation)) or len(formed.generation.members) < q.spec.np.low or hosts & suspects:
        return None
    reason = quarantine.quarantine_summary(
        [
            f"{entry.host} is kept out for {duration_in_words(entry.left_s)}: {quarantine.reason_text(entry)}"
            for entry in out
        ]
    )
    budget = quarantine.count_down(judgement.budget_if_excluded, deadlines, q.now, hosts)
    generation = msgspec.structs.replace(formed.generation, reason=reason, budget=budget)
    return replace(formed, reason=reason, generation=generation)


def _master(q: Situation, generation: Generation) -> str | None:
    """Where torch's workers meet: a port of M_id 0, another one in each generation.

    The document may not have its ports where it became M_id 0 while it was not registered; None if nobody knows them.
    """
    first = generation.members[0]
    stored = q.view.members.get(first.node)
    masters = first.masters or (stored.value.masters if stored is not None else ())
    return _join_endpoint(first.host, masters[generation.g % len(masters)]) if masters else None


def _join_endpoint(host: str, port: int) -> str:
    """Write an endpoint; IPv6 gets its brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
