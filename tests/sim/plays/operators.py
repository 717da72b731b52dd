"""Plays in which an operator steers a job: it is stopped, or a node is told to leave (`registry`)."""

from __future__ import annotations

from collections.abc import Callable

from elastic.core.agent.leaving import DRAIN_PATIENCE_S
from elastic.core.model import ChangeReason, DrainOrder, FinalStatus, Generation, OutcomeKind, StopOrder, Verdict
from elastic.core.transactions import Transaction
from elastic.core.view import StoreView, encode
from tests.sim.accidents import operator_writes
from tests.sim.calm import RETURN_S, STOP_S, Calm, Expected, went
from tests.sim.checks import Promises
from tests.sim.ends import GRACE_MAX_S
from tests.sim.faults import scale
from tests.sim.nodes import KEYS, Node, Observer, WorkerSet
from tests.sim.nurseries import SAVE_LIMIT_S, SAVE_S
from tests.sim.plays.meetings import SOON_S, WhenFormed, comes, members_of
from tests.sim.world import World

LEAVES_S = SAVE_LIMIT_S + GRACE_MAX_S + STOP_S
"""Workers that were asked to leave are gone by then, whatever they do."""


def halt(world: World) -> None:
    """An operator stops this run."""
    operator_writes(world, KEYS.halt, encode(StopOrder(run=1, reason="an operator stopped the job")))


def due(world: World) -> None:
    """By now the verdict is there."""
    if not world.verdict_there():
        world.fail("stop", "an operator stopped the job, and it does not end")


class Stopping(Observer):
    """An operator has stopped the job: nobody starts once more, and the verdict comes within a time."""

    def __init__(self, world: World, within_s: float, at_verdict: Callable[[StoreView], str] = lambda _: "") -> None:
        self._at_verdict = at_verdict
        self._newest = went(self._view(world))
        world.after(within_s, lambda: due(world))

    @staticmethod
    def _view(world: World) -> StoreView:
        return Promises().view(world)

    def after_commit(self, world: World, node: Node, transaction: Transaction) -> None:
        """Complain about what should not have been written."""
        view = self._view(world)
        generation = view.generation.value if view.generation is not None else None
        newer = transaction.kind == "form" and generation is not None and generation.g > self._newest
        if newer and generation is not None and (generation.members or generation.why is not ChangeReason.STOP):
            world.fail("stop", f"generation {generation.g} although the job is being stopped")
        if transaction.outcome is not None and transaction.outcome[1].ended is OutcomeKind.FAILED:
            world.after(SOON_S, lambda: due(world))
        if transaction.kind == "verdict" and (wrong := self._at_verdict(view)):
            world.fail("stop", wrong)


def _all_saved(world: World, old: Generation) -> Callable[[StoreView], str]:
    """Every member has said that its workers left as they were asked to, where they can."""

    def look(view: StoreView) -> str:
        ends = [view.outcomes.get((old.g, place.node)) for place in old.members]
        well = all(end is not None and end.value.ended is OutcomeKind.STOPPED and not end.value.forced for end in ends)
        failed = any(
            end is not None and end.value.ended is OutcomeKind.FAILED for end in ends
        )  # Some do while they save.
        return "" if well or failed or not world.job.listens else f"not all have saved: {sorted(view.outcomes.items())}"

    return look


def stopped(world: World, watch: Calm, node: Node, old: Generation) -> None:
    """An operator stops a job that trains: workers that can save do, then all agents end."""
    halt(world)
    world.observe(Stopping(world, LEAVES_S, _all_saved(world, old)))


def stopped_as_leases_ended(world: World, watch: Calm, node: Node, old: Generation) -> None:
    """The store has just ended all leases but the first node's, who register again, as an operator stops the job."""
    for one in members_of(world, old)[1:]:
        if one.lease is not None:
            world.store.revoke(one.lease)
            world.astray_for(one, world.random.uniform(0.1, 0.6))
    world.deliver()
    world.after(world.random.uniform(0.0, 0.05), lambda: halt(world))
    world.observe(Stopping(world, LEAVES_S, _all_saved(world, old)))


def stopped_and_lost(world: World, watch: Calm, node: Node, old: Generation) -> None:
    """While the workers save for a stop, a node is lost: the others are stopped fast."""

    def die() -> None:
        if node.workers is not None:  # Otherwise it has saved, and nobody waits for it.
            world.after(2 * world.spec.lease_ttl_s + SOON_S, lambda: due(world))
        world.kill_node(node)

    halt(world)
    world.after(world.random.uniform(0.0, 0.3), die)
    world.observe(Stopping(world, LEAVES_S))


def stopped_and_fails(world: World, watch: Calm, node: Node, old: Generation) -> None:
    """While the workers save for a stop, one of them fails: the others are stopped fast."""

    def fail() -> None:
        if node.workers is not None:
            world.end_worker(node, node.workers, 1)

    halt(world)
    world.after(world.random.uniform(0.0, 0.3), fail)
    world.observe(Stopping(world, LEAVES_S))


