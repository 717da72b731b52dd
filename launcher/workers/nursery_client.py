"""The agent's view of its node's workers: requests go to the fork server, and events return in order, on the loop.

    workers = NurseryClient(on_event, lock=node_lock.lock_path(job_id, node_id))
    await workers.start()
    workers.run_until(t_s)            # CLOCK_BOOTTIME; again at each renewal of the lease
    workers.spawn(g, specs)           # ChildrenForked, then ChildExited for each worker, then GenerationExited
    workers.stop(stop_timeout_s)
    await workers.close()

The events are the fork server's reports (`launcher.nursery.protocol`), and `NurseryDied`. There are no threads. The
fork server supervises the workers even when this process is frozen or killed.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from elastic.errors import NurseryLost
from launcher.logs.console import Console
from launcher.logs.console_streams import ConsoleStreams
from launcher.logs.writer import SyncSink
from launcher.logs.writer_client import LogSink
from launcher.logs.writer_protocol import UNBOUND, LogLimits
from launcher.nursery import protocol
from launcher.nursery.warm_policy import PreloadConfig
from launcher.system.clock import boottime
from launcher.system.processes import in_sessions
from launcher.system.worker_signals import STOP_EXIT_CODE, kill_processes
from launcher.workers import exit_classification
from launcher.workers.nursery_process import NurseryProcess, out_of_date
from launcher.workers.nursery_successor import NurserySuccessor
from launcher.workers.nursery_watchdog import NurseryWatchdog
from launcher.workers.spec import WorkerSpec
from launcher.workers.worker_output import WorkerProcess

START_LIMIT_S = 10.0
"""How long a fork server may take to start. It needs 0.1 s; a loaded host or a slow disk needs more."""

PREPARE_LIMIT_S = 180.0
"""How long its imports may take, from a slow disk or over the network. They need 3 s; after the limit it is ended."""

CLOSE_LIMIT_S = 5.0
"""How long `close` waits for the fork server to exit gracefully; then it kills it."""

OVERDUE_LIMIT_S = 0.5
"""How long after the lease's end the fork server may be silent; then it is frozen itself, and is killed."""

CLEAR_RETRY_S = 0.02
CLEAR_LIMIT_S = 5.0
"""After the fork server's death: how often, and for how long, its workers' remaining processes are killed again."""


class NurseryDied(NamedTuple):
    """The fork server and the workers are dead; no `ChildExited` or `GenerationExited` follows.

    `left` are processes of the workers that could not be killed.
    """

    left: tuple[int, ...] = ()


NurseryEvent = protocol.NurseryReport | NurseryDied


@dataclass
class _SpawnedGeneration:
    g: int
    note: str = ""
    overdue: bool = False
    held: bool = False
    """The request to start them waits until the fork server is prepared."""


