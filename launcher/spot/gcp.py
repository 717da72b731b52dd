"""Google Compute Engine's preemption and maintenance notices (pure).

Both are hanging requests: the server answers when the value changes, or after a minute. The first one does not hang, so
that an existing notice is seen at once; the others name the etag of the previous answer, so that no change between two
requests is missed. An answer without `Metadata-Flavor: Google` is not from the metadata server.

A spot machine has about 30 s after `preempted` is TRUE. A maintenance event is announced 60 s before, or up to an hour
for machines with GPUs; `upcoming-maintenance`, where it exists, says when it begins. Sources: Compute Engine
documentation, "Create and use Spot VMs", "Query metadata server for maintenance event notices", "Monitor and plan for a
host maintenance event", "About VM metadata".
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from functools import partial
from typing import Final

import msgspec

from elastic._decode import UNREADABLE
from launcher.spot.protocol import (
    TOKEN,
    Ask,
    InterruptionNotice,
    MetadataRequest,
    MetadataResponse,
    PollResult,
    Watch,
    notice,
    parsed_time,
    standing,
)

HANGS_S = 60
"""The server answers a hanging request after this time, even without a change."""
ANSWERED_S = HANGS_S + 10.0
PAUSE_S = 1.0
"""Between two requests, so that a server that does not hang is not polled in a tight loop."""
RETRY_MAX_S = 5.0
"""A preemption leaves 30 s: a server that does not answer is polled again soon."""
HEADERS: Final = {"Metadata-Flavor": "Google"}
BASE: Final = "/computeMetadata/v1/instance"
PREEMPTED_S = 30.0
MAINTENANCE_S = 60.0
STOPS: Final = "Google Cloud stops this machine for maintenance"


class _MaintenanceWindow(msgspec.Struct):
    """Both spellings are documented."""

    window_start_time: str = ""
    windowStartTime: str = ""  # noqa: N815


async def poll(value: str, ask: Ask) -> AsyncIterator[PollResult]:
    """Follow one value with hanging requests. For a stop for maintenance it also requests the time."""
    etag = ""
    while True:
        path = f"{BASE}/{value}"
        if etag:
            query = f"wait_for_change=true&timeout_sec={HANGS_S}&last_etag={etag}"
            answer = await ask(MetadataRequest(f"{path}?{query}", HEADERS, timeout_s=ANSWERED_S))
        else:
            answer = await ask(MetadataRequest(path, HEADERS))
        etag = ""
        if error := _error(answer):
            yield PollResult(error=error)
        elif answer.text.startswith("TERMINATE"):  # No hanging request while the time runs: the value is polled.
            yield standing([_stop(await ask(MetadataRequest(f"{BASE}/upcoming-maintenance?alt=json", HEADERS)))])
        else:
            said = answer.headers.get("etag", "")
            etag = said if TOKEN.fullmatch(said) and said.isalnum() else ""
            yield standing(_read(answer), PAUSE_S if etag else RETRY_MAX_S)


PREEMPTION: Final = Watch(partial(poll, "preempted"), RETRY_MAX_S)
MAINTENANCE: Final = Watch(partial(poll, "maintenance-event"), RETRY_MAX_S)
WATCHES: Final = (PREEMPTION, MAINTENANCE)


def _error(answer: MetadataResponse) -> str:
    if answer.status and answer.headers.get("metadata-flavor") != "Google":
        return "it is not from Google"
    return answer.error


def _read(answer: MetadataResponse) -> tuple[InterruptionNotice | str, ...]:
    """Return what TRUE, FALSE, NONE or MIGRATE_ON_HOST_MAINTENANCE means."""
    if answer.text == "TRUE":
        return (InterruptionNotice("Google Cloud reclaims this machine", answer.came_at + PREEMPTED_S, PREEMPTED_S),)
    if answer.text.startswith("MIGRATE"):
        return ("Google Cloud moves this machine to another host (live migration); training continues",)
    return ()


def _stop(answer: MetadataResponse) -> InterruptionNotice | str:
    """Return a stop for maintenance. If its time is unknown, it is as near as one without GPUs."""
    planned = _MaintenanceWindow()
    with suppress(*UNREADABLE):
        if not _error(answer):
            planned = msgspec.json.decode(answer.body, type=_MaintenanceWindow)
    at = parsed_time(planned.window_start_time or planned.windowStartTime)
    if at is None:
        return InterruptionNotice(STOPS, answer.came_at + MAINTENANCE_S, MAINTENANCE_S)
    return notice(STOPS, at, answer, left_min_s=MAINTENANCE_S)
