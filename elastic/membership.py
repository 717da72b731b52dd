"""Who is in the next generation, when it is made, and when its workers may start (pure).

`decide(view, memory, policy, now)` looks at what stands in the store and says one thing to do, with the reason as a
sentence. The proposer calls it after every change and at the time it asked for; the same input gives the same answer.

The rules, in the order they are asked:

1. A verdict ends everything. A document that cannot be read stops everything until a person has looked.
2. No generation yet: wait for the first nodes, then for the settling window, then form, with the go: nobody ran before.
   With a list of hosts (`--ips`) members stand in its order, and each host has one place (`elastic.hostlist`).
3. The newest generation has its go: complete it, or replace it because of a loss, a failure, workers that had to be
   stopped, a drain, fewer nodes wanted, or newcomers. Unplanned before planned; nothing planned after the first ok.
4. The newest generation waits at the gate: replace it if its members changed, or if the planned stop before it went
   wrong; otherwise open it once nobody can still be running an older world, and the failure before it has been judged.

A parameter-server job has rules of its own for what runs (`elastic.roster`); the gate and the budget are the same.

Nothing here is about safety between two proposers: that is the compare of the transaction (`elastic.proposals`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from elastic import hostlist, roster
from elastic.budget import HEALTHY_S, Judgement, judge
from elastic.decisions import Conclude, Decision, Form, Memory, Open, Policy, Reason, Wait
from elastic.keys import Stored, View
from elastic.model import (
    PLANNED,
    Before,
    Ended,
    Generation,
    Go,
    Member,
    MemberState,
    Outcome,
    Place,
    Roles,
    Status,
    Verdict,
    Why,
)
from elastic.naming import failed_words
from elastic.question import (
    BATCH_S,
    LINK_PATIENCE_S,
    Question,
    completed,
    counted,
    earliest,
    join_endpoint,
    named,
    node_count,
    place_of,
    settling,
    told,
)
from elastic.right import CLOCK_ERROR

__all__ = ["Conclude", "Decision", "Form", "Memory", "Open", "Policy", "Reason", "Wait", "decide", "remember"]

GROW_EVERY_S = 60.0
"""A job whose workers lose what they have not saved grows at most once in this time, if `--grow_every` says nothing."""
GONE_MAX = 64
"""Proofs of death that are kept after their keys are gone, the newest; an older one that was wrong may happen again."""


def decide(view: View, memory: Memory, policy: Policy, now: float) -> tuple[Decision, Memory]:
    """Say what the proposer does now, why, and what to remember.

    `view` must be complete; `now` is the asker's monotonic clock in seconds. Never raises on anything that the store
    can hold.
    """
    if view.verdict is not None:
        return Wait(Reason.ENDED, f"the job has ended: {view.verdict.value.reason}"), memory
    if view.unreadable:
        return Wait(Reason.UNREADABLE, f"{view.unreadable[0]} cannot be read; put it right"), memory
    if view.incarnation is None and view.spec is not None:
        return Wait(Reason.UNREADABLE, "the key incarnation of this job was deleted; put it back"), memory
    if view.spec is None:
        return Wait(Reason.NO_SPEC, "the job has no spec yet"), memory
    memory = _observe(view, memory, policy, now)
    decision, memory = _answer(Question(view, view.spec.value, memory, policy, now))
    if isinstance(decision, Wait) and memory.seen_since:  # Who cannot be linked is taken without a link in the end.
        until = min(memory.seen_since.values()) + LINK_PATIENCE_S
        decision = replace(decision, until=earliest(decision.until, until))
    return decision, memory


def _answer(q: Question) -> tuple[Decision, Memory]:
    roles = roster.roles_of(q.spec)
    if roles is not None:
        return _of_roster(q, roles)
    if q.generation is None:
        return _first(q)
    if q.view.go is not None and q.view.go.value.g == q.generation.g:
        return _running(q, q.generation)
    return _gate(q, q.generation)


def _of_roster(q: Question, roles: Roles) -> tuple[Decision, Memory]:
    """The same for a parameter-server job."""
    generation = q.generation
    if generation is None:
        return _at_once(q, roster.first(q, roles)), q.memory
    if q.view.go is not None and q.view.go.value.g == generation.g:
        return roster.running(q, roles, generation)
    if not roster.standing(q, generation):
        return roster.reform(q, roles, generation), q.memory
    if generation.before is not None and (closed := roster.closed(q, generation.before)) is not None:
        return closed, q.memory
    return _open(q, generation, generation.before, None, charge=False)  # Its revisions were paid for one by one.


def remember(view: View, memory: Memory, now: float) -> Memory:
    """Note when the job last grew. Every agent does this."""
    if view.generation is None:
        return memory
    generation = view.generation.value
    grown_at = memory.grown_at
    if generation.g > memory.generation_seen and generation.why is Why.GROWTH:
        grown_at = now
    return replace(memory, grown_at=grown_at, generation_seen=generation.g)


def _observe(view: View, memory: Memory, policy: Policy, now: float) -> Memory:
    """Bring the memory up to date: when was each node first seen ready, draining, or absent."""
    run = view.spec.value.run if view.spec is not None else 0
    generation = view.generation.value if view.generation is not None and view.generation.value.run == run else None
    inside = {place.node for place in generation.members} if generation else set()
    before = set(generation.before.nodes) if generation and generation.before else set()
    members = view.members
    memory = replace(memory, since_revision=memory.since_revision or view.revision)
    outside = {
        node: stored
        for node, stored in members.items()
        if node not in inside and stored.value.state is MemberState.READY
    }
    unlinked = {
        node: memory.seen_since.get(node, now)
        for node, stored in outside.items()
        if node not in memory.ready_since and not _linked(view, memory, policy, node, stored)
    }
    unlinked = {node: since for node, since in unlinked.items() if now < since + LINK_PATIENCE_S}
    return replace(
        remember(view, memory, now),
        seen_since=unlinked,
        gone=_still_gone(members, memory),
        absent_since={
            node: memory.absent_since.get(node, now) for node in sorted(inside | before) if node not in members
        },
        ready_since={node: memory.ready_since.get(node, now) for node in outside if node not in unlinked},
        draining_since={
            node: memory.draining_since.get(node, now)
            for node, stored in members.items()
            if stored.value.state is MemberState.DRAINING
        },
        ended_since={
            node: memory.ended_since.get(node, now)
            for (g, node), stored in view.outcomes.items()
            if generation is not None and g == generation.g and stored.value.over
        },
    )


def _still_gone(members: Mapping[str, Stored[Member]], memory: Memory) -> frozenset[tuple[str, int]]:
    """The proofs of death that nothing speaks against yet.

    They outlive the key: a node that is registered anew after its proof shows that the proof was wrong.
    """
    if not memory.gone:
        return memory.gone
    kept = {key for key in memory.gone if key[0] in members and members[key[0]].create_revision == key[1]}
    absent = sorted((created, node) for node, created in memory.gone if node not in members)
    return frozenset(kept.union((node, created) for created, node in absent[-GONE_MAX:]))


def _linked(view: View, memory: Memory, policy: Policy, node: str, stored: Stored[Member]) -> bool:
    """Tell whether a node outside the generation has arrived: its agent is linked, or was, or no link would count.

    One that was there before the newest generation was made, or before this agent began to propose in a running job,
    had its time: it is needed at once, to take the place of the proposer that is lost.
    """
    known = max(view.generation.mod_revision - 1, memory.since_revision) if view.generation is not None else 0
    before = stored.create_revision <= known
    if not stored.value.link or stored.value.host in memory.distrusted:
        return True
    return node in memory.linked or node == policy.node or before


def _first(q: Question) -> tuple[Decision, Memory]:
    nodes = q.newcomers()
    need = q.spec.np.first
    if len(nodes) < need:
        more = hostlist.awaited(q.spec.ips, q.hosts(nodes), need - len(nodes))
        text = f"{counted(len(nodes), need)} here; waiting for {more}"
        return Wait(Reason.MISSING, text), q.memory
    until = q.settled_at(nodes)
    if len(nodes) < q.spec.np.high and q.now < until:
        whom = hostlist.others(q.spec.ips, q.hosts(nodes))
        return Wait(Reason.SETTLING, settling(len(nodes), q.spec.np.high, until - q.now, whom), until), q.memory
    reason = f"{counted(len(nodes), q.spec.np.high)} here"
    return _at_once(q, _form(q, Reason.FORMED, Why.FIRST, reason, [])), q.memory


def _at_once(q: Question, first: Decision) -> Decision:
    """A first generation with its go: nobody can still run an older world, so it needs no gate."""
    if not isinstance(first, Form):
        return first
    opening, _ = _open(q, first.generation, None, None)
    return replace(first, go=opening.go) if isinstance(opening, Open) else first


def _running(q: Question, generation: Generation) -> tuple[Decision, Memory]:
    nodes = [place.node for place in generation.members]
    outcomes = {node: outcome for node in nodes if (outcome := q.outcome(generation.g, node)) is not None}
    done = [node for node, outcome in outcomes.items() if outcome.ended is Ended.OK and outcome.over]
    if nodes and len(done) == len(nodes):
        return completed(q, generation.g), q.memory
    failed = [node for node, outcome in outcomes.items() if outcome.ended is Ended.FAILED]
    stopped = [node for node, outcome in outcomes.items() if outcome.ended is Ended.STOPPED]
    lost = [node for node in nodes if node not in outcomes and not q.working(node)]
    if lost or failed or stopped:
        staying = q.staying(generation)
        if not staying:
            gone = f"{named(lost or failed or stopped)} left, nobody of this world remains"
            return _reform(q, gone, lost), q.memory
        if lost:
            return replace(_form(q, Reason.LOST, Why.LOSS, _lost(q, lost), staying), lost=tuple(lost)), q.memory
        if failed:
            to_ask = (q.memory.linked & set(nodes)) - set(failed)
            if to_ask and q.memory.answered_g < generation.g and all(_echo(outcomes[node]) for node in failed):
                text = f"{_failed(q, generation.g, failed)}; asking the other nodes whether they are still there"
                return Wait(Reason.ASKING, text), q.memory
            return _form(q, Reason.FAILED, Why.FAILURE, _failed(q, generation.g, failed), staying), q.memory
        return _form(q, Reason.STOPPED, Why.STOPPED, f"{named(stopped)} stopped its workers", staying), q.memory
    if done:
        return Wait(Reason.FINISHING, f"{len(done)} of {node_count(len(nodes))} done; waiting for the others"), q.memory
    return _planned(q, generation, nodes), q.memory


def _planned(q: Question, generation: Generation, nodes: list[str]) -> Decision:
    """Changes that can wait: drains, fewer nodes wanted, newcomers."""
    draining = [node for node in nodes if q.draining(node)]
    if draining:
        until = min(q.memory.draining_since[node] for node in draining) + BATCH_S
        if q.now < until:
            return Wait(Reason.DRAIN_BATCH, told(draining, "drain"), until)
        return _form(q, Reason.DRAINED, Why.DRAIN, told(draining, "drain"), q.staying(generation), planned=True)
    high = q.spec.np.high
    newcomers = q.newcomers()[: max(0, high - len(nodes))]
    out_of_reach = [node for node in nodes if q.member(node) is None or node in q.memory.astray]
    if out_of_reach and (newcomers or len(nodes) > high):  # It would work on with workers that have stopped.
        change = told(newcomers, "join") if newcomers else f"{node_count(high)} wanted"
        text = f"{change}; waiting for {named(out_of_reach)} to reach the store again"
        return Wait(Reason.OUT_OF_REACH, text)
    if len(nodes) > high:
        reason = f"{len(nodes)} nodes run, {high} are wanted"
        return _form(q, Reason.SHRUNK, Why.SHRINK, reason, q.staying(generation), planned=True)
    if newcomers:
        until = q.settled_at(newcomers)
        if len(nodes) + len(newcomers) < high and q.now < until:
            return Wait(Reason.GROW_SETTLING, settling(len(nodes) + len(newcomers), high, until - q.now), until)
        grown_at, every_s = q.memory.grown_at, _grow_every_s(q, generation)
        if grown_at is not None and q.now < grown_at + every_s:
            until = grown_at + every_s
            text = f"{told(newcomers, 'join')} in {until - q.now:.0f} s (--grow_every {every_s:g})"
            return Wait(Reason.GROW_LATER, text, until)
        return _form(q, Reason.GROWN, Why.GROWTH, told(newcomers, "join"), q.staying(generation), planned=True)
    text = f"training with {node_count(len(nodes))}"
    spares = len(q.ready())
    return Wait(Reason.TRAINING, text + (f", {spares} spare" if spares else ""))


def _grow_every_s(q: Question, generation: Generation) -> float:
    """How far apart two growths are: workers that save before they leave lose nothing by another one."""
    if q.spec.grow_every_s is not None:
        return q.spec.grow_every_s
    return 0.0 if q.memory.listening == generation.g else GROW_EVERY_S


def _gate(q: Question, generation: Generation) -> tuple[Decision, Memory]:
    nodes = [place.node for place in generation.members]
    staying = q.staying(generation)
    before = generation.before
    outcomes = {} if before is None else {node: q.outcome(before.g, node) for node in before.nodes}
    if outcomes and all(o is not None and o.ended is Ended.OK and o.over for o in outcomes.values()) and before:
        return completed(q, before.g), q.memory
    lost = [node for node in nodes if not q.here(node)]
    draining = [node for node in nodes if q.draining(node)]
    newcomers = q.newcomers()[: max(q.spec.np.high - len(staying), 0)]
    if not staying:
        return _reform(q, f"{named(nodes)} left before the start" if nodes else "nobody is in this world"), q.memory
    if lost:
        return _form(q, Reason.GATE_LOST, Why.LOSS, _lost(q, lost) + " before the start", staying), q.memory
    if before is not None and (aborted := _aborted(q, generation, before, staying)) is not None:
        return aborted, q.memory
    if draining:
        return _form(q, Reason.GATE_DRAINED, Why.DRAIN, told(draining, "drain"), staying), q.memory
    if newcomers:
        until = max(q.memory.ready_since[node] for node in newcomers) + BATCH_S
        if q.now >= until or _not_dead(q, before, newcomers):
            return _form(q, Reason.GATE_JOINED, Why.JOINED, told(newcomers, "join"), staying), q.memory
    else:
        until = None
    if len(nodes) < q.spec.np.low:
        hosts = [place.host for place in generation.members]
        more = hostlist.awaited(q.spec.ips, hosts, q.spec.np.low - len(nodes))
        text = f"{counted(len(nodes), q.spec.np.low)} here, the least that may run; waiting for {more}"
        return Wait(Reason.BELOW_MIN, text, until), q.memory
    closed = _closed(q, generation, before, outcomes)
    if closed is not None:
        return replace(closed, until=earliest(closed.until, until)), q.memory
    return _open(q, generation, before, until)


def _not_dead(q: Question, before: Before | None, newcomers: list[str]) -> bool:
    """Tell whether a member of the world before was taken for dead and is back: it costs no restart of its own."""
    back = [node for node in newcomers if before is not None and node in before.nodes]
    return any(host in q.memory.distrusted for host in q.hosts(back))


def _aborted(q: Question, generation: Generation, before: Before, staying: list[Place]) -> Form | None:
    """A planned stop in which a node was lost or a worker failed is no plan any more: the others need not wait.

    Whoever still tries to finish a step in the broken group is stopped by a generation that is not planned.
    """
    if generation.why not in PLANNED:
        return None
    outcomes = {node: q.outcome(before.g, node) for node in before.nodes}
    busy = [node for node, outcome in outcomes.items() if q.here(node) and (outcome is None or not outcome.over)]
    if not busy:
        return None
    lost = [node for node, outcome in outcomes.items() if outcome is None and not q.here(node)]
    if lost:
        return _form(q, Reason.GATE_LOST, Why.LOSS, _lost(q, lost) + " while workers were being stopped", staying)
    failed = [node for node, outcome in outcomes.items() if outcome is not None and outcome.ended is Ended.FAILED]
    if failed:
        return _form(q, Reason.GATE_FAILED, Why.FAILURE, _failed(q, before.g, failed), staying)
    return None


def _closed(
    q: Question, generation: Generation, before: Before | None, outcomes: Mapping[str, Outcome | None]
) -> Wait | None:
    """Why the gate must stay closed: somebody may still run the older world `before`."""
    if before is None:
        return None
    ended = {node for node, outcome in outcomes.items() if outcome is not None and outcome.over}
    running = [node for node in before.nodes if node not in ended and (node in q.view.members or q.vouched(node))]
    if running:
        times = [q.memory.absent_since[node] for node in running if node in q.memory.absent_since]
        until = min(times) + 2 * q.spec.lease_ttl_s if times else None
        return Wait(
            Reason.STOPPING,
            f"waiting for {named(running)} to stop {'their' if len(running) > 1 else 'its'} old workers",
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
        f"{named(unproven)} vanished without a word and may still run for {until - q.now:.0f} s "
        f"(--store_outage_limit {q.spec.store_outage_limit_s:g})"
    )
    return Wait(Reason.UNPROVEN, text, until)


def _open(
    q: Question, generation: Generation, before: Before | None, newcomers_at: float | None, *, charge: bool = True
) -> tuple[Decision, Memory]:
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
    if judgement.fatal:
        verdict = Verdict(
            status=Status.FAILED,
            reason=judgement.fatal,
            run=q.spec.run,
            g=generation.g,
            tag="",
            at=0.0,
            cause=judgement.cause,
        )
        return Conclude(Reason.EXHAUSTED, judgement.fatal, verdict), memory
    opens_at = gate_since[1] + judgement.pause_s
    if q.now < opens_at:
        text = f"pause of {judgement.pause_s:g} s after {judgement.budget.fruitless} failures without progress"
        return Wait(Reason.BACKOFF, text, earliest(opens_at, newcomers_at)), memory
    master = _master(q, generation)
    if master is None:
        first = generation.members[0].node
        until = q.memory.absent_since.get(first, q.now) + 2 * q.spec.lease_ttl_s
        return Wait(
            Reason.MISSING, f"waiting for {first}, where the others are to meet, to register again", until
        ), memory
    go = Go(
        g=generation.g,
        tag="",
        master=master,
        budget=judgement.budget,
        cause=judgement.cause,
        note=judgement.note,
    )
    return Open(
        Reason.OPENED, f"generation {generation.g}: {node_count(len(generation.members))} ready", go, absent
    ), memory


def _master(q: Question, generation: Generation) -> str | None:
    """Where torch's workers meet: a port of M_id 0, another one in each generation.

    The document may not have its ports where it became M_id 0 while it was not registered; None if nobody knows them.
    """
    first = generation.members[0]
    stored = q.view.members.get(first.node)
    masters = first.masters or (stored.value.masters if stored is not None else ())
    return join_endpoint(first.host, masters[generation.g % len(masters)]) if masters else None


def _reform(q: Question, gone: str, lost: Iterable[str] = ()) -> Decision:
    """Nobody of the newest world can go on: start again with whoever is there, after a settling window."""
    nodes = q.newcomers()
    if not nodes:
        if q.generation is not None and q.generation.members:
            return replace(
                _form(q, Reason.DRAINED, Why.DRAIN, gone, []), lost=tuple(lost)
            )  # An empty world: it tells everybody to stop.
        return Wait(Reason.MISSING, "nobody is here who could go on; waiting for nodes")
    if len(nodes) < q.spec.np.low:
        missing = hostlist.awaited(q.spec.ips, q.hosts(nodes), q.spec.np.low - len(nodes)) if q.spec.ips else "more"
        text = f"{counted(len(nodes), q.spec.np.low)} here, the least that may run; waiting for {missing}"
        return Wait(Reason.BELOW_MIN, text)
    until = q.settled_at(nodes)
    if len(nodes) < q.spec.np.high and q.now < until:
        whom = hostlist.others(q.spec.ips, q.hosts(nodes))
        return Wait(Reason.SETTLING, settling(len(nodes), q.spec.np.high, until - q.now, whom), until)
    return replace(_form(q, Reason.REFORMED, Why.REFORMED, gone, []), lost=tuple(lost))


def _form(q: Question, code: Reason, why: Why, reason: str, staying: list[Place], *, planned: bool = False) -> Form:
    """The next generation: who stays, in order, then newcomers by age, at most as many as are wanted.

    With --ips they are put into its order.
    """
    high = q.spec.np.high
    members = staying[:high]
    inside = {place.node for place in staying}
    for node in q.newcomers():
        if len(members) >= high:
            break
        stored = q.member(node)
        if node not in inside and stored is not None:
            members.append(place_of(node, stored.value))
    if q.spec.ips:
        members = hostlist.in_order(q.spec.ips, members)
    return Form(code, reason, q.successor(members, why, reason), planned=planned)


def _lost(q: Question, lost: Iterable[str]) -> str:
    """Say who was lost, and how that was noticed."""
    return ", ".join(
        f"{node} was lost ({'its process is gone' if node in q.view.members else 'its lease ended'})" for node in lost
    )


def _echo(outcome: Outcome) -> bool:
    """Tell whether every worker that failed says that it lost a peer: perhaps a node was lost."""
    return all(worker.consequence for worker in outcome.exits)


def _failed(q: Question, g: int, nodes: Iterable[str]) -> str:
    """Say which ranks failed, where, and in which log that stands."""
    found = [outcome for node in nodes if (outcome := q.outcome(g, node)) is not None and outcome.exits]
    if not found:
        return f"a worker failed on {named(nodes)}"
    own = [outcome for outcome in found if not outcome.exits[0].consequence] or found
    hosts = ", ".join(dict.fromkeys(outcome.host for outcome in own))
    return failed_words([worker for outcome in own for worker in outcome.exits], hosts)
