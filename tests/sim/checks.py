"""The guarantees of the design (section 3), looked at after everything that happens.

1 is checked literally, on the intervals in which workers run; 8 on the nursery's clock and on every lease that ends.
"""

from __future__ import annotations

from elastic.core.kv import Put
from elastic.core.model import ChangeReason, FinalStatus, Generation, OutcomeKind, Verdict
from elastic.core.ps.model import PsJobSpec
from elastic.core.restart_policy import MACHINE_FAULTS_MAX
from elastic.core.transactions import Transaction
from elastic.core.view import StoreView
from tests.sim.nodes import KEYS, KILL_S, Node, Observer, SharedReader, WorkerSet
from tests.sim.world import World

PLANNED = (ChangeReason.DRAIN, ChangeReason.SCALE_UP, ChangeReason.SCALE_DOWN, ChangeReason.STOP)
THAW_S = 0.5
"""A node that was frozen as a whole may need this long until its nursery has looked at the clock."""
LATE_S = KILL_S * 1.1 + 0.01
"""Workers that are there so long after their deadline were not killed by it."""

FAILURES_BEFORE = 2
"""A host is not kept out before its workers have failed by themselves in this number of generations."""


def chargeable(world: World) -> int:
    """How many restarts may have been charged at most."""
    return world.job.failures + max(0, world.job.machine_failures - MACHINE_FAULTS_MAX)


def by_operator(view: StoreView, verdict: Verdict) -> bool:
    """Whether an operator wrote the verdict, or asked for it."""
    halted = view.halt is not None and view.halt.value.run == verdict.run
    return verdict.status is FinalStatus.STOPPED and halted


