"""Records the demo in a terminal: docs/bench/demo.cast, from which docs/pictures/demo.svg is drawn.

    python -m tests.bench.recording [--to docs/bench]

The demo runs in a pseudo-terminal, and each piece of its output is kept with its moment, as asciicast v2 (`asciinema
play` shows it). Agents print the address of this machine, 127.0.0.1, and not its name.
"""

from __future__ import annotations

import argparse
import codecs
import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import Final

import msgspec

from tests.bench import results

FILE: Final = "demo.cast"
COLUMNS, ROWS = 100, 30
MODULE: Final = "elastic.examples.demo"
PROMPT: Final = f"$ python -m {MODULE}\r\n"
READ_BYTES: Final = 65536

Output = tuple[float, str]
"""Seconds since the command began, and what was printed."""


class Recording(msgspec.Struct, frozen=True):
    """What a terminal of this size was given, in order."""

    columns: int
    rows: int
    output: tuple[Output, ...]


def record() -> tuple[Recording, int]:
    """Run the demo in a terminal of its own; its output, and its exit code."""
    terminal, of_process = pty.openpty()
    fcntl.ioctl(of_process, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    began_at = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", MODULE],
        stdin=of_process,
        stdout=of_process,
        stderr=of_process,
        env={**os.environ, "TERM": "xterm-256color"},
        start_new_session=True,
    )
    os.close(of_process)
    output: list[Output] = [(0.0, PROMPT)]
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    try:
        while data := _read(terminal):
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
            output.append((round(time.monotonic() - began_at, 3), decoder.decode(data)))
    finally:
        os.close(terminal)
        code = process.wait()
    return Recording(COLUMNS, ROWS, tuple(output)), code


def _read(terminal: int) -> bytes:
    """What comes next; nothing once the last process has closed the terminal."""
    try:
        return os.read(terminal, READ_BYTES)
    except OSError:
        return b""


def encode(recording: Recording) -> bytes:
    """As asciicast v2."""
    head = {"version": 2, "width": recording.columns, "height": recording.rows, "title": f"python -m {MODULE}"}
    rows = [msgspec.json.encode(head), *(msgspec.json.encode((at, "o", text)) for at, text in recording.output)]
    return b"\n".join(rows) + b"\n"


def read(folder: Path = results.FOLDER) -> Recording:
    """What was recorded."""
    head, *rows = (folder / FILE).read_bytes().splitlines()
    size = msgspec.json.decode(head)
    output = (msgspec.json.decode(row, type=tuple[float, str, str]) for row in rows)
    return Recording(size["width"], size["height"], tuple((at, text) for at, kind, text in output if kind == "o"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--to", type=Path, default=results.FOLDER)
    args = parser.parse_args()
    recording, code = record()
    if code:
        print(f"The demo ended with exit code {code}; nothing is kept.", file=sys.stderr)
        return code
    (args.to / FILE).write_bytes(encode(recording))
    return 0


if __name__ == "__main__":
    sys.exit(main())
