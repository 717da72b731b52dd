"""What this agent asks the nodes that it watches, while something is wrong, and what their answers mean (pure)."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from elastic.core.agent.actions import AskLinks
from elastic.core.agent.links.vouching import interval_s, store_is_silent, vouches
from elastic.core.agent.links.watch import update_liveness
from elastic.core.agent.state import AgentState
from elastic.core.membership.decision import Reason

ANSWER_S = 0.1
"""A node that has not answered a question after this time is not heard."""
RECENT_ASKS = 2
"""A node may be late with one answer if it answered a question at most this many intervals before."""


class LinksAnswered(Struct, frozen=True):
    """The answer to `AskLinks`: the nodes that were heard; every other has not answered in time."""

    number: int
    nodes: frozenset[str]


def on_answers(agent: AgentState, event: LinksAnswered) -> None:
    """Count a node that missed the newest question as unheard until it answers another one or its link is new.

    A node that answered the question before, a moment ago, is only late.
    """
    links = agent.links
    if event.number != links.asked:
        return
    links.awaiting = False
    links.silent = (links.asked_whom & links.up) - event.nodes
    recent = links.asked_at <= links.heard_at + RECENT_ASKS * interval_s(agent)
    late = links.silent & links.answered if recent else frozenset[str]()
    links.heard_at, links.answered = links.asked_at, event.nodes
    update_liveness(agent, late)
    agent.memory = replace(agent.memory, answered_g=max(agent.memory.answered_g, links.asked_about))


def needs_answers(agent: AgentState) -> bool:
    """A question is to be asked, and none is open."""
    if agent.links.awaiting or not agent.links.up:
        return False
    return _doubts_failure(agent) or agent.now >= ask_again_at(agent)


def ask(agent: AgentState) -> None:
    """Ask every linked node whether it is there."""
    links = agent.links
    links.asked += 1
    links.asked_at, links.asked_whom, links.awaiting = agent.now, links.up, True
    links.asked_about = agent.generation.g if agent.generation is not None and _doubts_failure(agent) else 0
    if links.asked_about:  # A node that is lost while it is asked is proven dead a moment later, or does not answer.
        agent.memory = replace(agent.memory, asked_g=links.asked_about)
    agent.act(AskLinks(links.asked))


def ask_again_at(agent: AgentState) -> float:
    """When the next of the questions is asked that are repeated while a node may be lost."""
    watches = agent.links.up and _doubts_liveness(agent)
    return agent.links.asked_at + interval_s(agent) if watches else float("inf")


def _doubts_failure(agent: AgentState) -> bool:
    """Tell whether the leader wants to know whether a failure is that of a lost node."""
    about, decision = agent.generation.g if agent.generation is not None else 0, agent.succession.decision
    return decision is not None and decision.code is Reason.ASKING and agent.memory.answered_g < about


def _doubts_liveness(agent: AgentState) -> bool:
    """Tell whether the leader must know again and again who is there: a key is gone, or the store is silent."""
    if agent.leads and not agent.workers.tasks and any(node in agent.links.up for node in agent.memory.absent_since):
        return agent.generation is not None
    return vouches(agent) and (not agent.registration.registered or store_is_silent(agent))