class Promises(Observer):
    """Promises 1, 2, 4, 6, 7, 8, 10 and 14 at every step. 3 is liveness: see `Calm` and the end of each run."""

    def __init__(self) -> None:
        self._look_at = 0.0
        self._reader = SharedReader(KEYS)
        self._generations: dict[tuple[int, int], Generation] = {}
        self._started: dict[tuple[str, int], Generation] = {}
        self._ok: dict[tuple[str, int], set[str]] = {}
        self._failed: dict[tuple[int, str], set[int]] = {}
        self._previous: tuple[int, Generation] | None = None

    def view(self, world: World) -> StoreView:
        """What really stands in the store."""
        entries = {entry.key: entry for entry in world.store.list(KEYS.everything[0]).entries}
        return self._reader.read(entries, world.store.revision, complete=True)

    # 8: the nursery's clock, at every step
    def after_event(self, world: World) -> None:
        """No worker runs longer than its node may. Nobody is looked at before the earliest time at which it could."""
        if world.now < self._look_at:
            return
        soonest = LATE_S
        for node in world.nodes.values():
            if node.workers is None or node.frozen or world.now < node.thawed_at + THAW_S:
                continue
            late = world.local(node) - node.run_until
            if late > LATE_S:
                world.fail("8", f"{node.name} has workers {late:.2f} s after its right to run ended")
            soonest = min(soonest, LATE_S - late)
        self._look_at = world.now + 0.9 * soonest

    def after_expiry(self, world: World, nodes: list[Node]) -> None:
        """A lease that ended leaves no worker behind, unless the leader vouches for it; the leader holds its own."""
        for node in nodes:
            if node.workers is None or node.frozen or world.now < node.thawed_at + THAW_S:
                continue
            if node.granted_until > world.local(node) - KILL_S:
                world.counts["ran on by the word of others"] += 1
                continue
            world.fail("8", f"the lease of {node.name} ended and its workers run")

    def after_commit(self, world: World, node: Node, transaction: Transaction) -> None:
        """Every document that is written."""
        view = self.view(world)
        match transaction.kind:
            case "form":
                self._formed(world, view, node)
                if any(isinstance(one, Put) and one.key == KEYS.go for one in transaction.then):
                    self._went(world, view, node)
            case "go":
                self._went(world, view, node)
            case "verdict":
                self._judged(world, view)
            case "record":
                self._recorded(world, node, transaction)

    def _formed(self, world: World, view: StoreView, node: Node) -> None:
        assert view.generation is not None
        generation = view.generation.value
        self._writer(world, view, node)
        key = (world.store_number, generation.g)
        if key in self._generations:
            world.fail("2", f"generation {generation.g} was written twice")
        self._generations[key] = generation
        names = [place.node for place in generation.members]
        if len(set(names)) != len(names) or (view.spec and len(names) > view.spec.value.np.high):
            world.fail("2", f"generation {generation.g} has {names}")
        ips = view.spec.value.ips if view.spec is not None else ()
        if ips:
            world.counts["a list of hosts was looked at"] += 1
            indexes = [ips.index(place.host) for place in generation.members]
            if indexes != sorted(set(indexes)):
                world.fail("2", f"generation {generation.g} has the hosts {indexes} of the list")
        self._kept_out(world, view, generation)
        before = self._previous[1] if self._previous and self._previous[0] == world.store_number else None
        self._previous = (world.store_number, generation)
        if before is None:
            return
        if generation.g != before.g + 1:
            world.fail("2", f"generation {generation.g} follows {before.g}")
        old = [place.node for place in before.members]
        survivors = [name for name in old if name in names]
        if not ips and names[: len(survivors)] != survivors:
            world.fail("2", f"survivors {survivors} are not the first of {names}, in their order")
        oks = {n for (g, n), o in view.outcomes.items() if g == before.g and o.value.ended is OutcomeKind.OK}
        started = view.go is not None and view.go.value.g == before.g
        if oks and started and generation.why in PLANNED and names:  # An empty world only tells everybody to stop.
            world.fail("14", f"{generation.why} after {sorted(oks)} were done")
        if started and old and oks == set(old):
            world.fail("14", f"generation {generation.g} although all of {before.g} was done")
        if len(survivors) < len(old) and generation.why is ChangeReason.NODE_LOST and oks - set(names) and survivors:
            lost_ok = [name for name in oks - set(names) if name in generation.reason]
            if lost_ok:
                world.fail("14", f"{lost_ok} had recorded ok and counts as lost")

    def _kept_out(self, world: World, view: StoreView, generation: Generation) -> None:
        """Who is kept out is not in it, and it has enough members without."""
        for one in generation.budget.hosts:
            failed = self._failed.get((world.store_number, one.host), set())
            if one.left_s > 0 and not one.unreachable and len(failed) < FAILURES_BEFORE:
                world.fail("a bad host", f"{one.host} is kept out after failures in {sorted(failed)} only")
        for place in generation.members:
            for one in generation.budget.hosts:
                if one.host == place.host and one.left_s > 0:
                    world.fail("a bad host", f"{place.node} is in generation {generation.g}, and its host is kept out")
                if one.host == place.host and one.times:
                    world.counts["a host that was kept out came back"] += 1
        if (
            generation.why is ChangeReason.QUARANTINED
            and view.spec
            and len(generation.members) < view.spec.value.np.low
        ):
            world.fail("a bad host", f"{generation.reason}, which leaves {len(generation.members)}")

    def _writer(self, world: World, view: StoreView, node: Node) -> None:
        stored = view.members.get(node.name)
        if KEYS.member(node.name) in view.damaged:
            return  # It is its key, and nobody can read who is registered.
        if stored is None or stored.create_revision != node.sent_created:
            world.fail("1", f"{node.name} wrote while it was not registered as it believed")

    def _went(self, world: World, view: StoreView, node: Node) -> None:
        assert view.go is not None
        assert view.generation is not None
        self._writer(world, view, node)
        generation = view.generation.value
        if view.go.value.g != generation.g:
            world.fail("1", f"go for {view.go.value.g}, the newest generation is {generation.g}")
        spec = view.spec.value if view.spec is not None else None
        fixed = isinstance(spec, PsJobSpec) and not spec.layout.separate  # np does not count its nodes.
        if view.spec and not fixed and len(generation.members) < view.spec.value.np.low:
            world.fail("2", f"go with {len(generation.members)} nodes, below {view.spec.value.np.low}")
        if view.go.value.budget.charged > chargeable(world):
            world.fail("10", f"{view.go.value.budget.charged} charged, {world.job.failures} failures of scripts")
        if generation.before is not None:
            g = generation.before.g
            for name in generation.before.nodes:
                outcome = view.outcomes.get((g, name))
                if name in view.members and (outcome is None or not outcome.value.over):
                    world.fail("1", f"go for {generation.g} before {name}, alive, has recorded how {g} ended")

    def _judged(self, world: World, view: StoreView) -> None:
        assert view.verdict is not None
        verdict = view.verdict.value
        if verdict.status is FinalStatus.COMPLETED:
            generation = self._generations[world.store_number, verdict.g]
            incarnation = view.incarnation.value if view.incarnation else ""
            missing = {place.node for place in generation.members} - self._ok.get((incarnation, verdict.g), set())
            if missing:
                world.fail("4", f"completed, but {sorted(missing)} did not end well in {verdict.g}")
        elif (verdict.cause is None or chargeable(world) == 0) and not by_operator(view, verdict):
            world.fail("4", f"failed without a failure: {verdict.reason}")

    def _recorded(self, world: World, node: Node, transaction: Transaction) -> None:
        assert transaction.outcome is not None
        g, outcome = transaction.outcome
        if any(worker.code and not worker.secondary for worker in outcome.exits):
            self._failed.setdefault((world.store_number, outcome.host), set()).add(g)
        if not outcome.over:
            return
        for other in world.nodes.values():
            if other is node and other.workers is not None and other.workers.generation.g <= g:
                world.fail("1", f"{node.name} recorded the end of {g} and has workers of {other.workers.generation.g}")

    # 1, literally
    def after_start(self, world: World, node: Node, generation: Generation) -> None:
        """No worker starts while an older world can still go on, or while a live member of one still runs."""
        assert node.workers is not None
        incarnation = node.workers.incarnation
        known = self._started.setdefault((incarnation, generation.g), generation)
        if known != generation:
            world.fail("2", f"two lists for generation {generation.g}")
        older: dict[int, list[Node]] = {}
        for other in world.nodes.values():
            workers = other.workers
            if other is node or workers is None or workers.incarnation != incarnation:
                continue
            if workers.generation.g < generation.g and not self._excused(world, other):
                older.setdefault(workers.generation.g, []).append(other)
        for g, nodes in older.items():
            members = {place.node for place in self._started[incarnation, g].members}
            if members == {other.name for other in nodes}:
                world.fail("1", f"generation {generation.g} starts while all of {g} runs: {sorted(members)}")
            if members & {place.node for place in generation.members} & {other.name for other in nodes}:
                world.fail("1", f"a member of {generation.g} starts while another still runs {g}")

    def after_hand_over(self, world: World, node: Node, ready_at: float) -> None:
        """No two nurseries of a node have workers: a successor takes over when nothing runs."""
        if node.workers is not None:
            world.fail("1", f"a successor takes {node.name} over beside workers of {node.workers.generation.g}")
        if not node.nursery or not node.alive or ready_at > world.now:
            world.fail("1", f"a successor takes {node.name} over that is not ready, or has died with its nursery")

    @staticmethod
    def _excused(world: World, node: Node) -> bool:
        return node.frozen or world.now < node.thawed_at + THAW_S or not node.alive

    def after_exit(self, world: World, node: Node, workers: WorkerSet, code: int) -> None:
        """Remember who really ended well."""
        if code == 0:
            self._ok.setdefault((workers.incarnation, workers.generation.g), set()).add(node.name)
