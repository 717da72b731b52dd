"""The fork server: a small single-threaded process that forks a node's workers and supervises them.

The agent starts it with one end of a socket pair and speaks `launcher.nursery.protocol` to it. It guarantees:

- A worker runs only while `CLOCK_BOOTTIME` is below the deadline that the agent sent last. At that time, even while the
  agent is frozen, everything is killed. Nothing starts before a deadline is set.
- When the agent exits, for any reason, everything is killed at once.
- A generation is reported as exited when all its workers were reaped and no process that descends from them is left,
  not even in its own session (the fork server is a child subreaper, so orphans become its children).
- An exit is reported immediately: SIGCHLD wakes the loop. Nothing here blocks, not even a report to a frozen agent.
- Every order is answered, so that the agent detects a suspended fork server. That one wakes when its agent dies.
- If the fork server itself is killed, the kernel kills the workers (parent-death signal).

It always has one thread: the parent-death signal belongs to the thread that forked, and other threads would be missing
in the forked process. It imports only the standard library and its small neighbours and, if its workers start
preloaded, what `launcher.nursery.preload` names. None of them makes a dataclass: the module for that loads Python's
inspection of code, and each class is compiled at each start. Its own start is in `launcher.nursery.main`, a worker's in
`launcher.nursery.spawn` and `launcher.nursery.run_script`.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
import socket
from collections import deque
from collections.abc import Callable, Collection
from enum import Enum

from launcher.nursery import spawn
from launcher.nursery.fd_channel import ChannelClosed, FdChannel
from launcher.nursery.protocol import (
    FDS_PER_WORKER,
    ORDERS,
    ChildExited,
    ChildrenForked,
    ChildrenSignalled,
    CloseNursery,
    GenerationExited,
    GenerationExpired,
    HandOver,
    KillWorkers,
    NurseryOrder,
    NurseryReady,
    NurseryReport,
    OrderAck,
    PrepareSuccessor,
    RenewNursery,
    SetDeadline,
    SpawnWorkers,
    TerminateWorkers,
    WireError,
    WorkerStart,
    decode,
    encode,
)
from launcher.system.clock import boottime
from launcher.system.processes import Process, descendants, exited_child, has_children, in_sessions
from launcher.system.worker_signals import kill_group, kill_processes, stop_group

POLL_S = 0.25
"""Longest sleep while workers run: a host that was suspended is detected this soon after it wakes."""


class RunningGeneration:
    """The generation whose workers run now."""

    def __init__(self, g: int) -> None:
        """`g` is the number of the generation."""
        self.g = g
        self.alive: dict[int, int] = {}
        """pid → local rank, of those that were not reaped."""
        self.signalled: set[int] = set()
        self.kill_at_s: dict[int, float] = {}
        """pid → end of its stop timeout, of those that are being stopped."""
        self.killed = False


class NurseryExit(Enum):
    """Why `Nursery.serve` returned."""

    CLOSED = "the agent closed it"
    ORPHANED = "the agent has exited"
    RENEWED = "the fork server is to start over"
    SUCCEEDED = "its successor has the node"


class Nursery:
    """One socket, one generation at a time, one loop."""

    def __init__(
        self,
        agent: FdChannel,
        parents: Collection[int],
        why_cold: Callable[[WorkerStart], str],
    ) -> None:
        """Supervise for the process that holds the other end of `agent`, as long as the parent is one of `parents`.

        A worker for which `why_cold` has a reason is executed, any other is forked with the preloaded modules.
        """
        self._agent = agent
        self._parents = parents
        self._successors: set[int] = set()
        """Fork servers that this one has forked."""
        self._pid = os.getpid()
        self._why_cold = why_cold
        self._poll = select.poll()
        self._orders: deque[NurseryOrder] = deque()
        self._obeyed = 0
        self._until_s = -math.inf
        self._generation: RunningGeneration | None = None
        self._end: NurseryExit | None = None
        """The reason to return, None while it serves."""

    def serve(self, prepared: NurseryReady) -> NurseryExit:
        """Report that it is `prepared`, and run to the end. Nothing is left running on return.

        Raises `spawn.ChildStarted` in a new process that is to be a worker.
        """
        wake, waker = _wake_on_exits()
        self._poll.register(wake, select.POLLIN)
        self._poll.register(self._agent, select.POLLIN)
        self._send_report(prepared)
        try:
            while self._end is None or self._generation is not None or self._agent.waiting or self._clearing():
                if not self._orphaned:
                    self._poll.register(self._agent, select.POLLIN | (select.POLLOUT if self._agent.waiting else 0))
                ready = {fd for fd, _ in self._poll.poll(self._patience_ms())}
                self._watch_clock()
                if wake.fileno() in ready:
                    wake.recv(4096)  # If there are more, the next poll returns immediately.
                self._reap()
                if os.getppid() not in self._parents:
                    self._lose_agent()
                if self._agent.fileno() in ready:
                    self._read()
                self._obey()
                self._sweep()
                self._flush()
        except (spawn.ChildStarted, spawn.SuccessorStarted):
            self._agent.close()
            wake.close()
            os.close(waker)
            raise
        except BaseException:  # A bug in elastic-launch: still leave nothing behind.
            if self._generation is not None and os.getpid() == self._pid:
                self._kill(self._generation)
            raise
        return self._end

    @property
    def _orphaned(self) -> bool:
        return self._end is NurseryExit.ORPHANED

    # Time.

    def _patience_ms(self) -> int | None:
        """Return how long the next poll may sleep; None means until something arrives."""
        running = self._generation
        if running is None:
            return None
        now_s = boottime()
        until_s = now_s + POLL_S
        if not running.killed:
            until_s = min(until_s, self._until_s, *running.kill_at_s.values())
        return max(0, math.ceil((until_s - now_s) * 1000))

    def _watch_clock(self) -> None:
        """Before anything else after each sleep: kill what is past its deadline or its stop timeout."""
        running = self._generation
        if running is None or running.killed:
            return
        now_s = boottime()
        if now_s >= self._until_s:
            self._kill(running)
            self._send_report(GenerationExpired(running.g))
            return
        late = {pid for pid, at_s in running.kill_at_s.items() if now_s >= at_s}
        if late and late >= running.alive.keys():
            self._kill(running)
            return
        for pid in late:  # Their descendants in other sessions are killed after the last worker.
            del running.kill_at_s[pid]
            kill_group(pid)

    # Orders.

    def _read(self) -> None:
        try:
            self._orders += [decode(line, ORDERS) for line in self._agent.take()]
        except ChannelClosed:
            self._lose_agent()

    def _obey(self) -> None:
        if not self._orders:
            return
        while self._orders:
            self._obeyed += 1
            match self._orders.popleft():
                case SetDeadline(t_s):
                    self._until_s = t_s
                case SpawnWorkers(g, workers):
                    self._spawn(g, workers)
                case TerminateWorkers(stop_timeout_s, local_ranks):
                    self._stop(stop_timeout_s, local_ranks)
                case KillWorkers():
                    if self._generation is not None:
                        self._kill(self._generation)
                case PrepareSuccessor() as order:
                    self._prepare(order)
                case HandOver():
                    self._end = self._end or NurseryExit.SUCCEEDED
                case RenewNursery():
                    self._end = self._end or NurseryExit.RENEWED
                case CloseNursery():
                    self._end = NurseryExit.CLOSED
                    if self._generation is not None:
                        self._kill(self._generation)
        self._send_report(OrderAck(self._obeyed))

    def _spawn(self, g: int, workers: tuple[WorkerStart, ...]) -> None:
        if self._generation is not None:
            raise WireError(f"generation {g} cannot start: generation {self._generation.g} still runs")
        if len(self._agent.fds) < FDS_PER_WORKER * len(workers):
            raise WireError("a Spawn came without its descriptors")
        running = self._generation = RunningGeneration(g)
        if boottime() >= self._until_s or self._end is NurseryExit.CLOSED:
            self._refuse(running, workers)
            return
        pids = []
        cold = tuple(self._why_cold(start) for start in workers)
        for start, reason in zip(workers, cold, strict=True):
            out, err = self._agent.fds.popleft(), self._agent.fds.popleft()
            try:
                pid = spawn.fork(start, out, err, spawn.execute if reason else spawn.start_warm)
            except OSError as error:
                os.write(err, spawn.start_error(start, error))
                pid = 0
            finally:
                os.close(out)
                os.close(err)
            pids.append(pid)
            if pid:
                running.alive[pid] = start.local_rank
        self._send_report(ChildrenForked(g, tuple(pids), cold))
        for start, pid in zip(workers, pids, strict=True):
            if not pid:
                self._send_report(ChildExited(g, start.local_rank, spawn.CANNOT_START, boottime(), False))

    def _prepare(self, order: PrepareSuccessor) -> None:
        if not self._agent.fds:
            raise WireError("a Prepare came without its socket")
        fd = self._agent.fds.popleft()
        with contextlib.suppress(OSError):  # There is no memory for one: closing its socket reports that.
            self._successors.add(spawn.fork_successor(fd, order))
        os.close(fd)

    def _refuse(self, running: RunningGeneration, workers: tuple[WorkerStart, ...]) -> None:
        """Report that the deadline has passed, and that every worker was killed before its first instruction."""
        for _ in range(FDS_PER_WORKER * len(workers)):
            os.close(self._agent.fds.popleft())
        running.killed = True
        self._send_report(GenerationExpired(running.g))
        for start in workers:
            self._send_report(ChildExited(running.g, start.local_rank, -signal.SIGKILL, boottime(), True))

    def _stop(self, stop_timeout_s: float, local_ranks: tuple[int, ...]) -> None:
        running = self._generation
        if running is None or running.killed:
            return
        self._reap()  # A worker that exited on its own before this moment was not stopped by us.
        named = {
            pid: local_rank for pid, local_rank in running.alive.items() if not local_ranks or local_rank in local_ranks
        }
        fresh = {pid: local_rank for pid, local_rank in named.items() if pid not in running.signalled}
        for pid in fresh:
            stop_group(pid)
        running.signalled.update(fresh)
        self._send_report(ChildrenSignalled(running.g, tuple(fresh.values())))
        kill_at_s = boottime() + stop_timeout_s
        running.kill_at_s |= {pid: min(running.kill_at_s.get(pid, math.inf), kill_at_s) for pid in named}

    def _kill(self, running: RunningGeneration) -> None:
        """Send SIGKILL to every group, then to every other descendant: those in their own sessions."""
        self._reap()
        running.killed = True
        running.signalled.update(running.alive)
        for pid in running.alive:
            kill_group(pid)
        kill_processes(self._family())

    def _family(self) -> list[Process]:
        """Return the descendants of this process, without its successors and their descendants."""
        found, apart = descendants(os.getpid()), {*self._successors}
        for process in found:  # A parent comes before its children.
            if process.parent in apart:
                apart.add(process.pid)
        return [process for process in found if process.pid not in apart]

    def _lose_agent(self) -> None:
        """Handle the exit of the agent. Whatever is in its socket no longer counts."""
        if self._orphaned:
            return
        self._end = NurseryExit.ORPHANED
        self._poll.unregister(self._agent)
        self._agent.close()
        self._orders.clear()
        if self._generation is not None:
            self._kill(self._generation)

    # Ends.

    def _reap(self) -> None:
        """Take every exit. A leader's group is killed while its zombie still occupies the process ID."""
        while (ended := exited_child()) is not None:
            running = self._generation
            if running is not None and ended in running.alive:
                kill_group(ended)
                _, status = os.waitpid(ended, 0)
                code = os.waitstatus_to_exitcode(status)
                local_rank = running.alive.pop(ended)
                running.kill_at_s.pop(ended, None)
                self._send_report(ChildExited(running.g, local_rank, code, boottime(), ended in running.signalled))
            else:
                os.waitpid(ended, 0)
                if ended in self._successors:
                    self._successors.discard(ended)
                    kill_processes(in_sessions([ended]))  # What its imports have started.

    def _sweep(self) -> None:
        """Once all workers are reaped, kill the processes that they left behind, and report when none is left."""
        running = self._generation
        if running is None or running.alive:
            return
        foreign: list[int] = []
        if has_children():
            family = self._family()
            living = [process for process in family if not process.zombie]
            foreign = kill_processes(living)
            only_successors = not family and self._successors
            if not only_successors and (not living or len(foreign) < len(living)):
                return  # SIGCHLD comes when they can be reaped.
        self._generation = None
        self._send_report(GenerationExited(running.g, tuple(foreign)))

    def _clearing(self) -> bool:
        """Before returning: kill what imports have left, and successors without a node; True while any still runs."""
        if not has_children():
            return False
        family = self._family() if self._end is NurseryExit.SUCCEEDED else descendants(os.getpid())
        living = [process for process in family if not process.zombie]
        foreign = kill_processes(living)
        return bool(family) and (not living or len(foreign) < len(living))

    # Reports.

    def _send_report(self, report: NurseryReport) -> None:
        if not self._orphaned:
            self._agent.put(encode(report))
            self._flush()

    def _flush(self) -> None:
        """Send what the socket accepts now; a frozen agent must not freeze this process."""
        try:
            self._agent.flush()
        except ChannelClosed:
            self._lose_agent()


def _wake_on_exits() -> tuple[socket.socket, int]:
    """Return a socket that becomes readable with each SIGCHLD, and the descriptor of its other end."""
    wake, waker = socket.socketpair()
    wake.setblocking(False)
    waker.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)  # Without a handler nothing is written to the socket.
    written = waker.detach()
    signal.set_wakeup_fd(written, warn_on_full_buffer=False)
    return wake, written
