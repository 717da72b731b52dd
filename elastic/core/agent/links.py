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


def watch(f: AgentState) -> None:
    """Say whom to watch, if it is somebody else than before. Who has lost its key is watched while it may work on."""
    if f.following is None or (f.registered is None and f.phase is not Phase.JOINING):
        return  # Its place in line is being looked up, or it will be registered again: what it holds by links stays.
    if f.following == (True, None) and not f.view.complete:
        return  # It proposes from now on, and does not see yet whom to watch: the one that it followed may work on.
    looked_at = (f.view, f.memory.gone, f.following)
    if f.watched_at is not None and f.watched_at[0] is f.view and f.watched_at[1:] == looked_at[1:]:
        return  # With a thousand members the rest takes a millisecond.
    f.watched_at = looked_at
    followed = f.following[1]
    members = f.view.members
    names = members if f.following == (True, None) else (followed,) if followed else ()
    targets = dict(_still_there(f))
    for node in names:
        stored = members.get(node)
        if node == f.me.node or stored is None or not stored.value.link:
            continue
        if (node, stored.create_revision) not in f.memory.gone:
            targets[node] = LinkTarget(stored.value.host, stored.value.link, stored.create_revision)
    if targets != f.targets:
        dropped = f.targets.keys() - targets.keys()  # That these links end says nothing of those nodes.
        f.memory = replace(f.memory, linked=f.memory.linked - dropped, unheard=f.memory.unheard - dropped)
        f.links_up -= dropped
        f.targets = targets
        f.act(WatchLinks(targets))


def _still_there(f: AgentState) -> Mapping[str, LinkTarget]:
    """Watched members of the newest world whose keys are not in the view any more."""
    away = {
        node: target
        for node, target in f.targets.items()
        if node not in f.view.members and (node, target.create_revision) not in f.memory.gone
    }
    known = recent_members(f) if away else frozenset[str]()  # Of a thousand members it takes long.
    return {node: target for node, target in away.items() if node in known}


def recent_members(f: AgentState) -> frozenset[str]:
    """The nodes of the newest generation and of the one before it."""
    generation = f.generation
    if generation is None:
        return frozenset()
    before = generation.before.nodes if generation.before is not None else ()
    return frozenset(place.node for place in generation.members).union(before)


def ask(f: AgentState) -> None:
    """Ask whoever is to be asked now."""
    if (
        not f.awaiting
        and f.links_up
        and (_must_probe_failure(f) or (_must_probe_liveness(f) and f.now >= _ask_again_at(f)))
    ):
        f.asked += 1
        f.asked_at, f.asked_whom, f.awaiting = f.now, f.links_up, True
        f.asked_about = f.generation.g if f.generation is not None and _must_probe_failure(f) else 0
        if f.asked_about:  # Who is lost while it is asked is proven dead a moment later, or does not answer.
            f.memory = replace(f.memory, asked_g=f.asked_about)
        f.act(AskLinks(f.asked))
    if _needs_vouch(f) and f.now >= f.vouch_asked_at + interval_s(f):
        f.vouch_asked_at = f.now
        f.act(AskVouch(f.workers_g))


def next_wake_up(f: AgentState) -> list[float]:
    """When something over the links is due although nothing happens."""
    times: list[float] = []
    if f.links_up and _must_probe_liveness(f):
        times.append(_ask_again_at(f))
    if _needs_vouch(f):
        times.append(f.vouch_asked_at + interval_s(f))
    elif (f.phase is Phase.RUNNING or _is_first(f)) and not f.tasks and f.now <= silent_at(f):
        times.append(silent_at(f) + 1e-3)
    times += [last + 2 * interval_s(f) for _, last in f.yielding.values()]
    return times


def _is_first(f: AgentState) -> bool:
    return in_world(f) and f.generation is not None and f.generation.index(f.me.node) == 0


def _needs_vouch(f: AgentState) -> bool:
    running = f.phase is Phase.RUNNING and not f.tasks
    return running and (f.registered is None or f.now > silent_at(f))


def _must_probe_failure(f: AgentState) -> bool:
    about = f.generation.g if f.generation is not None else 0
    return f.decision is not None and f.decision.code is Reason.ASKING and f.memory.answered_g < about


def _must_probe_liveness(f: AgentState) -> bool:
    """Tell whether it must be known again and again who is there."""
    generation = f.generation
    if generation is None or f.tasks:
        return False
    if f.following == (True, None) and any(node in f.links_up for node in f.memory.absent_since):
        return True
    return _is_first(f) and (f.registered is None or f.now > silent_at(f))


def _ask_again_at(f: AgentState) -> float:
    return f.asked_at + interval_s(f)
