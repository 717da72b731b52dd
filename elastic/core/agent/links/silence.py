"""Silent nodes: which nodes have sent nothing for too long, and how other nodes confirm that (pure).

A host that is switched off, cut off or suspended closes no connection. The end of its lease shows that; heartbeats over
the links show it sooner. The leader sends a heartbeat to every node at each interval, and the node answers. The rules
are those of SWIM (Das, Gupta, Motivala, 2002), in which a member that others cannot reach either is suspected before it
is removed, and of Lifeguard (Dadgar, Phillips, Currey, 2018), in which a member first doubts its own health:

1. A node is *silent* when this agent has received nothing from it for `--silence-timeout`, or longer if its link is
   slow (`launcher/peers/silence_detector.py`). A step of this node's workers counts as a message from every member of
   their generation.
2. The node is *suspected*: this agent dials it again, and asks up to `HELPERS_MAX` other nodes to do so. Any node that
   reaches it clears it. If none does, the silence is confirmed. In a job of two nodes, this node's own lease, refreshed
   after the silence began, replaces the other nodes.
3. An agent that was suspended itself suspects no node until a refresh of its lease that it sent afterwards has
   succeeded. While the store does not answer, no silence is confirmed; afterwards each silence starts again.
4. The leader *evicts* a member whose silence is confirmed (`elastic.core.agent.links.eviction`) if a survivor remains,
   which stops its workers so that no collective continues, and if the other nodes are enough for np's minimum. If two
   or more members, and more than a third of all, are silent, the leader waits for their leases to end, because it may
   be cut off itself.
5. A leader whose silence is confirmed no longer leads: one of the first members takes the lead, and evicts it. The
   member must have heard this leader since it leads, so that two halves of a split job do not keep taking the lead from
   each other; and most of the nodes that it asks must answer.

The consequences for the host of an evicted node are in `elastic.core.membership.evictions`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from elastic.core.agent.actions import (
    LogLine,
    NoteSilence,
    RefreshLease,
    SetHeartbeats,
    SilenceStep,
    TryPeer,
)
from elastic.core.agent.candidates import watches_leader
from elastic.core.agent.links.deaths import is_proven_dead
from elastic.core.agent.links.vouching import store_is_silent
from elastic.core.agent.links.watch import note_heard, recent_members
from elastic.core.agent.state import AgentState, PeerTrial, SilentPeer
from elastic.core.agent.store import ViewChanged
from elastic.core.membership.evictions import silence_counts, silent_again
from elastic.core.run_deadline import NEVER
from elastic.core.text import join_names

HEARTBEAT_S = 0.25
"""The most seconds between two heartbeats; a shorter silence timeout has `BEATS_PER_TIMEOUT` of them."""
BEATS_PER_TIMEOUT = 4
BEATS_MIN = 3
"""The silence timeout is at least this number of intervals."""
NODES_PER_S = 2000
"""The most heartbeats that the leader sends in a second: with more than 500 nodes the interval is longer."""
NODES_STEP = 50
"""The interval follows the number of nodes in steps of this size."""
HELPERS_MAX = 3
TRIAL_PART = 1 / 4
"""The fraction of the silence timeout for which each node tries."""
TRIAL_MIN_S = 0.15
REACHED_TIMEOUTS = 5
"""Timeouts after which a silent node that others reach is tried again: only its connection to this node is broken."""
GIVEN_UP_S = 1.5
"""A trial without an answer is given up this long after its limit, to which the links add round-trip times."""
MANY = 3
"""If more than one in this number of members are silent, and at least two, only the end of their leases counts."""


class SilenceChanged(Struct, frozen=True):
    """The nodes that are silent now.

    `held_up_at`: when this agent resumed after it had been suspended itself. `heard`: nodes that were silent and have
    been heard since; the links of other nodes that are no longer silent are down.
    """

    peers: Mapping[str, SilentPeer]
    held_up_at: float = NEVER
    heard: frozenset[str] = frozenset()


class PeerTried(Struct, frozen=True):
    """The answer to `TryPeer`: which nodes reach the node, and which do not; others have not answered.

    `unheard`: the nodes that this agent has not heard for some intervals.
    """

    number: int
    node: str
    reached_by: tuple[str, ...]
    unreached_by: tuple[str, ...]
    unheard: frozenset[str] = frozenset()


# --- knowledge ------------------------------------------------------------------------------------------------------


def on_silence_changed(agent: AgentState, event: SilenceChanged) -> None:
    """Note which nodes are silent, and clear nodes that are heard again."""
    silence, memory = agent.silence, agent.memory
    new = event.peers.keys() - silence.peers.keys()
    again = frozenset(
        host for node in new if not silence_counts(memory.evictions, host := _host(agent, node), agent.now)
    )
    for node in sorted(silence.trials.keys() & event.heard):
        if not silence.trials[node].reached_by:
            _report_cleared(agent, node, f"{_named(agent, node)} sends heartbeats again", ())
    silence.peers, silence.held_up_at = event.peers, event.held_up_at
    silence.trials = {node: trial for node, trial in silence.trials.items() if node in event.peers}
    if again:
        agent.memory = replace(memory, evictions=silent_again(memory.evictions, again, agent.now))
    agent.memory = replace(agent.memory, silent=frozenset(event.peers))
    if new and not _refreshed_since_hold_up(agent):
        agent.act(RefreshLease())  # The next regular refresh may be far away.
    note_heard(agent)


def on_tried(agent: AgentState, event: PeerTried) -> None:
    """Take the answer to the newest trial of a node."""
    silence = agent.silence
    trial = silence.trials.get(event.node)
    if trial is None or trial.number != event.number:
        return
    answer = replace(
        trial,
        answered_at=agent.now,
        reached_by=event.reached_by,
        unreached_by=event.unreached_by,
        unheard=event.unheard,
        asked=trial.asked + len(trial.helpers),
        answered=trial.answered + len(event.unreached_by),
    )
    silence.trials = {**silence.trials, event.node: answer}
    if event.reached_by and not trial.reached_by:
        by = join_names(event.reached_by)
        _report_cleared(agent, event.node, f"{_named(agent, event.node)} is alive: {by} reached it", event.reached_by)


def on_refreshed(agent: AgentState, event: Struct) -> None:
    """Restart every silence when the store answers again after an outage."""
    if store_is_silent(agent):
        agent.silence.counts_from = agent.now


def on_granted(agent: AgentState, event: Struct) -> None:
    """Restart every silence under a new lease, because this node itself may have been cut off."""
    agent.silence.counts_from = agent.now


def note_leader(agent: AgentState, event: ViewChanged) -> None:
    """Note since when the current leader has led."""
    leader = agent.view.leader
    now_leads = (leader.value.node, _created(agent, leader.value.node)) if leader is not None else ("", 0)
    if now_leads != agent.silence.leader:
        agent.silence.leader, agent.silence.leader_since = now_leads, agent.now


def _host(agent: AgentState, node: str) -> str:
    stored, leader, generation = agent.view.members.get(node), agent.view.leader, agent.generation
    if stored is not None:
        return stored.value.host
    if leader is not None and leader.value.node == node:
        return leader.value.host
    member = generation.member(node) if generation is not None else None
    return member.host if member is not None else ""


def _named(agent: AgentState, node: str) -> str:
    return f"{node} (host {_host(agent, node)})"


def _report_cleared(agent: AgentState, node: str, text: str, by: tuple[str, ...]) -> None:
    silent_s = seconds_silent(agent, node)
    agent.act(NoteSilence(SilenceStep.CLEARED, node, _host(agent, node), silent_s, by))
    agent.act(LogLine(text, detail=True))


def seconds_silent(agent: AgentState, node: str) -> float:
    """Seconds for which a node has been silent; 0.0 if it is not."""
    peer = agent.silence.peers.get(node)
    return agent.now - peer.since if peer is not None else 0.0


# --- heartbeats -----------------------------------------------------------------------------------------------------


def changes_heartbeats(agent: AgentState) -> bool:
    """The interval or the timeout of the heartbeats must change."""
    return _heartbeats(agent) != agent.silence.heartbeats


def set_heartbeats(agent: AgentState) -> None:
    """Pass the interval and the timeout to the links."""
    agent.silence.heartbeats = _heartbeats(agent)
    agent.act(SetHeartbeats(*agent.silence.heartbeats))


def _heartbeats(agent: AgentState) -> tuple[float, float]:
    """The interval at which this agent sends heartbeats, and its silence timeout, in seconds."""
    timeout_s = agent.spec.silence_timeout_s
    if not timeout_s or not agent.registration.registered:
        return agent.silence.heartbeats if timeout_s else (0.0, 0.0)
    if agent.leads:
        every_s = interval_s(timeout_s, len(agent.links.targets))
        return every_s, max(timeout_s, BEATS_MIN * every_s)
    return 0.0, timeout_s if watches_leader(agent) else 0.0


def interval_s(timeout_s: float, nodes: int) -> float:
    """Seconds between two heartbeats to one node in a job of `nodes` nodes."""
    steps = -(-nodes // NODES_STEP) * NODES_STEP
    return max(min(HEARTBEAT_S, timeout_s / BEATS_PER_TIMEOUT), steps / NODES_PER_S)


# --- suspicion ------------------------------------------------------------------------------------------------------


def suspects(agent: AgentState) -> Sequence[str]:
    """The silent nodes that this agent acts on: members if it leads, otherwise the leader."""
    silent, now, silence = agent.memory.silent, agent.now, agent.silence
    if not silent or not agent.registration.registered or agent.view.verdict is not None:
        return ()
    if agent.generation is None or not _refreshed_since_hold_up(agent):
        return ()  # Without a generation a node knows only the leader, and waits for the end of its lease.
    return [
        node
        for node in (_silent_members(agent) if agent.leads else _silent_leader(agent))
        if node in agent.links.targets
        and now >= silence.counts_from + silence.peers[node].timeout_s
        and silence_counts(agent.memory.evictions, _host(agent, node), now)
    ]


def _refreshed_since_hold_up(agent: AgentState) -> bool:
    """Return whether a refresh has succeeded that was sent after this agent was last suspended."""
    return agent.workers.run_deadline.refreshed_at > agent.silence.held_up_at


def _silent_members(agent: AgentState) -> Sequence[str]:
    """The silent members of the job, for the leader; none if too many are silent for an eviction."""
    if not agent.view.complete or many_are_silent(agent):
        return ()
    known = recent_members(agent)
    return [node for node in sorted(agent.memory.silent) if node in known and node in agent.view.members]


def many_are_silent(agent: AgentState, unheard: frozenset[str] = frozenset()) -> bool:
    """Return whether many members are silent, or about to be (`unheard`), so that this node may be cut off itself.

    A member without a link counts as silent: a new leader hears no member before its links are up.
    """
    generation = agent.generation
    assert generation is not None
    heard = (agent.memory.linked - unheard) | {agent.me.node}
    silent = sum(member.node not in heard for member in generation.members)
    return silent > 1 and MANY * silent > len(generation.members)


def _silent_leader(agent: AgentState) -> Sequence[str]:
    """The leader if it is silent, for a member of the generation that has heard it since it leads.

    A node on a recently evicted host waits for the end of the leader's lease instead: it may be cut off again itself.
    """
    leader, generation, silence = agent.view.leader, agent.generation, agent.silence
    if leader is None or generation is None or generation.index(agent.me.node) is None:
        return ()
    node = leader.value.node
    if node not in agent.memory.silent or silence.peers[node].heard_at < silence.leader_since:
        return ()
    return (node,) if silence_counts(agent.memory.evictions, agent.me.member.host, agent.now) else ()


def must_try(agent: AgentState) -> bool:
    """A silent node has not been tried yet, or a trial had no result."""
    return any(agent.now >= _try_at(agent, node) for node in suspects(agent))


def _try_at(agent: AgentState, node: str) -> float:
    """The time of the next trial of a suspect."""
    trial, peer = agent.silence.trials.get(node), agent.silence.peers[node]
    if trial is None or not _is_about(agent, trial, node) or trial.asked_at < _counts_from(agent):
        return NEVER
    if trial.answered_at == NEVER:
        return trial.asked_at + _limit_s(peer) + GIVEN_UP_S
    return trial.answered_at + (REACHED_TIMEOUTS * peer.timeout_s if trial.reached_by else peer.timeout_s)


def _is_about(agent: AgentState, trial: PeerTrial, node: str) -> bool:
    """Return whether a trial is about the current silence and the current registration of the node."""
    peer = agent.silence.peers.get(node)
    return peer is not None and trial.silence.since == peer.since and trial.create_revision == _created(agent, node)


def _created(agent: AgentState, node: str) -> int:
    """The create revision of a node's registration; only the leader knows that of every node."""
    stored, leader = agent.view.members.get(node), agent.view.leader
    if stored is None and leader is not None and leader.value.node == node:
        return leader.value.created or leader.create_revision
    return stored.create_revision if stored is not None else 0


