"""The rules for a generation at its gate, the restart barrier: what replaces it, and what keeps the gate closed (pure).

No worker starts while a node may still run an older generation. Once nothing keeps the gate closed, the rules of
`elastic.core.membership.opening` follow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from elastic.core import listed_hosts
from elastic.core.membership.conclusion import completed_before
from elastic.core.membership.decision import FormGeneration, Reason, WaitDecision
from elastic.core.membership.held_back import ends_of, held_back, texts_of
from elastic.core.membership.next_generation import form
from elastic.core.membership.opening import OPENING
from elastic.core.membership.reform import nobody_left
from elastic.core.membership.rule import Rule
from elastic.core.membership.situation import Situation
from elastic.core.model import OutcomeKind
from elastic.core.quarantine import quarantine_summary
from elastic.core.run_deadline import CLOCK_ERROR
from elastic.core.text import COUNTED, drain_text, failure_text, join_names, required_text, with_verb


def gate_lost(s: Situation) -> FormGeneration | None:
    """A member that may have workers was lost, or a node in a planned stop: continue with the remaining members."""
    before = s.previous
    if any(_may_have_workers(s, node) for node in s.missing):
        return form(s, Reason.GATE_LOST, _missing_text(s), s.staying)
    if before is None or not _in_planned_stop(s):
        return None
    lost = [node for node in before.nodes if node not in s.previous_outcomes and not s.here(node)]
    text = f"{s.lost_text(lost)} while workers were being stopped"
    return form(s, Reason.GATE_LOST, text, s.staying) if lost else None


def gate_failed(s: Situation) -> FormGeneration | None:
    """A worker failed in a planned stop: do not wait any longer for the others to save."""
    failed = [node for node, outcome in s.previous_outcomes.items() if outcome.ended is OutcomeKind.FAILED]
    if not failed or not _in_planned_stop(s):
        return None
    return form(s, Reason.GATE_FAILED, failure_text(failed, s.previous_outcomes, s.current), s.staying)


def gate_stopped(s: Situation) -> FormGeneration | None:
    """A member had to end its workers in a planned stop: do not wait any longer for the others to save."""
    ended = [node for node, outcome in s.previous_outcomes.items() if outcome.over and outcome.forced]
    if not ended or not _in_planned_stop(s):
        return None
    text = f"{join_names(ended)} had to end its workers before all had saved"
    return form(s, Reason.GATE_STOPPED, text, s.staying)


def gate_left(s: Situation) -> FormGeneration | None:
    """A member without old workers left, or workers of an evicted node may run on its host: continue without it."""
    if not s.missing:
        return None
    before = s.previous.nodes if s.previous is not None else ()
    left = [node for node in s.missing if node in before and node not in s.view.members]
    return form(s, Reason.GATE_LEFT, _missing_text(s, left), s.staying)


def _missing_text(s: Situation, left: Sequence[str] = ()) -> str:
    """Say why each missing member is not in the next generation. `left`: members whose workers had ended."""
    early = [node for node in s.missing if s.starts_too_early(node)]
    lost = [node for node in s.missing if node not in (*left, *early)]
    gone = ([f"{join_names(left)} left"] if left else []) + ([s.lost_text(lost)] if lost else [])
    parts = [f"{', '.join(gone)} before the start"] if gone else []
    parts += [f"{with_verb(early, 'wait')} for the workers of an evicted node on the same host"] if early else []
    return "; ".join(parts)


def gate_drained(s: Situation) -> FormGeneration | None:
    """A member drains: continue without it."""
    return (
        form(s, Reason.GATE_DRAINED, drain_text(s.draining, s.drain_reasons(s.draining)), s.staying)
        if s.draining
        else None
    )


def gate_joined(s: Situation) -> FormGeneration | None:
    """Nodes have joined: admit them, a moment after the last of them registered."""
    until = s.joined_until
    if until is None or (s.now < until and not _was_falsely_dead(s)):
        return None
    return form(s, Reason.GATE_JOINED, with_verb(s.admissible, "join"), s.staying)


def below_min(s: Situation) -> WaitDecision | None:
    """Wait until np's minimum of members is here."""
    count, low = len(s.nodes), s.spec.np.low
    if count >= low:
        return None
    hosts = [member.host for member in s.current.members]
    more = listed_hosts.missing_hosts_text(s.spec.ips, hosts, low - count)
    held = held_back(s)
    text = f"{required_text(count, low)}; waiting for {more}"
    text += f"; {quarantine_summary(texts_of(held))}" if held else ""
    return s.wait(Reason.BELOW_MIN, text, *ends_of(held), s.joined_until)


def stopping(s: Situation) -> WaitDecision | None:
    """A node of the generation before is present and still has workers: wait until it has stopped them."""
    before = s.previous.nodes if s.previous is not None else ()
    busy = [node for node in before if not s.stopped(node) and (node in s.view.members or s.vouched(node))]
    if not busy:
        return None
    absent = [s.memory.absent_since[node] + 2 * s.spec.lease_ttl_s for node in busy if node in s.memory.absent_since]
    text = f"waiting for {join_names(busy)} to stop {'their' if len(busy) > 1 else 'its'} old workers"
    return s.wait(Reason.STOPPING, text, *absent, s.joined_until)


def unproven(s: Situation) -> WaitDecision | None:
    """All nodes of the generation before are gone, and may run until their last deadline: wait until then.

    The wait is unnecessary once a survivor has stopped its workers: no collective continues without them.
    """
    before = s.previous.nodes if s.previous is not None else ()
    gone = [node for node in before if not s.stopped(node) and node not in s.memory.dead]
    if not gone or _survivor_stopped(s):
        return None
    until = max(s.memory.absent_since.get(node, s.now) for node in gone) + _longest_run_s(s)
    text = f"{join_names(gone)} disappeared without deregistering and may still run for {COUNTED}"
    text += f" (--etcd-outage-timeout {s.spec.etcd_outage_timeout_s:g})"
    return s.wait(Reason.UNPROVEN, text, until, s.joined_until) if s.now < until else None


def _may_have_workers(s: Situation, node: str) -> bool:
    """Return whether a member of the newest generation may still have workers of the one before."""
    return s.previous is None or (node in s.previous.nodes and not s.stopped(node))


def _survivor_stopped(s: Situation) -> bool:
    """Return whether a member of the newest generation has ended its workers of the one before."""
    return any(map(s.stopped, s.nodes))


def _longest_run_s(s: Situation) -> float:
    """Seconds for which a node may run workers after it has disappeared: clocks differ, and a SIGKILL takes time."""
    return (s.spec.etcd_outage_timeout_s + s.spec.lease_ttl_s) * (1 + CLOCK_ERROR) + s.policy.kill_s


def _in_planned_stop(s: Situation) -> bool:
    """Return whether a node still finishes a step for a planned change, in a group that may be broken by now."""
    before = s.previous.nodes if s.previous is not None and s.current.planned else ()
    return any(s.here(node) and not s.stopped(node) for node in before)


def _was_falsely_dead(s: Situation) -> bool:
    """Return whether a former member that was wrongly declared dead joins: that costs no extra restart."""
    before = s.previous.nodes if s.previous is not None else ()
    return any(host in s.memory.distrusted for host in s.hosts(node for node in s.admissible if node in before))


GATE: Final[tuple[Rule, ...]] = (
    completed_before, nobody_left, gate_lost, gate_failed, gate_stopped, gate_left, gate_drained, gate_joined,
    below_min, stopping, unproven, *OPENING,
)  # fmt: skip
