"""The next generation: who is in it, in which order, and why it is made, in words (pure)."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from elastic.core import host_order
from elastic.core.membership.decision import Decision, FormGeneration, Reason, WaitDecision
from elastic.core.membership.situation import Situation, join_names, n_of_m, place_of, settling_text
from elastic.core.model import ChangeReason, GenerationMember, Outcome
from elastic.core.partition import SPLIT
from elastic.core.text import failed_processes_text

SPLIT_NAMED_MAX = 4
"""A reason names so many of those that do not reach others."""


def reform(q: Situation, gone: str, lost: Iterable[str] = ()) -> Decision:
    """Nobody of the newest world can go on: start again with whoever is there, after a settling window."""
    nodes = q.newcomers()
    if not nodes:
        if q.generation is not None and q.generation.members:
            return replace(
                form(q, Reason.DRAINED, ChangeReason.DRAIN, gone, []), lost=tuple(lost)
            )  # An empty world: it tells everybody to stop.
        return WaitDecision(Reason.MISSING, "nobody is here who could go on; waiting for nodes")
    if len(nodes) < q.spec.np.low:
        missing = host_order.awaited(q.spec.ips, q.hosts(nodes), q.spec.np.low - len(nodes)) if q.spec.ips else "more"
        text = f"{n_of_m(len(nodes), q.spec.np.low)} here, the least that may run; waiting for {missing}"
        return WaitDecision(Reason.BELOW_MIN, text)
    until = q.settled_at(nodes)
    expected = q.expected(len(q.generation.members) if q.generation is not None else 0)
    if len(nodes) < expected and q.now < until:
        whom = host_order.others(q.spec.ips, q.hosts(nodes))
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
    for node in q.newcomers():
        if len(members) >= high:
            break
        stored = q.member(node)
        if node not in inside and stored is not None:
            members.append(place_of(node, stored.value))
    if q.spec.ips:
        members = host_order.in_order(q.spec.ips, members)
    return FormGeneration(code, reason, q.successor(members, why, reason), planned=planned)


def lost_words(q: Situation, lost: Iterable[str]) -> str:
    """Say who was lost, and how that was noticed."""
    return ", ".join(
        f"{node} was lost ({'its process is gone' if node in q.view.members else 'its lease ended'})" for node in lost
    )


def is_secondary(outcome: Outcome) -> bool:
    """Tell whether every worker that failed says that it lost a peer: perhaps a node was lost."""
    return all(worker.consequence for worker in outcome.exits)


def failure_words(q: Situation, g: int, nodes: Iterable[str]) -> str:
    """Say which ranks failed, where, and in which log that stands."""
    found = [outcome for node in nodes if (outcome := q.outcome(g, node)) is not None and outcome.exits]
    if not found:
        return f"a worker failed on {join_names(nodes)}"
    own = [outcome for outcome in found if not outcome.exits[0].consequence] or found
    if all(worker.infra == SPLIT for outcome in own for worker in outcome.exits):
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
