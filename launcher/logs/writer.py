"""Writes into the log folder what it is ordered to, and holds the folder meanwhile.

An agent has this done by a process of its own (`serve`), because a disk may be stalled for longer than a lease lives,
and a thread that waits for a disk would keep its process from ending. The process writes the console, too, where that
is a file, in threads of its own (`launcher.logs.pipe_to_file`): a stalled disk of the one does not hold up the other.
It ends when the agent has: after what was ordered and said before. `SyncSink` does orders at once, where a disk may be
waited for (tests, a writer that died).
"""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from elastic._disk.replace import replace_file
from elastic.errors import ConfigError
from launcher.logs import endpoint_list_writer
from launcher.logs.log_dir import HoldLogFolder
from launcher.logs.pipe_to_file import PipeToFile
from launcher.logs.rotating_file import RotatingFile, append_line
from launcher.logs.shared_file import SharedLog
from launcher.logs.writer_protocol import (
    AnyLogAnswer,
    AnyLogOrder,
    AppendClosed,
    AppendShared,
    CloseLog,
    LogAck,
    LogFolderReady,
    LogFolderRejected,
    LogFrameReader,
    LogNotice,
    OpenLog,
    WriteChunk,
    WriteEndpoints,
    WriteEnvironment,
    WriteLine,
    bytes_path,
    bytes_text,
    packed,
    path_bytes,
    text_bytes,
)
from launcher.system import proctitle
from launcher.system.checks import warning
from launcher.system.descriptors import keep_only, ready
from launcher.system.folder_checks import LOG, folder_check

STOOD_STILL = "the disk stood still"
READ_BYTES = 1 << 16
DONE_EVERY_S = 0.2
DONE_EVERY = 8
"""At least so often it is told what is done, while more is to be done."""
TITLE = ("elastic-launch:", "writes", "logs")
IGNORED_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""Signals to all processes of a job: what the agent says while it leaves is to be written, too."""

Tell = Callable[[str, bool], None]
"""Hears what people should know, and whether only those who ask."""


class LogWriter:
    """Does orders. What cannot be written is told once for each file, and is lost."""

    def __init__(self, tell: Tell) -> None:
        """Nothing is open yet."""
        self._tell = tell
        self._starts: dict[int, RotatingFile] = {}
        self._shared: dict[bytes, SharedLog] = {}
        self._told: set[bytes] = set()

    def do(self, order: AnyLogOrder) -> None:
        """Do one order; returns when the disk has taken it."""
        if isinstance(order, WriteChunk | WriteLine | CloseLog):
            self._starts[order.start].note_lost_bytes(order.missing, STOOD_STILL)
        match order:
            case WriteChunk(start, data):
                self._starts[start].write(data)
            case WriteLine(start, text):
                self._starts[start].line(bytes_text(text))
            case AppendShared():
                self._append(order)
            case OpenLog():
                path, header = bytes_path(order.path), bytes_text(order.header)
                self._starts[order.start] = RotatingFile(path, header, self._warn, order.bound)
            case CloseLog():
                self._starts.pop(order.start).close()
            case AppendClosed():
                path = bytes_path(order.path)
                try:
                    append_line(path, bytes_text(order.text))
                except OSError as error:
                    self._tell(f"{path} does not say which worker failed first ({error.strerror})", True)
            case WriteEndpoints():
                try:
                    endpoint_list_writer.write_endpoints(
                        bytes_path(order.folder), order.g, order.endpoints, order.servers
                    )
                except OSError as error:
                    self._warn(f"endpoints.log cannot be written ({error.strerror}); training goes on")
            case WriteEnvironment():
                try:
                    replace_file(bytes_path(order.folder) / order.name, order.text, 0o600)  # For the owner alone.
                except OSError as error:
                    self._warn(f"envlog.<rank> cannot be written ({error.strerror}); training goes on")

    def _append(self, order: AppendShared) -> None:
        if (file := self._shared.get(order.path)) is None:
            file = self._shared[order.path] = SharedLog(bytes_path(order.path))
        try:
            file.append(order.line)
        except OSError as error:  # A full disk may have room again.
            if order.path not in self._told:
                self._told.add(order.path)
                self._warn(f"{file.path} cannot be written ({error.strerror}); it is not complete")

    def _warn(self, text: str) -> None:
        self._tell(text, False)


class SyncSink:
    """Does orders at once, in this process."""

    paused = False
    """Whether those who read what workers write should wait a moment."""

    def __init__(self, tell: Tell) -> None:
        """Nothing is open yet."""
        self._writer = LogWriter(tell)

    def put(self, order: AnyLogOrder, of: str) -> bool:
        """Do it. True: nothing is left out."""
        self._writer.do(order)
        return True

    def on_writable(self, go_on: Callable[[], None]) -> None:
        """Call once it is not `paused` any more: at once."""
        go_on()


class ConsoleFile(NamedTuple):
    """A file that is stdout or stderr, and the pipe to it."""

    pipe: int
    file: int


class WriterPipes(NamedTuple):
    """The writer process's ends of the pipes between it and the agent."""

    orders: int
    answers: int
    consoles_written: int
    """Carries no data. It is closed when the console's files have everything."""


