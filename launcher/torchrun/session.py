"""One node of torchrun in one job, from its first message to etcd to its last.

It is an agent of `elastic-launch` without a fork server: the same core and driver (`launcher.agent.core_driver`). The
core's actions on workers go to `tell`, and torch's agent's reactions return as events. There is no policy here.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

from elastic.core.agent import actions
from elastic.core.agent import events as agent_events
from elastic.core.agent.state import AgentState, Phase
from elastic.core.keys import JobKeys
from elastic.core.kv import KeyRange
from elastic.core.membership.decision import ConcludeJob, Reason
from elastic.core.model import FinalStatus, Verdict
from elastic.core.text import failed_processes_text
from elastic.core.transactions import propose
from launcher.agent import node_id, registration
from launcher.agent.core_driver import CoreDriver, EventQueue
from launcher.agent.store_connection import StoreConnector, resolve
from launcher.logs.console import Console
from launcher.logs.logger import AgentLog, Verbosity
from launcher.system.clock import boottime
from launcher.torchrun.flag_names import translate_message
from launcher.torchrun.loop_thread import AgentLoopThread
from launcher.torchrun.options import RdzvSettings

STDERR = 2
OVER = (Phase.JOINING, Phase.SPARE, Phase.GATED)
"""A node whose torchrun has ended its work must leave in these phases: otherwise the others would wait for it."""
SAY_LIMIT_S = 0.5
"""The longest time, in seconds, that a node with exited workers waits for the others to learn that it leaves."""

WorkersAction = actions.StartWorkers | actions.StopWorkers


@dataclass(frozen=True, slots=True)
class SessionResult:
    """How a session ended: the exit code of elastic-launch, the final status if there is one, or the refusal."""

    code: int
    verdict: Verdict | None
    refusal: str


class _TorchrunLog(AgentLog):
    """Logs everything with torchrun's names of flags."""

    def _speak(self, text: str, level: Verbosity, mark: str = "") -> None:
        super()._speak(translate_message(text), level, mark)

    def report(self, lines: Sequence[str]) -> None:
        """Log lines without the prefix."""
        super().report([translate_message(line) for line in lines])


class TorchrunSession:
    """One node in one job, in a separate thread. `end` is how it ends."""

    def __init__(
        self,
        settings: RdzvSettings,
        thread: AgentLoopThread,
        tell: Callable[[WorkersAction, AgentState], None],
        look: Callable[[], None],
    ) -> None:
        """Start at once. `tell` receives the core's actions on workers, `look` is called after each event and the end.

        Both are called in the `thread`.
        """
        self._config = settings.config
        self._tell = tell
        self._look = look
        self._call = thread.call
        self._events = EventQueue(boottime)
        self._driver: CoreDriver | None = None
        """None before etcd is reached."""
        self._over = False
        self._held: list[agent_events.Event] = []
        self.host = ""
        self.agent_log = _TorchrunLog("-", Console(STDERR))
        self.end = thread.begin(self._run)
        self.end.add_done_callback(lambda _: look())

    def put(self, *events: agent_events.Event, over: bool = False) -> None:
        """Send events to the core, from any thread. `over`: torch's agent has ended, and leaves if a round begins."""

        def arrive() -> None:
            self._over = self._over or over
            for event in events:
                self._events.put_nowait(event)

        self._call(arrive)

    def leave(self, number: int, reason: str, gone: Sequence[agent_events.Event]) -> None:
        """Make the node leave, from any thread; `gone` are the events that its workers have exited.

        The other nodes must know that it leaves before they receive these events: then the next generation excludes it.
        """

        def arrive() -> None:
            self._over = True
            self._held.extend(gone)
            self._events.put_nowait(agent_events.DrainRequested(128 + number, reason))
            asyncio.get_running_loop().call_later(SAY_LIMIT_S, self._release)

        self._call(arrive)

    def _release(self) -> None:
        held, self._held = self._held, []
        for event in held:
            self._events.put_nowait(event)

    @property
    def verdict(self) -> Verdict | None:
        """The final status of the job, as far as this node knows."""
        stored = self._driver.core.facts.view.verdict if self._driver is not None else None
        return stored.value if stored is not None else None

    @property
    def spare(self) -> bool:
        """Return whether a world runs without this node, which waits for its turn."""
        facts = self._driver.core.facts if self._driver is not None else None
        if facts is None or facts.phase is not Phase.SPARE or facts.generation is None:
            return False
        return facts.view.go is not None and facts.view.go.value.g == facts.generation.g

    async def _run(self) -> SessionResult:
        """Join, take part, leave. Raises `ElasticError` for an unavailable store, or what this host lacks."""
        config = self._config
        host = self.host = await resolve(config)
        node = node_id.new_node_id(host)
        level = Verbosity.VERBOSE if config.verbose else Verbosity.QUIET if config.quiet else Verbosity.NORMAL
        self.agent_log = _TorchrunLog(node, Console(STDERR), level=level)
        for warning in config.warnings:
            self.agent_log.warning(warning)
        spec = KeyRange.key(JobKeys(config.job_id, config.key_prefix).spec)
        async with AsyncExitStack() as closing:
            store = config.store_access.open()
            closing.push_async_callback(store.close)
            closing.callback(self.agent_log.close)
            connecting = StoreConnector(config, asyncio.get_running_loop().create_future())
            await connecting.until(lambda: store.list(spec), self.agent_log, lambda: store.last_error)
            core, listener = await registration.open_node(config, node, host, closing)
            core.facts.registration.prepared = True  # Torch's agent preloads nothing.
            self._driver = CoreDriver(core, store, listener, self._events, self.agent_log)
            code = await self._driver.run(self._perform, after=self._after_event)
            return SessionResult(code, self.verdict, translate_message(core.facts.registration.refusal))

    def _after_event(self, event: agent_events.Event, wanted: Sequence[actions.Action]) -> None:
        assert self._driver is not None
        core = self._driver.core
        if self._held and (core.facts.leaving.announced or core.phase is not Phase.RUNNING):
            self._release()
        if self._over and core.facts.leaving.drain is None and core.phase in OVER:
            self._events.put_nowait(agent_events.DrainRequested(0, "torchrun has ended here"))
        self._look()

    def _perform(self, action: actions.Action) -> None:
        assert self._driver is not None
        match action:  # Torch's agent takes no cluster spec, and no later run deadline.
            case actions.StartWorkers() | actions.StopWorkers():
                self._tell(action, self._driver.core.facts)
            case actions.ReportFailure(cause=cause):
                failed = failed_processes_text(cause.exits, cause.host)
                self.agent_log.info(f"generation {cause.g} failed: {failed}; the job continues")
            case actions.ReportVerdict():
                self._driver.report_verdict(action)

    def ask_to_conclude(self) -> None:
        """Have `_conclude` called, from any thread."""
        self._call(self._conclude)

    def _conclude(self) -> None:
        """Write that the job has completed, if this node may and there is no final status yet."""
        driver = self._driver
        if driver is None or not driver.core.facts.registration.registered or self.verdict is not None:
            return
        facts = driver.core.facts
        spec, generation = facts.view.spec, facts.generation
        if spec is None:
            return
        reason = f"{facts.me.node} has closed the rendezvous"
        g = generation.g if generation is not None else 0
        decision = ConcludeJob(Reason.COMPLETED, reason, FinalStatus.COMPLETED, spec.value.run, g)
        created = facts.registration.create_revision
        wanted = propose(facts.keys, facts.view, facts.me.node, created, decision, time.time())
        driver.store_actions.perform(actions.SendTransaction(wanted))
