"""Heartbeats over the links, trials of silent nodes, and what really was so: who could be reached from where, and when.

The silence of each node is found by the real detector (`launcher.peers.silence_detector`). One tick for all nodes
stands for the heartbeats of every link: what is modelled is whether they arrive, and not each packet.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import NamedTuple

from elastic.core.agent.actions import NoteSilence, SetHeartbeats, SilenceStep, TryPeer
from elastic.core.agent.events import PeerTried, SilenceChanged
from elastic.core.agent.links.silence import interval_s
from tests.sim.nodes import NEVER, Node
from tests.sim.nurseries import Nurseries

FIRST_LOOK_S = 0.002
"""So soon after the start of a trial it is looked whether somebody reaches the node."""
HELD_UP_INTERVALS = 3.2
"""An agent that did nothing for more intervals than that notices that it was held up."""


class Tried(NamedTuple):
    """How it really was in the moment in which a trial was answered.

    `reached`: the agent that asked reaches the silent node. `unreached_by`: others do not, and it can ask them.
    `out_of_reach`: those that the agent that asked does not reach.
    """

    at: float
    reached: bool
    unreached_by: frozenset[str]
    out_of_reach: frozenset[str]


class Heartbeats(Nurseries):
    """Which node hears which."""

    def __init__(self, seed: int, *, defect: str = "") -> None:
        super().__init__(seed, defect=defect)
        self.chance = random.Random(f"{seed} heartbeats")
        """For heartbeats alone: what the seeds draw elsewhere does not depend on them."""
        self.slow_links: dict[frozenset[str], float] = {}
        """Nothing comes through between two nodes before this time."""
        self.late: dict[str, tuple[float, float]] = {}
        """Until when, and by how much at most, what a node sends or receives is late."""
        self._heard_at: dict[tuple[str, str], tuple[float, float]] = {}
        """When a heartbeat came through last, and the one before it: who heard it, and from whom."""
        self.tried: dict[tuple[str, str], Tried] = {}
        """The newest trial that was answered: who asked for it, and which node was tried."""
        self.after(0.0, self._beat)

    @property
    def heartbeats_on(self) -> bool:
        """Whether nodes that are silent are evicted in this job."""
        return self.links and self.spec.silence_timeout_s > 0.0

    def reaches(self, one: Node, other: Node) -> bool:
        """Tell whether the agent of a node answers another one's packets now. The asker may stand still itself."""
        return self.arrives(one, other) and other.name not in one.deaf_to

    def arrives(self, one: Node, other: Node) -> bool:
        """Tell whether what the agent of a node sends to another one arrives now. It may stand still itself."""
        there = other.hears and other.exit_code is None and not other.unlinkable and one.name not in other.deaf_to
        way = not one.cut and not other.cut and not self.blocked(one, other)
        return there and way and one.alive and self.now >= self.slow_links.get(frozenset((one.name, other.name)), 0.0)

    @staticmethod
    def counts_as_heard(leader: Node, node: Node) -> bool:
        """Tell whether a heartbeat of a leader counts: it says so if it does not hear the node."""
        return node.name not in leader.detector.silent

    def _beat(self) -> None:
        """The heartbeats of one interval; each agent first looks who was silent until now."""
        if not self.heartbeats_on:
            return
        every_s = interval_s(self.spec.silence_timeout_s, 1)
        self.after(every_s * self.chance.uniform(0.9, 1.1), self._beat)
        here = [node for node in self.nodes.values() if node.alive and node.exit_code is None]
        for node in here:
            if node.hears:
                node.acted_at = self.now
                if node.silence_timeout_s:
                    self._look(node, every_s)
        self.slow_links = {pair: until for pair, until in self.slow_links.items() if self.now < until}
        self._make_late(here)
        for one in here:
            for name in one.linked if one.sends_heartbeats else ():
                other = self.nodes[name]
                if one.hears:
                    one.detector.expect_beats(name, other, every_s, self.local(one))
                if one.hears and self.arrives(one, other):
                    counts = self.counts_as_heard(one, other)
                    if self.arrives(other, one):
                        self._heard(one, other, every_s)
                    if counts and one.name in other.targets:
                        self._heard(other, one, every_s)

    def note_thawed(self, node: Node) -> None:
        """A node goes on: was it held up for so long that it must have noticed?"""
        if self.now > node.acted_at + HELD_UP_INTERVALS * interval_s(self.spec.silence_timeout_s or 1.0, 1):
            node.continued_at = self.now

    def heard_at(self, node: Node, name: str) -> float:
        """When an agent heard another one last. It acts on what it hears in this moment only afterwards."""
        at, before = self._heard_at.get((node.name, name), (-NEVER, -NEVER))
        return at if at < self.now else before

    def unheard_since(self, node: Node, name: str) -> float:
        """Since when an agent that was not held up itself has not heard another one."""
        heard_at = self.heard_at(node, name)
        return max(heard_at, node.continued_at) if heard_at > -NEVER else -NEVER

    def _look(self, node: Node, every_s: float) -> None:
        node.detector.expect_check(node.next_look, every_s * node.rate)
        changed, _ = node.detector.check(self.local(node))
        self._expect_look(node, every_s)
        self._tell_silence(node, changed)

    def _expect_look(self, node: Node, every_s: float) -> None:
        """The agent looks again within this interval; without one it does not look."""
        node.next_look = self.local(node) + 1.1 * every_s * node.rate if every_s else float("inf")
        node.detector.expect_check(node.next_look, every_s * node.rate)

    def _heard(self, node: Node, other: Node, every_s: float) -> None:
        self._note_heard(node, other.name)
        was_silent = other.name in node.detector.silent
        changed = node.detector.beat(other.name, other, every_s, self.local(node))
        self._tell_silence(node, changed, frozenset([other.name] if was_silent else ()))

    def _note_heard(self, node: Node, name: str) -> None:
        at, _ = self._heard_at.get((node.name, name), (-NEVER, -NEVER))
        if at < self.now:
            self._heard_at[node.name, name] = self.now, at

    def _tell_silence(self, node: Node, changed: bool, heard: frozenset[str] = frozenset()) -> None:
        if changed:
            self._later(node, 0.0, SilenceChanged(node.detector.silent, node.detector.held_up_at, heard))

    def _make_late(self, here: list[Node]) -> None:
        """What comes to and from a slow node waits, now and then."""
        for name, (until, most_s) in tuple(self.late.items()):
            if self.now > until:
                del self.late[name]
                continue
            for other in here:
                if other.name != name and self.chance.random() < 0.3:
                    pair = frozenset((name, other.name))
                    self.slow_links[pair] = max(
                        self.slow_links.get(pair, 0.0), self.now + self.chance.uniform(0, most_s)
                    )

    def links_came_up(self, node: Node, names: Iterable[str]) -> None:
        """An agent has made links to these: they have answered it."""
        for name in sorted(names):
            self._note_heard(node, name)
            was_silent = name in node.detector.silent
            changed = node.detector.heard(name, self.local(node))
            self._tell_silence(node, changed, frozenset([name] if was_silent else ()))

    def unwatch(self, node: Node, names: Iterable[str]) -> None:
        """An agent does not watch these nodes any more."""
        for name in sorted(names):
            self._tell_silence(node, node.detector.forget(name))

    def end_links(self, node: Node, names: Iterable[str]) -> None:
        """A node ends its links to these in order: both forget each other."""
        for name in names:
            other = self.nodes[name]
            self._tell_silence(node, node.detector.forget(name, other))
            if self.reaches(node, other):
                self._tell_silence(other, other.detector.forget(node.name, node))

    def _set_heartbeats(self, node: Node, action: SetHeartbeats) -> None:
        node.sends_heartbeats, node.silence_timeout_s = action.every_s > 0.0, action.timeout_s
        had = node.detector.silent
        held_up = node.detector.notice_held_up(self.local(node))
        node.detector.set_timeout(action.timeout_s)
        self._expect_look(node, interval_s(self.spec.silence_timeout_s, 1) if action.timeout_s else 0.0)
        self._tell_silence(node, held_up or had != node.detector.silent)

    def _try_peer(self, node: Node, action: TryPeer) -> None:
        """This node and its helpers dial a silent one: at once, and again until their time is over."""
        names = [node.name, *(name for name in action.helpers if self._can_ask(node, self.nodes[name]))]

        def reached() -> tuple[str, ...]:
            silent = self.nodes[action.node]
            able = [name for name in names if self.nodes[name].hears or name == node.name]
            return tuple(name for name in able if self.reaches(self.nodes[name], silent))

        def answer(by: tuple[str, ...]) -> None:
            others = [name for name in names if name not in (*by, node.name)]
            tried = tuple(name for name in others if self._can_ask(node, self.nodes[name]))
            unheard = node.detector.unheard(self.local(node))
            self.tried[node.name, action.node] = self._really(node, self.nodes[action.node])
            self._later(
                node, 2 * self.chance.uniform(0.0005, 0.005), PeerTried(action.number, action.node, by, tried, unheard)
            )

        def first() -> None:
            if by := reached():
                answer(by)
            else:
                self.after(action.limit_s / node.rate, lambda: self._when_it_acts(node, lambda: answer(reached())))

        self.after(FIRST_LOOK_S, lambda: self._when_it_acts(node, first))

    def _really(self, node: Node, silent: Node) -> Tried:
        """Look at who reaches whom now."""
        others = [one for one in self.nodes.values() if one not in (node, silent) and one.exit_code is None]
        out_of_reach = {one.name for one in others if not (self.reaches(node, one) and self.reaches(one, node))}
        unreached_by = {one.name for one in others if one.hears and not self.reaches(one, silent)}
        reached = self.reaches(node, silent)
        return Tried(self.now, reached, frozenset(unreached_by - out_of_reach), frozenset(out_of_reach))

    def _can_ask(self, node: Node, helper: Node) -> bool:
        """Tell whether a node can ask another one: over its link, or one that it makes once the store says where."""
        linked = helper.name in node.linked
        found = linked or self.reachable(node)
        return found and self.reaches(node, helper) and self.reaches(helper, node)

    def _note_silence(self, node: Node, action: NoteSilence) -> None:
        self.counts[f"silence: {action.step}"] += 1
        for observer in self.observers:
            observer.after_note(self.whole, node, action)
        if action.step is SilenceStep.EVICTED:
            self.log(f"{node.name} has evicted {action.node}")
