"""The output of a command: its result on stdout, one line about an error, and its exit code."""

from __future__ import annotations

import io
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from elastic.errors import ConfigError, ElasticError
from launcher.system import limits
from launcher.system.descriptors import discard_stream

INTERRUPTED: Final = 128 + signal.SIGINT
"""The exit code of a process that Ctrl-C ended."""
NOBODY_READS: Final = 128 + signal.SIGPIPE
"""The exit code of a process whose stdout is a pipe without a reader."""

C1_ESCAPED: Final = {number: f"\\u{number:04x}" for number in range(0x7F, 0xA0)}
"""DEL and the C1 controls, as JSON escapes them."""


class StdoutClosed(Exception):
    """The reader of stdout has closed it (`| head`), which is not an error and needs no message."""


def print_result(text: str) -> None:
    """Write to stdout. Characters that its encoding does not have are escaped, and so are C1 controls.

    JSON does not escape C1 controls, and a terminal interprets them like ESC.

    Raises `StdoutClosed`, and `ConfigError` if writing fails. Later output is discarded.
    """
    with _to_stdout():
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")
        sys.stdout.write(text.translate(C1_ESCAPED))
        sys.stdout.flush()


def write_stdout(data: bytes) -> None:
    """Write bytes to stdout unchanged; raises what `print_result` raises."""
    with _to_stdout():
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


@contextmanager
def _to_stdout() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError as error:
        discard_stream(sys.stdout)
        raise StdoutClosed from error
    except OSError as error:
        discard_stream(sys.stdout)
        raise ConfigError(f"cannot write to stdout ({error.strerror}); check where it is redirected") from error


def run_reporting_errors(work: Callable[[], int], say: Callable[[str], object]) -> int:
    """Return what `work` returns, or report the error that ends it and return its exit code."""
    try:
        return work()
    except StdoutClosed:
        return NOBODY_READS
    except KeyboardInterrupt:
        return INTERRUPTED
    except (ElasticError, OSError, RuntimeError) as error:
        refused = error if isinstance(error, ElasticError) else limits.shortage_line(error)
        if refused is None:
            raise
        say(f"error: {refused}")
        return refused.exit_code
