"""Parameter-server jobs on the virtual clock: the same world and faults, other workers, and the guarantees of a roster.

Each node's workers do their own share of work and end by themselves, if every server is there; otherwise they wait for
it, and fail when they have waited for too long. Servers run until they are stopped, or end by themselves once no worker
is at work. Nobody breaks when another node goes.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import msgspec

from elastic.core.agent.actions import StartWorkers, StopWorkers
from elastic.core.agent.events import WorkerExited, WorkersGone, WorkersHung
from elastic.core.failure_class import FailureClass
from elastic.core.model import (
    FinalStatus,
    Generation,
    JobMode,
    Member,
    Np,
    OutcomeKind,
    WorkerExit,
)
from elastic.core.ps.model import ClusterSpec, PsJobSpec, PsLayout, Role, Task, TaskMember
from elastic.core.ps.task_placement import has_servers, has_workers, servers_wanted, vacant_servers
from elastic.core.transactions import Transaction
from elastic.core.view import StoreView
from tests.sim.accidents import alive, cut_for, start
from tests.sim.checks import Promises, by_operator, chargeable
from tests.sim.evictions import Evictions
from tests.sim.faults import scale
from tests.sim.life import CHAOS_S, HEALED_S, chaos, heal, over
from tests.sim.nodes import Node, WorkerSet
from tests.sim.nurseries import classified
from tests.sim.world import World

PATIENCE_S = 15.0
"""So long workers wait for a server."""
STORM = 12
"""A node does not start again more often than this within ten seconds."""


@dataclass
class Processes(WorkerSet):
    """One node's processes: what it was given, and whether its workers are done."""

    m_id: int = 0
    done: bool = False
    waits_since: float | None = None

    @property
    def place(self) -> TaskMember:
        """Its seats, as they were when it started."""
        return ClusterSpec.of(self.generation).members[self.m_id]


