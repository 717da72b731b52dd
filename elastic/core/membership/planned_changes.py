"""The rules for changes of a running generation that can wait: drains, fewer nodes wanted, growth (pure)."""

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

GROW_EVERY_S = 60.0
"""A job whose workers lose what they have not saved grows at most once in this time, if `--grow_every` says nothing."""


def drain_batch(s: Situation) -> WaitDecision | None:
    """A member drains: wait a moment for others that drain too."""
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
    """A member does not reach the store, so that its workers would miss a planned change: wait for it."""
    away = [node for node in s.nodes if s.member(node) is None]
    joining = s.admissible
    if not away or not (joining or len(s.nodes) > s.spec.np.high):
        return None
    change = with_verb(joining, "join") if joining else f"{counted(s.spec.np.high, 'node')} wanted"
    return s.wait(Reason.OUT_OF_REACH, f"{change}; waiting for {join_names(away)} to reach the store again")


def shrunk(s: Situation) -> FormGeneration | None:
    """Fewer nodes are wanted than run: continue without the last ones."""
    count, high = len(s.nodes), s.spec.np.high
    return (
        form(s, Reason.SHRUNK, f"{count} nodes run, {high} are wanted", s.staying, planned=True)
        if count > high
        else None
    )


def grow_settling(s: Situation) -> WaitDecision | None:
    """Nodes join: wait until the settling window ends, or all that may run are here."""
    here, until, high = len(s.nodes) + len(s.admissible), settled_at(s, s.admissible), s.spec.np.high
    if not s.admissible or here >= high or s.now >= until:
        return None
    return s.wait(Reason.GROW_SETTLING, settling_text(here, high), until)


def grow_later(s: Situation) -> WaitDecision | None:
    """Nodes join too soon after the last growth: wait until `--grow_every` is over."""
    if not s.admissible or s.memory.grown_at is None:
        return None
    every_s = _grow_every_s(s)
    until = s.memory.grown_at + every_s
    text = f"{with_verb(s.admissible, 'join')} in {COUNTED} (--grow_every {every_s:g})"
    return s.wait(Reason.GROW_LATER, text, until) if s.now < until else None


def grown(s: Situation) -> FormGeneration | None:
    """Nodes join: take them in."""
    joining = s.admissible
    return form(s, Reason.GROWN, with_verb(joining, "join"), s.staying, planned=True) if joining else None


def training(s: Situation) -> WaitDecision:
    """Nothing is to be done."""
    ends = {host: until for (host, _), until in s.memory.quarantine_deadlines.items() if s.now < until}
    out = [f"{host} is kept out for {COUNTED} more" for host in ends]
    out += [f"{host} is kept out until it can be reached" for host in sorted(s.out_of_reach() - s.quarantined())]
    held = held_back(s)
    out += texts_of(held)
    spares = f", {len(s.ready)} spare" if s.ready else ""
    summary = f"; {quarantine_summary(out)}" if out else ""
    until = [*ends.values(), *ends_of(held)]
    return s.wait(Reason.TRAINING, f"training with {counted(len(s.nodes), 'node')}{spares}{summary}", *until)


def _grow_every_s(s: Situation) -> float:
    """How far apart two growths are: workers that save before they leave lose nothing by another one."""
    if s.spec.grow_every_s is not None:
        return s.spec.grow_every_s
    return 0.0 if s.memory.listening == s.current.g else GROW_EVERY_S


PLANNED: Final[tuple[Rule, ...]] = (
    drain_batch, drained, out_of_reach, shrunk, grow_settling, grow_later, grown, training,
)  # fmt: skip
