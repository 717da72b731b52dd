"""The rules for planned changes of a running generation: drains, scale-down and scale-up (pure)."""

from __future__ import annotations

from typing import Final

from elastic._text import counted
from elastic.core.membership.decision import FormGeneration, Reason, WaitDecision
from elastic.core.membership.held_back import ends_of, held_back, texts_of
from elastic.core.membership.next_generation import form
from elastic.core.membership.rule import Rule
from elastic.core.membership.settling import settled_at
from elastic.core.membership.situation import BATCH_S, Situation
from elastic.core.quarantine import quarantine_summary
from elastic.core.text import COUNTED, drain_text, join_names, settling_text, with_verb

SCALE_UP_INTERVAL_S = 60.0
"""Default of `--scale-up-interval` for a job whose workers lose the steps that they have not saved."""


def drain_batch(s: Situation) -> WaitDecision | None:
    """A member drains: wait a moment for other members that drain too."""
    if not s.draining:
        return None
    until = min(s.memory.draining_since[node] for node in s.draining) + BATCH_S
    text = drain_text(s.draining, s.drain_reasons(s.draining))
    return s.wait(Reason.DRAIN_BATCH, text, until) if s.now < until else None


def drained(s: Situation) -> FormGeneration | None:
    """Members drain: continue without them."""
    if not s.draining:
        return None
    return form(s, Reason.DRAINED, drain_text(s.draining, s.drain_reasons(s.draining)), s.staying, planned=True)


def out_of_reach(s: Situation) -> WaitDecision | None:
    """A member cannot reach the store, so its workers would miss a planned change: wait for it."""
    away = [node for node in s.nodes if s.member(node) is None]
    joining = s.admissible
    if not away or not (joining or len(s.nodes) > s.spec.np.high):
        return None
    change = with_verb(joining, "join") if joining else f"{counted(s.spec.np.high, 'node')} wanted"
    return s.wait(Reason.OUT_OF_REACH, f"{change}; waiting for {join_names(away)} to reach etcd again")


def scaled_down(s: Situation) -> FormGeneration | None:
    """More nodes run than are wanted: continue without the last ones."""
    count, high = len(s.nodes), s.spec.np.high
    return (
        form(s, Reason.SCALED_DOWN, f"{count} nodes run, {high} are wanted", s.staying, planned=True)
        if count > high
        else None
    )


def scale_up_settling(s: Situation) -> WaitDecision | None:
    """Nodes join: wait until the join window ends, or np's maximum of nodes is here."""
    here, until, high = len(s.nodes) + len(s.admissible), settled_at(s, s.admissible), s.spec.np.high
    if not s.admissible or here >= high or s.now >= until:
        return None
    return s.wait(Reason.SCALE_UP_SETTLING, settling_text(here, high), until)


def scale_up_later(s: Situation) -> WaitDecision | None:
    """Nodes join too soon after the last scale-up: wait until `--scale-up-interval` is over."""
    if not s.admissible or s.memory.scaled_up_at is None:
        return None
    every_s = _scale_up_interval_s(s)
    until = s.memory.scaled_up_at + every_s
    text = f"{with_verb(s.admissible, 'join')} in {COUNTED} (--scale-up-interval {every_s:g})"
    return s.wait(Reason.SCALE_UP_LATER, text, until) if s.now < until else None


def scaled_up(s: Situation) -> FormGeneration | None:
    """Nodes join: admit them."""
    joining = s.admissible
    return form(s, Reason.SCALED_UP, with_verb(joining, "join"), s.staying, planned=True) if joining else None


def training(s: Situation) -> WaitDecision:
    """The workers train, and there is nothing to do."""
    ends = {host: until for (host, _), until in s.memory.quarantine_deadlines.items() if s.now < until}
    out = [f"{host} is quarantined for {COUNTED} more" for host in ends]
    out += [f"{host} is quarantined until it can be reached" for host in sorted(s.out_of_reach() - s.quarantined())]
    held = held_back(s)
    out += texts_of(held)
    spares = f", {len(s.ready)} spare" if s.ready else ""
    summary = f"; {quarantine_summary(out)}" if out else ""
    until = [*ends.values(), *ends_of(held)]
    return s.wait(Reason.TRAINING, f"training with {counted(len(s.nodes), 'node')}{spares}{summary}", *until)


def _scale_up_interval_s(s: Situation) -> float:
    """Seconds between two scale-ups; 0 if the workers save before they leave, because they then lose no steps."""
    if s.spec.scale_up_interval_s is not None:
        return s.spec.scale_up_interval_s
    return 0.0 if s.memory.listening == s.current.g else SCALE_UP_INTERVAL_S


PLANNED: Final[tuple[Rule, ...]] = (
    drain_batch, drained, out_of_reach, scaled_down, scale_up_settling, scale_up_later, scaled_up, training,
)  # fmt: skip
