"""Who has which seat of a parameter-server job, revision by revision (pure).

A generation of such a job is not replaced when its members change. It gets another revision: who keeps its seats is
not disturbed, because workers talk to servers and not to each other. The rules, in the order they are asked:

1. No generation yet: wait until every server and enough nodes with workers are here, then form.
2. Every worker in the roster ended well: the job is completed, whatever its servers do.
3. Nobody of the roster is here: the next generation, as soon as there are servers and workers again.
4. A lost node leaves the roster. One whose processes failed or were stopped gets its seats again, in a new start that
   the budget pays for (`elastic.core.ps.restart`). Servers that had ended well start again with workers that start.
5. A node that drains, or is not wanted any more, is asked to leave; it keeps its seats until it has stopped. Those of
   a lost node are kept for the length of a lease: it is not registered, but somebody may have revoked its lease, and
   then it still has a right to run for that long.
6. A free server's seat goes to the oldest node that can have it; new nodes get workers while np has room. None comes
   once a worker has ended well.

A seat is never had by two nodes: the right to run of such a job is never longer than the lease
(`elastic.core.agent.links`). A link that shows a death ends that node's lease, and frees no seat, because it can be
wrong.
"""

from __future__ import annotations

from collections.abc import Collection

from elastic.core.membership.decision import Decision, DecisionMemory, FormGeneration, Reason, WaitDecision
from elastic.core.membership.next_generation import successor
from elastic.core.membership.settling import expected_nodes, settled_at
from elastic.core.membership.situation import Situation, completed
from elastic.core.model import (
    ChangeReason,
    Generation,
    GenerationMember,
    JobMode,
    JobSpec,
    Outcome,
    OutcomeKind,
    Predecessor,
    PsLayout,
)
from elastic.core.ps.revision import (
    UNLIMITED,
    RevisionBuilder,
    candidates_outside,
    current_outcomes,
    ended_with,
    is_present,
    tasks_free_at,
)
from elastic.core.ps.task_placement import assign, has_servers, has_workers, host_of, in_order, vacant_servers
from elastic.core.ps.text import in_words, servers_in_words
from elastic.core.text import join_names, n_of_m, settling_text
from elastic.core.view import StoreView


def roles_of(spec: JobSpec) -> PsLayout | None:
    """The roles of a parameter-server job, None for a collective one."""
    return spec.roles if spec.mode is not JobMode.COLLECTIVE else None


def form_first(q: Situation, roles: PsLayout) -> Decision:
    """There is no generation yet: wait, or form the first."""
    return _assemble(q, roles, q.spec.np.first, Reason.FORMED, ChangeReason.FIRST, "")


def running(q: Situation, roles: PsLayout, generation: Generation) -> tuple[Decision, DecisionMemory]:
    """The roster's generation has its go: complete it, revise it, or replace it when nobody of it is left."""
    ends = current_outcomes(q, generation)
    at_work = [place for place in generation.members if has_workers(place) and not place.leaving]
    finished = {place.node for place in at_work if ended_with(ends, place, OutcomeKind.OK)}
    if at_work and len(finished) == len(at_work):
        return completed(q, generation.g), q.memory
    if not any_member_present(q, generation):
        gone = f"{join_names([place.node for place in generation.members])} left, nobody of this roster remains"
        return _assemble(q, roles, q.spec.np.low, Reason.REFORMED, ChangeReason.REFORMED, gone), q.memory
    change = RevisionBuilder(q, roles, generation, ends, finished)
    change.departures()
    if not change.fatal:
        change.request_departures()
        change.arrivals()
        change.restart_servers()
    return change.decision(), q.memory


def any_member_present(q: Situation, generation: Generation) -> bool:
    """Tell whether anybody of a roster that waits at the gate is still here."""
    return any(is_present(q, place.node) for place in generation.members)


