"""One node of a run: the agent's end of its workers' local channel, and their memory."""

from __future__ import annotations

import selectors
from collections.abc import Callable
from pathlib import Path

from elastic.channel import messages
from elastic.channel.server import ChannelServer, WorkerConnection
from elastic.channel.shared_memory import Segments

MessageHandler = Callable[[messages.WorkerHello, messages.WorkerMessage], None]


class ReplicaNode:
    """A node by its number. Its memory lives as long as the node, whatever becomes of its workers."""

    def __init__(
        self,
        number: int,
        folder: Path,
        selector: selectors.BaseSelector,
        heard: MessageHandler,
        detail: Callable[[str], None],
    ) -> None:
        """Listen, in `selector`, whose data is what to call. `heard` gets each message and who says it."""
        self.number = number
        self.name = f"node{number}-{number:04x}"
        self._heard = heard
        self._selector = selector
        self._segments = Segments()
        self._server = ChannelServer(
            folder / f"{self.name}.sock",
            self._on_message,
            segments=self._segments,
            detail=lambda text: detail(f"{self.name}: {text}"),
        )
        selector.register(self._server.fileno(), selectors.EVENT_READ, self._server.serve)
        self._registered = self._server.fileno()

    @property
    def path(self) -> str:
        """ELASTIC_CHANNEL of its workers."""
        return self._server.path

    def send(self, generation: int, rank: int, message: messages.AgentMessage) -> bool:
        """Say something to a worker; False if it has never connected or has hung up."""
        return any(
            self._server.send(connection, message)
            for connection in self._server.connections
            if connection.hello is not None
            and (connection.hello.generation, connection.hello.rank) == (generation, rank)
        )

    def catch_up(self) -> None:
        """Hear all that was said before this call."""
        self._server.catch_up()

    def close(self) -> None:
        """Let go of the socket and of the memory. A second call does nothing."""
        if self._registered >= 0:
            self._selector.unregister(self._registered)
            self._registered = -1
        self._server.close()
        self._segments.drop_all()

    def _on_message(self, connection: WorkerConnection, message: messages.WorkerMessage) -> None:
        if connection.hello is not None:
            self._heard(connection.hello, message)
