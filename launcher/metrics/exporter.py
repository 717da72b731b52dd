"""The monitoring endpoints of an agent: /metrics for Prometheus, /healthz and /readyz, and their data.

With `--metrics-port` an agent has one of these. It counts events, and computes the rest for each query. An error in it
is one line in the log: monitoring never ends training.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from elastic.channel.messages import Progress, WorkerMessage
from elastic.core.agent.state import AgentState
from launcher.config.job_settings import JobSettings
from launcher.metrics import readiness
from launcher.metrics.catalog import WORKER_LABELS
from launcher.metrics.collector import MetricsCollector, Readings
from launcher.net.endpoints import join_host_port
from launcher.system import frozen_imports
from launcher.system.clock import boottime
from launcher.system.processes import started_at
from launcher.workers.group import WorkerGroup
from launcher.workers.node_output import NodeOutput
from launcher.workers.reports.states import TrackedProcess

if TYPE_CHECKING:
    from launcher.metrics.exposition import MetricsPage
    from launcher.metrics.server import HttpReply, MetricsServer

METRICS, HEALTHZ, READYZ = "/metrics", "/healthz", "/readyz"


@dataclass(frozen=True, slots=True)
class AgentReading:
    """The current state of an agent. `facts` are those of its core, None before etcd is reached.

    `waits`: why this node does not join, or what it waits for, "" if for nothing. `dropped` counts the events that its
    history left out.
    """

    facts: AgentState | None
    waits: str
    dropped: int


class MetricsExporter:
    """The exporter of one agent. It does not listen before `open`."""

    def __init__(
        self, job: JobSettings, out: NodeOutput, workers: WorkerGroup, agent_reading: Callable[[], AgentReading]
    ) -> None:
        """`workers` are this node's."""
        self._job = job
        self._agent_log = out.agent_log
        self._workers = workers
        self._disk = out.disk
        self._agent_reading = agent_reading
        self.collector = MetricsCollector(started_at() or boottime())
        self._server: MetricsServer | None = None
        self._page: MetricsPage | None = None
        self._complained = False

    def open(self, host: str, port: int) -> None:
        """Listen at this address. A port that another process uses is reported in one line."""
        with frozen_imports.frozen_imports():  # An import needs file descriptors, and later there may be none.
            from launcher.metrics.exposition import MetricsPage
            from launcher.metrics.server import MetricsServer

        self._page = MetricsPage(self._job.job_id, self._read)
        server = MetricsServer(self._answer, self._complain)
        try:
            where = join_host_port(*server.listen(host, port))
        except OSError as error:
            number = error.errno or 0  # Negative for a host name that is not known.
            why = os.strerror(number) if number > 0 else error.strerror or str(error)
            self._agent_log.warning(_unusable(host, port, why))
        except UnicodeError as error:  # It looks like a host name but cannot be one.
            self._agent_log.warning(_unusable(host, port, str(error)))
        else:
            self._server = server
            self._agent_log.info(f"metrics: http://{where}{METRICS} (health: {HEALTHZ}, {READYZ})")

    async def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            await self._server.close()

    def _complain(self, text: str) -> None:
        """Log once that a page cannot be generated, because a monitoring system repeats its request."""
        if not self._complained:
            self._complained = True
            self._agent_log.warning(text)

    # --- messages of workers --------------------------------------------------------------------------------------

    def on_message(self, heard: TrackedProcess, message: WorkerMessage) -> None:
        """Note a message of a worker."""
        if isinstance(message, Progress):
            now = boottime()
            at = min(message.at, now) if message.at > 0 else now
            self.collector.stepped(heard.local_rank, message.step, message.metrics, at)

    # --- answers --------------------------------------------------------------------------------------------------

    def _answer(self, path: str, accept: str) -> HttpReply | None:
        from launcher.metrics.server import text_reply

        match path:
            case "/metrics" if self._page is not None:
                return self._page.page(accept, boottime())
            case "/healthz":
                verdict = readiness.healthy(nursery=self._workers.nursery_lives)
            case "/readyz":
                known, running = self._agent_reading(), len(self._workers.states.running)
                verdict = readiness.ready(known.facts, running=running, reason=known.waits)
            case _:
                return None
        return text_reply(200 if verdict.yes else 503, verdict.words)

    def _read(self) -> Readings:
        known = self._agent_reading()
        states = Counter(WORKER_LABELS[one.state] for one in self._workers.states.seen.values())
        workers = {label: states[label] for label in WORKER_LABELS.values()}
        return Readings(self.collector, known.facts, workers, known.dropped, self._disk.left_out_bytes, boottime())


def _unusable(host: str, port: int, why: str) -> str:
    return (
        f"cannot use --metrics-port {join_host_port(host, port)} ({why}): this node continues without metrics; "
        "choose a free port of an address of this host"
    )
