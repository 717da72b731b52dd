"""One node's workers, from the agent's point of view: a generation in, events for the core out."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from elastic._disk.temp_folder import NODE, TempFolder, remove_left_behind
from elastic.channel.messages import SERVERS_FROM, AcceptsPlannedStop, WorkerMessage
from elastic.core.agent.actions import StartWorkers
from elastic.core.agent.events import Event, NodePrepared, WorkerExited, WorkersGone, WorkersHung, WorkersListen
from elastic.core.model import Cause, WorkerExit
from elastic.core.ps.model import Role
from elastic.core.text import process_name
from elastic.errors import NurseryLost
from launcher.config.config import Config, worker_argv
from launcher.logs import environment_dump
from launcher.logs.console_streams import ConsoleStreams
from launcher.logs.recent_starts import RecentStarts
from launcher.logs.writer_protocol import AppendClosed, LogLimits, WriteEnvironment, path_bytes, text_bytes
from launcher.nursery import protocol, warm_policy
from launcher.system import node_lock
from launcher.system.clock import boottime
from launcher.text import failure_report, sanitize
from launcher.wire.inspect_messages import InspectRefusal, StacksQuestion, StackText
from launcher.workers import environment, nursery_client, nursery_process
from launcher.workers.checkpoint_claim import CheckpointClaim
from launcher.workers.endpoint_files import EndpointFiles
from launcher.workers.environment import JobContext
from launcher.workers.exit_classification import Numbers
from launcher.workers.failure_causes import NURSERY_DIED, FailureCause
from launcher.workers.hang_watch import HangWatch
from launcher.workers.learned_cache import LearnedCache, cache_folder, command_key
from launcher.workers.learning import ImportLearning
from launcher.workers.node_output import NodeOutput
from launcher.workers.nursery_watchdog import NurseryBackoff
from launcher.workers.planned_stop import PlannedStop
from launcher.workers.reports import stacks as stacks_module
from launcher.workers.reports import worker_files
from launcher.workers.reports.progress import ProgressReporter
from launcher.workers.reports.states import TrackedProcess, WorkerStates
from launcher.workers.reports.worker_channel import ReportListener, WorkerChannel
from launcher.workers.spec import WorkerSpec
from launcher.workers.spec_builder import SpecBuilder
from launcher.workers.worker_ends import cause_lines, watched_end, worker_end


class WorkerGroup:
    """Starts, stops and watches the workers of this node; replaces a fork server that dies."""

    def __init__(
        self,
        config: Config,
        node: str,
        host: str,
        out: NodeOutput,
        put: Callable[[Event], None],
        *,
        on_message: ReportListener,
        on_event: Callable[[nursery_client.NurseryEvent], None],
    ) -> None:
        """`node` is the ID of this node, `host` its address; `put` enqueues events for the core. `start` starts.

        `on_message` receives the messages of workers, `on_event` the events of the fork server.
        """
        agent_log = out.agent_log
        self._config = config
        self._node = node
        self._agent_log = agent_log
        self._showing = ConsoleStreams(out.consoles, node, out.lines)
        self._put = put
        self._on_report, self._on_event = on_message, on_event
        self._sink = out.disk
        remove_left_behind(NODE)
        self._scratch = TempFolder(NODE)
        private = self._scratch.path
        self.lists = EndpointFiles(Path(config.log_dir), private, out.disk, agent_log)
        self._specs = SpecBuilder(config, node, host, private, self.lists.roster_file)
        self._claim = CheckpointClaim(Path(config.checkpoint_dir), agent_log)
        self._restore_step = config.restore_step
        self.talk = WorkerChannel(private / "talk", agent_log, self._on_message, config.memory_limit_bytes)
        self.states = WorkerStates()
        self._progress = ProgressReporter(self.states, agent_log, out.consoles, shown_elsewhere=out.live)
        self._plan = PlannedStop(self.talk, agent_log, config.save_timeout_s)
        self._hangs = HangWatch(self.talk, config.hang_timeout_s, self.give_up)
        self.last_logs = RecentStarts()
        self._incarnation = ""
        self._preload_config = nursery_process.preload_config(config, os.environ, environment.default_env(config.slots))
        self._cold: set[str] = set()
        self._nursery = self._new_nursery()
        self.learning = ImportLearning(
            lambda: self._nursery,
            nursery_process.nursery_env(self._preload_config, os.environ),
            agent_log,
            LearnedCache(
                cache_folder(os.environ),
                command_key(config, self._preload_config.folder, os.environ),
                agent_log.debug,
            ),
            worker_argv(config)[1:],
        )
        self._loads_known: asyncio.Task[None] | None = None
        self._nursery_died = asyncio.Event()
        self._how_it_died = ""

    def _new_nursery(self) -> nursery_client.NurseryClient:
        return nursery_client.NurseryClient(
            self._on_worker_event,
            lock=node_lock.lock_path(self._config.job_id, self._node),
            recipe=self._preload_config,
            complain=self._agent_log.warning,
            has_saved=self.talk.has_saved,
            bound=LogLimits(self._config.log_bytes_max, self._config.log_rotate),
            showing=self._showing,
            sink=self._sink,
            adopts=True,
        )

    async def start(self) -> None:
        """Start the fork server and the channel of the workers. `NodePrepared` is put after the imports are done."""
        await self._nursery.start()
        self.talk.start()

    async def tend(self) -> None:
        """Replace the fork server whenever it dies, and detect hangs.

        Raises `NurseryLost` if no fork server can be started, or if they keep dying.
        """
        async with asyncio.TaskGroup() as group:
            group.create_task(self._hangs.run())
            group.create_task(self._tend_nursery())

    async def _tend_nursery(self) -> None:
        deaths, began_s = NurseryBackoff(), boottime()
        while True:
            await self._nursery_died.wait()
            self._nursery_died.clear()
            replaced = not self._nursery.dead  # The one that died may be one that never started.
            while not replaced:
                pause_s = deaths.died(boottime() - began_s)
                if pause_s is None:
                    raise NurseryLost(
                        f"the fork server {self._how_it_died}, {deaths.in_row} times in a row; something on this host "
                        "kills it (memory, a limit, a module that --preload names?); this node leaves the job"
                    )
                wait = f" in {pause_s:g} s" if pause_s else ""
                self._agent_log.warning(f"the fork server {self._how_it_died}; starting another{wait}")
                self._nursery = self._new_nursery()
                await asyncio.sleep(pause_s)
                began_s = boottime()
                try:
                    await self._nursery.start()
                    replaced = True
                except (NurseryLost, OSError) as error:
                    self._how_it_died = f"could not be started ({error})"

    async def close(self) -> None:
        """Kill what runs and release everything."""
        self._plan.cancel()
        self._claim.end()
        if self._loads_known is not None:
            self._loads_known.cancel()
        await self._nursery.close()
        self.talk.close()
        self._scratch.remove()

    @property
    def nursery_lives(self) -> bool:
        """Whether the fork server runs."""
        return self._nursery.pid is not None and not self._nursery.dead

    def run_until(self, t_s: float) -> None:
        """Let workers run until this time on `CLOCK_BOOTTIME`."""
        self._nursery.run_until(t_s)

    def stop(self, stop_timeout_s: float, why: str, *, planned: bool = False) -> None:
        """Send SIGTERM, then SIGKILL after `stop_timeout_s`; with 0.0 SIGKILL at once. `why` is for the workers' logs.

        `planned`: workers of a collective job that accept planned restarts are asked to save and to exit first.
        """
        self._plan.cancel()
        self._hangs.end()
        if not self.states.gone:
            self.states.stopping(why, boottime())
        line = sanitize.sanitize_line(failure_report.stopped_worker_line(why))
        collective = self._config.run_mode == "collective"
        if planned and collective and not self.states.gone and self.talk.listening():
            self._plan.begin(self._nursery, lambda: self.states.running, stop_timeout_s, why, line)
        elif stop_timeout_s > 0:
            self._nursery.stop(stop_timeout_s, line)
        else:
            self._nursery.kill(line)

    def begin(self, action: StartWorkers, run_until_s: float, saved: str = "", secret: str = "") -> None:
        """Start the workers of a generation; they may run until `run_until_s`.

        `saved` is the job's newest committed checkpoint for the workers, `secret` that of the job's peer connections.
        """
        generation = action.generation
        if action.incarnation != self._incarnation:  # In another store the job starts over, whatever is in memory.
            self._incarnation = action.incarnation
            self.talk.segments.drop_all()
        self.lists.write(generation)
        if action.m_id == 0:
            self._claim.begin(f"{action.incarnation}/{generation.g}")
        specs = self._specs.make(action, JobContext(saved, self._restore_step, self.talk.path, secret))
        for spec in specs.values():
            with suppress(OSError):  # It may exist from an earlier start with the same cluster spec.
                os.unlink(spec.env["TORCHELASTIC_ERROR_FILE"])
        start = generation.start_of(generation.members[action.m_id].node) or (generation.g, 0)
        self._hangs.begin(generation.g)
        self._nursery.run_until(run_until_s)
        now = boottime()
        self.states.begin(
            generation.g,
            (TrackedProcess(spec, _number(spec), generation.g, now) for spec in specs.values()),
            first=generation.before is None and start[1] == 0,
        )
        self.talk.begin(generation.g, self.states.seen)
        self.learning.begin(len(specs))
        try:
            self._nursery.spawn(generation.g, list(specs.values()))
        except NurseryLost:
            self._all_lost()
        else:
            for local, spec in specs.items():
                output = self._nursery.workers[local]
                self.states.seen[local].output = output
                self.last_logs.begin(spec.log_text, spec.log.name, start, spec.header, output.log)
        for spec in specs.values():
            name, text = (
                environment_dump.environment_file_name(spec.role, spec.rank),
                text_bytes(environment_dump.environment_text(spec.env)),
            )
            self._sink.put(WriteEnvironment(self.lists.logs, name, text), name)

    async def stacks(self, asked: StacksQuestion) -> StackText | InspectRefusal:
        """Return the stack traces of a process of this node, or the reason why they are unavailable."""
        one = self.states.named(asked.role, asked.index)
        if one is None:
            return InspectRefusal(f"{process_name(asked.role, asked.index)} is not on {self._node}")
        return await stacks_module.stacks(one)

    def annotate_logs_with_cause(self, cause: Cause) -> None:
        """Append the root cause to the logs of workers that ended because of another, unless they show it already."""
        if self.states.g != cause.g or cause.first.secondary:
            return
        for spec, line in cause_lines(self.states, cause):
            self._sink.put(AppendClosed(path_bytes(spec.log), text_bytes(line)), spec.log.name)

    # Events of the fork server.

    def _on_worker_event(self, event: nursery_client.NurseryEvent) -> None:
        self.talk.catch_up()
        self._on_event(event)
        match event:
            case protocol.NurseryReady() if event.loaded:
                self._agent_log.debug(f"workers start with {len(event.loaded)} modules of the script preloaded")
            case protocol.NurseryReady():
                if event.cold:
                    self._tell_cold(event.cold)
                else:
                    self._agent_log.debug("the fork server is ready: workers start with torch preloaded")
                if event.said:
                    self._agent_log.debug(f"output of its imports: {' '.join(event.said.split())}")
                if self._preload_config.learns and not event.cold and self._loads_known is None:
                    self._loads_known = asyncio.create_task(self._load_known())
                else:
                    self._put(NodePrepared())
            case protocol.ChildrenForked():
                self._spawned(event)
            case protocol.ChildExited():
                self._exited(event)
            case protocol.GenerationExited():
                if event.left:
                    self._agent_log.warning(f"processes {event.left} of another user could not be killed")
                self._gone(event.g)
            case protocol.GenerationExpired():
                self._agent_log.warning("the fork server killed the workers: the lease of this node had expired")
            case nursery_client.NurseryDied():
                self._how_it_died = "died" if self.states.gone else "died, and its workers with it"
                if not self._nursery.prepared:  # Perhaps the imports kill it.
                    self._preload_config = self._preload_config._replace(cold="the fork server died during its imports")
                    self._how_it_died = "died during its imports"
                self._nursery_died.set()
                self._all_lost()

    async def _load_known(self) -> None:
        """Load what is known of the script's imports before this node registers."""
        try:
            await self.learning.load_known()
        finally:
            self._put(NodePrepared())

    def _tell_cold(self, why: str) -> None:
        """Log once why workers start without preloading."""
        if why not in self._cold:
            self._cold.add(why)
            log = self._agent_log.debug if why in warm_policy.QUIET else self._agent_log.info
            log(f"workers start without preloading: {why}")

    def _spawned(self, event: protocol.ChildrenForked) -> None:
        cold = {why for why in event.cold if why}
        for why in sorted(cold):
            self._tell_cold(why)
        how = f"not preloaded: {', '.join(sorted(cold))}" if cold else "preloaded"
        self.states.spawned(event.g, event.pids, event.cold, boottime())
        pids = ", ".join(map(str, event.pids))
        self._agent_log.debug(f"started the workers of generation {event.g}: pids {pids} ({how})")

    def _exited(self, event: protocol.ChildExited) -> None:
        if not self.states.has(event.g):
            return
        process = self.states.seen[event.local_rank]
        self._hangs.gone(event.local_rank)
        exit_, also = worker_end(process, event, starting=self.states.first and not self._config.retry_startup_errors)
        process.secondary = exit_.secondary
        words = (also or exit_).words
        process.exited(event.code, words, boottime())
        self._agent_log.debug(f"{process_name(process.spec.role, process.spec.rank)} ended: {words}")
        own = not event.stopped and not process.given_up
        self._put(WorkerExited(event.g, also or exit_, own=own, also=also is not None))

    def _on_message(self, heard: TrackedProcess, message: WorkerMessage) -> None:
        """Pass a worker's message to the observers. Their order does not matter: none reads another one's state."""
        for observer in (
            self._progress.on_message,
            self._hangs.on_message,
            self._plan.on_message,
            self.learning.on_message,
            self._on_report,
        ):
            observer(heard, message)
        if isinstance(message, AcceptsPlannedStop) and all(
            process.report.listening for process in self.states.seen.values()
        ):
            self._put(WorkersListen(self.talk.g))

    def watched(self, g: int, cause: FailureCause, seen: Mapping[int, Numbers]) -> tuple[WorkerExit, ...]:
        """Return the records of those of these workers of generation `g` that still run; `seen` has their values."""
        if not self.states.has(g):
            return ()
        still = self.states.running
        return tuple(watched_end(self.states.seen[local], cause, seen[local]) for local in seen if local in still)

    def give_up(self, g: int, cause: FailureCause, seen: Mapping[int, Numbers]) -> None:
        """Declare workers failed that run but cannot continue; that stops them."""
        if failures := self.watched(g, cause, seen):
            for local in seen:
                self.states.seen[local].given_up = True
            self._put(WorkersHung(g, failures))

    def _gone(self, g: int) -> None:
        if not self.states.has(g):
            return
        self.states.gone = True
        processes = self.states.seen.values()
        steps = [worker_files.read_step(process.spec.env["ELASTIC_PROGRESS_FILE"]) for process in processes]
        reports = [process.report for process in processes]
        steps += [report.saved for report in reports]
        steps += [step for report in reports if (step := report.steps.step) is not None]
        if any(report.committed or report.saved >= 0 for report in reports):
            self._restore_step = None  # The job rolled back to it, and training has continued from there.
        self._progress.end()
        self.talk.end()
        self._plan.cancel()
        self._hangs.end()
        self._claim.end()
        self._put(WorkersGone(g, max(steps, default=-1)))

    def _all_lost(self) -> None:
        """Report that the fork server died, and every worker that it supervised with it."""
        if self.states.gone:
            return
        g = self.states.g
        for local in sorted(self.states.running):
            process = self.states.seen[local]
            lost = watched_end(process, NURSERY_DIED, {}, -signal.SIGKILL)
            process.exited(lost.code, lost.words, boottime())
            self._put(WorkerExited(g, lost, own=True))
        self._gone(g)


def _number(spec: WorkerSpec) -> int:
    """Return the number that a worker's messages carry: its rank, or one that no worker has."""
    return SERVERS_FROM + spec.rank if spec.role is Role.SERVER else int(spec.env.get("RANK", 0))
