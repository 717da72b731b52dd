"""The names of the files in a log directory, and the lines that frame each start of a worker.

    workerlog.<rank>       the output of a worker, appended over all its starts
    endpoints.log          every worker's address of the newest generation; endpoints.<g>.log of each of the newest
                           (`launcher.logs.endpoint_list_writer`)
    launcher.log           what the agents of this directory logged, with times; launcher.1.log is the previous file
    envlog.<rank>          a worker's environment at its newest start (`launcher.logs.environment_dump`)
    events.jsonl           what happened, for programs (`launcher.logs.event_log`)

Every start of a worker is framed by a header and a closing line, so that an old log is not taken for a live one.
"""

from __future__ import annotations

from datetime import UTC, datetime

from elastic.core.ps.model import Role
from elastic.core.text import process_name
from launcher.system.worker_signals import STOP

LAUNCHER_LOG = "launcher.log"
_SIGNAL_INFO = "[SignalInfo: *** {signal} (@0x{sender:x}) received by PID {pid} (TID 0x{pid:x}) from PID {sender} ***]"


def header_line(
    *, job_id: str, g: int, rank: int, local_rank: int, host: str, at: datetime, role: Role = Role.WORKER
) -> str:
    """Return the line that opens a start. `at` is written in UTC, to the second."""
    time = at.astimezone(UTC).isoformat(timespec="seconds")
    who = process_name(role, rank)
    return f"==== elastic-launch job {job_id} gen {g} {who} local {local_rank} host {host} {time} ===="


def closing_line(*, rank: int, g: int, words: str, role: Role = Role.WORKER) -> str:
    """Return the line that closes a start; `words` say how it ended."""
    return f"==== {process_name(role, rank)} gen {g} ended: {words} ===="


def signal_info_line(*, pid: int, sender: int) -> str:
    """Return the line that shows a reader of this log that the worker was stopped from outside: look elsewhere."""
    return _SIGNAL_INFO.format(signal=STOP.name, pid=pid, sender=sender)
