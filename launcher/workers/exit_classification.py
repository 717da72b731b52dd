"""What an exit means, in words, and what is recorded of it (pure); the causes are in `failure_causes`."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence

import msgspec

from elastic.core.failure_class import FailureClass
from elastic.core.model import WorkerExit
from elastic.core.ps.model import Role
from launcher.system.worker_signals import STOP, STOP_EXIT_CODE
from launcher.workers.failure_causes import (
    CODE_WORDS,
    RAISED,
    STARTUP_ERROR,
    UNRECOVERABLE,
    FailureCause,
    classify,
    startup_error,
)
from launcher.workers.reports.tracebacks import excerpt, uncaught_lines, without_noise

Numbers = Mapping[str, object]
"""Values for the words of a cause that was observed by a watcher."""
GiveUp = Callable[[int, FailureCause, Mapping[int, Numbers]], None]
"""Takes the generation, the cause, and the values of each worker that failed, by its local rank."""

TAIL_LINES = 20
"""Lines of a log that are stored in etcd and shown."""

_TERMINATE = "terminate called without an active exception"
"""Output of C++ when torch does not shut down cleanly, with or without an error."""
_ASKED_FOR = ("KeyboardInterrupt", "SystemExit")
"""Exceptions that end a script although nothing is wrong with it."""


def describe(code: int, *, stopped: bool = False, asked: bool = False) -> str:
    """Describe an exit code, or minus a signal, in words.

    `stopped`: the launcher had signalled the worker; `asked`: the worker saved and exited on request, without a signal.
    """
    if asked:
        return "saved and exited as requested" + ("" if code == STOP_EXIT_CODE else f", {describe(code)}")
    if stopped:
        return _describe_stopped(code)
    if code < 0:
        return _signal_words(-code)
    if code in CODE_WORDS:
        return CODE_WORDS[code]
    if 128 < code <= 128 + signal.SIGRTMAX:
        return f"exit {code}, as after a signal: {_signal_words(code - 128)}"
    return f"exit {code}"


def raised_exception(tail: Sequence[str]) -> str:
    """Return the name of the exception with whose traceback a log ends, "" if it ends otherwise.

    Python writes the traceback of an uncaught exception, and then takes a while to exit. A script that prints something
    after it has caught it. torch's prefix of ranks, warnings and C++ frames do not count.
    """
    error, *after = uncaught_lines([line for line in tail if line != _TERMINATE]) or [""]
    name = error.partition(":")[0]
    return name if name not in _ASKED_FOR and all(line.startswith((" ", "\t")) for line in after) else ""


def stopped_while_ending(
    rank: int, code: int, log: str, lines: Sequence[str], *, role: Role = Role.WORKER
) -> WorkerExit | None:
    """Return the record of a worker that had failed on its own before the launcher stopped it, None if it had not.

    `lines` are the end of its log as it was before the signal.
    """
    name = raised_exception(lines)
    if not name or classify(code, lines, (), {})[0] is FailureClass.SECONDARY:
        return None
    exit_ = watched_exit(RAISED, {"exception": name}, rank, log, lines, code=code, role=role)
    return msgspec.structs.replace(exit_, tail=excerpt(lines, TAIL_LINES))


def worker_exit(
    rank: int,
    code: int,
    log: str,
    lines: Sequence[str],
    *,
    stopped: bool = False,
    asked: bool = False,
    role: Role = Role.WORKER,
    recorded: Sequence[str] = (),
    unrecoverable: str = "",
    starting: bool = False,
) -> WorkerExit:
    """Return all that is recorded of an exit.

    `lines`: the end of the log, preferably some thousand lines, to search for the exception and for symptoms.
    `recorded` is what torch's @record wrote of the exception; it is preferred. The recorded tail leaves C++ frames out,
    and includes the exception that ended the worker wherever it is in the log. `unrecoverable` is the worker's own
    message that each start would end like this. `starting`: an error that keeps a script from starting counts as one.
    """
    failed = code != 0 and not stopped and not asked
    recorded = recorded if failed else ()
    raised_it = failed and (code > 0 or code == -signal.SIGABRT)
    reported = {UNRECOVERABLE: unrecoverable}
    if failed and starting:
        reported[STARTUP_ERROR] = startup_error(code, recorded or lines)
    failure, why = classify(code, lines, recorded, reported) if failed else (FailureClass.SCRIPT, "")
    return WorkerExit(
        rank=rank,
        code=code,
        words=describe(code, stopped=stopped, asked=asked),
        log=log,
        tail=excerpt(recorded or lines, TAIL_LINES) if raised_it else last_lines(lines),
        failure=failure,
        why=why,
        role=role,
    )


def watched_exit(
    cause: FailureCause,
    numbers: Numbers,
    rank: int,
    log: str,
    lines: Sequence[str],
    *,
    code: int = -STOP,
    role: Role = Role.WORKER,
) -> WorkerExit:
    """Return the record of a worker that a watcher declared failed, and that the agent is about to stop for that.

    `numbers` are the values for the words of the cause.
    """
    return WorkerExit(
        rank=rank,
        code=code,
        words=cause.words.format(**numbers),
        log=log,
        tail=last_lines(lines),
        failure=cause.failure,
        why=cause.why(),
        role=role,
    )


def last_lines(lines: Sequence[str]) -> tuple[str, ...]:
    """Return the last lines of a log that are stored and shown."""
    return tuple((without_noise(lines) or list(lines))[-TAIL_LINES:])


def _signal_words(number: int) -> str:
    try:
        return CODE_WORDS.get(-number) or f"ended by {signal.Signals(number).name}"
    except ValueError:
        return f"ended by signal {number}"


def _describe_stopped(code: int) -> str:
    if code == -signal.SIGKILL:
        return "stopped by the launcher (SIGKILL)"
    if code in (-STOP, STOP_EXIT_CODE):
        return f"stopped by the launcher ({STOP.name})"
    return f"stopped by the launcher, {describe(code)}"
