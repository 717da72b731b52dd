"""Every cause of a worker failure that the launcher knows: how it is recognised, how it counts, its words (pure).

A cause that a log or an exit code shows is one row here. So is one that a watcher observes: the watcher names the row
and gives the values for its words (`exit_classification.watched_exit`).

The patterns were provoked with torch 2.13 and gloo (a rank killed in an all-reduce, a barrier, a send, before and
during the rendezvous; the store's host killed; a rank frozen) or are quoted from PyTorch's and NCCL's own messages.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from elastic.core.failure_class import FailureClass
from elastic.core.text import SPLIT
from launcher.workers.reports.tracebacks import uncaught_lines, without_noise

SIGNS_LINES = 40
"""Lines at the end of a log in which a pattern counts; an error that the script survived long ago does not."""
STARTUP_MAX = 300
"""Characters of a startup error that are kept; its traceback is in the tail."""
USAGE_CODE = 2
"""The exit code of argparse, click and most other parsers of command lines."""

_USAGE = re.compile(r"^usage: ", re.IGNORECASE)
_CANNOT_START = re.compile(r"^(?:SyntaxError|IndentationError|TabError|ImportError|ModuleNotFoundError)(?::|$)")
"""Exceptions of a script that Python cannot parse, or that needs a module that is missing."""
_LOST_PEER = r"""(?x)
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
"""
_NOT_STARTED = r"(?:^|\n)elastic-launch: (?P<why>{} start [^\n]*)\Z"
"""The last message of a process that did not become the worker's program (`launcher.nursery.spawn`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureCause:
    """One cause. `recognised` describes how it is detected; `words` say how the worker ended, instead of its code.

    It is detected by the exit `code` (or minus the signal), or if the last lines of the log match the pattern `says`.
    With neither, another part of the launcher reports it. An infrastructure failure has the `name` as `WorkerExit.why`,
    any other none, unless the group `why` of the pattern or that report says more.
    """

    name: str
    failure: FailureClass
    recognised: str
    words: str = ""
    code: int | None = None
    says: str = ""

    def why(self, found: str = "") -> str:
        """Return what is shown in addition to the words."""
        return found or (self.name if self.failure.of_machine else "")


HUNG = FailureCause(
    name="hung",
    failure=FailureClass.SCRIPT,
    recognised="the worker has reported steps, and none for `--hang-timeout`",
    words="no progress for {limit_s:g} s (--hang-timeout) after step {step}; {state}",
)
UNREACHED = FailureCause(
    name=SPLIT,
    failure=FailureClass.PARTITION,
    recognised="the worker has waited for longer than `--partition-timeout` while its host cannot reach some nodes",
    words="stalled for more than {limit_s:g} s (--partition-timeout) while {nodes} could not be reached",
)
UNFORMED = FailureCause(  # The workers of all nodes wait for each other, so the host at fault is unknown.
    name="no process group",
    failure=FailureClass.SECONDARY,
    recognised="all workers had joined, and 10 times `--partition-timeout` later their process group is not ready",
    words="process group not ready {limit_s:g} s after all workers joined (10 × --partition-timeout); the workers' "
    "ports may be blocked by a firewall",
)
NURSERY_DIED = FailureCause(
    name="the fork server died",
    failure=FailureClass.MACHINE,
    recognised="the fork server died, and the workers were killed with it",
    words="killed with its fork server",
)
RAISED = FailureCause(
    name="raised",
    failure=FailureClass.SCRIPT,
    recognised="the agent had to stop a worker whose log already ended with the traceback of an exception",
    words="raised {exception}, and was stopped while it exited",
)
UNRECOVERABLE = FailureCause(
    name="unrecoverable",
    failure=FailureClass.UNRECOVERABLE,
    recognised="the elastic library reports it: a setting of it is wrong, or the checkpoint to restore is unreadable",
)
STARTUP_ERROR = FailureCause(
    name="startup error",
    failure=FailureClass.STARTUP,
    recognised="at the job's first start, before the process group forms: a syntax error, a failed import, or a usage "
    "error with exit code 2; not with `--retry-startup-errors`",
)