class RosterWorld(World):
    """A parameter-server job."""

    def __init__(self, seed: int, *, defect: str = "") -> None:
        super().__init__(seed, defect=defect)
        rng = self.random
        kind = rng.choice(["apart", "apart", "named", "alone", "lists"])
        high = 1 if kind == "alone" else rng.randint(1, 3)
        if kind == "alone":
            self.roles = PsLayout(server_num=2, worker_num=2)
        elif kind == "lists":
            hosts = [f"h{number}" for number in range(high)]
            servers = [f"{host}:6170" for host in hosts[: rng.randint(1, high)]]
            workers = [host for host in hosts for _ in range(rng.randint(1, 2))]
            self.roles = PsLayout(servers=tuple(servers), workers=tuple(workers))
        elif kind == "named":
            self.roles = PsLayout(servers=("h0:6170",), worker_num=2, separate=True)
        else:
            self.roles = PsLayout(server_num=rng.randint(1, 2), worker_num=rng.randint(1, 2), separate=True)
        self.closes = rng.random() < 0.5
        self.np = Np(low=1, high=high, first=rng.randint(1, high))
        fields = msgspec.structs.asdict(self.spec) | {"np": self.np, "mode": JobMode.PS, "slots": 1}
        self.spec = PsJobSpec(**fields, layout=self.roles)
        own = 0 if kind in ("alone", "lists") else servers_wanted(self.roles)
        self.size = 1 if kind == "alone" else high + own + rng.randint(0, 1)

    def member_of(self, host: str, number: int, slots: int) -> Member:
        """A node holds ports enough for every seat that it may get."""
        ports = tuple(8000 + 10 * number + at for at in range(4))
        return Member(host=host, slots=4, masters=(7000, 7001, 7002), ports=ports)

    def _start_workers(self, node: Node, action: StartWorkers) -> None:
        if node.workers is not None:
            self.fail("1", f"{node.name} starts {action.generation.g} beside {node.workers.generation.g}")
        place = ClusterSpec.of(action.generation).members[action.m_id]
        workers = Processes(action.incarnation, action.generation, hangs=False, m_id=action.m_id)
        node.workers = workers
        node.run_until = node.core.facts.workers.run_until
        self._plan_deadline(node)
        for observer in self.observers:
            observer.after_start(self.whole, node, action.generation)
        if has_workers(place):
            self.after(self.random.uniform(0.3, 1.0) * self.job.work_s, lambda: self.end_worker(node, workers, 0))
        elif self.closes:
            self.after(1.0, lambda: self._close(node, workers, seen=False))

    def _close(self, node: Node, workers: Processes, *, seen: bool) -> None:
        """A server ends by itself once it has seen workers and none is at work any more."""
        at_work = any(
            isinstance(one, Processes)
            and one.incarnation == workers.incarnation
            and has_workers(one.place)
            and not one.done
            for one in (other.workers for other in self.nodes.values())
        )
        if node.workers is not workers or workers.stopping or node.frozen:
            return
        if at_work or not seen:
            self.after(1.0, lambda: self._close(node, workers, seen=seen or at_work))
            return
        self.counts["a server ended by itself"] += 1
        self._all_end(node, workers)

    def _all_end(self, node: Node, workers: Processes) -> None:
        """Every process of a node has ended well."""
        g = workers.generation.g
        node.workers = None
        for task in workers.place.tasks:
            if task.role is Role.SERVER or not workers.done:
                done = WorkerExit(rank=task.index, code=0, words="exit 0", role=task.role)
                self.feed(node, WorkerExited(g, done, own=True))
        self.feed(node, WorkersGone(g))

    def _lost_with_nursery(self, node: Node, workers: WorkerSet) -> None:
        """Every process of a node is killed with its fork server."""
        if node.workers is not workers or not node.alive:
            return
        assert isinstance(workers, Processes)
        node.workers = None
        self.job.machine_failures += 1
        g, words = workers.generation.g, "killed with its fork server"
        for task in workers.place.tasks:
            if task.role is Role.SERVER or not workers.done:
                lost = WorkerExit(
                    rank=task.index,
                    code=-9,
                    words=words,
                    failure=FailureClass.MACHINE,
                    why="the fork server died",
                    role=task.role,
                )
                self.feed(node, WorkerExited(g, lost, own=True))
        self.feed(node, WorkersGone(g))

    def hang_worker(self, node: Node) -> None:
        """A process of a node makes no steps."""
        workers = node.workers
        if isinstance(workers, Processes) and node.hears and not workers.broken and not workers.done:
            self.job.failures += 1
            workers.broken = True
            g, task = workers.generation.g, workers.place.tasks[-1]
            self.feed(
                node, WorkersHung(g, (WorkerExit(rank=task.index, code=1, words="made no step", role=task.role),))
            )

    def served(self, incarnation: str) -> bool:
        """Whether every server runs."""
        sets = [node.workers for node in self.nodes.values()]
        running = [one.place for one in sets if isinstance(one, Processes) and one.incarnation == incarnation]
        return not vacant_servers(self.roles, running)

    def end_worker(self, node: Node, workers: WorkerSet, code: int, *, secondary: bool = False) -> None:
        """The workers of a node end well, or one process of it fails."""
        assert isinstance(workers, Processes)
        if node.workers is not workers or workers.stopping or workers.broken or (code == 0 and workers.done):
            return
        if node.frozen:
            self.after(0.5, lambda: self.end_worker(node, workers, code, secondary=secondary))
            return
        if not code and self._waits(node, workers):
            return
        g = workers.generation.g
        self.log(f"{node.name}: processes of {g} end with {code}")
        self.job.failures += bool(code) and not secondary
        for observer in self.observers:
            observer.after_exit(self.whole, node, workers, code)
        if code:
            task = workers.place.tasks[-1 if secondary else 0]
            node.workers = None
            failure, why = classified(code, secondary=secondary)
            words = f"exit {code}"
            ended = WorkerExit(
                rank=task.index,
                code=code,
                words=words,
                role=task.role,
                failure=failure,
                why=why,
            )
            self.feed(node, WorkerExited(g, ended, own=True))
            self.feed(node, WorkersGone(g))
            return
        workers.done = True
        for task in workers.place.tasks:
            if task.role is not Role.SERVER:
                done = WorkerExit(rank=task.index, code=0, words="exit 0", role=task.role)
                self.feed(node, WorkerExited(g, done, own=True))
        if not has_servers(workers.place):
            self._all_end(node, workers)

    def _waits(self, node: Node, workers: Processes) -> bool:
        """Workers that are done in a moment wait for a server that is not there; after a while they fail."""
        if self.served(workers.incarnation):
            return False
        self.counts["workers wait for a server"] += 1
        workers.waits_since = workers.waits_since if workers.waits_since is not None else self.now
        if self.now < workers.waits_since + PATIENCE_S:
            self.after(1.0, lambda: self.end_worker(node, workers, 0))
        else:
            self.end_worker(node, workers, 1, secondary=True)
        return True

    def _stop_workers(self, node: Node, action: StopWorkers) -> None:
        facts, workers = node.core.facts, node.workers
        asked = (
            facts.view.verdict is not None
            or facts.store.replaced
            or facts.leaving.drain is not None
            or any(worker.code for worker in facts.workers.own_exits)
            or facts.now >= facts.workers.run_deadline.until()
        )
        if (
            isinstance(workers, Processes)
            and not asked
            and facts.member == workers.place
            and facts.generation is not None
        ):
            self.fail("no restart", f"{node.name} keeps its seats and is stopped: {action.why}")
        super()._stop_workers(node, action)

    def _break(self, workers: WorkerSet, gone: Node) -> None:
        """Nobody breaks when another is gone."""


