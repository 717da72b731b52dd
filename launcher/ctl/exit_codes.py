"""Exit codes of `elastic-ctl status --exit-code` and `elastic-ctl wait`, so that scripts can branch on a job's state.

The codes below 5 mean the same in every command: docs/reference/exit-codes.md.
"""

from __future__ import annotations

from typing import Final

from elastic.core.model import FinalStatus

OK: Final = 0
ENDED: Final = 1
"""Of `wait`: the job has completed, so it will never have the requested nodes."""
FAILED: Final = 5
NOT_RUNNING: Final = 6
"""The job forms a generation, waits for nodes, or has none."""
STOPPED: Final = 7
TIMED_OUT: Final = 8


def exit_code_of(state: str) -> int:
    """The exit code for a state of `launcher.job.listing`."""
    codes = {"running": OK, FinalStatus.COMPLETED: OK, FinalStatus.FAILED: FAILED, FinalStatus.STOPPED: STOPPED}
    return codes.get(state, NOT_RUNNING)
