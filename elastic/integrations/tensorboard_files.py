"""Event files of TensorBoard: values of repeated steps in older files of a directory are dropped."""

from __future__ import annotations

import os
import time
from typing import Any, Final

from elastic.train.report import log_to_agent

CLOCK_WAIT_S: Final = 2.0
"""Seconds that rank 0 waits until the name of a new event file sorts last; names have whole seconds."""


BEGINNING: Final = "events.out.tfevents."
"""The prefix of the names of event files; the second of their creation follows."""


def has_events(folder: str) -> bool:
    """Return whether an earlier generation has written to the directory."""
    return os.path.isdir(folder) and any(name.startswith(BEGINNING) for name in os.listdir(folder))


def mark_resumed(writer: Any, first: int) -> None:
    """Make TensorBoard drop the values of step `first` and later ones from older files of the directory.

    TensorBoard reads files in the order of their names, which begin with the second of their creation. So this waits
    up to `CLOCK_WAIT_S` until the new file sorts last, and logs a warning if a clock is further behind.
    """
    from tensorboard.compat.proto.event_pb2 import Event, SessionLog

    own = os.path.basename(writer._get_file_writer().event_writer._file_name)
    older = [name for name in os.listdir(writer.log_dir) if name.startswith(BEGINNING) and name != own]
    if not older:
        return
    if max(older) > own:
        _wait_past(max(older), writer.log_dir)
        writer.close()  # The next event opens a new file.
    mark = Event(step=first, session_log=SessionLog(status=SessionLog.START))
    writer._get_file_writer().add_event(mark)
    writer.flush()


def _wait_past(name: str, folder: str) -> None:
    """Wait for the second after the one in the name of an event file."""
    stamp = name.removeprefix(BEGINNING).partition(".")[0]
    ahead_s = int(stamp) + 1 - time.time() if stamp.isdecimal() else 0.0
    if ahead_s > CLOCK_WAIT_S:
        log_to_agent(
            f"{folder}: a file is {ahead_s:.0f} s ahead of this machine's clock; TensorBoard may show steps twice",
            warn=True,
        )
    time.sleep(min(max(ahead_s, 0.0), CLOCK_WAIT_S))
