"""Writes the orders of an agent into the log directory, and holds the directory meanwhile.

A separate process does this for an agent (`serve`), because a disk may be stalled for longer than the lease TTL, and a
thread that waits for a disk would keep its process from exiting. The process also writes the console, if that is a
file, in separate threads (`launcher.logs.pipe_to_file`): a stalled disk of the one does not hold up the other. It exits
after the agent, when it has written all earlier orders and output. `SyncSink` obeys orders at once, where waiting for a
disk is acceptable (tests, a writer that died).
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

STALLED = "the disk was stalled"
READ_BYTES = 1 << 16
DONE_EVERY_S = 0.2
DONE_EVERY = 8
"""Progress is reported at least this often, while there is more to do."""
TITLE = ("elastic-launch:", "writes", "logs")
IGNORED_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""Signals to all processes of a job: what the agent logs during its exit must also be written."""

Tell = Callable[[str, bool], None]
"""Receives messages for users, and whether only `--verbose` shows them."""


class LogWriter:
    """Obeys orders. Output that cannot be written is lost, and reported once for each file."""

    def __init__(self, tell: Tell) -> None:
        """`tell` receives messages for users, such as that a disk is full."""
        self._tell = tell
        self._starts: dict[int, RotatingFile] = {}
        self._shared: dict[bytes, SharedLog] = {}
        self._told: set[bytes] = set()

    def do(self, order: AnyLogOrder) -> None:
        """Obey one order; returns when the disk has taken it."""
        if isinstance(order, WriteChunk | WriteLine | CloseLog):
            self._starts[order.start].note_lost_bytes(order.missing, STALLED)
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
                    self._tell(f"cannot append the root cause to {path} ({error.strerror})", True)
            case WriteEndpoints():
                try:
                    endpoint_list_writer.write_endpoints(
                        bytes_path(order.folder), order.g, order.endpoints, order.servers
                    )
                except OSError as error:
                    self._warn(f"cannot write endpoints.log ({error.strerror}); training continues")
            case WriteEnvironment():
                try:
                    replace_file(bytes_path(order.folder) / order.name, order.text, 0o600)  # For the owner alone.
                except OSError as error:
                    self._warn(f"cannot write envlog.<rank> ({error.strerror}); training continues")

    def _append(self, order: AppendShared) -> None:
        if (file := self._shared.get(order.path)) is None:
            file = self._shared[order.path] = SharedLog(bytes_path(order.path))
        try:
            file.append(order.line)
        except OSError as error:  # A full disk may have room again.
            if order.path not in self._told:
                self._told.add(order.path)
                self._warn(f"cannot write {file.path} ({error.strerror}); it is not complete")

    def _warn(self, text: str) -> None:
        self._tell(text, False)


class SyncSink:
    """Obeys orders at once, in this process."""

    paused = False
    """Whether the readers of workers' output should wait a moment."""

    def __init__(self, tell: Tell) -> None:
        """`tell`: as in `LogWriter`."""
        self._writer = LogWriter(tell)

    def put(self, order: AnyLogOrder, of: str) -> bool:
        """Obey an order. Returns True: nothing is dropped."""
        self._writer.do(order)
        return True

    def on_writable(self, go_on: Callable[[], None]) -> None:
        """Call back at once: it is never `paused`."""
        go_on()


class ConsoleFile(NamedTuple):
    """A file that serves as stdout or stderr, and the pipe to it."""

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
    """Hold a directory and obey the agent's orders until it closes the pipe; in a separate process.

    `story` is the file of the agent's own messages, "" for a process that logs nothing; it must be writable. The pipes
    of `consoles` are copied into their files until every writer has closed them. `moved` is shared with the agent and
    grows with each piece that a file has got. `notice` formats the launcher's own lines.
    """
    for number in IGNORED_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    os.setsid()  # Signals of the agent's terminal must not reach this process.
    os.chdir("/")
    keep_only({*pipes, *(fd for console in consoles for fd in console)})
    proctitle.show(TITLE)
    # A thread that fails ends the process, which the agent detects. stderr is closed here.
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
    with suppress(BrokenPipeError):  # The agent has exited. Its earlier orders are still obeyed.
        os.write(answers, packed(answer))


def _try(path: Path) -> None:
    try:
        SharedLog(path).append(b"")
    except OSError as error:
        raise ConfigError(
            f"cannot write {path} ({error.strerror}); choose another --log-dir, or change the owner of this one"
        ) from error
