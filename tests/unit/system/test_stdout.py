"""How a command ends: its exit code, and what it says about an error."""

from __future__ import annotations

import errno
import os

import pytest

from elastic.errors import ConfigError, StoreUnavailable
from launcher.system.stdout import INTERRUPTED, NOBODY_READS, StdoutClosed, run_reporting_errors


def ended(error: BaseException) -> tuple[int, list[str]]:
    """The exit code of work that ends with this error, and what is said."""
    said: list[str] = []

    def work() -> int:
        raise error

    return run_reporting_errors(work, said.append), said


def test_an_error_of_ours_is_said_and_has_its_own_exit_code() -> None:
    assert ended(ConfigError("use another")) == (2, ["error: use another"])
    assert ended(StoreUnavailable("away")) == (4, ["error: away"])
    assert run_reporting_errors(lambda: 7, pytest.fail) == 7


def test_a_lack_of_this_machine_is_said_with_its_mend() -> None:
    for error in (OSError(errno.EMFILE, os.strerror(errno.EMFILE)), RuntimeError("can't start new thread")):
        code, (line,) = ended(error)
        assert code == 4
        assert line.startswith("error: ")
        assert line.endswith("see ulimit -a, and the limits of the container")


def test_any_other_error_is_a_bug_and_is_not_hidden() -> None:
    for error in (OSError(errno.EIO, os.strerror(errno.EIO)), BrokenPipeError(), RuntimeError("a bug"), KeyError()):
        with pytest.raises(type(error)):
            ended(error)


def test_who_reads_no_more_and_who_interrupts_are_told_nothing() -> None:
    assert ended(StdoutClosed()) == (NOBODY_READS, []) == (141, [])
    assert ended(KeyboardInterrupt()) == (INTERRUPTED, []) == (130, [])
