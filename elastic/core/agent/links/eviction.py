"""Evictions: the leader deletes the registration of a member whose silence is confirmed (pure).

`elastic.core.agent.links.silence` decides which node is silent, and which nodes confirm that. The consequences for the
host of an evicted node are in `elastic.core.membership.evictions`.
"""

from __future__ import annotations

from msgspec.structs import replace

from elastic._text import rounded_up
from elastic.core.agent.actions import LogLine, NoteSilence, RevokeLease, SilenceStep
from elastic.core.agent.links.silence import is_confirmed, many_are_silent, seconds_silent, suspects
from elastic.core.agent.state import AgentState, PendingEviction
from elastic.core.agent.store import TransactionAnswered, ViewChanged, may_write, send
from elastic.core.membership.evictions import evicted, note_returned
from elastic.core.text import duration_in_words, join_names
from elastic.core.transactions import evict


def on_view(agent: AgentState, event: ViewChanged) -> None:
    """As the leader, report that an evicted node has registered again, and the consequence for its host."""
    if agent.succession.decision is None:
        return
    known = agent.memory.evictions
    agent.memory = replace(agent.memory, evictions=note_returned(known, agent.view.members))
    for before, now in zip(known, agent.memory.evictions, strict=True):
        if now.returned and not before.returned:
            left_s = now.silence_counts_at - agent.now
            time = duration_in_words(60 * rounded_up(left_s, 60))
            follows = f"; for {time}, nodes on {now.host} are not evicted for silence" if left_s > 0 else ""
            agent.act(LogLine(f"{now.node} has registered again{follows}"))


def may_evict(agent: AgentState) -> bool:
    """This node leads, and a member may be evicted because its silence is confirmed."""
    return bool(agent.silence.trials) and agent.leads and may_write(agent) and _evictable(agent) is not None


def _evictable(agent: AgentState) -> str | None:
    confirmed = [node for node in suspects(agent) if is_confirmed(agent, node)]
    if not confirmed or not _survives(agent) or not _enough_remain(agent):
        return None
    trials = [agent.silence.trials[node] for node in confirmed]
    unheard = frozenset[str]().union(*(trial.unheard for trial in trials))
    return confirmed[0] if not many_are_silent(agent, unheard) else None


def _survives(agent: AgentState) -> bool:
    """Return whether a member of the running generation remains, which stops its workers and continues."""
    generation, go = agent.generation, agent.view.go
    if generation is None:
        return False
    before = generation.before if go is None or go.value.g != generation.g else None
    well = (member.node for member in generation.members if _is_well(agent, member.node))
    return any(before is None or node in before.nodes for node in well)


def _enough_remain(agent: AgentState) -> bool:
    """Return whether enough nodes remain for np's minimum; otherwise they would have to wait for the node anyway."""
    generation = agent.generation
    assert generation is not None
    if not generation.one_world:
        return True
    known = {member.node for member in generation.members} | agent.memory.ready_since.keys()
    return sum(_is_well(agent, node) for node in known) >= agent.spec.np.low


def _is_well(agent: AgentState, node: str) -> bool:
    """Return whether a node is registered and heard; a silent node is not."""
    return node in agent.view.members and (node == agent.me.node or node in agent.memory.linked)


def send_eviction(agent: AgentState) -> None:
    """Delete the key of a silent member."""
    node = _evictable(agent)
    assert node is not None
    stored, trial = agent.view.members[node], agent.silence.trials[node]
    agent.silence.evicting = PendingEviction(
        node=node,
        host=stored.value.host,
        create_revision=stored.create_revision,
        lease=stored.lease,
        g=agent.generation.g if agent.generation is not None else 0,
        silent_s=seconds_silent(agent, node),
        unreached_by=trial.unreached_by,
    )
    send(agent, evict(agent.keys, agent.view, agent.me.node, agent.registration.create_revision, node))


def on_evicted(agent: AgentState, event: TransactionAnswered) -> None:
    """Revoke the lease of the evicted member, and remember its host.

    The view shows the reason of a refusal. If the answer was lost, the member may be evicted, and its host is
    remembered in any case.
    """
    pending, agent.silence.evicting = agent.silence.evicting, None
    if pending is None or event.succeeded is False:
        return
    node, host, created, by = pending.node, pending.host, pending.create_revision, pending.unreached_by
    known = [old for old in agent.memory.evictions if (old.node, old.create_revision) != (node, created)]
    agent.memory = replace(agent.memory, evictions=(*known, evicted(node, host, created, agent.now, pending.g)))
    agent.silence.trials = {name: trial for name, trial in agent.silence.trials.items() if name != node}
    if not event.succeeded:
        return
    agent.act(NoteSilence(SilenceStep.EVICTED, node, host, pending.silent_s, by))
    also = f", and {join_names(by)} cannot connect to it" if by else ""
    agent.act(LogLine(f"{node} (host {host}) has sent nothing for {pending.silent_s:.1f} s{also}: evicted"))
    agent.act(RevokeLease(pending.lease))