class NurseryClient:
    """Talks to one fork server. The loop delivers events one at a time, never from within a call to this class."""

    def __init__(
        self,
        on_event: Callable[[NurseryEvent], None],
        *,
        lock: Path | None = None,
        recipe: PreloadConfig | None = None,
        stdout: Console | None = None,
        stderr: Console | None = None,
        complain: Callable[[str], None] | None = None,
        has_saved: Callable[[int], bool] = lambda local_rank: False,
        bound: LogLimits = UNBOUND,
        showing: ConsoleStreams | None = None,
        sink: LogSink | None = None,
        adopts: bool = False,
    ) -> None:
        """Create the client; `start` starts the fork server.

        `sink` writes the logs (default: directly). `adopts`: this process starts no child but the fork server from now
        on, so that any other child that it has when the fork server dies was left by it, and is killed.

        `bound` limits the log of each worker (`launcher.logs.rotating_file`). `has_saved` is asked about a worker that
        was asked to exit and has ended with another code than 143. The fork server and its workers hold `lock`.
        `recipe` is what the fork server imports, None for nothing. The consoles show the workers that are to be shown,
        `showing` how; `complain` receives one message for each log that cannot be written (default: a line on
        `stderr`).
        """
        self._on_event = on_event
        self._lock = lock
        self._preload_config = recipe or PreloadConfig()
        self._showing = showing or ConsoleStreams((stdout or Console(1), stderr or Console(2)))
        self._has_saved = has_saved
        self._bound = bound
        self._complain = complain or self._showing.consoles[1].write_line
        self._adopts = adopts
        self._sink = sink or SyncSink(lambda text, quietly: self._complain(text))
        self.workers: Mapping[int, WorkerProcess] = {}
        """The processes of the newest generation, by local rank, including those that have ended."""
        self._running: _SpawnedGeneration | None = None
        self._until_s = 0.0
        self._process: NurseryProcess | None = None
        self._closing = False
        self.prepared = False
        """Whether the fork server has finished its imports, or has reported why not."""
        self.warm = False
        """Whether it has finished them, and workers find the modules loaded."""
        self.loaded: tuple[str, ...] = ()
        """The modules of the script that it has loaded."""
        self._stale = False
        self._watched: tuple[str, ...] = ()
        self._stamps: tuple[str, ...] = ()
        """Stamps of the files that make the successor out of date."""
        self._successor: NurserySuccessor | None = None
        self._old: list[tuple[NurseryProcess, asyncio.Future[None]]] = []
        """Fork servers that have handed over the node, and the futures of their ends."""
        self._imports = NurseryWatchdog(lambda: not self.prepared, self._end_nursery)
        self._deadline = NurseryWatchdog(self._may_run, self._end_nursery)

    @property
    def dead(self) -> bool:
        """Whether the fork server was started and has ended."""
        return self._process is not None and self._ended.done()

    @property
    def pid(self) -> int | None:
        """The fork server's process ID, None before `start`."""
        return None if self._process is None else self._process.pid

    async def start(self) -> None:
        """Start the fork server; on return it runs and holds its lock. Raises `NurseryLost` or `OSError` if it cannot.

        It may still be importing; `NurseryReady` is delivered when that is done. Requests before that are queued.
        """
        self._loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        try:
            self._process = NurseryProcess.start(
                self._lock,
                self._preload_config,
                adopts=self._adopts,
                on_report=self._take,
                on_end=lambda: self._clear(boottime() + CLEAR_LIMIT_S),
                complain=self._complain,
            )
        except OSError:
            self.kill()  # Cancels what waits for this fork server.
            raise
        came, _ = await asyncio.wait(
            (self._ready, self._ended), timeout=START_LIMIT_S, return_when=asyncio.FIRST_COMPLETED
        )
        if not came:
            await self.close()
            raise NurseryLost(f"the fork server did not start within {START_LIMIT_S:.0f} s")
        if not self._ready.done():
            raise NurseryLost("the fork server exited during its start; its message is above")
        self._imports.expect(PREPARE_LIMIT_S)

    def run_until(self, t_s: float) -> None:
        """Let workers run until `t_s` on `CLOCK_BOOTTIME`; the latest call counts. Without a call nothing starts."""
        self._until_s = t_s
        if self.prepared:
            self._order(protocol.SetDeadline(t_s))
        self._expect_deadline()

    def spawn(self, g: int, specs: Sequence[WorkerSpec]) -> None:
        """Start the workers of generation `g`. Only one generation runs at a time.

        The request waits for a fork server that is yet to be started. Raises `NurseryLost` if it is dead,
        `RuntimeError` if a generation still runs.
        """
        if (self._process is not None and not self._process.lives) or self._closing:
            raise NurseryLost(f"generation {g} cannot start: its fork server is dead")
        if self._running is not None:
            raise RuntimeError(f"generation {g} cannot start: generation {self._running.g} still runs")
        self.workers = {
            spec.local_rank: WorkerProcess(spec, g, self._showing, self._sink, self._bound) for spec in specs
        }
        self._loop = asyncio.get_running_loop()
        self._running = _SpawnedGeneration(g, held=True)
        if self.prepared and (self._stale or out_of_date(self._watched)):
            self.drop_successor()
            self._order(protocol.RenewNursery())
            self.prepared = self.warm = self._stale = False
            self.loaded = ()
            self._imports.expect(PREPARE_LIMIT_S)
        self._release_spawn()

    @property
    def preparing(self) -> bool:
        """Whether there is a successor, which has not taken over."""
        return self._successor is not None

    def prepare(
        self,
        order: protocol.PrepareSuccessor,
        stamps: Sequence[str],
        on_ready: Callable[[protocol.NurseryReady], None],
        on_end: Callable[[protocol.ModuleUnfit], None],
    ) -> bool:
        """Have a successor made; it takes over when no worker runs, and `NurseryReady` is delivered then.

        `stamps` are of the files that make it out of date (`out_of_date`); `on_ready` is called when it is ready to
        take over, `on_end` as in `NurserySuccessor`. There is at most one. Returns False, and does nothing, if this
        fork server has nothing preloaded, is not prepared, or is dead.
        """
        if self._process is None or not self._process.lives or not self.warm or self.preparing or self._closing:
            return False

        def ready(report: protocol.NurseryReady) -> None:
            on_ready(report)
            self._take_over()

        def ended(unfit: protocol.ModuleUnfit) -> None:
            self._successor = None
            on_end(unfit)

        self._stamps = tuple(stamps)
        self._successor = successor = NurserySuccessor(ready, ended)
        self._order(order, [successor.socket_for_it()])
        return True

    def forget_loaded(self) -> None:
        """Give up the preloaded modules of the script: the next workers find a fork server without them."""
        self.drop_successor()
        self._stale = bool(self.loaded)

    def _take_over(self) -> None:
        """Hand the node over to the successor if it is ready and nothing runs."""
        successor = self._successor
        if successor is None or successor.ready is None or self._running is not None or self._closing:
            return
        assert self._process is not None
        self._successor = None
        successor.release()
        self._old = [(process, ended) for process, ended in self._old if not ended.done()]
        self._old.append((self._process, self._process.hand_over()))
        self._process = NurseryProcess.take_over(
            successor.channel,
            successor.pidfd,
            adopts=self._adopts,
            on_report=self._take,
            on_end=lambda: self._clear(boottime() + CLEAR_LIMIT_S),
            complain=self._complain,
        )
        report = successor.ready
        stamps = dict.fromkeys((*self._watched, *report.watched, *self._stamps))
        self._take(report._replace(watched=tuple(stamps)))

    def drop_successor(self) -> None:
        """End the successor, if there is one, silently."""
        if self._successor is not None:
            self._successor.kill()
            self._successor = None

    def _release_spawn(self) -> None:
        """Send the queued request to start workers, once the fork server is prepared."""
        running = self._running
        if not self.prepared or running is None or not running.held:
            return
        running.held = False
        fds = [fd for worker in self.workers.values() for fd in worker.outputs()]
        specs = [worker.spec for worker in self.workers.values()]
        starts = tuple(protocol.WorkerStart(spec.local_rank, spec.argv, dict(spec.env), spec.cwd) for spec in specs)
        self._order(protocol.SpawnWorkers(running.g, starts), fds)
        self._expect_deadline()

    def _cancel_spawn(self, running: _SpawnedGeneration) -> None:
        """Finish workers that were never started."""
        for local_rank, worker in self.workers.items():
            worker.ended(running.g, exit_classification.describe(-signal.SIGKILL, stopped=True), running.note)
            exited = protocol.ChildExited(running.g, local_rank, -signal.SIGKILL, boottime(), True)
            self._loop.call_soon(self._on_event, exited)
        self._loop.call_soon(self._on_event, protocol.GenerationExited(running.g, ()))
        self._release()

    def stop(self, stop_timeout_s: float, note: str = "", local_ranks: Collection[int] = ()) -> None:
        """Send SIGTERM to the process groups of these workers, () means all; SIGKILL after `stop_timeout_s`.

        Nothing running is no error. Each worker's log shows that it was signalled from outside; `note` is a line with
        the reason. A second call can shorten the timeout; it sends no second SIGTERM.
        """
        self._stop_with(protocol.TerminateWorkers(stop_timeout_s, tuple(local_ranks)), note, local_ranks)

    def kill(self, note: str = "") -> None:
        """Send SIGKILL to everything now. Nothing running is no error. `note` is the reason, as a line for the logs."""
        self._stop_with(protocol.KillWorkers(), note)

    def _stop_with(self, order: protocol.NurseryOrder, note: str, local_ranks: Collection[int] = ()) -> None:
        running = self._running
        if running is None:
            return
        running.note = note or running.note
        for local_rank, worker in self.workers.items():
            if not local_ranks or local_rank in local_ranks:
                worker.to_be_stopped()
        if running.held:
            self._cancel_spawn(running)
        else:
            self._order(order)

    async def close(self) -> None:
        """Kill all workers and end the fork server gracefully, after the remaining events. May be called again."""
        self.drop_successor()
        for old, ended in self._old:
            old.kill()
            await ended
        if self._process is None or self._ended.done():
            return
        if self._running is not None and self._running.held:
            self._cancel_spawn(self._running)
        if not self._closing:
            self._closing = True
            if self.prepared:
                self._order(protocol.CloseNursery())
        if self.prepared:
            await asyncio.wait((self._ended,), timeout=CLOSE_LIMIT_S)
        if not self._ended.done():
            self._end_nursery()
            await self._ended
            if not self.prepared and self._lock is not None:
                self._lock.unlink(missing_ok=True)  # Nothing runs whose death the lock could prove.

    # Messages to and from the fork server.

    def _order(self, order: protocol.NurseryOrder, fds: Sequence[int] = ()) -> None:
        if self._process is not None:
            self._process.order(order, fds)

    def _take(self, report: protocol.NurseryReport) -> None:
        running = self._running
        match report:
            case protocol.NurseryUp():
                if not self._ready.done():  # One that starts over reports it again.
                    self._ready.set_result(None)
            case protocol.NurseryReady():
                self.prepared, self.warm, self._watched = True, not report.cold, report.watched
                self.loaded += report.loaded
                if self._until_s > 0:
                    self._order(protocol.SetDeadline(self._until_s))
                self._release_spawn()
                self._on_event(report)
            case protocol.ChildrenForked() if running is not None:
                for worker, pid in zip(self.workers.values(), report.pids, strict=True):
                    worker.pid = pid
                self._on_event(report)
            case protocol.ChildrenSignalled(_, local_ranks) if running is not None:
                for local_rank in local_ranks:
                    self.workers[local_rank].signalled(self.pid or 0, running.note)
            case protocol.ChildExited(g, local_rank, code, _, stopped) if running is not None:
                worker = self.workers[local_rank]
                worker.asked = worker.asked and not stopped and (code == STOP_EXIT_CODE or self._has_saved(local_rank))
                words = exit_classification.describe(code, stopped=stopped, asked=worker.asked)
                worker.ended(g, words, running.note if stopped else "")
                self._on_event(report._replace(stopped=stopped or worker.asked))
            case protocol.GenerationExited() if running is not None:
                self._release()
                self._take_over()
                self._on_event(report)
            case protocol.GenerationExpired() if running is not None:
                running.overdue = True
                self._on_event(report)
            case _:
                raise RuntimeError(f"the fork server reports {report}, but nothing runs")

    def _release(self) -> None:
        """Close the workers' logs; their exit is reported next, whatever happens to the logs."""
        self._running = None
        for worker in self.workers.values():
            try:
                worker.close()
            except OSError as error:
                self._complain(f"cannot close {worker.spec.log} ({error.strerror}); its end may be missing")

    # The fork server's end.

    def _may_run(self) -> bool:
        """Whether workers run according to the fork server, and it has not reported that their time is up."""
        return self._running is not None and not (self._running.overdue or self._running.held)

    def _expect_deadline(self) -> None:
        """Watch the watcher: a fork server that is frozen does not kill in time, but its death kills the workers."""
        self._deadline.expect(max(self._until_s - boottime(), 0.0) + OVERDUE_LIMIT_S)

    def _end_nursery(self) -> None:
        if self._process is not None:
            self._process.kill()

    def _clear(self, until_s: float) -> None:
        """Kill the remaining processes of the workers, repeatedly until none is left."""
        self.drop_successor()
        running = self._running
        assert self._process is not None
        pids = [worker.pid for worker in self.workers.values() if worker.running and worker.pid] if running else []
        left = [*in_sessions(pids), *self._process.left_behind()]
        kill_processes(left)
        if left and boottime() < until_s:
            self._loop.call_later(CLEAR_RETRY_S, self._clear, until_s)
            return
        if running is not None:
            for worker in self.workers.values():
                if worker.running:
                    worker.ended(running.g, "killed, its fork server died")
            self._release()
            self._on_event(NurseryDied(tuple(process.pid for process in left)))
        elif not self._closing and self._ready.done():
            self._on_event(NurseryDied())
        self._ended.set_result(None)