class RosterPromises(Promises):
    """A seat is had once; revisions follow each other; who keeps its seats is not stopped; completed means done."""

    def __init__(self) -> None:
        super().__init__()
        self._newest: dict[int, ClusterSpec] = {}
        self._done: set[tuple[str, int, int, str]] = set()
        self._starts: dict[str, list[float]] = {}

    def _formed(self, world: World, view: StoreView, node: Node) -> None:
        assert isinstance(world, RosterWorld)
        assert view.generation is not None
        generation = ClusterSpec.of(view.generation.value)
        self._writer(world, view, node)
        self._generations[world.store_number, generation.g] = generation
        old = self._newest.get(world.store_number)
        self._no_gap(world, generation, (view.spec.value if view.spec else world.spec).np.high)
        self._newest[world.store_number] = generation
        if old is not None and (generation.g, generation.rev) not in ((old.g, old.rev + 1), (old.g + 1, 0)):
            world.fail("2", f"{generation.g}/{generation.rev} follows {old.g}/{old.rev}")
        tasks = [task for place in generation.members for task in place.tasks]
        if len(set(tasks)) != len(tasks):
            world.fail("2", f"a seat is given twice: {generation.members}")
        if generation.budget.charged > chargeable(world):
            world.fail("10", f"{generation.budget.charged} charged, {world.job.failures} failures of scripts")
        at_work = [place for place in generation.members if has_workers(place) and not place.leaving]
        before = [place for place in old.members if has_workers(place) and not place.leaving] if old is not None else []
        if view.spec and world.roles.separate and len(at_work) > max(view.spec.value.np.high, len(before)):
            world.fail("2", f"{len(at_work)} nodes with workers, np is {view.spec.value.np}")
        if old is None or generation.g != old.g:
            return
        oks = {
            (n, o.value.since) for (g, n), o in view.outcomes.items() if g == old.g and o.value.ended is OutcomeKind.OK
        }
        known = {place.node for place in old.members}
        fresh = [place.node for place in generation.members if place.node not in known]
        done = {place.node for place in before if (place.node, place.since) in oks}
        places = [place for place in generation.members if place.node in fresh]
        if done and any(has_workers(place) and not has_servers(place) for place in places):
            world.fail("14", f"{fresh} join after {sorted(done)} were done")

    def _no_gap(self, world: World, generation: ClusterSpec, high: int) -> None:
        """Where np counts them, workers that start have indexes below those that np gives."""
        assert isinstance(world, RosterWorld)
        old = self._newest.get(world.store_number)
        known = {place.node for place in old.members} if old is not None else set()
        given = [task for place in generation.members if place.node not in known for task in place.tasks]
        if world.roles.separate and any(
            s.role is Role.WORKER and s.index >= high * world.roles.worker_num for s in given
        ):
            world.fail("2", f"an index is left out: {generation.members}")

    def _judged(self, world: World, view: StoreView) -> None:
        assert view.verdict is not None
        verdict = view.verdict.value
        if verdict.status is not FinalStatus.COMPLETED:
            if (verdict.cause is None or chargeable(world) == 0) and not by_operator(view, verdict):
                world.fail("4", f"failed without a failure: {verdict.reason}")
            return
        generation = ClusterSpec.of(self._generations[world.store_number, verdict.g])
        incarnation = view.incarnation.value if view.incarnation else ""
        for place in generation.members:
            start = (incarnation, verdict.g, place.since, place.node)
            if has_workers(place) and not place.leaving and start not in self._done:
                world.fail("4", f"completed, but the workers of {place.node} did not end well")

    def _recorded(self, world: World, node: Node, transaction: Transaction) -> None:
        assert transaction.outcome is not None
        g, outcome = transaction.outcome
        workers = node.workers
        runs = isinstance(workers, Processes) and workers.generation.g == g and workers.place.since == outcome.since
        if outcome.over and runs:
            world.fail("1", f"{node.name} recorded the end of {g}/{outcome.since} and still runs it")

    def after_start(self, world: World, node: Node, generation: Generation) -> None:
        """Nobody else has a process in one of the seats."""
        assert isinstance(node.workers, Processes)
        starts = self._starts.setdefault(node.name, [])
        starts.append(world.now)
        if len(starts) > STORM and world.now < starts[-1 - STORM] + 10.0:
            world.fail("4", f"{node.name} starts again and again")
        mine: set[Task] = set(node.workers.place.tasks)
        for other in world.nodes.values():
            theirs = other.workers
            if other is node or not isinstance(theirs, Processes) or theirs.incarnation != node.workers.incarnation:
                continue
            if mine & set(theirs.place.tasks) and not self._excused(world, other):
                world.fail("1", f"{node.name} and {other.name} both have {mine & set(theirs.place.tasks)}")

    def after_exit(self, world: World, node: Node, workers: WorkerSet, code: int) -> None:
        """Remember who really ended well."""
        if code == 0 and isinstance(workers, Processes):
            start = (workers.incarnation, workers.generation.g, workers.place.since, node.name)
            self._done.add(start)


