"""The next generation: who is in it, in which order, and why it is made, in words (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
from msgspec.structs import replace

from elastic.core import listed_hosts, quarantine
from elastic.core.membership.decision import Decision, FormGeneration, Reason, WaitDecision
from elastic.core.membership.settling import expected_nodes, settled_at
from elastic.core.membership.situation import Situation, place_of
from elastic.core.model import PLANNED, Budget, ChangeReason, Generation, GenerationMember, Outcome, Predecessor
from elastic.core.partition import SPLIT
from elastic.core.restart_budget import budget_of
from elastic.core.text import failed_processes_text, join_names, n_of_m, settling_text, with_verb

DISTRUSTED_MAX = 64
"""Hosts that a generation names as distrusted; those beyond may cost one needless restart with another proposer."""
DRAIN_REASON_MAX = 120
"""Characters of a reason to drain that others repeat."""
REASONS_MAX = 2
"""Different reasons to drain that a sentence has."""
SPLIT_NAMED_MAX = 4
"""A reason names so many of those that do not reach others."""


def reform(q: Situation, gone: str, lost: Iterable[str] = ()) -> Decision:
    """Nobody of the newest world can go on: start again with whoever is there, after a settling window."""
    nodes = q.joining_nodes()
    if not nodes:
        if q.generation is not None and q.generation.members:
            return replace(
                form(q, Reason.DRAINED, ChangeReason.DRAIN, gone, []), lost=tuple(lost)
            )  # An empty world: it tells everybody to stop.
        return WaitDecision(Reason.MISSING, "nobody is here who could go on; waiting for nodes")
    if len(nodes) < q.spec.np.low:
        missing = (
            listed_hosts.missing_hosts_text(q.spec.ips, q.hosts(nodes), q.spec.np.low - len(nodes))
            if q.spec.ips
            else "more"
        )
        text = f"{n_of_m(len(nodes), q.spec.np.low)} here, the least that may run; waiting for {missing}"
        return WaitDecision(Reason.BELOW_MIN, text)
    until = settled_at(q, nodes)
    expected = expected_nodes(q, len(q.generation.members) if q.generation is not None else 0)
    if len(nodes) < expected and q.now < until:
        whom = listed_hosts.possible_hosts_text(q.spec.ips, q.hosts(nodes))
        return WaitDecision(Reason.SETTLING, settling_text(len(nodes), expected, until - q.now, whom), until)
    return replace(form(q, Reason.REFORMED, ChangeReason.REFORMED, gone, []), lost=tuple(lost))


def form(
    q: Situation,
    code: Reason,
    why: ChangeReason,
    reason: str,
    staying: list[GenerationMember],
    *,
    planned: bool = False,
) -> FormGeneration:
    """The next generation: who stays, in order, then newcomers by age, at most as many as are wanted.

    With --ips they are put into its order.
    """
    high = q.spec.np.high
    members = staying[:high]
    inside = {place.node for place in staying}
    for node in q.joining_nodes():
        if len(members) >= high:
            break
        stored = q.member(node)
        if node not in inside and stored is not None:
            members.append(place_of(node, stored.value))
    if q.spec.ips:
        members = listed_hosts.sort_by_host(q.spec.ips, members)
    return FormGeneration(code, reason, successor(q, members, why, reason), planned=planned)


def successor(q: Situation, members: Sequence[GenerationMember], why: ChangeReason, reason: str) -> Generation:
    """The next generation with these members, after the one that got its go last."""
    stored, newest = q.view.generation, q.generation
    before, budget = None, Budget()
    if newest is not None:
        inside = {place.host for place in members}
        before, budget = (
            _as_it_is(newest.before, why),
            quarantine.count_down(budget_of(q.view), q.memory.quarantine_deadlines, q.now, inside, q.spec.restarts_max),
        )
        go = q.view.go.value if q.view.go is not None else None
        if go is not None and go.g == newest.g:
            since = tuple(place.since for place in newest.members) if newest.rev else ()
            nodes = tuple(place.node for place in newest.members)
            before = Predecessor(newest.g, nodes, why, since, why not in PLANNED)
    return Generation(
        g=(stored.value.g if stored is not None else 0) + 1,
        run=q.spec.run,
        tag="",
        why=why,
        reason=reason,
        members=strip_unused_ports(members),
        slots=q.spec.slots,
        before=before,
        budget=budget,
        distrusted=tuple(sorted(q.memory.distrusted))[:DISTRUSTED_MAX],
    )


def _as_it_is(before: Predecessor | None, why: ChangeReason) -> Predecessor | None:
    """The world before, if its workers were still being stopped when another generation came because of `why`."""
    return before if before is None or why in PLANNED else msgspec.structs.replace(before, broken=True)


def strip_unused_ports(members: Sequence[GenerationMember]) -> tuple[GenerationMember, ...]:
    """The members of a generation, with the ports for torch's store only where its workers may meet.

    That is M_id 0, and in a parameter-server job whoever has the first seat of a role.
    """
    return tuple(
        place
        if not place.masters or m_id == 0 or any(task.index == 0 for task in place.tasks)
        else msgspec.structs.replace(place, masters=())
        for m_id, place in enumerate(members)
    )


def lost_words(q: Situation, lost: Iterable[str]) -> str:
    """Say who was lost, and how that was noticed."""
    return ", ".join(
        f"{node} was lost ({'its process is gone' if node in q.view.members else 'its lease ended'})" for node in lost
    )


def is_secondary(outcome: Outcome) -> bool:
    """Tell whether every worker that failed says that it lost a peer: perhaps a node was lost."""
    return all(worker.secondary for worker in outcome.exits)


def failure_words(q: Situation, g: int, nodes: Iterable[str]) -> str:
    """Say which ranks failed, where, and in which log that stands."""
    found = [outcome for node in nodes if (outcome := q.outcome(g, node)) is not None and outcome.exits]
    if not found:
        return f"a worker failed on {join_names(nodes)}"
    own = [outcome for outcome in found if not outcome.exits[0].secondary] or found
    if all(worker.machine_fault == SPLIT for outcome in own for worker in outcome.exits):
        return _split_words(q, own)
    hosts = ", ".join(dict.fromkeys(outcome.host for outcome in own))
    return failed_processes_text([worker for outcome in own for worker in outcome.exits], hosts)


def _split_words(q: Situation, outcomes: Iterable[Outcome]) -> str:
    """Say who does not reach whom: "the network is split: a does not reach b"."""
    hosts = {place.node: place.host for place in q.generation.members} if q.generation is not None else {}
    found = [
        f"{one.host} does not reach {join_names(hosts.get(node, node) for node in one.unreached)}" for one in outcomes
    ]
    return f"{SPLIT}: {'; '.join(found[:SPLIT_NAMED_MAX])}"


def draining_text(q: Situation, nodes: list[str]) -> str:
    """Nodes that drain, and why if they have said so: "a drains: SIGTERM"."""
    why = drain_reasons(q, nodes)
    return with_verb(nodes, "drain") + (f": {why}" if why else "")


def drain_reasons(q: Situation, nodes: list[str]) -> str:
    """Why these nodes drain, as they have said themselves."""
    members = [q.view.members[node].value for node in nodes if node in q.view.members]
    reasons = list(dict.fromkeys(one.drain_reason[:DRAIN_REASON_MAX] for one in members if one.drain_reason))
    more = f" and {len(reasons) - REASONS_MAX} more" if len(reasons) > REASONS_MAX else ""
    return "; ".join(reasons[:REASONS_MAX]) + more