CAUSES: Final = (
    FailureCause(
        name="lost peer", failure=FailureClass.SECONDARY, says=_LOST_PEER,
        recognised="gloo, NCCL, torch's store or a parameter server's client reports a broken connection or a timeout",
    ),
    UNRECOVERABLE, STARTUP_ERROR,
    FailureCause(
        name="restart requested", failure=FailureClass.RESTART_REQUESTED, code=101,
        recognised="exit code 101", words="exit 101, asks for a restart",
    ),
    FailureCause(
        name="address in use", failure=FailureClass.MACHINE,
        recognised="`EADDRINUSE`, `address already in use` or `Errno 98`",
        says="(?i)EADDRINUSE|address already in use|Errno 98",
    ),
    FailureCause(
        name="cannot start", failure=FailureClass.CANNOT_START, says=_NOT_STARTED.format("cannot"),
        recognised="the program cannot be executed: it is missing, is not permitted, or its first line is wrong",
    ),
    FailureCause(
        name="could not start", failure=FailureClass.MACHINE, says=_NOT_STARTED.format("could not"),
        recognised="the program cannot be executed now: out of memory, the file is being written, or its file server "
        "is unavailable",
    ),
    FailureCause(
        name="disk full", failure=FailureClass.MACHINE, says="No space left on device|Disk quota exceeded",
        recognised="`No space left on device` or `Disk quota exceeded`",
    ),
    FailureCause(
        name="no CUDA device", failure=FailureClass.MACHINE,
        recognised="`no CUDA-capable device is detected` or `CUDA-capable device(s) is/are busy`",
        says=r"no CUDA-capable device is detected|CUDA-capable device\(s\) is/are busy",
    ),
    FailureCause(
        name="a broken CUDA device", failure=FailureClass.MACHINE, says="uncorrectable (?:NVLink|ECC) error",
        recognised="`uncorrectable NVLink error` or `uncorrectable ECC error`",
    ),
    UNREACHED, UNFORMED, NURSERY_DIED, HUNG, RAISED,
    FailureCause(
        name="not executable", failure=FailureClass.SCRIPT, code=126,
        recognised="exit code 126", words="exit 126, the program cannot be executed",
    ),
    FailureCause(
        name="not found", failure=FailureClass.SCRIPT, code=127,
        recognised="exit code 127", words="exit 127, the program was not found or could not be started",
    ),
    FailureCause(
        name="killed", failure=FailureClass.SCRIPT, code=-signal.SIGKILL,
        recognised="SIGKILL, or exit code 137", words="killed by SIGKILL, perhaps out of memory",
    ),
    FailureCause(
        name="segmentation fault", failure=FailureClass.SCRIPT, code=-signal.SIGSEGV,
        recognised="SIGSEGV, or exit code 139", words="segmentation fault (SIGSEGV)",
    ),
    FailureCause(
        name="aborted", failure=FailureClass.SCRIPT, code=-signal.SIGABRT,
        recognised="SIGABRT, or exit code 134", words="aborted (SIGABRT)",
    ),
    FailureCause(
        name="bus error", failure=FailureClass.SCRIPT, code=-signal.SIGBUS,
        recognised="SIGBUS, or exit code 135", words="bus error (SIGBUS), perhaps /dev/shm is full",
    ),
    FailureCause(
        name="arithmetic error", failure=FailureClass.SCRIPT, code=-signal.SIGFPE,
        recognised="SIGFPE, or exit code 136", words="arithmetic error (SIGFPE)",
    ),
    FailureCause(
        name="illegal instruction", failure=FailureClass.SCRIPT, code=-signal.SIGILL,
        recognised="SIGILL, or exit code 132",
        words="illegal instruction (SIGILL), perhaps built for another processor",
    ),
)  # fmt: skip
"""The first row that matches an exit counts: a lost peer explains the rest, permanent errors come before those that a
restart may fix, and any other failure is the script's."""

CODE_WORDS: Final[Mapping[int, str]] = {cause.code: cause.words for cause in CAUSES if cause.code is not None}
"""The words for exit codes, or minus the signals, that have specific ones."""


def classify(
    code: int, lines: Sequence[str], recorded: Sequence[str], reported: Mapping[FailureCause, str]
) -> tuple[FailureClass, str]:
    """Return how the failure of a worker counts that ended on its own, and why.

    `lines` are the end of its log, `recorded` what torch's @record wrote of the exception. `reported` are the causes
    that other parts of the launcher report, with the words of each, "" for one that was not observed.
    """
    text = "\n".join(line for said in (recorded, lines) for line in without_noise(said)[-SIGNS_LINES:])
    for cause in CAUSES:
        match = re.search(cause.says, text) if cause.says else None
        if match or cause.code == code or reported.get(cause):
            return cause.failure, cause.why(match.groupdict().get("why", "") if match else reported.get(cause, ""))
    return FailureClass.SCRIPT, ""


def startup_error(code: int, lines: Sequence[str]) -> str:
    """Return the error of a script that cannot start, in one line: a syntax, import or usage error; "" for any other.

    `lines` are the end of its log. They do not show whether the script had already done something.
    """
    shown = without_noise(lines)
    if code == USAGE_CODE and any(_USAGE.match(line) for line in shown):
        return shown[-1][:STARTUP_MAX]
    error = "".join(uncaught_lines(lines)[:1])
    return error[:STARTUP_MAX] if code > 0 and _CANNOT_START.match(error) else ""
