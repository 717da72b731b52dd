"""The messages of this node's workers, and the one place where they arrive.

`elastic.channel.server` receives them, `WorkerChannel` updates the `TrackedProcess` of each worker of the running
generation, and passes each message on. Messages of processes that have ended, or of another generation, are ignored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from elastic.channel.messages import AgentLogLine, PlannedStopRequest, WorkerHello, WorkerMessage
from elastic.channel.server import ChannelServer, WorkerConnection
from elastic.channel.shared_memory import Segments
from elastic.errors import ConfigError
from launcher.logs.logger import AgentLog
from launcher.system.clock import boottime
from launcher.workers.reports.states import TrackedProcess

NOTES_MAX = 100
"""Different notes that the workers of a node may log in one generation."""


ReportListener = Callable[[TrackedProcess, WorkerMessage], None]
"""Receives each message, after the `TrackedProcess` was updated."""


class WorkerChannel:
    """The agent's side of the channel to its workers.

    `workers` are those of the running generation, by local rank.
    """

    def __init__(
        self, path: Path, agent_log: AgentLog, on_message: ReportListener, memory_limit_bytes: int | None = None
    ) -> None:
        """`path` is the socket, in a directory that only this user can enter; `start` listens there.

        `on_message` receives every message except `AgentLogLine`.
        """
        self.workers: Mapping[int, TrackedProcess] = {}
        self._on_report = on_message
        self.segments = Segments(memory_limit_bytes)
        self.g = 0
        self._path = path
        self._agent_log = agent_log
        self._server: ChannelServer | None = None
        self._notes: set[str] = set()

    @property
    def path(self) -> str:
        """The value of ELASTIC_CHANNEL, "" if there is no channel."""
        return self._server.path if self._server is not None else ""

    def start(self) -> None:
        """Listen. If the channel cannot be opened, one line is logged; scripts run without it."""
        try:
            self._server = ChannelServer(
                self._path, self._on_message, segments=self.segments, detail=self._agent_log.debug, left=self._hung_up
            )
        except ConfigError as error:
            self._agent_log.warning(
                f"planned restarts, progress and in-memory checkpoints of the elastic library are off: {error}"
            )
            return
        asyncio.get_running_loop().add_reader(self._server.fileno(), self._server.serve)

    def begin(self, g: int, workers: Mapping[int, TrackedProcess]) -> None:
        """Listen to the workers of generation `g`, by local rank."""
        self.end()
        self.g = g
        self.workers = workers

    def end(self) -> None:
        """Forget the messages of workers that have exited."""
        if self._server is not None:
            for connection in self._server.connections:
                self._server.close_connection(connection)
        self.workers = {}
        self._notes = set()

    def catch_up(self) -> None:
        """Read the messages that workers sent before they ended."""
        if self._server is not None:
            self._server.catch_up()

    def listening(self) -> bool:
        """Return whether any worker accepts a planned restart."""
        self.catch_up()
        return any(heard.report.listening and heard.connection is not None for heard in self.workers.values())

    def has_saved(self, local_rank: int) -> bool:
        """Return whether a worker has reported that it saved and exits; its last messages are read first."""
        self.catch_up()
        heard = self.workers.get(local_rank)
        return heard is not None and heard.report.left_at is not None

    def ask_to_leave(self, reason: str, local_ranks: Collection[int]) -> list[TrackedProcess]:
        """Send the request of a planned restart to those of `local_ranks` that accept it; returns those that got it."""
        self.catch_up()
        asked = []
        for local in sorted(local_ranks):
            heard = self.workers[local]
            if (
                heard.report.listening
                and heard.connection is not None
                and self._server is not None
                and self._server.send(heard.connection, PlannedStopRequest(reason))
            ):
                asked.append(heard)
        return asked

    def close(self) -> None:
        """Close the connections, and release the memory. May be called again."""
        if self._server is not None:
            asyncio.get_running_loop().remove_reader(self._server.fileno())
            self._server.close()
            self._server = None
        self.segments.drop_all()

    # --- messages ---------------------------------------------------------------------------------------------------

    def _on_message(self, connection: WorkerConnection, message: WorkerMessage) -> None:
        assert self._server is not None
        assert connection.hello is not None
        hello = connection.hello
        heard = self.workers.get(hello.local_rank)
        if heard is None or hello.generation != self.g or hello.rank != heard.rank:
            self._server.close_connection(connection, f"is not a worker of generation {self.g} here")
            return
        if isinstance(message, AgentLogLine):
            self._note(message)
            return
        if isinstance(message, WorkerHello):
            heard.connection = connection
        heard.heard(message, boottime())
        self._on_report(heard, message)

    def _hung_up(self, connection: WorkerConnection) -> None:
        for heard in self.workers.values():
            if heard.connection is connection:
                heard.hung_up(boottime())

    def _note(self, note: AgentLogLine) -> None:
        if note.text in self._notes or len(self._notes) >= NOTES_MAX:
            return
        self._notes.add(note.text)
        (self._agent_log.warning if note.warn else self._agent_log.info)(note.text)