def run_roster_seed(seed: int) -> World:
    """Run one whole life of a parameter-server job; raises `Violation`. The same seed gives the same run."""
    world = make_roster(seed)
    live_roster(world)
    return world


def make_roster(seed: int) -> RosterWorld:
    """A world before anything has happened, watched by every guarantee of a roster."""
    world = RosterWorld(seed)
    world.observe(RosterPromises(), Evictions())
    return world


def everybody_goes(world: RosterWorld, rng: random.Random) -> None:
    """Whoever has a seat is gone or cut off in the same moment, and others come."""
    world.counts["fault everybody of a roster goes"] += 1
    for node in alive(world):
        if node.workers is not None:
            how = rng.choice(["kill", "cut", "cut", "revoke"])
            if how == "kill":
                world.kill_agent(node)
            elif how == "cut":
                cut_for(world, node, rng.uniform(3, 30))
            elif node.lease is not None:
                world.store.revoke(node.lease)
                cut_for(world, node, rng.uniform(3, 30))
    world.deliver()
    for number in range(world.size):
        world.after(rng.uniform(0, 8.0), lambda number=number: start(world, f"h{number}"))  # type: ignore[misc]


def live_roster(world: RosterWorld) -> None:
    """Nodes start, faults strike, all is healed, the job ends."""
    rng = world.random
    for number in range(world.size):
        delay = 0.0 if rng.random() < 0.5 else rng.uniform(0, 6.0)
        world.after(delay, lambda number=number: start(world, f"h{number}"))  # type: ignore[misc]
    chaos(world, rng)
    if rng.random() < 0.3:
        world.after(rng.uniform(5.0, CHAOS_S), lambda: everybody_goes(world, rng))
    if rng.random() < 0.3:
        world.after(rng.uniform(5.0, CHAOS_S), lambda: scale(world, rng))
    world.run_to(CHAOS_S + 40.0, stop=lambda: over(world))
    heal(world)
    if not world.verdict_there():
        for number in range(world.size + 1):
            start(world, f"h{number}")
    world.run_to(world.now + HEALED_S, stop=lambda: over(world))
    if not over(world):
        waiting = {node.name: f"{node.core.phase} {node.core.facts.succession.decision}" for node in alive(world)}
        world.fail("liveness", f"the faults are healed and the job does not end: {waiting}")
