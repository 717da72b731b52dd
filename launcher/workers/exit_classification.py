"""What an exit means, in words, and what the end of a log tells about its cause (pure).

The signs below were provoked with torch 2.13 and gloo (a rank killed in an all-reduce, a barrier, a send, before and
during the rendezvous; the store's host killed; a rank frozen) or come from PyTorch's and NCCL's own texts.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence

from elastic.core.model import WorkerExit
from elastic.core.ps.model import Role
from elastic.core.text import SPLIT
from launcher.workers.reports.tracebacks import excerpt, uncaught, without_noise

TAIL_LINES = 20
"""Lines of a log that are kept in the store and shown."""

STARTUP_MAX = 300
"""Characters of a startup error that are kept; its traceback is in the tail."""

SIGNS_LINES = 40
"""Lines at the end of a log in which a sign counts; an error that the script overcame long ago is no sign."""

WORDS = {
    signal.SIGKILL: "killed by SIGKILL, perhaps out of memory",
    signal.SIGSEGV: "segmentation fault (SIGSEGV)",
    signal.SIGABRT: "aborted (SIGABRT)",
    signal.SIGBUS: "bus error (SIGBUS), perhaps /dev/shm is full",
    signal.SIGFPE: "arithmetic error (SIGFPE)",
    signal.SIGILL: "illegal instruction (SIGILL), perhaps built for another processor",
    signal.SIGTERM: "ended by SIGTERM",
    signal.SIGINT: "ended by SIGINT",
    signal.SIGHUP: "ended by SIGHUP",
}

LEFT = 128 + signal.SIGTERM
"""The exit code of a worker that leaves because it was asked to, as after SIGTERM."""

CODES = {
    101: "exit 101, asks for a restart",
    126: "exit 126, the program cannot be executed",
    127: "exit 127, the program was not found or could not be started",
}

_LOST_PEER = re.compile(
    r"""
      gloo/transport/.*(?:Connection\ (?:closed|reset|refused|timed\ out)|Broken\ pipe|(?:Read|Write)\ error|Timed\ out
                         |Application\ timeout|No\ route)
    | DistNetworkError:\ (?!.*(?:EADDRINUSE|address\ already\ in\ use))
    | DistStoreError:
    | ncclRemoteError | remote\ process\ exited\ or\ there\ was\ a\ network\ error
    | [Cc]onnection\ closed\ by\ remote\ peer
    | Call\ to\ (?:recv|send|connect).*failed\ :\ (?:Connection|Broken|No\ route)
    | NET/IB\ :\ Got\ (?:async\ event|completion)
    | Watchdog\ caught\ collective\ operation\ timeout
    | elastic\.errors\.ServerLost
    | received\ errors\ while\ waiting\ for\ send/recv\ from\ rank | failed\ to\ pass\ monitoredBarrier
    """,
    re.VERBOSE,
)
NOT_STARTED = ("elastic-launch: cannot start ", "elastic-launch: could not start ")
"""How the line begins that a process writes which did not become the worker's program (`launcher.nursery.spawn`)."""
_MACHINE = (
    ("disk full", re.compile(r"No space left on device|Disk quota exceeded")),
    ("no CUDA device", re.compile(r"no CUDA-capable device is detected|CUDA-capable device\(s\) is/are busy")),
    ("a broken CUDA device", re.compile(r"uncorrectable (?:NVLink|ECC) error")),
)
"""What a machine lacks, as the kernel and CUDA say it."""
_IN_USE = re.compile(r"EADDRINUSE|address already in use|Errno 98", re.IGNORECASE)


USAGE_CODE = 2
"""The exit code of argparse, click and most other parsers of command lines."""
_USAGE = re.compile(r"^usage: ", re.IGNORECASE)
_CANNOT_START = re.compile(r"^(?:SyntaxError|IndentationError|TabError|ImportError|ModuleNotFoundError)(?::|$)")
"""Exceptions of a script that python cannot read, or that needs what is not there."""