def serve(
    pipes: WriterPipes,
    hold: HoldLogFolder,
    story: str,
    consoles: Sequence[ConsoleFile],
    moved: memoryview,
    notice: Callable[[str], bytes],
) -> None:
    """Hold a folder and do what the agent orders until it closes the pipe; in a process of its own.

    `story` is the file whose lines tell what the agent does, "" for a process that says nothing; it must be good. What
    comes through the pipes of `consoles` is copied into their files until every writer has closed them. `moved` is
    shared with the agent and grows with each piece that a file has got. `notice` formats the launcher's own lines.
    """
    for number in IGNORED_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    os.setsid()  # What a terminal does to the agent is no word to this process.
    os.chdir("/")
    keep_only({*pipes, *(fd for console in consoles for fd in console)})
    proctitle.show(TITLE)
    # A thread that fails ends the process, which the agent notices. stderr is closed here.
    threading.excepthook = lambda failed: os._exit(1)

    def count(size: int) -> None:
        moved[0] += size

    def carry(console: ConsoleFile, written: int) -> None:
        PipeToFile(*console, count, notice).run()
        os.close(written)

    carrying = [threading.Thread(target=carry, args=(console, os.dup(pipes.consoles_written))) for console in consoles]
    for thread in carrying:
        thread.start()
    os.close(pipes.consoles_written)
    orders, answers = pipes.orders, pipes.answers
    try:
        with hold() as folder:
            if story:
                _try(folder.path / story)
            notes = tuple(map(text_bytes, filter(None, (folder.note, folder.moved, folder.unlocked))))
            warned = text_bytes(warning(folder_check(LOG, folder.path)))
            _answer(answers, LogFolderReady(path_bytes(folder.path), notes, warned))
            _obey(orders, answers)
    except ConfigError as error:
        _answer(answers, LogFolderRejected(text_bytes(str(error))))
    for thread in carrying:
        thread.join()


def _obey(orders: int, answers: int) -> None:
    frames, done, reported, reported_s = LogFrameReader(), 0, 0, time.monotonic()
    writer = LogWriter(lambda text, quietly: _answer(answers, LogNotice(text_bytes(text), quietly)))
    while data := os.read(orders, READ_BYTES):
        for order in frames.orders(data):
            writer.do(order)
            done += 1
            if (now_s := time.monotonic()) - reported_s > DONE_EVERY_S or done - reported >= DONE_EVERY:
                reported, reported_s = done, now_s
                _answer(answers, LogAck(done))
        if done > reported and not ready(orders, select.POLLIN, 0):
            reported, reported_s = done, time.monotonic()
            _answer(answers, LogAck(done))


def _answer(answers: int, answer: AnyLogAnswer) -> None:
    with suppress(BrokenPipeError):  # The agent is gone. What it ordered before is still done.
        os.write(answers, packed(answer))


def _try(path: Path) -> None:
    try:
        SharedLog(path).append(b"")
    except OSError as error:
        raise ConfigError(f"{path} cannot be written ({error.strerror}); change --log_dir or its owner") from error
