"""The rules for a gate that nothing keeps closed: judge the end of the generation before, then start (pure)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from elastic._text import counted, join_host_port
from elastic.core import quarantine
from elastic.core.membership.conclusion import failed_by
from elastic.core.membership.decision import ConcludeJob, FormGeneration, OpenGate, Reason, WaitDecision
from elastic.core.membership.next_generation import form
from elastic.core.membership.rule import Rule
from elastic.core.membership.situation import Situation
from elastic.core.model import Generation, Go, Quarantine
from elastic.core.restart_policy import Judgement
from elastic.core.text import duration_in_words


def quarantined(s: Situation) -> FormGeneration | None:
    """Workers keep failing on some hosts: continue without these hosts if enough nodes are left."""
    suspects = frozenset(s.judgement.suspects)
    if not suspects:
        return None
    out = [entry for entry in s.judgement.budget_if_excluded.hosts if entry.host in suspects]
    deadlines = {**s.memory.quarantine_deadlines, **{(entry.host, entry.g): s.now + entry.left_s for entry in out}}
    staying = [member for member in s.staying if member.host not in suspects]
    without = dataclasses.replace(s, memory=replace(s.memory, quarantine_deadlines=deadlines))
    formed = form(without, Reason.QUARANTINED, _quarantine_text(out), staying)
    hosts = {member.host for member in formed.generation.members}
    enough = len(formed.generation.members) >= s.spec.np.low
    if len(staying) == len(s.staying) or not enough or hosts & suspects:
        return None
    budget = quarantine.count_down(s.judgement.budget_if_excluded, deadlines, s.now, hosts)
    return replace(formed, generation=replace(formed.generation, budget=budget))


def exhausted(s: Situation) -> ConcludeJob | None:
    """No restart is left, or the error is permanent: the job has failed."""
    fatal, cause = s.judgement.fatal, s.judgement.cause
    return failed_by(s, s.current.g, fatal, cause) if fatal else None


def backoff(s: Situation) -> WaitDecision | None:
    """The workers failed several times without progress: back off before the start."""
    opens_at = s.gate_since[1] + s.judgement.pause_s
    if s.now >= opens_at:
        return None
    pause_s, consecutive_failures = s.judgement.pause_s, s.judgement.budget.consecutive_failures
    text = f"backing off {pause_s:g} s after {consecutive_failures} consecutive failures without progress"
    return s.wait(Reason.BACKOFF, text, opens_at, s.joined_until)


def no_master(s: Situation) -> WaitDecision | None:
    """The ports of M_id 0, where the workers rendezvous, are not known: wait until it registers again."""
    if _master(s, s.current) is not None:
        return None
    first = s.current.members[0].node
    until = s.memory.absent_since.get(first, s.now) + 2 * s.spec.lease_ttl_s
    return s.wait(Reason.NO_MASTER, f"waiting for {first}, where the workers rendezvous, to register again", until)


def opened(s: Situation) -> OpenGate | None:
    """Every member is ready and no old worker is left: give the start signal."""
    go = _go(s, s.current, s.judgement)
    if go is None:
        return None
    before = s.previous.nodes if s.previous is not None else ()
    absent = tuple(node for node in before if node not in s.view.members)
    return OpenGate(Reason.OPENED, f"generation {go.g}: {counted(len(s.nodes), 'node')} ready", go, absent)


def _quarantine_text(entries: Sequence[Quarantine]) -> str:
    return quarantine.quarantine_summary(
        [
            f"{one.host} is quarantined for {duration_in_words(one.left_s)}: {quarantine.reason_text(one)}"
            for one in entries
        ]
    )


def with_go(s: Situation, first: FormGeneration) -> FormGeneration:
    """Add the start signal to a first generation: it needs no gate, because no node can run an older one."""
    return replace(first, go=_go(s, first.generation, Judgement(first.generation.budget)))


def _go(s: Situation, generation: Generation, judgement: Judgement) -> Go | None:
    """Return the start signal of a generation; None if the address where its workers meet is not known."""
    master = _master(s, generation)
    if master is None:
        return None
    budget = quarantine.count_down(judgement.budget, s.memory.quarantine_deadlines, s.now)
    return Go(g=generation.g, master=master, budget=budget, cause=judgement.cause, note=judgement.note)


def _master(s: Situation, generation: Generation) -> str | None:
    """The address where torch's workers meet: a port of M_id 0, a different one in each generation.

    A node that became M_id 0 while it was not registered has no ports in the generation; None if they are unknown.
    """
    first = generation.members[0]
    stored = s.view.members.get(first.node)
    masters = first.masters or (stored.value.masters if stored is not None else ())
    return join_host_port(first.host, masters[generation.g % len(masters)]) if masters else None


OPENING: Final[tuple[Rule, ...]] = (quarantined, exhausted, backoff, no_master, opened)
