"""Agents that are to end do so in time: drained, refused, out of patience, or because the job has ended."""

from __future__ import annotations

from elastic.core.agent.leaving import DRAIN_PATIENCE_S, RECORD_PATIENCE_S
from elastic.core.agent.state import Phase
from tests.sim.nodes import Node, Observer
from tests.sim.nurseries import SAVE_LIMIT_S
from tests.sim.world import World

EVERY_S = 1.0
SLACK_S = 4.0
"""What stops, vanishes and is written takes no longer than this beside the times that are given."""
GRACE_MAX_S = 4.0
PATIENCE_S = 1.0
SEEN_S = 40.0
"""A verdict is seen by everybody after this time, also by who does not hear of it: all list every 30 s."""
STUCK_S = 3.0
IDLE = (Phase.JOINING, Phase.SPARE, Phase.GATED)


def _passed_over(node: Node) -> bool:
    """Whether an agent sees a generation without it."""
    facts = node.core.facts
    return facts.registration.registered and facts.generation is not None and facts.member is None


class Ends(Observer):
    """Looked at once in a second of virtual time."""

    def __init__(self) -> None:
        self._at = 0.0
        self._unwell: dict[str, float] = {}
        self._without: dict[str, float] = {}
        self._since: dict[tuple[str, str], tuple[float, int]] = {}
        self._ended_at: float | None = None

    def after_event(self, world: World) -> None:
        """Nobody stays who is to go."""
        if world.now < self._at:
            return
        self._at = world.now + EVERY_S
        if not world.verdict_there():  # An empty store has none either.
            self._ended_at = None
        elif self._ended_at is None:
            self._ended_at = world.now
        for node in world.nodes.values():
            if not node.alive or node.exit_code is not None:
                continue
            if not node.hears or not world.reachable(node) or world.late_answers:
                self._unwell[node.name] = world.now
            if node.hears:
                self._look(world, node)

    def _look(self, world: World, node: Node) -> None:
        facts = node.core.facts
        if node.drained_at is not None:
            told_at = max(node.drained_at, node.thawed_at)
            if node.workers is not None and world.now > max(node.goes_at, told_at + SLACK_S):
                world.fail("deadline", f"the machine of {node.name} is taken back, and its workers are there")
            if facts.phase is Phase.RUNNING and world.now > told_at + DRAIN_PATIENCE_S + STUCK_S:
                world.fail("drain", f"{node.name} was told to leave, nobody takes notice, and it goes on")
            self._drained(world, node, max(node.drained_at, node.thawed_at))
        timeout_s, here = facts.limits.join_timeout_s, world.local(node)
        idle = facts.phase in IDLE or (facts.phase is Phase.DONE and facts.member is None)
        patient = timeout_s is None or not idle or world.now < node.thawed_at + SLACK_S
        if not patient and here > facts.leaving.idle_since + (timeout_s or 0.0) + PATIENCE_S:
            world.fail("patience", f"{node.name} waits in {facts.phase} for longer than its --join-timeout")
        if facts.registration.refusal and facts.phase is not Phase.ENDED:
            world.fail("refusal", f"{node.name} was refused and stays: {facts.registration.refusal}")
        unwell = self._unwell.get(node.name, -1e9)
        self._stuck(world, node, unwell)
        over = self._ended_at is not None and world.now > max(self._ended_at, unwell) + SEEN_S
        if over and node.workers is not None and not node.workers.stopping:
            world.fail("4", f"the job has ended, and workers of {node.name} go on")

    def _stuck(self, world: World, node: Node, unwell: float) -> None:
        """An agent that is well acts on what happened to its workers, and on the loss of its registration."""
        facts, workers = node.core.facts, node.workers
        found = {
            "its workers are gone, and it takes them for running": facts.phase is Phase.RUNNING and workers is None,
            "a worker has failed, and the others are not stopped": workers is not None and workers.broken,
            "it is a spare, and does not know it": facts.phase is Phase.DONE and _passed_over(node),
            "it is not registered, and does nothing about it": facts.phase is Phase.DONE
            and not facts.registration.registered,
        }
        for words, holds in found.items():
            key = (node.name, words)
            if not holds:
                self._since.pop(key, None)
                continue
            since, of = self._since.get(key, (world.now, facts.workers.g))
            if of != facts.workers.g:  # Between two looks that state was over, and is there again.
                since = world.now
            self._since[key] = since, facts.workers.g
            if world.now > max(since, unwell, node.thawed_at) + STUCK_S:
                world.fail("3", f"{node.name} is well for {STUCK_S} s: {words}")

    def _drained(self, world: World, node: Node, since: float) -> None:
        """A node that is told to leave stops its workers in any case, and then does not wait for anybody."""
        if node.workers is None:
            since = max(since, self._without.setdefault(node.name, world.now))
            limit_s = 2 * RECORD_PATIENCE_S + SLACK_S
        else:
            self._without.pop(node.name, None)
            limit_s = DRAIN_PATIENCE_S + GRACE_MAX_S + SLACK_S + (SAVE_LIMIT_S if node.workers.listens else 0.0)
        if world.now > since + limit_s:
            world.fail("drain", f"{node.name} was told to leave {world.now - since:.0f} s ago and stays")
