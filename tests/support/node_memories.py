"""Memory of several nodes that outlives their workers: an agent's end for each node, served by one thread."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from elastic.channel.messages import AgentLogLine, WorkerMessage
from elastic.channel.server import ChannelServer, WorkerConnection
from elastic.channel.shared_memory import Segments


@dataclass
class Node:
    """The memory of one node, and what its workers said to people."""

    path: str
    segments: Segments
    server: ChannelServer
    notes: list[str] = field(default_factory=list)

    def lose(self) -> None:
        """All that it holds is gone."""
        self.segments.drop_all()


@contextmanager
def nodes(folder: Path, count: int, limit_bytes: int = 1 << 30) -> Iterator[list[Node]]:
    """So many nodes, each with its own channel."""
    made = []
    for number in range(count):
        notes: list[str] = []

        def hear(_: WorkerConnection, message: WorkerMessage, notes: list[str] = notes) -> None:
            if isinstance(message, AgentLogLine):
                notes.append(message.text)

        segments = Segments(limit_bytes)
        server = ChannelServer(folder / f"{number}", hear, segments=segments, detail=notes.append)
        made.append(Node(server.path, segments, server, notes))
    ours, theirs = socket.socketpair()
    thread = threading.Thread(target=_serve, args=(made, theirs))
    thread.start()
    try:
        yield made
    finally:
        ours.close()
        thread.join()
        theirs.close()
        for node in made:
            node.server.close()
            node.lose()


def _serve(made: list[Node], ended: socket.socket) -> None:
    """Until the other end of `ended` is closed."""
    while True:
        ready = select.select([ended.fileno(), *(node.server.fileno() for node in made)], [], [])[0]
        if ended.fileno() in ready:
            return
        for node in made:
            node.server.serve()
