"""What a command tells whoever started it: an answer on stdout, one line about an error, and its exit code."""

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
"""The same for a pipe whose reader has gone."""

C1_ESCAPED: Final = {number: f"\\u{number:04x}" for number in range(0x7F, 0xA0)}
"""DEL and the C1 controls, as JSON escapes them."""


class StdoutClosed(Exception):
    """Whoever read stdout has enough (`| head`): this is no mistake, and there is nothing to say about it."""


def print_result(text: str) -> None:
    """Write to stdout. A character that its encoding does not have is escaped, and so is a C1 control.

    JSON does not escape C1 controls, and a terminal obeys them as it obeys ESC.

    Raises `StdoutClosed`, and `ConfigError` if it cannot be written. What comes after that goes nowhere.
    """
    with _to_stdout():
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")
        sys.stdout.write(text.translate(C1_ESCAPED))
        sys.stdout.flush()


def write_stdout(data: bytes) -> None:
    """Write bytes to stdout as they are; raises what `print_result` raises."""
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
        raise ConfigError(f"the answer cannot be written ({error.strerror}); see where stdout goes") from error


def run_reporting_errors(work: Callable[[], int], say: Callable[[str], object]) -> int:
    """What `work` returns, or the exit code of the error that ends it, which is said."""
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
