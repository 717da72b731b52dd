"""One node of a run: the agent's end of the local channel of its workers, and their memory."""

from __future__ import annotations

import selectors
from collections.abc import Callable
from pathlib import Path

from elastic.channel import messages
from elastic.channel.server import ChannelServer, WorkerConnection
from elastic.channel.shared_memory import Segments


class ReplicaNode:
    """A node. Its memory lives as long as the node, even if its workers exit."""

    def __init__(
        self,
        number: int,
        folder: Path,
        selector: selectors.BaseSelector,
        heard: Callable[[WorkerConnection, messages.WorkerMessage], None],
        detail: Callable[[str], None],
    ) -> None:
        """Listen, with a callback as the data of `selector`. `heard` gets each message with its connection."""
        self.number = number
        self.name = f"node{number}-{number:04x}"
        self._selector = selector
        self._segments = Segments()
        self.server = ChannelServer(
            folder / f"{self.name}.sock",
            heard,
            segments=self._segments,
            detail=lambda text: detail(f"{self.name}: {text}"),
        )
        selector.register(self.server.fileno(), selectors.EVENT_READ, self.server.serve)

    def send(self, generation: int, rank: int, message: messages.AgentMessage) -> bool:
        """Send a message to a worker; False if it is not connected."""
        return any(
            self.server.send(connection, message)
            for connection in self.server.connections
            if connection.hello is not None
            and (connection.hello.generation, connection.hello.rank) == (generation, rank)
        )

    def close(self) -> None:
        """Close the socket and free the memory. A second call does nothing."""
        if self.server.fileno() >= 0:
            self._selector.unregister(self.server.fileno())
        self.server.close()
        self._segments.drop_all()
