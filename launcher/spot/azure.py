"""Azure's Scheduled Events (pure).

Each machine of a placement group gets the events of all of them, so this machine first requests its own name. An event
is never acknowledged: that would only bring it forward. A Preempt is announced at least 30 s before, a Reboot and a
Redeploy 15 and 10 minutes before, and days before if hardware is about to fail. The first request for events switches
them on, and may take two minutes.

Source: Azure documentation, "Azure Metadata Service: Scheduled Events for Linux VMs".
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

import msgspec

from elastic._decode import UNREADABLE
from launcher.spot.protocol import (
    TIMEOUT_S,
    Ask,
    InterruptionNotice,
    MetadataRequest,
    MetadataResponse,
    PollResult,
    Watch,
    clock_time,
    notice,
    parsed_time,
    standing,
)

HEADERS: Final = {"Metadata": "true"}
NAME: Final = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
EVENTS: Final = "/metadata/scheduledevents?api-version=2020-07-01"
FIRST_S = 130.0
"""The first answer may take two minutes."""
AZURE_POLL_S = 2.0
RETRY_MAX_S = 10.0
"""A Preempt leaves 30 s."""
NAME_MAX = 256
WORDS: Final = {
    "Preempt": "Azure reclaims this machine",
    "Terminate": "Azure deletes this machine",
    "Reboot": "Azure restarts this machine",
    "Redeploy": "Azure moves this machine to other hardware",
}
"""The events that end the processes of this machine, in words."""


class _ScheduledEvent(msgspec.Struct, rename="pascal"):
    event_type: str | None = None
    resources: list[str | None] | None = None
    not_before: str | None = None


class _ScheduledEvents(msgspec.Struct, rename="pascal"):
    events: list[msgspec.Raw] | None = None


async def poll(ask: Ask) -> AsyncIterator[PollResult]:
    """Request the name, and then the events repeatedly."""
    name, limit_s = "", FIRST_S
    while True:
        if not name:
            answer = await ask(MetadataRequest(NAME, HEADERS))
            readable = 0 < len(answer.text) <= NAME_MAX and answer.text.isprintable()
            if error := answer.error or ("" if readable else "it does not say this machine's name"):
                yield PollResult(error=error)
                continue
            name = answer.text
        heard = _read(name, await ask(MetadataRequest(EVENTS, HEADERS, timeout_s=limit_s)))
        if not heard.error:
            limit_s = TIMEOUT_S
        yield heard


WATCHES: Final = (Watch(poll, RETRY_MAX_S),)


def _read(name: str, answer: MetadataResponse) -> PollResult:
    """Return what an answer says about the machine `name`. An empty list of events is the usual one."""
    if answer.error:
        return PollResult(error=answer.error)
    try:
        events = msgspec.json.decode(answer.body, type=_ScheduledEvents).events or []
    except UNREADABLE:
        return PollResult(error="its answer cannot be parsed")
    return standing([found for event in events if (found := _read_event(name, event, answer))], AZURE_POLL_S)


def _read_event(name: str, raw: msgspec.Raw, answer: MetadataResponse) -> InterruptionNotice | str | None:
    """Return one event; each is parsed separately, so that one that cannot be parsed hides no other."""
    try:
        event = msgspec.json.decode(raw, type=_ScheduledEvent)
    except UNREADABLE:
        return None
    if name.casefold() not in (resource.casefold() for resource in event.resources or () if resource):
        return None
    at = parsed_time(event.not_before or "")
    if event.event_type in WORDS:
        return notice(WORDS[event.event_type], at, answer)
    if event.event_type == "Freeze":
        when = f"at {clock_time(at)}" if at is not None else "now"
        return f"Azure pauses this machine for a few seconds {when} (Freeze); training continues"
    return None
