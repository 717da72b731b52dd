"""Nurseries and workers: intervals in which workers run, deadlines on the node's own clock, ends of every kind."""

from __future__ import annotations

import random
from collections.abc import Callable

from elastic.core.agent.actions import StartWorkers, StopWorkers
from elastic.core.agent.events import (
    NodePrepared,
    PeersUnreachable,
    WorkerExited,
    WorkersGone,
    WorkersHung,
    WorkersListen,
)
from elastic.core.agent.state import Phase
from elastic.core.failure_class import FailureClass
from elastic.core.model import Generation, WorkerExit
from elastic.core.text import SPLIT
from tests.sim.network import Network
from tests.sim.nodes import HOPELESS, KILL_S, NEVER, RESTART_ASKED, UNSTARTABLE, Node, WorkerSet

SAVE_LIMIT_S = 120.0
"""So long may workers that listen take to save; they do it in less than `SAVE_S` once all of them have heard it."""
SAVE_S = 3.0
COLD_S = 5.0
"""Workers that start cold, and a nursery that is to be warm, import for at most this long."""
SUCCESSOR_S = 30.0
"""The successor of a nursery, which leaves most of a core to the workers, imports for at most this long."""
FAIL_IN_SAVE = 0.1
FROZEN_LOOK_S = 0.05
"""So often it is asked whether an agent that is frozen goes on."""
REACH_S = 10.0
"""So long workers wait while a machine is cut from the others (--partition-timeout)."""


def classified(code: int, *, secondary: bool, first: bool = False) -> tuple[FailureClass, str]:
    """How an agent classifies the end of a worker; that its script cannot start, in the first generation alone."""
    if secondary:
        return FailureClass.SECONDARY, ""
    if code == HOPELESS:
        return FailureClass.UNRECOVERABLE, "what is to be restored is not there"
    if code == UNSTARTABLE and first:
        return FailureClass.STARTUP, "usage"
    return FailureClass.RESTART_REQUESTED if code == RESTART_ASKED else FailureClass.SCRIPT, ""


