"""The status endpoint of an agent: clients that have proven to know the job's secret query the state of this node.

Clients can only read. Few are accepted at a time, and some more that follow logs. Each client has its own task, which
answers one query after the other; a failure there affects no other client. The server disconnects a client that sends
no query or does not read its answer; at most one answer waits for a client.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from elastic.core.text import log_name, process_name
from launcher.logs.recent_starts import LogPosition, RecentStarts
from launcher.net.line_socket import watch_by_kernel
from launcher.wire.inspect_messages import (
    ANSWER_MAX,
    LINES_MAX,
    QUESTION_MAX,
    STACKS_BYTES,
    InspectAnswer,
    InspectQuestion,
    InspectRefusal,
    InspectWelcome,
    LogEnd,
    LogPiece,
    LogQuestion,
    LogStart,
    NodeSnapshot,
    StacksQuestion,
    StackText,
    StatusQuestion,
    answer_line,
    read_question,
)
from launcher.wire.link_messages import LinkError

ASKERS_MAX: Final = 8
"""Clients at a time, without those that follow a log. A further client is refused, with this reason."""
FOLLOWERS_MAX: Final = 32
"""Clients that follow logs at a time: two for each rank of a large node. A further one gets a refusal."""
IDLE_LIMIT_S: Final = 30.0
"""A client that sends no query for this time is disconnected."""
SLOW_LIMIT_S: Final = 5.0
"""Time limit for a client to read one answer."""
PAUSE_S: Final = 0.05
"""Between two answers to the same client: a client that queries in a loop costs little."""
FOLLOW_PAUSE_S: Final = 0.1
"""Between two reads of a growing log."""
PIECES_AT_ONCE: Final = 8
"""Pieces that are sent after each read; a start retains as many. Output beyond 2.6 MB/s is dropped and counted."""
NEXT_START_S: Final = 10.0
"""Seconds that a follower waits for a start that the generation requires and this node has not begun."""
CLOSE_LIMIT_S: Final = 1.0
"""Time that an exiting agent gives followers to receive the end of their logs."""


StacksOf = Callable[[StacksQuestion], Awaitable[StackText | InspectRefusal]]


class InspectServer:
    """Answers clients. `stacks` is called for one client at a time."""

    def __init__(
        self,
        snapshot: Callable[[], NodeSnapshot],
        logs: RecentStarts,
        stacks: StacksOf,
        complain: Callable[[str], None],
    ) -> None:
        """Wait for `take`. `complain` logs internal errors."""
        self._snapshot = snapshot
        self._logs = logs
        self._stacks = stacks
        self._complain = complain
        self._askers: set[asyncio.Task[None]] = set()
        self._followers: set[asyncio.Task[None]] = set()
        """Clients that follow a log; they no longer count as ordinary clients."""
        self._stacks_turn = asyncio.Lock()
        self._closing = False

    def take(self, connected: socket.socket) -> None:
        """Serve an authenticated client. The server owns and closes the connection."""
        if self._closing:
            connected.close()
            return
        full = len(self._askers) >= ASKERS_MAX
        task = asyncio.get_running_loop().create_task(self._serve(connected, full=full), name="asker")
        if not full:
            self._askers.add(task)
        task.add_done_callback(self._done)

    async def close(self) -> None:
        """Send followers the ends of their logs, within `CLOSE_LIMIT_S`, and disconnect all clients."""
        self._closing = True
        self._logs.notify()
        if here := self._askers | self._followers:
            _, late = await asyncio.wait(here, timeout=CLOSE_LIMIT_S)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    def _done(self, task: asyncio.Task[None]) -> None:
        """Report an unexpected error of a client's task; it ends that client and not the agent."""
        self._askers.discard(task)
        self._followers.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._complain(f"cannot answer a status query ({error!r}); the job continues")

    async def _serve(self, connected: socket.socket, *, full: bool) -> None:
        with suppress(OSError):  # The client has disconnected.
            watch_by_kernel(connected)
        loop = asyncio.get_running_loop()
        asker = _InspectSession(loop)
        try:
            transport, protocol = await loop.create_connection(
                lambda: asyncio.StreamReaderProtocol(asker, loop=loop), sock=connected
            )
        except OSError:
            connected.close()
            return
        writer = asker.writer = asyncio.StreamWriter(transport, protocol, asker, loop)
        transport.set_write_buffer_limits(high=0)
        self._logs.listeners.append(asker.log_changed)
        try:
            await asker.send(InspectWelcome())
            if full:
                await asker.send(
                    InspectRefusal(f"too many clients ({ASKERS_MAX}) are querying this node; try again", later=True)
                )
                return
            while not self._closing and (question := await asker.read_question()) is not None:
                await self._answer(asker, question)
                await asyncio.sleep(PAUSE_S)
        except LinkError:
            with suppress(OSError):  # The client may have disconnected.
                await asker.send(InspectRefusal("this agent does not understand the query; it may run another version"))
        except OSError:  # The client has disconnected, or is too slow (TimeoutError).
            pass
        finally:
            self._logs.listeners.remove(asker.log_changed)
            transport.abort() if transport.get_write_buffer_size() else writer.close()

    async def _answer(self, asker: _InspectSession, question: InspectQuestion) -> None:
        match question:
            case StatusQuestion():
                await asker.send(self._snapshot())
            case LogQuestion() if question.follow and not self._register_follower():
                await asker.send(
                    InspectRefusal(f"too many clients ({FOLLOWERS_MAX}) follow logs of this node", later=True)
                )
            case LogQuestion():
                await self._send_log(asker, question)
            case StacksQuestion():
                async with self._stacks_turn:
                    reply = await self._stacks(question)
                if isinstance(reply, StackText) and len(data := reply.text.encode(errors="replace")) > STACKS_BYTES:
                    reply = StackText(f"{data[:STACKS_BYTES].decode(errors='ignore')}\n… (cut here)", reply.how)
                await asker.send(reply)

    def _register_follower(self) -> bool:
        """Count the client of this task as a follower until it disconnects; False if there are too many."""
        task = asyncio.current_task()
        assert task is not None
        if task not in self._followers:
            if len(self._followers) >= FOLLOWERS_MAX:
                return False
            self._askers.discard(task)
            self._followers.add(task)
        return True

    async def _send_log(self, asker: _InspectSession, question: LogQuestion) -> None:
        logs, name, after = self._logs, log_name(question.role, question.index), (question.g, question.rev)
        asker.follows, place = name, None
        if question.offset >= 0 and logs.has(name, after):
            place, after = LogPosition(after, question.offset), (question.g, question.rev - 1)
        else:
            place = logs.begins(name, after, question.lines, question.since_s)
        with suppress(TimeoutError):
            async with asyncio.timeout(NEXT_START_S):
                while place is None and question.follow and not (self._closing or asker.gone):
                    await asker.wait()
                    place = logs.begins(name, after, LINES_MAX)
        if place is None:
            if after == (0, 0) and not question.follow:
                await asker.send(InspectRefusal(f"{process_name(question.role, question.index)} has not run here"))
            else:
                await asker.send(LogEnd(0, 0, over=False))
            return
        await asker.send(LogStart(logs.path(name)))
        while True:
            asker.woken.clear()
            over = logs.over(name, after)  # Before the last read: the next read has what is written after it.
            place, whole = await self._send_pieces(asker, name, place)
            forgotten = not logs.has(name, place.stamp)  # The rank has run on another node since.
            if whole and (over is not None or forgotten or not question.follow or self._closing):
                await asker.send(LogEnd(*place.stamp, over=forgotten or (over is not None and place.stamp >= over)))
                return
            if asker.gone:
                return
            await asyncio.sleep(0 if self._closing else FOLLOW_PAUSE_S)
            if whole:
                await asker.wait()

    async def _send_pieces(self, asker: _InspectSession, name: str, place: LogPosition) -> tuple[LogPosition, bool]:
        """Send some pieces of the log; return the position after them, and whether that is the end."""
        for _ in range(PIECES_AT_ONCE):
            data, missing, place = self._logs.piece(name, place)
            if not data:
                return place, True
            await asker.send(LogPiece(data, missing, *place.stamp, place.offset))
        return place, False


