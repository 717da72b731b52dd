"""How the next generation is made: its members and their order, and its record of the generation before (pure)."""

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
"""Distrusted hosts that a generation lists; each further one may cost one needless restart under another leader."""
CHANGES: Final = {
    Reason.FORMED: ChangeReason.FIRST,
    Reason.REFORMED: ChangeReason.REFORMED,
    Reason.EMPTIED: ChangeReason.DRAIN,
    Reason.LOST: ChangeReason.NODE_LOST,
    Reason.FAILED: ChangeReason.FAILURE,
    Reason.STOPPED: ChangeReason.STOPPED,
    Reason.DRAINED: ChangeReason.DRAIN,
    Reason.SCALED_DOWN: ChangeReason.SCALE_DOWN,
    Reason.SCALED_UP: ChangeReason.SCALE_UP,
    Reason.GATE_LOST: ChangeReason.NODE_LOST,
    Reason.GATE_LEFT: ChangeReason.LEFT,
    Reason.GATE_FAILED: ChangeReason.FAILURE,
    Reason.GATE_STOPPED: ChangeReason.STOPPED,
    Reason.GATE_DRAINED: ChangeReason.DRAIN,
    Reason.GATE_JOINED: ChangeReason.JOINED,
    Reason.QUARANTINED: ChangeReason.QUARANTINED,
}
"""The stored reason of a generation for each reason of the leader's decision."""


def form(
    s: Situation,
    code: Reason,
    reason: str,
    staying: Sequence[GenerationMember],
    *,
    planned: bool = False,
    lost: Sequence[str] = (),
) -> FormGeneration:
    """Form the next generation from the members that stay and from joining nodes."""
    generation = successor(s, member_order(s, staying), CHANGES[code], reason)
    return FormGeneration(code, reason, generation, planned=planned, lost=tuple(lost))


def member_order(s: Situation, staying: Sequence[GenerationMember]) -> list[GenerationMember]:
    """The members by M_id: members that stay, then joining nodes by age, up to np's maximum.

    With --ips, the members have the order of that list.
    """
    inside = {member.node for member in staying}
    joining = ((node, s.member(node)) for node in s.joining_nodes if node not in inside)
    admitted = [generation_member(node, stored.value) for node, stored in joining if stored is not None]
    members = [*staying, *admitted][: s.spec.np.high]
    return listed_hosts.sort_by_host(s.spec.ips, members) if s.spec.ips else members


def successor(s: Situation, members: Sequence[GenerationMember], why: ChangeReason, reason: str) -> Generation:
    """Make the next generation with these members, after the one that was started last."""
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
    """The members that listen for links and that no leader has been linked to, neither this one nor an earlier one."""
    linked = s.memory.linked | set(s.nodes).difference(s.generation.unlinked if s.generation is not None else ())
    others = [member.node for member in members if member.node not in linked and member.node != s.policy.node]
    stored = ((node, s.view.members.get(node)) for node in others)
    return tuple(node for node, member in stored if member is not None and member.value.link)


def _predecessor(s: Situation, why: ChangeReason) -> Predecessor | None:
    """The newest started generation: the current one, or the one whose workers are still being stopped."""
    newest = s.generation
    if newest is None:
        return None
    if s.stage is Stage.RUNNING:
        return Predecessor(newest.g, tuple(s.nodes), why, newest.later_starts, why not in PLANNED)
    return newest.before if newest.before is None or why in PLANNED else _broken(newest.before)


def _broken(before: Predecessor) -> Predecessor:
    """Mark that a node or a worker failed while the workers of that generation were being stopped."""
    return replace(before, broken=True)


def strip_unused_ports(members: Sequence[M]) -> tuple[M, ...]:
    """Return the members, with the ports for torch's store only for members where workers may meet."""
    return tuple(
        member if not member.masters or member.is_meeting_place(m_id) else replace(member, masters=())
        for m_id, member in enumerate(members)
    )