class Nurseries(Network):
    """The workers of every node, and the training that they do together."""

    split = False
    """Whether a machine was ever cut from the others and not from the store."""

    def _start_workers(self, node: Node, action: StartWorkers) -> None:
        generation = action.generation
        if node.workers is not None:
            self.fail("1", f"{node.name} starts generation {generation.g} beside {node.workers.generation.g}")
        self.hand_over(node)  # If it became ready while nothing ran, it has taken over then.
        self.counts["a successor ended as workers started"] += node.successor_ready_at is not None
        node.successor_ready_at = None
        hangs, listens = self.random.random() < 0.5, self.random.random() < (0.95 if self.job.listens else 0.05)
        node.workers = workers = WorkerSet(action.incarnation, generation, hangs, listens)
        node.run_until = node.core.facts.workers.run_until
        self._plan_deadline(node)
        for observer in self.observers:
            observer.after_start(self.whole, node, generation)
        if not node.nursery:  # It has died, and the next one is not there yet.
            self.after(0.0, lambda: self._lost_with_nursery(node, workers))
        self.after(self._start_s(node), lambda: self._begin(node, workers))

    def _start_s(self, node: Node) -> float:
        """How long the workers of a node take to start: from a warm nursery a moment, otherwise their own imports."""
        self.counts["warm start" if node.warm else "cold start"] += 1
        return self.random.uniform(0.01, 0.1) if node.warm else self.random.uniform(0.5, COLD_S)

    def _begin(self, node: Node, workers: WorkerSet) -> None:
        """The workers of a node are there; the training goes on when those of every member are."""
        if node.workers is not workers or workers.stopping:
            return
        if self.now < self.job.bad_until.get(node.host, 0.0):
            self.after(self.random.uniform(0.01, 1.0), self._ender(node, workers, 1))
        generation, key = workers.generation, (workers.incarnation, workers.generation.g)
        began = self.job.began.setdefault(key, {})
        began[node.name] = self.now
        if len(began) == len(generation.members):
            self._meet_first(key, generation)
        self.watch_split(node)

    def _meet_first(self, key: tuple[str, int], generation: Generation) -> None:
        """Their process group stands, once all reach each other."""
        if self.apart(generation):
            if len(self.running(key, generation)) == len(generation.members):
                self.after(0.5, lambda: self._meet_first(key, generation))
            return
        self.after(max(self.job.work_s - self.job.done_s, 0.1), lambda: self._finish(key, generation))
        self.after(1.0, lambda: self._progress(key, generation))
        for each in self.running(key, generation):
            self.prepare_successor(each)
            self.after(self.random.uniform(0.0, 3.0), self._listener(each, each.workers))

    # --- a split network ------------------------------------------------------------------------------------------

    def between(self, one: Node, other: Node) -> bool:
        """Tell whether the way between two machines is closed in a direction, though both may reach the store."""
        return self.blocked(one, other) or one.name in other.deaf_to or other.name in one.deaf_to

    def blocked(self, one: Node, other: Node) -> bool:
        """Tell whether it is closed in both directions."""
        pair = one.name in other.apart_from or other.name in one.apart_from
        return one is not other and (one.apart or other.apart or pair)

    def apart(self, generation: Generation) -> list[Node]:
        """Who of a world is cut from another one of its machines."""
        if not self.split or len(generation.members) == 1:
            return []
        nodes = [self.nodes[place.node] for place in generation.members]
        return [one for one in nodes if any(self.between(one, other) for other in nodes)]

    def watch_split(self, node: Node) -> None:
        """From now on the shell of a node looks whom it reaches while its workers wait."""
        if self.split and node.workers is not None and not node.workers.watched:
            node.workers.watched = True
            self._look_around(node, node.workers)

    def _look_around(self, node: Node, workers: WorkerSet) -> None:
        generation, waited = workers.generation, workers.stalled_at
        if node.workers is not workers:
            return
        if workers.stopping and not workers.asked:
            if waited is not None:  # What they say while they are stopped may be heard still.
                self.feed(node, PeersUnreachable(generation.g, ()))
            return
        self.after(1.0, lambda: self._look_around(node, workers))
        if not self.apart(generation):
            if waited is not None:
                workers.stalled_at = None
                self.feed(node, PeersUnreachable(generation.g, ()))
            return
        if waited is None:
            workers.stalled_at = self.now
            return
        others = [self.nodes[place.node] for place in generation.members]
        nodes = tuple(sorted(one.name for one in others if not one.alive or one.cut or self.between(node, one)))
        if not node.hears or self.now < waited + REACH_S / 2:
            return
        slots, late = node.core.facts.me.member.slots, bool(nodes) and self.now >= waited + REACH_S
        first = (generation.index(node.name) or 0) * slots
        exits = [
            WorkerExit(rank=first + n, code=-15, words="waited for others", failure=FailureClass.PARTITION, why=SPLIT)
            for n in range(slots)
        ]
        self.counts["a node gave up on others"] += late
        self.feed(node, PeersUnreachable(generation.g, nodes, tuple(exits) if late else ()))
        workers.broken |= node.core.facts.workers.hung and node.workers is workers

    def _listener(self, node: Node, workers: WorkerSet | None) -> Callable[[], None]:
        """Once the world has met, workers that use the library say that they can be asked to leave."""

        def listens() -> None:
            if workers is not None and workers.listens and node.workers is workers and not workers.stopping:
                workers.listening = True
                self.feed(node, WorkersListen(workers.generation.g))

        return listens

    def kill_nursery(self, node: Node) -> None:
        """The nursery of a node dies, and its workers with it; the agent starts another one."""
        self.log(f"{node.name}: its nursery dies")
        node.nursery = node.warm = node.learned = False
        self.counts["a successor died with its nursery"] += node.successor_ready_at is not None
        node.successor_ready_at = None
        if node.workers is not None:
            self._lost_with_nursery(node, node.workers)
        self.after(self.random.uniform(0.02, 0.6), lambda: self._nursery_again(node))

    def _nursery_again(self, node: Node) -> None:
        node.nursery = True
        self.after(self.random.uniform(0.01, COLD_S), lambda: self.warmed(node))

    def warmed(self, node: Node) -> None:
        """The nursery of a node has done its imports."""
        node.warm = node.nursery
        self.feed(node, NodePrepared())

    # --- the successor of a nursery -------------------------------------------------------------------------------

    def prepare_successor(self, node: Node) -> None:
        """The nursery of a node forks its successor, unless it has loaded what the script imports itself.

        No draw of the world's randomness and no event: what is prepared does not move what else happens.
        """
        if node.learned or node.successor_ready_at is not None or not (node.nursery and node.warm):
            return
        node.nurseries += 1
        imports_s = random.Random(f"{self.seed} {node.name} {node.nurseries}").uniform(0.5, SUCCESSOR_S)
        node.successor_ready_at = self.now + imports_s
        self.counts["a successor was prepared"] += 1
        if self.defect == "no wait for workers at a hand-over":
            self.after(imports_s, lambda: self.hand_over(node))

    def hand_over(self, node: Node) -> None:
        """Nothing runs: a successor that is ready takes the node over, and hears until when workers may run."""
        ready_at = node.successor_ready_at
        if ready_at is None or self.now < ready_at or not node.hears:
            return
        node.successor_ready_at, node.learned = None, True
        self.counts["a successor took over"] += 1
        self.log(f"{node.name}: the successor of its nursery takes over")
        for observer in self.observers:
            observer.after_hand_over(self.whole, node, ready_at)
        node.run_until = node.core.facts.workers.run_until
        self.feed(node, NodePrepared())

    def kill_successor(self, node: Node) -> None:
        """The successor of a nursery dies; the nursery and the workers go on."""
        if node.successor_ready_at is not None:
            self.log(f"{node.name}: the successor of its nursery dies")
            self.counts["a successor died"] += 1
            node.successor_ready_at = None

    def _lost_with_nursery(self, node: Node, workers: WorkerSet) -> None:
        """Every worker of a node is killed with its fork server; its agent blames the machine."""
        if node.workers is not workers or not node.alive:
            return
        node.workers = None
        self.job.machine_failures += 1
        g, slots = workers.generation.g, node.core.facts.me.member.slots
        m_id = workers.generation.index(node.name) or 0
        for rank in range(m_id * slots, (m_id + 1) * slots):
            lost = WorkerExit(
                rank=rank,
                code=-9,
                words="killed with its fork server",
                failure=FailureClass.MACHINE,
                why="the fork server died",
            )
            self.feed(node, WorkerExited(g, lost, own=True))
        self.feed(node, WorkersGone(g, int(self.job.done_s)))
        self._break(workers, node)

    def running(self, key: tuple[str, int], generation: Generation) -> list[Node]:
        """Nodes whose workers of that generation run."""
        found = []
        for place in generation.members:
            node = self.nodes[place.node]
            workers = node.workers
            if workers is not None and not workers.broken and (workers.incarnation, workers.generation.g) == key:
                found.append(node)
        return found

    def peers(self, workers: WorkerSet) -> list[Node]:
        """Nodes whose workers are of the same world and run, with the own one."""
        return self.running((workers.incarnation, workers.generation.g), workers.generation)

    def _progress(self, key: tuple[str, int], generation: Generation) -> None:
        nodes = self.running(key, generation)
        if len(nodes) == len(generation.members) and self.apart(generation):
            self.after(1.0, lambda: self._progress(key, generation))
        elif len(nodes) == len(generation.members) and not any(node.frozen for node in nodes):
            self.job.done_s = min(self.job.done_s + 1.0, self.job.work_s)
            if not any(node.cut for node in nodes):
                for node in nodes:
                    if node.hears:
                        node.stepped_at = self.local(node)
            self.after(1.0, lambda: self._progress(key, generation))
        elif any(node.frozen for node in nodes) and len(nodes) == len(generation.members):
            self.after(1.0, lambda: self._progress(key, generation))

    def _finish(self, key: tuple[str, int], generation: Generation) -> None:
        nodes = self.running(key, generation)
        if len(nodes) < len(generation.members):
            return
        if self.apart(generation):
            self.after(1.0, lambda: self._finish(key, generation))
            return
        if self.job.done_s < self.job.work_s - 1.5:
            self.after(self.job.work_s - self.job.done_s, lambda: self._finish(key, generation))
            return
        for node in nodes:
            workers = node.workers
            assert workers is not None
            self.after(self.random.choice([0.0, self.random.uniform(0, 2.0)]), self._ender(node, workers, 0))

    def _ender(self, node: Node, workers: WorkerSet, code: int, *, secondary: bool = False) -> Callable[[], None]:
        return lambda: self.end_worker(node, workers, code, secondary=secondary)

    def echo(self, node: Node, workers: WorkerSet) -> Callable[[], None]:
        """Its peers are gone, and a worker of this node fails because of it."""
        return self._ender(node, workers, 1, secondary=True)

    def end_worker(self, node: Node, workers: WorkerSet, code: int, *, secondary: bool = False) -> None:
        """A worker ends by itself."""
        if node.workers is not workers or workers.broken or (workers.stopping and not workers.failing):
            return
        if node.frozen:
            self.after(0.5, self._ender(node, workers, code, secondary=secondary))
            return
        if code and not secondary:
            self.job.failures += 1
        m_id = workers.generation.index(node.name) or 0
        g = workers.generation.g
        self.log(f"{node.name}: worker of {g} ends with {code}")
        for observer in self.observers:
            observer.after_exit(self.whole, node, workers, code)
        slots = node.core.facts.me.member.slots
        first = m_id * slots
        alone = bool(code) and slots > 1 and (workers.alone or not workers.failing)  # Its neighbours are there still.
        if alone:
            workers.broken = True
        else:
            node.workers = None
            self.hand_over(node)
        failure, why = classified(code, secondary=secondary, first=workers.generation.before is None)
        for rank in range(first, first + (1 if alone else slots)):
            ended = WorkerExit(
                rank=rank,
                code=code,
                words=f"exit {code}",
                failure=failure,
                why=why,
            )
            self.feed(node, WorkerExited(g, ended, own=True))
        if not alone:
            self.feed(node, WorkersGone(g, int(self.job.done_s)))
        if code:
            self._break(workers, node)

    def fail_in_plan(self, node: Node) -> bool:
        """A worker fails by itself while it is asked to leave; False if it has left, or is not asked."""
        if node.workers is None or not node.workers.asked:
            return False
        node.workers.failing = True
        self.end_worker(node, node.workers, 1)
        return True

    def hang_worker(self, node: Node) -> None:
        """The agent of a node notices that a worker makes no steps."""
        workers = node.workers
        if workers is None or not node.hears or workers.broken:
            return
        self.job.failures += 1
        workers.broken = True
        slots = node.core.facts.me.member.slots
        rank = (workers.generation.index(node.name) or 0) * slots
        self.log(f"{node.name}: a worker of {workers.generation.g} hangs")
        hangs = WorkerExit(rank=rank, code=1, words="made no step")
        self.feed(node, WorkersHung(workers.generation.g, (hangs,)))

    def _stop_workers(self, node: Node, action: StopWorkers) -> None:
        workers = node.workers
        if workers is None or workers.generation.g != action.g:
            return
        quick = self.random.random() < 0.5
        stop_timeout_s = action.stop_timeout_s
        asked = action.planned and workers.listening and not workers.stopping
        if asked:
            self.counts["workers were asked to leave"] += 1
            stop_timeout_s += SAVE_LIMIT_S
            workers.failing = self.random.random() < FAIL_IN_SAVE
            if workers.failing:
                self.after(self.random.uniform(0.01, 0.2), self._ender(node, workers, 1))
        elif workers.failing:  # It is signalled before it could fail.
            workers.failing = False
        workers.stopping = True
        workers.asked = asked
        if asked:
            self._meet(workers)
        delay = (
            self.random.uniform(0.01, 0.2)
            if quick and not asked
            else stop_timeout_s + self.random.uniform(0.01, KILL_S)
        )
        self.after(delay, lambda: self._vanish(node, workers))

    def _meet(self, workers: WorkerSet) -> None:
        """Workers that are asked to leave do so when all have heard it: they meet at a step, and save it.

        Where a peer is gone, or was signalled, they cannot meet, and try until their time is up.
        """
        key = (workers.incarnation, workers.generation.g)
        nodes = self.running(key, workers.generation)
        sets = [node.workers for node in nodes if node.workers is not None]
        whole = len(nodes) == len(workers.generation.members) and not self.apart(workers.generation)
        if whole and all(one.asked for one in sets):
            self.counts["workers met at a step"] += 1
            for node, one in zip(nodes, sets, strict=True):
                self.after(self.random.choice([0.02, self.random.uniform(0.02, SAVE_S)]), self._leaver(node, one))

    def _leaver(self, node: Node, workers: WorkerSet) -> Callable[[], None]:
        """They save together: where a peer is gone that has not left so, they try until their time is up."""
        key, generation = (workers.incarnation, workers.generation.g), workers.generation

        def leaves() -> None:
            here = {one.name for one in self.running(key, generation)}
            left = self.job.left.setdefault(key, set())
            if self.apart(generation):
                return
            if workers.asked and node.name in here and here | left >= {place.node for place in generation.members}:
                left.add(node.name)
                self._vanish(node, workers)

        return leaves

    def _plan_deadline(self, node: Node) -> None:
        """See to it that the nursery looks at its clock in time; a look that comes too early plans the next one."""
        if node.workers is not None:
            due = self.now + max((node.run_until - self.local(node)) / node.rate, 0.0)
            if due < node.deadline_planned:
                node.deadline_planned = due
                self.after(due - self.now, lambda: self._look_at_clock(node, due))

    def _when_it_acts(self, node: Node, call: Callable[[], None]) -> None:
        """Do this in a node's agent; one that is frozen does it when it goes on."""
        if not node.alive or node.exit_code is not None:
            return
        if node.hears:
            call()
        else:
            self.after(FROZEN_LOOK_S, lambda: self._when_it_acts(node, call))

    def _look_at_clock(self, node: Node, due: float) -> None:
        if node.deadline_planned == due:
            node.deadline_planned = NEVER
            if node.workers is not None and self.local(node) < node.run_until - 1e-6:
                self._plan_deadline(node)
            else:
                self._deadline(node)

    def _deadline(self, node: Node) -> None:
        """The nursery looks at its clock; it does so also while its agent is frozen."""
        workers = node.workers
        if workers is None or node.frozen or self.local(node) < node.run_until - 1e-6:
            return
        if self.defect == "no nursery deadline":
            return
        workers.stopping = workers.overdue = True
        self.counts["nursery killed overdue workers"] += 1
        self.after(self.random.uniform(0.01, KILL_S), lambda: self._vanish(node, workers))

    def _vanish(self, node: Node, workers: WorkerSet) -> None:
        """Every process of these workers is gone."""
        if node.workers is not workers:
            return
        if node.frozen and node.alive:
            self.after(0.05, lambda: self._vanish(node, workers))
            return
        right_s = node.core.facts.workers.run_deadline.until() - self.local(node)
        acts = node.hears and self.now > node.thawed_at + 0.5 and right_s < 0.0
        if workers.overdue and acts and node.core.phase is Phase.RUNNING:
            self.fail("8", f"{node.name} does not stop its workers, its nursery had to")
        node.workers = None
        self.hand_over(node)
        g = workers.generation.g
        self.log(f"{node.name}: workers of {g} are gone")
        self.feed(node, WorkersGone(g, int(self.job.done_s)))
        self._break(workers, node)

    def _break(self, workers: WorkerSet, gone: Node) -> None:
        """Peers of a worker that is gone fail in their next collective, or hang in it."""
        for place in workers.generation.members:
            peer = self.nodes[place.node]
            theirs = peer.workers
            if (
                peer is not gone
                and theirs is not None
                and theirs.generation.g == workers.generation.g
                and theirs.incarnation == workers.incarnation
                and not theirs.hangs
            ):
                self.after(self.random.uniform(0.001, 1.5), self._ender(peer, theirs, 1, secondary=True))