class _InspectSession(asyncio.StreamReader):
    """One connection of a client, and its queries. `writer` is set once the client is connected."""

    writer: asyncio.StreamWriter

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(limit=QUESTION_MAX, loop=loop)
        self.follows = ""
        """The name of a log."""
        self.woken = asyncio.Event()
        """Set when that log may have changed, or the client has disconnected."""

    def feed_eof(self) -> None:
        super().feed_eof()
        self.woken.set()

    def set_exception(self, exc: Exception) -> None:
        super().set_exception(exc)
        self.woken.set()

    def log_changed(self, name: str) -> None:
        """Wake the session if it follows this log, or no log."""
        if name in ("", self.follows):
            self.woken.set()

    async def wait(self) -> None:
        """Wait until the session is woken."""
        await self.woken.wait()
        self.woken.clear()

    @property
    def gone(self) -> bool:
        """Return whether the client has disconnected."""
        return self.at_eof() or self.writer.is_closing()

    async def read_question(self) -> InspectQuestion | None:
        """Return the next query, None at the end of the connection. Raises `LinkError` for anything else."""
        try:
            async with asyncio.timeout(IDLE_LIMIT_S):
                line = await self.readline()
        except ValueError as error:
            raise LinkError("a query is too long") from error
        return read_question(line.removesuffix(b"\n")) if line.endswith(b"\n") else None

    async def send(self, answer: InspectAnswer) -> None:
        """Send an answer. Raises `OSError` if the client does not read it in time."""
        line = answer_line(answer)
        assert len(line) <= ANSWER_MAX, "an answer is too long"
        self.writer.write(line)
        async with asyncio.timeout(SLOW_LIMIT_S):
            await self.writer.drain()
