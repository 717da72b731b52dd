"""The state of a node, from what its agent knows (`launcher.wire.inspect_messages.NodeSnapshot`; pure)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from elastic.channel.messages import truncate_text
from elastic.core.agent.state import AgentState, Phase
from launcher.wire.inspect_messages import SILENT_MAX, WORDS_MAX, EvictedHost, NodeSnapshot, SilentNode
from launcher.workers.reports.states import WorkerStates

WORDS: Final[Mapping[Phase, str]] = {
    Phase.JOINING: "joining",
    Phase.SPARE: "spare",
    Phase.GATED: "at the barrier",
    Phase.RUNNING: "running",
    Phase.STOPPING: "stopping",
    Phase.DONE: "done",
    Phase.LEAVING: "leaving",
    Phase.ENDED: "ended",
}


def snapshot(
    facts: AgentState,
    workers: WorkerStates,
    waits: str,
    now: float,
    *,
    began_at: float,
    pid: int,
    version: str,
    imports: str = "",
) -> NodeSnapshot:
    """Return the state of this node at `now`.

    `waits` says what it waits for, "" if it does not wait; `imports` as in the answer.
    """
    generation = facts.generation
    refreshed_at = facts.workers.run_deadline.refreshed_at if facts.registration.lease is not None else -math.inf
    return NodeSnapshot(
        job_id=facts.keys.job_id,
        node=facts.me.node,
        host=facts.me.member.host,
        version=version,
        pid=pid,
        up_s=max(now - began_at, 0.0),
        g=generation.g if generation is not None else 0,
        m_id=generation.index(facts.me.node) if generation is not None else None,
        state=_state(facts),
        since_s=max(now - facts.entered_at, 0.0),
        lease_age_s=now - refreshed_at if math.isfinite(refreshed_at) else None,
        lease_remaining_s=facts.workers.run_until - now if facts.workers.run_until > now else None,
        waits=truncate_text(waits, WORDS_MAX),
        workers=tuple(worker.at(now) for worker in workers.seen.values()),
        silent=_silent(facts, now),
        evicted=_evicted(facts, now),
        imports=truncate_text(imports, WORDS_MAX),
    )


def _silent(facts: AgentState, now: float) -> tuple[SilentNode, ...]:
    """Return the silent nodes, those that have been silent longest first."""
    peers = sorted(facts.silence.peers.items(), key=lambda named: named[1].since)
    return tuple(SilentNode(node=node, silent_s=max(now - peer.since, 0.0)) for node, peer in peers[:SILENT_MAX])


def _evicted(facts: AgentState, now: float) -> tuple[EvictedHost, ...]:
    """Return the hosts of evicted nodes whose silence does not count yet, each once; the newest last."""
    newest = {one.host: one for one in facts.memory.evictions if now < one.silence_counts_at}
    return tuple(
        EvictedHost(host=one.host, node=one.node, counts_in_s=one.silence_counts_at - now, returned=one.returned)
        for one in list(newest.values())[-SILENT_MAX:]
    )


def _state(facts: AgentState) -> str:
    if not facts.registration.prepared and facts.phase is Phase.JOINING:
        return "importing torch"
    if facts.leaving.drain is not None and facts.phase not in (Phase.LEAVING, Phase.ENDED):
        return truncate_text(f"draining ({facts.leaving.drain.reason})", WORDS_MAX)
    return "ready" if facts.phase is Phase.SPARE and facts.generation is None else WORDS[facts.phase]