def gate_wait(q: Situation, before: Predecessor) -> WaitDecision | None:
    """Why the next generation may not start: a node of the old one may still run its processes."""
    since = dict(zip(before.nodes, before.since, strict=False))
    open_ends = [node for node in before.nodes if not _is_over(q.outcome(before.g, node), since.get(node, 0))]
    busy = [node for node in open_ends if node in q.view.members]
    if busy:
        return WaitDecision(Reason.STOPPING, f"waiting for {join_names(busy)} to stop the old processes")
    freed_at = max((tasks_free_at(q, node) for node in open_ends), default=q.now)
    if q.now < freed_at:
        text = f"{join_names(open_ends)} vanished and may still run for {freed_at - q.now:.0f} s"
        return WaitDecision(Reason.UNPROVEN, text, freed_at)
    return None


def vanished(view: StoreView, generation: Generation) -> list[str]:
    """Nodes of a roster that are not registered and may still run: a proof of their death frees their seats."""
    found = []
    for place in generation.members:
        stored = view.outcomes.get((generation.g, place.node))
        end = stored.value if stored is not None and stored.value.since == place.since else None
        said = end is not None and (end.over or (end.ended is OutcomeKind.OK and not has_servers(place)))
        if place.tasks and place.node not in view.members and not said:
            found.append(place.node)
    return found


def _is_over(end: Outcome | None, since: int) -> bool:
    """Tell whether the start that revision `since` asked for is over; what was said of an older one is no sign."""
    return end is not None and end.over and end.since >= since


def below_np(q: Situation, roles: PsLayout, generation: Generation) -> bool:
    """Tell whether more workers are wanted by now than a roster has that waits at the gate."""
    return roles.separate and sum(map(has_workers, generation.members)) < q.spec.np.low


def reform(q: Situation, roles: PsLayout, generation: Generation) -> Decision:
    """A roster that waits at the gate does not do any more: everybody of it left, or more workers are wanted."""
    stay = {place.node for place in generation.members if is_present(q, place.node) and not q.draining(place.node)}
    if any_member_present(q, generation):
        gone = f"workers on {q.spec.np.low} nodes were wanted before the start"
    else:
        gone = f"{join_names([place.node for place in generation.members])} left before the start"
    return _assemble(q, roles, q.spec.np.low, Reason.REFORMED, ChangeReason.REFORMED, gone, stay)


def _assemble(
    q: Situation, roles: PsLayout, need: int, code: Reason, why: ChangeReason, gone: str, stay: Collection[str] = ()
) -> Decision:
    """A generation of whoever is here, if that is enough: nodes that are in none, and those that `stay`."""
    candidates = candidates_outside(q, frozenset(), stay)
    places = assign(roles, (), candidates, q.spec.np.high if roles.separate else UNLIMITED, 0)
    vacant = vacant_servers(roles, places)
    if vacant:
        return WaitDecision(Reason.MISSING, f"waiting for {servers_in_words(roles, vacant)}")
    lacking = _lacking(roles, places, need)
    if lacking:
        return WaitDecision(Reason.MISSING, lacking)
    nodes = [place.node for place in places]
    workers = sum(map(has_workers, places))
    until = settled_at(q, nodes)
    expected = expected_nodes(q, sum(map(has_workers, q.generation.members)) if q.generation is not None else 0)
    if roles.separate and workers < expected and q.now < until:
        return WaitDecision(Reason.SETTLING, settling_text(workers, expected, until - q.now), until)
    reason = gone or f"{in_words(roles, places)} are here"
    generation = successor(q, in_order(places), why, reason)
    return FormGeneration(code, reason, generation)


def _lacking(roles: PsLayout, places: list[GenerationMember], need: int) -> str:
    """Who is missing beside the servers, in words; "" if nobody is."""
    if roles.separate:
        workers = sum(map(has_workers, places))
        if workers < need:
            return f"{n_of_m(workers, need)} here for workers; waiting for {need - workers} more"
        return ""
    present = {place.host for place in places}
    hosts = dict.fromkeys(host_of(endpoint) for endpoint in (*roles.workers, *roles.heters))
    missing = [host for host in hosts if host not in present]
    if missing and (need > 1 or len(missing) == len(hosts)):
        return f"waiting for {', '.join(missing)}"
    return "" if places else "waiting for a node"