_RANK_PREFIX = re.compile(r"^\[rank\d+\]: ?")
_EXCEPTION = re.compile(r"^(?P<name>[A-Za-z_][\w.]*)(?::\s.*)?$")
_TERMINATE = "terminate called without an active exception"
"""What C++ says when torch shuts down in disorder, after an error or without one."""
_TRACEBACK = "Traceback (most recent call last):"
_ASKED_FOR = ("KeyboardInterrupt", "SystemExit")
"""Exceptions that end a script without anything being wrong with it."""


def describe(code: int, *, stopped: bool = False, asked: bool = False) -> str:
    """An exit code, or minus a signal, in words.

    `stopped`: we had signalled the worker ourselves; `asked`: it saved and left without a signal, as it was asked to.
    """
    if asked:
        return "saved and left as it was asked to" + ("" if code == LEFT else f", {describe(code)}")
    if stopped:
        return _describe_stopped(code)
    if code < 0:
        return _signal_words(-code)
    if code in CODES:
        return CODES[code]
    if 128 < code <= 128 + signal.SIGRTMAX:
        return f"exit {code}, as after a signal: {_signal_words(code - 128)}"
    return f"exit {code}"


def shows_lost_peer(tail: Sequence[str]) -> bool:
    """Whether the end of a log shows that a peer was lost, so that the cause is elsewhere."""
    return any(_LOST_PEER.search(line) for line in _significant(tail))


def machine_fault(tail: Sequence[str]) -> str:
    """What of the machine, and not of the script, is to blame: "address in use", or "" if nothing is."""
    lines = _significant(tail)
    if any(_IN_USE.search(line) for line in lines):
        return "address in use"
    last = lines[-1] if lines else ""
    if last.startswith(NOT_STARTED):
        return last.removeprefix("elastic-launch: ")
    return next((what for what, sign in _MACHINE if any(sign.search(line) for line in lines)), "")


def startup_error(code: int, lines: Sequence[str]) -> str:
    """The error of a script that cannot start, in one line: of its syntax, an import or its usage; "" for any other.

    `lines` are the end of its log. Whether the script had already done something, they do not say.
    """
    shown = [_RANK_PREFIX.sub("", line) for line in without_noise(lines)]
    if code == USAGE_CODE and any(_USAGE.match(line) for line in shown):
        return shown[-1][:STARTUP_MAX]
    exception = uncaught(shown) if code > 0 else None
    if exception is None or not exception.fatal or exception.group or not _CANNOT_START.match(shown[exception.line]):
        return ""
    return shown[exception.line][:STARTUP_MAX]


def raised_exception(tail: Sequence[str]) -> str:
    """The name of the exception with whose traceback a log ends, "" if it ends otherwise.

    Python writes the traceback of an exception that nobody caught, and then takes a while to end. A script that says
    something after it has caught it. torch's prefix of ranks, warnings and C++ frames do not count.
    """
    lines = [_RANK_PREFIX.sub("", line) for line in without_noise(tail) if line != _TERMINATE]
    starts = [place for place, line in enumerate(lines) if line.endswith(_TRACEBACK)]
    if not starts:
        return ""
    outside = [line for line in lines[starts[-1] + 1 :] if not line.startswith((" ", "\t"))]
    match = _EXCEPTION.match(outside[0]) if len(outside) == 1 else None
    return match["name"] if match is not None and match["name"] not in _ASKED_FOR else ""