def stopped_at_the_gate(world: World, watch: Calm, node: Node, old: Generation) -> None:
    """A node drains, and while its workers and those of the others save an operator stops the job."""

    def formed(_: Generation) -> None:
        world.after(world.random.uniform(0.0, 0.2), lambda: halt(world))
        world.after(0.3, lambda: world.observe(Stopping(world, LEAVES_S)))

    world.drain(node)
    world.observe(WhenFormed(formed))


def stopped_now(world: World, watch: Calm, node: Node, old: Generation) -> None:
    """Workers save because an operator stops the job, and then that takes too long: the verdict is written at once."""

    def now() -> None:
        if not world.verdict_there():
            verdict = Verdict(status=FinalStatus.STOPPED, reason="at once", run=1, g=old.g, at=0.0)
            operator_writes(world, KEYS.verdict, encode(verdict))

    def gone() -> None:
        left = [one.name for one in members_of(world, old) if one.alive and one.workers is not None]
        if left:
            world.fail("stop", f"{left} have workers {STOP_S} s after an operator stopped the job at once")

    halt(world)
    after_s = world.random.uniform(0.0, 2.0)
    world.after(after_s, now)
    world.after(after_s + world.spec.lease_ttl_s + 2 * STOP_S, gone)


def stopped_and_joined(world: World, watch: Calm, node: Node, old: Generation) -> None:
    """While the workers save for a stop, another node comes, and np is scaled: nothing starts any more."""
    halt(world)
    world.observe(Stopping(world, LEAVES_S))
    comes(world, "h9")
    scale(world, world.random)


def stopped_and_done(world: World, watch: Calm, node: Node, old: Generation) -> None:
    """Workers end well as an operator stops the job: all of them, or one, and the others wait for it for ever."""
    world.job.done_s = world.job.work_s
    alone = world.random.random() < 0.5

    def end(one: Node, workers: WorkerSet) -> None:
        workers.failing = True  # Also while it is asked to save it may end by itself.
        world.end_worker(one, workers, 0)

    for one in members_of(world, old):
        if one.workers is None:
            continue
        if alone and one is not node:
            one.workers.hangs = True
            continue
        world.after(world.random.uniform(0.0, 0.2), lambda one=one, workers=one.workers: end(one, workers))  # type: ignore[misc]

    def look(view: StoreView) -> str:
        assert view.verdict is not None
        ends = [view.outcomes.get((old.g, place.node)) for place in old.members]
        done = all(end is not None and end.value.over and end.value.ended is OutcomeKind.OK for end in ends)
        return f"all ended well, and it counts as {view.verdict.value.status}" if done and _by_halt(view) else ""

    world.after(world.random.uniform(0.0, 0.3), lambda: halt(world))
    world.observe(Stopping(world, LEAVES_S, look))


def _by_halt(view: StoreView) -> bool:
    return view.verdict is not None and view.verdict.value.status is FinalStatus.STOPPED


def told_to_leave(world: World, watch: Calm, node: Node, old: Generation) -> None:
    """An operator tells a node to leave: it goes, and the others go on without it."""
    within_s = world.random.choice([None, 1.0, 10.0])
    node.drained_at = world.now
    leave = DrainOrder(reason="an operator told it to leave", within_s=within_s)
    operator_writes(world, KEYS.leave(node.name), encode(leave))

    def gone(view: StoreView) -> bool:
        generation = view.generation.value if view.generation is not None else None
        without = generation is not None and generation.index(node.name) is None
        return without and went(view) > old.g and node.name not in view.members and node.name not in view.leaves

    text = f"{node.name} was told to leave, and the others do not go on without it"
    watch.expect(world, Expected("drain", text, world.now + LEAVES_S + SOON_S, gone))


def drained_in_an_outage(world: World, watch: Calm, node: Node, old: Generation) -> None:
    """A node gets SIGTERM while the store is away for longer than its patience: once the store is back, all save.

    It asks its own workers to save before the others know, and these wait for those of the others.
    """
    until = world.now + SOON_S

    def look() -> None:
        if all(one.workers is not None and one.workers.listening for one in members_of(world, old)):
            drain()
        elif world.now < until:
            world.after(0.05, look)

    def drain() -> None:
        away_s = DRAIN_PATIENCE_S + world.random.uniform(2.0, 6.0)
        world.away_for(away_s)
        world.after(1.0, lambda: world.drain(node))

        def gone(view: StoreView) -> bool:
            return went(view) > old.g and node.name not in view.members

        text = f"{node.name} drained while the store was away, and the others do not go on without it"
        limit_s = away_s + RETURN_S + SAVE_S + GRACE_MAX_S + SOON_S
        watch.expect(world, Expected("drain", text, world.now + limit_s, gone))

    look()


def stopped_roster(world: World, watch: Calm, node: Node, old: Generation) -> None:
    """An operator stops a parameter-server job; in every second seed a node is lost in that moment."""

    def ended() -> None:
        if not world.verdict_there():
            world.fail("stop", "an operator stopped the job, and it does not end")

    world.after(2 * LEAVES_S, ended)
    if world.random.random() < 0.5:
        one = world.random.choice(members_of(world, old))
        world.after(world.random.uniform(0.0, 0.2), lambda: world.kill_node(one))
    halt(world)
