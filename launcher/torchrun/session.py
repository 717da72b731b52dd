"""One node of torchrun in one job, from its first word to etcd to its last.

It is an agent of `elastic-launch` without a nursery: the same core and driver (`launcher.agent.core_driver`). What the
core wants of workers goes to `tell`, and what torch's agent does comes back as events. There is no policy here.
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
"""A node whose torchrun has ended its work has no business in these: it would be waited for."""
SAY_LIMIT_S = 0.5
"""A node whose workers are gone waits no longer than this until the others know that it leaves."""

WorkersAction = actions.StartWorkers | actions.StopWorkers


@dataclass(frozen=True, slots=True)
class SessionResult:
    """How a stay ended: the code that elastic-launch would have, the verdict if there is one, or why it was refused."""

    code: int
    verdict: Verdict | None
    refusal: str


class _TorchrunLog(AgentLog):
    """Says everything in the words of a user of torchrun."""

    def _speak(self, text: str, level: Verbosity) -> None:
        super()._speak(translate_message(text), level)

    def report(self, lines: Sequence[str]) -> None:
        """Lines that stand by themselves."""
        super().report([translate_message(line) for line in lines])


class TorchrunSession:
    """One node in one job, in a thread of its own. `end` is how it ends."""

    def __init__(
        self,
        settings: RdzvSettings,
        thread: AgentLoopThread,
        tell: Callable[[WorkersAction, AgentState], None],
        look: Callable[[], None],
    ) -> None:
        """It begins at once. `tell` hears what the core wants of workers, `look` that it has thought again, or ended.

        Both are called in the `thread`.
        """
        self._config = settings.config
        self._tell = tell
        self._look = look
        self._call = thread.call
        self._events = EventQueue(boottime)
        self._driver: CoreDriver | None = None
        """There is none before etcd is reached."""
        self._over = False
        self._held: list[agent_events.Event] = []
        self.host = ""
        self.agent_log = _TorchrunLog("-", Console(STDERR))
        self.end = thread.begin(self._run)
        self.end.add_done_callback(lambda _: look())

    def put(self, *events: agent_events.Event, over: bool = False) -> None:
        """Tell the core something, from any thread. `over`: torch's agent has ended, and leaves if a round begins."""

        def arrive() -> None:
            self._over = self._over or over
            for event in events:
                self._events.put_nowait(event)

        self._call(arrive)

    def leave(self, number: int, reason: str, gone: Sequence[agent_events.Event]) -> None:
        """Have the node leave, from any thread; `gone` says of the workers that it had that they are gone.

        The others are to know that it leaves before they hear that: then the next world is made without it.
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
        """How the job ended, as far as this node knows."""
        stored = self._driver.core.facts.view.verdict if self._driver is not None else None
        return stored.value if stored is not None else None

    @property
    def spare(self) -> bool:
        """Tell whether a world runs without this node, which waits for its turn."""
        facts = self._driver.core.facts if self._driver is not None else None
        if facts is None or facts.phase is not Phase.SPARE or facts.generation is None:
            return False
        return facts.view.go is not None and facts.view.go.value.g == facts.generation.g

    async def _run(self) -> SessionResult:
        """Join, take part, leave. Raises `ElasticError` for a store that is not there, or what this machine lacks."""
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
            core.facts.registration.prepared = True  # Torch's agent has nothing to load.
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
        match action:  # Torch's agent cannot be told of a cluster spec, or of a later run deadline.
            case actions.StartWorkers() | actions.StopWorkers():
                self._tell(action, self._driver.core.facts)
            case actions.ReportFailure(cause=cause):
                failed = failed_processes_text(cause.exits, cause.host)
                self.agent_log.info(f"generation {cause.g} failed: {failed}; the job goes on")
            case actions.ReportVerdict():
                self._driver.report_verdict(action)

    def ask_to_conclude(self) -> None:
        """Have `_conclude` called, from any thread."""
        self._call(self._conclude)

    def _conclude(self) -> None:
        """Write that the job has completed, if this node may and nobody has written a verdict yet."""
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