def stopped_while_ending(
    rank: int, code: int, log: str, lines: Sequence[str], *, role: Role = Role.WORKER
) -> WorkerExit | None:
    """What is recorded of a worker that had failed by itself before we stopped it, None if it had not.

    `lines` are the end of its log as it was before the signal.
    """
    name = raised_exception(lines)
    if not name or shows_lost_peer(lines):
        return None
    words = f"raised {name}, and was stopped while it ended"
    return WorkerExit(rank=rank, code=code, words=words, log=log, tail=excerpt(lines, TAIL_LINES), role=role)


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
    """All that is recorded of an exit.

    `lines`: the end of the log, best some thousand lines, for the exception and the signs. `recorded` is what torch's
    @record wrote of the exception; it is preferred. The tail that is kept leaves C++ frames out, and has the exception
    that ended the worker wherever it stands. `unrecoverable` is the worker's own word that each start would end like
    this. `starting`: an error that keeps a script from starting counts as one.
    """
    failed = code != 0 and not stopped and not asked
    recorded = recorded if failed else ()
    raised_it = failed and (code > 0 or code == -signal.SIGABRT)
    return WorkerExit(
        rank=rank,
        code=code,
        words=describe(code, stopped=stopped, asked=asked),
        log=log,
        tail=excerpt(recorded or lines, TAIL_LINES) if raised_it else last_lines(lines),
        secondary=failed and (shows_lost_peer(lines) or shows_lost_peer(recorded)),
        machine_fault=machine_fault(lines) or machine_fault(recorded) if failed else "",
        unrecoverable=unrecoverable if failed else "",
        startup=startup_error(code, recorded or lines) if failed and starting else "",
        role=role,
    )


def hung_exit(
    rank: int,
    log: str,
    lines: Sequence[str],
    limit_s: float,
    step: int,
    *,
    shown: bool,
    frozen: bool = False,
    role: Role = Role.WORKER,
) -> WorkerExit:
    """What is recorded of a worker that made no step for `limit_s`; it is about to be stopped for that.

    `step` is the last one that it reported; `shown`: its stacks are in its log, which ends with `lines`; `frozen`: it
    stands still.
    """
    words = f"no progress for {limit_s:g} s (--hang_timeout) after step {step}; "
    if frozen:
        words += "its process is stopped, by SIGSTOP or a debugger"
    else:
        words += "its stacks are in its log" if shown else "it did not show its stacks"
    return WorkerExit(rank=rank, code=-signal.SIGTERM, words=words, log=log, tail=last_lines(lines), role=role)


def unreached_exit(rank: int, log: str, lines: Sequence[str], limit_s: float, names: Sequence[str]) -> WorkerExit:
    """What is recorded of a worker that waited while these nodes could not be reached; it is stopped for that."""
    words = (
        f"it waited for longer than {limit_s:g} s (--reach_timeout), and {', '.join(names)} cannot be reached from here"
    )
    return WorkerExit(
        rank=rank, code=-signal.SIGTERM, words=words, log=log, tail=last_lines(lines), machine_fault=SPLIT
    )


def unformed_exit(rank: int, log: str, lines: Sequence[str], limit_s: float) -> WorkerExit:
    """What is recorded of a worker whose process group did not stand in time; it is stopped for that.

    Those of all nodes wait for each other, and nobody knows whose the fault is.
    """
    words = (
        f"all workers had met, and {limit_s:g} s later (10 times --reach_timeout) their process group does not stand; "
        "the ways between their ports may be closed"
    )
    return WorkerExit(rank=rank, code=-signal.SIGTERM, words=words, log=log, tail=last_lines(lines), secondary=True)


def last_lines(lines: Sequence[str]) -> tuple[str, ...]:
    """The lines of a log's end that are kept and shown."""
    return tuple((without_noise(lines) or list(lines))[-TAIL_LINES:])


def _significant(tail: Sequence[str]) -> list[str]:
    return without_noise(tail)[-SIGNS_LINES:]


def _signal_words(number: int) -> str:
    if number in WORDS:
        return WORDS[signal.Signals(number)]
    try:
        return f"ended by {signal.Signals(number).name}"
    except ValueError:
        return f"ended by signal {number}"


def _describe_stopped(code: int) -> str:
    if code == -signal.SIGKILL:
        return "stopped by the launcher (SIGKILL)"
    if code in (-signal.SIGTERM, 128 + signal.SIGTERM):
        return "stopped by the launcher (SIGTERM)"
    return f"stopped by the launcher, {describe(code)}"
