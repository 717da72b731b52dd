"""An agent of which other nodes are silent, and what it made of that."""

from __future__ import annotations

from typing import Any

from elastic.core.agent.actions import (
    Action,
    NoteSilence,
    SendTransaction,
    SilenceStep,
    TryPeer,
)
from elastic.core.agent.events import (
    Event,
    PeerTried,
    SilenceChanged,
)
from elastic.core.agent.state import AgentState, Phase, SilentPeer
from elastic.core.model import ChangeReason
from elastic.core.transactions import Transaction
from tests.support.agent_harness import Bench

TIMEOUT_S = 1.0
LINK = 9000
BEGAN = 2.0
"""When a silent node was heard last."""
NOTICED = BEGAN + TIMEOUT_S
REFRESHED = 2.5
"""When the lease was refreshed last before that is noticed; the silence had begun."""


class Transcript:
    """Every event with what the core made of it."""

    def __init__(self) -> None:
        self.rows: list[tuple[Event, list[Action]]] = []

    def __call__(self, _: AgentState, event: Event, actions: list[Action]) -> None:
        self.rows.append((event, actions))

    @property
    def sent(self) -> list[Transaction]:
        """The transactions that were sent."""
        return [act.transaction for _, actions in self.rows for act in actions if isinstance(act, SendTransaction)]

    @property
    def kinds(self) -> list[str]:
        """Their kinds."""
        return [transaction.kind for transaction in self.sent]

    def made_of(self, kind: type[Action]) -> list[Event]:
        """The events after which the core asked for something of this kind."""
        return [event for event, actions in self.rows if any(isinstance(action, kind) for action in actions)]


def refreshed(bench: Bench, now: float) -> None:
    """The lease is refreshed then."""
    bench.now = now
    bench.refreshed()


def leading(nodes: str = "b c", np: str = "", **options: Any) -> Bench:
    """Node `a` leads generation 1, which runs on it and on these nodes; it hears them, and its lease is refreshed."""
    bench = Bench("a", np or f"{1 + len(nodes.split())}", **options)
    bench.others(nodes, link=LINK)
    bench.links(nodes)
    assert bench.phase is Phase.RUNNING
    for now in (1.25, REFRESHED):
        refreshed(bench, now)
    return bench


def following(nodes: str = "a b c", **options: Any) -> Bench:
    """Node `b` watches `a`, which leads generation 1; this runs on these nodes."""
    bench = Bench("b", f"{len(nodes.split())}", after="a", **options)
    bench.others("a", link=LINK)
    bench.lead("a")
    bench.others(" ".join(node for node in nodes.split() if node not in "ab"), link=LINK)
    bench.world(1, nodes, why=ChangeReason.FIRST)
    bench.go(1)
    assert bench.phase is Phase.RUNNING
    bench.links("a")
    for now in (1.25, REFRESHED):
        refreshed(bench, now)
    return bench


def silent(
    bench: Bench, nodes: str = "b", *, at: float = NOTICED, since: float = BEGAN, held_up_at: float = 0.0
) -> None:
    """These nodes, and no others, are silent: nothing was heard from them since then."""
    bench.now = at
    peers = {node: SilentPeer(since, TIMEOUT_S, since) for node in nodes.split()}
    bench.tell(SilenceChanged(peers, held_up_at))


def heard(bench: Bench, *nodes: str) -> None:
    """These nodes, which were silent, are heard again; no other node is silent."""
    bench.tell(SilenceChanged({}, heard=frozenset(nodes)))


def tried(bench: Bench, node: str = "b", *, reached_by: str = "", unreached_by: str = "", unheard: str = "") -> None:
    """The answer of the newest trial of a node comes: these reach it, and these do not."""
    number = [action.number for action in bench.every(TryPeer) if action.node == node][-1]
    answer = PeerTried(number, node, tuple(reached_by.split()), tuple(unreached_by.split()), frozenset(unheard.split()))
    bench.tell(answer)


def suspects(bench: Bench) -> list[str]:
    """Whom the agent has tried so far, in this order."""
    return [action.node for action in bench.every(TryPeer)]


def steps(bench: Bench) -> list[tuple[SilenceStep, str, tuple[str, ...]]]:
    """What was noted so far: the step, the node and the others."""
    return [(note.step, note.node, note.by) for note in bench.every(NoteSilence)]


def evictions(bench: Bench) -> list[str]:
    """The nodes whose eviction the agent remembers."""
    return [eviction.node for eviction in bench.facts.memory.evictions]


def is_registered(bench: Bench, node: str) -> bool:
    """Whether the store has this node."""
    return node in bench.shelf.view.members