def _counts_from(agent: AgentState) -> float:
    return max(agent.silence.counts_from, agent.silence.held_up_at)


def _limit_s(peer: SilentPeer) -> float:
    return max(TRIAL_PART * peer.timeout_s, TRIAL_MIN_S)


def try_suspects(agent: AgentState) -> None:
    """Try each suspect whose time has come, and refresh this node's lease to check that the store answers."""
    for node in suspects(agent):
        if agent.now >= _try_at(agent, node):
            _try(agent, node)
    agent.act(RefreshLease())


def _try(agent: AgentState, node: str) -> None:
    silence, peer = agent.silence, agent.silence.peers[node]
    silence.number += 1
    others = _others(agent, node)
    helpers = _helpers(agent, node, others)
    former = silence.trials.get(node)
    trial = PeerTrial(silence.number, peer, _created(agent, node), agent.now, helpers)
    if former is not None and _is_about(agent, former, node) and not former.reached_by:
        trial = replace(trial, asked=former.asked, answered=former.answered)
    silence.trials = {**silence.trials, node: trial}
    agent.act(TryPeer(silence.number, node, agent.links.targets[node], helpers, _limit_s(peer)))
    if former is None or former.reached_by:  # A node that was cleared can be suspected again.
        silent_s = agent.now - peer.since
        asked = f"; {join_names(helpers)} also {'try' if len(helpers) > 1 else 'tries'} to reach it" if helpers else ""
        agent.act(NoteSilence(SilenceStep.SUSPECTED, node, _host(agent, node), silent_s, helpers))
        agent.act(LogLine(f"{_named(agent, node)} has sent nothing for {silent_s:.1f} s{asked}", detail=True))


