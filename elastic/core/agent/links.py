"""What an agent asks over its links, and what the answers mean (pure).

Whoever watches dials: the proposer keeps a link to every registered node, every other agent to the one that it follows
in line. A link that is up costs nothing and is not asked anything, except while something is wrong:

- workers failed and all say that they lost a peer: everybody is asked once, before the failure is acted on;
- a member's key is gone: it is asked whether it works on, every quarter of a lease's time;
- this node is the first of its generation and its lease is not refreshed: all are asked, because it holds its right to
  run for as long as it hears every one of them;
- this node's lease is not refreshed: it asks those who watch it for their word.

A node that asks for a word says with it that it does not reach the store: the next in line takes over meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from elastic.core.agent.actions import AskLinks, AskVouch, LinkTarget, WatchLinks
from elastic.core.agent.state import AgentState, Phase
from elastic.core.agent.vouching import in_world, interval_s, silent_at
from elastic.core.membership.decision import Reason

ANSWER_S = 0.1
"""Who has not answered a question after this time is not heard."""
RECENT_ASKS = 2
"""A node may be late with one answer if it answered a question at most this many intervals before."""


def watch(agent: AgentState) -> None:
    """Say whom to watch, if it is somebody else than before. Who has lost its key is watched while it may work on."""
    if agent.succession.following is None or (
        agent.registration.create_revision is None and agent.phase is not Phase.JOINING
    ):
        return  # Its place in line is being looked up, or it will be registered again: what it holds by links stays.
    if agent.succession.leads and not agent.view.complete:
        return  # It proposes from now on, and does not see yet whom to watch: the one that it followed may work on.
    looked_at = (agent.view, agent.memory.gone, agent.succession.following)
    if (
        agent.links.watched_for is not None
        and agent.links.watched_for[0] is agent.view
        and agent.links.watched_for[1:] == looked_at[1:]
    ):
        return  # With a thousand members the rest takes a millisecond.
    agent.links.watched_for = looked_at
    followed = agent.succession.following[1]
    members = agent.view.members
    names = members if agent.succession.leads else (followed,) if followed else ()
    targets = dict(_still_there(agent))
    for node in names:
        stored = members.get(node)
        if node == agent.me.node or stored is None or not stored.value.link:
            continue
        if (node, stored.create_revision) not in agent.memory.gone:
            targets[node] = LinkTarget(stored.value.host, stored.value.link, stored.create_revision)
    if targets != agent.links.targets:
        dropped = agent.links.targets.keys() - targets.keys()  # That these links end says nothing of those nodes.
        agent.memory = replace(
            agent.memory, linked=agent.memory.linked - dropped, unheard=agent.memory.unheard - dropped
        )
        agent.links.up -= dropped
        agent.links.targets = targets
        agent.act(WatchLinks(targets))


def _still_there(agent: AgentState) -> Mapping[str, LinkTarget]:
    """Watched members of the newest world whose keys are not in the view any more."""
    known = recent_members(agent)
    return {
        node: target
        for node, target in agent.links.targets.items()
        if node in known and node not in agent.view.members and (node, target.create_revision) not in agent.memory.gone
    }


def recent_members(agent: AgentState) -> frozenset[str]:
    """The nodes of the newest generation and of the one before it."""
    generation = agent.generation
    if generation is None:
        return frozenset()
    before = generation.before.nodes if generation.before is not None else ()
    return frozenset(member.node for member in generation.members).union(before)


def ask(agent: AgentState) -> None:
    """Ask whoever is to be asked now."""
    if (
        not agent.links.awaiting
        and agent.links.up
        and (_must_probe_failure(agent) or (_must_probe_liveness(agent) and agent.now >= _ask_again_at(agent)))
    ):
        agent.links.asked += 1
        agent.links.asked_at, agent.links.asked_whom, agent.links.awaiting = agent.now, agent.links.up, True
        agent.links.asked_about = (
            agent.generation.g if agent.generation is not None and _must_probe_failure(agent) else 0
        )
        if agent.links.asked_about:  # Who is lost while it is asked is proven dead a moment later, or does not answer.
            agent.memory = replace(agent.memory, asked_g=agent.links.asked_about)
        agent.act(AskLinks(agent.links.asked))
    if _needs_vouch(agent) and agent.now >= agent.links.vouch_asked_at + interval_s(agent):
        agent.links.vouch_asked_at = agent.now
        agent.act(AskVouch(agent.workers.g))


def next_wake_up(agent: AgentState) -> list[float]:
    """When something over the links is due although nothing happens."""
    times: list[float] = []
    if agent.links.up and _must_probe_liveness(agent):
        times.append(_ask_again_at(agent))
    if _needs_vouch(agent):
        times.append(agent.links.vouch_asked_at + interval_s(agent))
    elif (
        (agent.phase is Phase.RUNNING or _is_first(agent)) and not agent.workers.tasks and agent.now <= silent_at(agent)
    ):
        times.append(silent_at(agent) + 1e-3)
    times += [last + 2 * interval_s(agent) for _, last in agent.links.yielding.values()]
    return times


def _is_first(agent: AgentState) -> bool:
    return in_world(agent) and agent.generation is not None and agent.generation.index(agent.me.node) == 0


def _needs_vouch(agent: AgentState) -> bool:
    running = agent.phase is Phase.RUNNING and not agent.workers.tasks
    return running and (agent.registration.create_revision is None or agent.now > silent_at(agent))


def _must_probe_failure(agent: AgentState) -> bool:
    about = agent.generation.g if agent.generation is not None else 0
    return (
        agent.succession.decision is not None
        and agent.succession.decision.code is Reason.ASKING
        and agent.memory.answered_g < about
    )


def _must_probe_liveness(agent: AgentState) -> bool:
    """Tell whether it must be known again and again who is there."""
    generation = agent.generation
    if generation is None or agent.workers.tasks:
        return False
    if agent.succession.leads and any(node in agent.links.up for node in agent.memory.absent_since):
        return True
    return _is_first(agent) and (agent.registration.create_revision is None or agent.now > silent_at(agent))


def _ask_again_at(agent: AgentState) -> float:
    return agent.links.asked_at + interval_s(agent)
