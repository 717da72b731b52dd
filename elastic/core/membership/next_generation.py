"""The next generation: who is in it, in which order, and what it says of the one before it (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeVar

from msgspec.structs import replace

from elastic.core import listed_hosts, quarantine
from elastic.core.membership.decision import FormGeneration, Reason
from elastic.core.membership.evictions import listed_evictions
from elastic.core.membership.situation import Situation, Stage, generation_member
from elastic.core.model import PLANNED, Budget, ChangeReason, Generation, GenerationMember, Predecessor

M = TypeVar("M", bound=GenerationMember)

DISTRUSTED_MAX = 64
"""Hosts that a generation names as distrusted; those beyond may cost one needless restart with another leader."""
CHANGES: Final = {
    Reason.FORMED: ChangeReason.FIRST,
    Reason.REFORMED: ChangeReason.REFORMED,
    Reason.EMPTIED: ChangeReason.DRAIN,
    Reason.LOST: ChangeReason.LOSS,
    Reason.FAILED: ChangeReason.FAILURE,
    Reason.STOPPED: ChangeReason.STOPPED,
    Reason.DRAINED: ChangeReason.DRAIN,
    Reason.SHRUNK: ChangeReason.SHRINK,
    Reason.GROWN: ChangeReason.GROWTH,
    Reason.GATE_LOST: ChangeReason.LOSS,
    Reason.GATE_LEFT: ChangeReason.LEFT,
    Reason.GATE_FAILED: ChangeReason.FAILURE,
    Reason.GATE_STOPPED: ChangeReason.STOPPED,
    Reason.GATE_DRAINED: ChangeReason.DRAIN,
    Reason.GATE_JOINED: ChangeReason.JOINED,
    Reason.QUARANTINED: ChangeReason.QUARANTINED,
}
"""What a generation says of each reason for which it is made."""


def form(
    s: Situation,
    code: Reason,
    reason: str,
    staying: Sequence[GenerationMember],
    *,
    planned: bool = False,
    lost: Sequence[str] = (),
) -> FormGeneration:
    """The next generation of those who stay and of nodes that join."""
    generation = successor(s, member_order(s, staying), CHANGES[code], reason)
    return FormGeneration(code, reason, generation, planned=planned, lost=tuple(lost))


def member_order(s: Situation, staying: Sequence[GenerationMember]) -> list[GenerationMember]:
    """The members in the order of their M_id: who stays, then joining nodes by age, at most as many as are wanted.

    With --ips they have the order of that list.
    """
    inside = {member.node for member in staying}
    joining = ((node, s.member(node)) for node in s.joining_nodes if node not in inside)
    admitted = [generation_member(node, stored.value) for node, stored in joining if stored is not None]
    members = [*staying, *admitted][: s.spec.np.high]
    return listed_hosts.sort_by_host(s.spec.ips, members) if s.spec.ips else members


def successor(s: Situation, members: Sequence[GenerationMember], why: ChangeReason, reason: str) -> Generation:
    """The next generation with these members, after the one that got its go last."""
    stored, budget = s.view.generation, Budget()
    if s.generation is not None:
        inside = {member.host for member in members}
        budget = quarantine.count_down(s.view.budget, s.memory.quarantine_deadlines, s.now, inside)
    return s.spec.generation_type(
        g=(stored.value.g if stored is not None else 0) + 1,
        run=s.spec.run,
        leader=s.policy.node,
        why=why,
        reason=reason,
        members=strip_unused_ports(members),
        slots=s.spec.slots,
        before=_predecessor(s, why),
        budget=budget,
        distrusted=tuple(sorted(s.memory.distrusted))[:DISTRUSTED_MAX],
        evicted=listed_evictions(s.memory.evictions, s.now),
        unlinked=unlinked_members(s, members),
    )


def unlinked_members(s: Situation, members: Sequence[GenerationMember]) -> tuple[str, ...]:
    """The members that listen for links and to which no leader has had one: not this one, and none before it."""
    linked = s.memory.linked | set(s.nodes).difference(s.generation.unlinked if s.generation is not None else ())
    others = [member.node for member in members if member.node not in linked and member.node != s.policy.node]
    stored = ((node, s.view.members.get(node)) for node in others)
    return tuple(node for node, member in stored if member is not None and member.value.link)


def _predecessor(s: Situation, why: ChangeReason) -> Predecessor | None:
    """The newest generation that got its go: the present one, or the one whose workers are still being stopped."""
    newest = s.generation
    if newest is None:
        return None
    if s.stage is Stage.RUNNING:
        return Predecessor(newest.g, tuple(s.nodes), why, newest.later_starts, why not in PLANNED)
    return newest.before if newest.before is None or why in PLANNED else _broken(newest.before)


def _broken(before: Predecessor) -> Predecessor:
    """A loss or a failure came while the workers of that generation were being stopped."""
    return replace(before, broken=True)


def strip_unused_ports(members: Sequence[M]) -> tuple[M, ...]:
    """The members of a generation, with the ports for torch's store only where its workers may meet."""
    return tuple(
        member if not member.masters or member.is_meeting_place(m_id) else replace(member, masters=())
        for m_id, member in enumerate(members)
    )
