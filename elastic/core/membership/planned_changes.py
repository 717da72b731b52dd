"""Changes of a world that runs and that can wait: drains, fewer nodes wanted, growth (pure)."""

from __future__ import annotations

from elastic.core.membership.decision import (
    Decision,
    Reason,
    WaitDecision,
)
from elastic.core.membership.next_generation import draining_text, form
from elastic.core.membership.settling import settled_at
from elastic.core.membership.situation import BATCH_S, Situation
from elastic.core.model import ChangeReason, Generation
from elastic.core.quarantine import quarantine_summary
from elastic.core.text import duration_in_words, join_names, node_count, settling_text, with_verb

GROW_EVERY_S = 60.0
"""A job whose workers lose what they have not saved grows at most once in this time, if `--grow_every` says nothing."""


def planned_change(q: Situation, generation: Generation, nodes: list[str]) -> Decision:
    """Say which change to make now, or until when it waits; without one, that the job trains."""
    draining = [node for node in nodes if q.draining(node)]
    if draining:
        until = min(q.memory.draining_since[node] for node in draining) + BATCH_S
        if q.now < until:
            return WaitDecision(Reason.DRAIN_BATCH, draining_text(q, draining), until)
        return form(
            q, Reason.DRAINED, ChangeReason.DRAIN, draining_text(q, draining), q.staying(generation), planned=True
        )
    high = q.spec.np.high
    joining_nodes = q.joining_nodes()[: max(0, high - len(nodes))]
    out_of_reach = [node for node in nodes if q.member(node) is None or node in q.memory.astray]
    if out_of_reach and (joining_nodes or len(nodes) > high):  # It would work on with workers that have stopped.
        change = with_verb(joining_nodes, "join") if joining_nodes else f"{node_count(high)} wanted"
        text = f"{change}; waiting for {join_names(out_of_reach)} to reach the store again"
        return WaitDecision(Reason.OUT_OF_REACH, text)
    if len(nodes) > high:
        reason = f"{len(nodes)} nodes run, {high} are wanted"
        return form(q, Reason.SHRUNK, ChangeReason.SHRINK, reason, q.staying(generation), planned=True)
    if joining_nodes:
        until = settled_at(q, joining_nodes)
        if len(nodes) + len(joining_nodes) < high and q.now < until:
            return WaitDecision(
                Reason.GROW_SETTLING, settling_text(len(nodes) + len(joining_nodes), high, until - q.now), until
            )
        grown_at, every_s = q.memory.grown_at, _grow_every_s(q, generation)
        if grown_at is not None and q.now < grown_at + every_s:
            until = grown_at + every_s
            text = f"{with_verb(joining_nodes, 'join')} in {until - q.now:.0f} s (--grow_every {every_s:g})"
            return WaitDecision(Reason.GROW_LATER, text, until)
        return form(
            q, Reason.GROWN, ChangeReason.GROWTH, with_verb(joining_nodes, "join"), q.staying(generation), planned=True
        )
    text = f"training with {node_count(len(nodes))}"
    spares = len(q.ready())
    kept_out = [
        f"{host} is kept out for {duration_in_words(until - q.now)} more"
        for (host, _), until in q.memory.quarantine_deadlines.items()
        if q.now < until
    ]
    kept_out += [f"{host} is kept out until it can be reached" for host in sorted(q.out_of_reach() - q.quarantined())]
    parts = [text + (f", {spares} spare" if spares else ""), *([quarantine_summary(kept_out)] if kept_out else [])]
    return WaitDecision(Reason.TRAINING, "; ".join(parts))


def _grow_every_s(q: Situation, generation: Generation) -> float:
    """How far apart two growths are: workers that save before they leave lose nothing by another one."""
    if q.spec.grow_every_s is not None:
        return q.spec.grow_every_s
    return 0.0 if q.memory.listening == generation.g else GROW_EVERY_S
