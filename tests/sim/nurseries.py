"""Nurseries and workers: intervals in which workers run, deadlines on the node's own clock, ends of every kind."""

from __future__ import annotations

from collections.abc import Callable

from elastic.agentevents import Exited, Gone, Listens, StartWorkers, StopWorkers
from elastic.model import Generation, WorkerExit
from tests.sim.network import Network
from tests.sim.nodes import KILL_S, Node, WorkerSet

SAVE_LIMIT_S = 120.0
"""So long may workers that listen take to save; most do it in a moment."""
FAIL_IN_SAVE = 0.1


class Nurseries(Network):
    """The workers of every node, and the training that they do together."""

    def _start_workers(self, node: Node, action: StartWorkers) -> None:
        generation = action.generation
        if node.workers is not None:
            self.fail("1", f"{node.name} starts generation {generation.g} beside {node.workers.generation.g}")
        hangs, listens = self.random.random() < 0.5, self.random.random() < 0.5
        node.workers = WorkerSet(action.incarnation, generation, hangs, listens)
        if listens:
            self.after(self.random.uniform(0.0, 3.0), lambda: self.feed(node, Listens(generation.g)))
        node.run_until = node.core.facts.run_until
        self._plan_deadline(node)
        for observer in self.observers:
            observer.after_start(self.whole, node, generation)
        if self.now < self.job.bad_until.get(node.host, 0.0):
            self.after(self.random.uniform(0.01, 1.0), self._ender(node, node.workers, 1))
        key = (action.incarnation, generation.g)
        began = self.job.began.setdefault(key, {})
        began[node.name] = self.now
        if len(began) == len(generation.members):
            self.after(max(self.job.work_s - self.job.done_s, 0.1), lambda: self._finish(key, generation))
            self.after(1.0, lambda: self._progress(key, generation))

    def running(self, key: tuple[str, int], generation: Generation) -> list[Node]:
        """Nodes whose workers of that generation run."""
        found = []
        for place in generation.members:
            node = self.nodes[place.node]
            if node.workers is not None and (node.workers.incarnation, node.workers.generation.g) == key:
                found.append(node)
        return found

    def _progress(self, key: tuple[str, int], generation: Generation) -> None:
        nodes = self.running(key, generation)
        if len(nodes) == len(generation.members) and not any(node.frozen for node in nodes):
            self.job.done_s = min(self.job.done_s + 1.0, self.job.work_s)
            self.after(1.0, lambda: self._progress(key, generation))
        elif any(node.frozen for node in nodes) and len(nodes) == len(generation.members):
            self.after(1.0, lambda: self._progress(key, generation))

    def _finish(self, key: tuple[str, int], generation: Generation) -> None:
        nodes = self.running(key, generation)
        if len(nodes) < len(generation.members):
            return
        if self.job.done_s < self.job.work_s - 1.5:
            self.after(self.job.work_s - self.job.done_s, lambda: self._finish(key, generation))
            return
        for node in nodes:
            workers = node.workers
            assert workers is not None
            self.after(self.random.choice([0.0, self.random.uniform(0, 2.0)]), self._ender(node, workers, 0))

    def _ender(self, node: Node, workers: WorkerSet, code: int, *, consequence: bool = False) -> Callable[[], None]:
        return lambda: self.end_worker(node, workers, code, consequence=consequence)

    def end_worker(self, node: Node, workers: WorkerSet, code: int, *, consequence: bool = False) -> None:
        """A worker ends by itself."""
        if node.workers is not workers or (workers.stopping and not workers.failing):
            return
        if node.frozen:
            self.after(0.5, self._ender(node, workers, code, consequence=consequence))
            return
        if code and not consequence:
            self.job.failures += 1
        m_id = workers.generation.index(node.name) or 0
        g = workers.generation.g
        self.log(f"{node.name}: worker of {g} ends with {code}")
        for observer in self.observers:
            observer.after_exit(self.whole, node, workers, code)
        node.workers = None
        slots = node.core.facts.me.member.slots
        for rank in range(m_id * slots, (m_id + 1) * slots):
            ended = WorkerExit(rank=rank, code=code, words=f"exit {code}", consequence=consequence)
            self.feed(node, Exited(g, ended, own=True))
        self.feed(node, Gone(g, int(self.job.done_s)))
        if code:
            self._break(workers, node)

    def _stop_workers(self, node: Node, action: StopWorkers) -> None:
        workers = node.workers
        if workers is None or workers.generation.g != action.g:
            return
        quick = self.random.random() < 0.5
        grace_s = action.grace_s
        if action.planned and workers.listens and not workers.stopping:
            self.counts["workers were asked to leave"] += 1
            grace_s += SAVE_LIMIT_S
            workers.failing = self.random.random() < FAIL_IN_SAVE
            if workers.failing:
                self.after(self.random.uniform(0.01, 0.2), self._ender(node, workers, 1))
        elif workers.failing:  # It is signalled before it could fail.
            workers.failing = False
        workers.stopping = True
        delay = self.random.uniform(0.01, 0.2) if quick else grace_s + self.random.uniform(0.01, KILL_S)
        self.after(delay, lambda: self._vanish(node, workers))

    def _plan_deadline(self, node: Node) -> None:
        if node.workers is not None:
            delay = max((node.run_until - self.local(node)) / node.rate, 0.0)
            self.after(delay, lambda: self._deadline(node))

    def _deadline(self, node: Node) -> None:
        """The nursery looks at its clock; it does so also while its agent is frozen."""
        workers = node.workers
        if workers is None or node.frozen or self.local(node) < node.run_until - 1e-6:
            return
        if self.defect == "no nursery deadline":
            return
        workers.stopping = True
        self.counts["nursery killed overdue workers"] += 1
        self.after(self.random.uniform(0.01, KILL_S), lambda: self._vanish(node, workers))

    def _vanish(self, node: Node, workers: WorkerSet) -> None:
        """Every process of these workers is gone."""
        if node.workers is not workers:
            return
        if node.frozen and node.alive:
            self.after(0.05, lambda: self._vanish(node, workers))
            return
        node.workers = None
        g = workers.generation.g
        self.log(f"{node.name}: workers of {g} are gone")
        self.feed(node, Gone(g, int(self.job.done_s)))
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
                self.after(self.random.uniform(0.001, 1.5), self._ender(peer, theirs, 1, consequence=True))
