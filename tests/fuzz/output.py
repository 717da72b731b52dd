"""What workers write: logs with a bound, consoles that show it, and the end of a log as people read it."""

from __future__ import annotations

import os
import time

import msgspec

from elastic.core.ps.model import Role
from launcher.logs.console import Console
from launcher.logs.console_streams import ConsoleStreams, after_carriage_returns
from launcher.logs.rotating_file import RotatingFile
from launcher.logs.worker_log import KEPT_BYTES, TailBuffer, WorkerStartLog
from launcher.logs.writer import SyncSink
from launcher.logs.writer_protocol import LogLimits
from launcher.text import failure_report
from launcher.text.sanitize import sanitize_line, tail_lines
from launcher.workers import exit_classification
from launcher.workers.reports.tracebacks import excerpt
from launcher.workers.worker_output import PipeReader
from tests.fuzz.links import run
from tests.fuzz.target import Target, scratch

FOLDER = scratch("output")
HEADER = "==== elastic-launch job j gen 1 rank 0 ===="
BOUND = 4096
SLOW_S = 5.0
REPEATED_MAX = 50_000


def log(data: bytes) -> None:
    """A log of very few bytes, whose pieces are as long as the first byte says, keeps its bound and its frame."""
    if not data:
        return
    path = FOLDER / "workerlog.0"
    told: list[str] = []
    path.unlink(missing_ok=True)
    one = RotatingFile(path, HEADER, told.append, LogLimits(BOUND))
    rest = data[1:] * (1 + 6000 // len(data))
    for start in range(0, len(rest), piece := 1 + data[0]):
        one.write(rest[start : start + piece])
    one.line("==== end ====")
    one.close()
    text = path.read_bytes()
    assert not told
    assert len(text) <= BOUND // 2 + 200
    assert text.startswith(HEADER.encode() + b"\n")
    assert text.endswith(b"\n==== end ====\n")
    assert one.begins == len(HEADER) + 1


def shown(data: bytes) -> None:
    """What a worker writes is in its log as it is, and on a console that others share in whole lines with its rank."""

    async def story() -> None:
        folder = FOLDER
        for name in ("shown", "console"):
            (folder / name).unlink(missing_ok=True)
        fd = os.open(folder / "console", os.O_WRONLY | os.O_CREAT)
        stderr, console = Console(2), Console(fd)
        os.close(fd)
        one = WorkerStartLog(SyncSink(lambda text, quietly: None), folder / "shown", HEADER)
        _, voice = ConsoleStreams((stderr, console)).of(Role.WORKER, 3, 0, 1, shared=True)
        tap = PipeReader(one, voice)
        writer = tap.writer()
        os.set_blocking(writer, False)
        for start in range(0, len(data), 1000):
            os.write(writer, data[start : start + 1000])
            tap.drain()
        os.close(writer)
        tap.close()
        one.close()
        console.close()
        stderr.close()
        assert (folder / "shown").read_bytes() == HEADER.encode() + b"\n" + data
        lines = (folder / "console").read_bytes().split(b"\n")
        assert lines.pop() == b""
        assert all(line.startswith(b"rank 3: ") for line in lines)
        if len(data) < 1 << 16:
            said = data.removesuffix(b"\n").split(b"\n") if data else []
            assert [line[8:] for line in lines] == [after_carriage_returns(line) for line in said]

    run(story())


def end(data: bytes) -> None:
    """The end of a log fits on any screen, says how a worker ended, and can be written into a document; in no time."""
    many = data * max(1, min(REPEATED_MAX // (len(data) + 1), 2000)) if data.endswith(b"\n") else data
    recent = TailBuffer()
    for start in range(0, len(many), 4096):
        recent.add(many[start : start + 4096])
    begun = time.monotonic()
    lines = tail_lines(recent.ending(), lines=3000)
    assert all(line.isprintable() and len(line) <= 500 for line in lines)
    for code in (1, -6, -9, 0):
        found = exit_classification.worker_exit(0, code, "/log/workerlog.0", lines)
        msgspec.json.encode(found)
        assert len(found.tail) <= 40
    exit_classification.stopped_while_ending(0, 1, "", lines)
    excerpt(lines, 20)
    failure_report.stopped_worker_line(sanitize_line(data[:KEPT_BYTES].decode(errors="replace")))
    assert time.monotonic() - begun < SLOW_S


TRACEBACK = b"""[rank2]: Traceback (most recent call last):
[rank2]:   File "/home/me/train.py", line 12, in <module>
[rank2]:     raise OSError(5, "Input/output error")
[rank2]: OSError: [Errno 5] Input/output error
"""
GROUP = b"""  + Exception Group Traceback (most recent call last):
  |   File "t.py", line 1, in <module>
  | ExceptionGroup: two (2 sub-exceptions)
  +-+---------------- 1 ----------------
    | ValueError: a
    +---------------- 2 ----------------
    | ValueError: b
    +------------------------------------
"""
NOISE = b"""terminate called after throwing an instance of 'c10::DistBackendError'
RuntimeError: [../gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.6]:17299
frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x57 (0x7f in libc10.so)
"""
SYNTAX = b"""  File "t.py", line 3
    def f(:
          ^
SyntaxError: invalid syntax
"""
BARS = b"  0%|          | 0/100\r 50%|#####     | 50/100\r100%|##########| 100/100\n\x1b[31mred\x1b[0m\n"
SEEDS = (
    BARS + b"\xff\xfe\x00binary\n",
    TRACEBACK,
    TRACEBACK + GROUP,
    NOISE + TRACEBACK,
    SYNTAX,
    b"x" * 5000,
    b"\x1b[0;" * 500,
    b"a\nb\n",
)
TARGETS = (
    Target("log", log, tuple(b"%c%s" % (65 + at * 20, seed) for at, seed in enumerate(SEEDS))),
    Target("shown output", shown, SEEDS),
    Target("end of a log", end, SEEDS),
)