def is_alone(agent: AgentState, node: str) -> bool:
    """Return whether no other node could try this one, as in a job of two nodes."""
    return not _others(agent, node)


def _others(agent: AgentState, node: str) -> Sequence[str]:
    """The nodes that could try it: all that this agent knows, without itself and the node."""
    if agent.leads:
        known: Sequence[str] = [*agent.view.members]
    else:
        known = [member.node for member in agent.generation.members] if agent.generation is not None else []
    others = (one for one in known if one not in (node, agent.me.node))
    return [one for one in others if not is_proven_dead(agent, one, _created(agent, one))]


def _helpers(agent: AgentState, node: str, others: Sequence[str]) -> tuple[str, ...]:
    """The nodes to ask: different ones in each trial, preferably on other hosts than this node and the silent one.

    The leader asks nodes that it hears; any other node hears only the leader, and asks members.
    """
    able = [other for other in others if not agent.leads or other in agent.memory.linked]
    if not able:
        return ()
    start = agent.silence.number * HELPERS_MAX % len(able)
    turned = [*able[start:], *able[:start]]
    near = (_host(agent, node), agent.me.member.host)
    return tuple(sorted(turned, key=lambda other: _host(agent, other) in near)[:HELPERS_MAX])


def is_confirmed(agent: AgentState, node: str) -> bool:
    """Return whether no node reaches a silent node, while this agent and the store are well."""
    trial, peer = agent.silence.trials.get(node), agent.silence.peers.get(node)
    if trial is None or peer is None or agent.now >= _try_at(agent, node):
        return False  # There is no trial, or it must be repeated.
    if not silence_counts(agent.memory.evictions, _host(agent, node), agent.now):
        return False
    answered = trial.answered_at > NEVER and not trial.reached_by and bool(trial.unreached_by or is_alone(agent, node))
    if not agent.leads and not _most_answer(trial):
        return False
    refreshed = agent.workers.run_deadline.refreshed_at > peer.since
    return answered and refreshed and agent.registration.registered and not store_is_silent(agent)


def leader_is_silent(agent: AgentState) -> bool:
    """Return whether another node leads and its silence is confirmed, so that this node may replace it."""
    return not agent.leads and any(is_confirmed(agent, node) for node in _silent_leader(agent))


def _most_answer(trial: PeerTrial) -> bool:
    """Return whether most nodes that a member asks about the leader answer; the member hears only the leader itself.

    Together with the member and the leader, they are a sample of all members. If many of them are silent, by the rule
    of `many_are_silent`, this member may be cut off itself.
    """
    unheard = trial.asked - trial.answered
    return not unheard or MANY * (unheard + 1) <= trial.asked + 2


def try_at(agent: AgentState) -> float:
    """When to try a suspect if no event happens."""
    silence = agent.silence
    if not silence.peers:
        return float("inf")
    counting = [silence.counts_from + peer.timeout_s for peer in silence.peers.values()]
    return agent.first_of([*counting, *(_try_at(agent, node) for node in suspects(agent))])
