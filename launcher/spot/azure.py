"""Azure's Scheduled Events (pure).

The events of all machines of a placement group come to each of them, so this machine first asks for its own name. An
event is never acknowledged: that would only bring it forward. A Preempt is announced at least 30 s before, a Reboot and
a Redeploy 15 and 10 minutes before, and days before where hardware is about to fail. The first request for events
switches them on, and may take two minutes.

Source: Azure documentation, "Azure Metadata Service: Scheduled Events for Linux VMs".
"""

from __future__ import annotations

from typing import Final

import msgspec

from elastic._decode import UNREADABLE
from launcher.spot.protocol import (
    InterruptionNotice,
    MetadataPoller,
    MetadataRequest,
    MetadataResponse,
    PollResult,
    ProviderInfo,
    clock_time,
    notice,
    parsed_time,
)

HEADERS: Final = {"Metadata": "true"}
NAME: Final = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
EVENTS: Final = "/metadata/scheduledevents?api-version=2020-07-01"
FIRST_S = 130.0
"""The first answer may take two minutes."""
AZURE_POLL_S = 2.0
"""A Preempt leaves 30 s."""
NAME_MAX = 256
WORDS: Final = {
    "Preempt": "Azure takes this machine back",
    "Terminate": "Azure deletes this machine",
    "Reboot": "Azure restarts this machine",
    "Redeploy": "Azure moves this machine to other hardware",
}
"""The events that end what runs here, in words."""


class _ScheduledEvent(msgspec.Struct, rename="pascal"):
    event_type: str | None = None
    resources: list[str | None] | None = None
    not_before: str | None = None


class _ScheduledEvents(msgspec.Struct, rename="pascal"):
    events: list[msgspec.Raw] | None = None


class AzurePoller(MetadataPoller):
    """Asks for the name, and then for the events again and again."""

    pause_max_s = 10.0
    _name = ""
    _switched_on = False

    def ask(self) -> MetadataRequest:
        """The name of this machine, or what is planned."""
        if not self._name:
            return MetadataRequest(NAME, HEADERS)
        return (
            MetadataRequest(EVENTS, HEADERS)
            if self._switched_on
            else MetadataRequest(EVENTS, HEADERS, timeout_s=FIRST_S)
        )

    def on_response(self, answer: MetadataResponse | None, now: float) -> PollResult:
        """An empty list of events is the usual answer."""
        if answer is None or answer.status != 200:
            return self._failed("it does not answer" if answer is None else f"it answers with {answer.status}")
        if not self._name:
            if not 0 < len(answer.text) <= NAME_MAX or not answer.text.isprintable():
                return self._failed("it does not say this machine's name")
            self._name, self._failures = answer.text, 0
            return PollResult(pause_s=0.0)
        try:
            events = msgspec.json.decode(answer.body, type=_ScheduledEvents).events or []
        except UNREADABLE:
            return self._failed("its answer cannot be read")
        self._failures, self._switched_on = 0, True
        findings = tuple(finding for event in events for finding in self._read(event, answer, now))
        return PollResult(
            findings, AZURE_POLL_S, clear=not any(isinstance(finding, InterruptionNotice) for finding in findings)
        )

    def _read(
        self, raw: msgspec.Raw, answer: MetadataResponse, now: float
    ) -> tuple[InterruptionNotice | ProviderInfo, ...]:
        """One event, by itself: one that cannot be read hides no other."""
        try:
            event = msgspec.json.decode(raw, type=_ScheduledEvent)
        except UNREADABLE:
            return ()
        if self._name.casefold() not in (resource.casefold() for resource in event.resources or () if resource):
            return ()
        at = parsed_time(event.not_before or "")
        if event.event_type in WORDS:
            return (notice(WORDS[event.event_type], at, answer, now),)
        if event.event_type == "Freeze":
            when = f"at {clock_time(at)}" if at is not None else "now"
            return (ProviderInfo(f"Azure pauses this machine for some seconds {when} (Freeze); training goes on"),)
        return ()
