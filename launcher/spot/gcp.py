"""Google Compute Engine's preemption and maintenance notices (pure).

Both are hanging requests: the server answers when the value changes, or after a minute. The first one does not hang, so
that a notice that is there already is seen at once; the others name the etag of the answer before, so that no change
between two requests is missed. An answer without `Metadata-Flavor: Google` is not from the metadata server.

A spot machine has about 30 s after `preempted` is TRUE. A maintenance event is announced 60 s before, or up to an hour
for machines with cards; when it begins says `upcoming-maintenance`, where that is kept. Sources: Compute Engine
documentation, "Create and use Spot VMs", "Query metadata server for maintenance event notices", "Monitor and plan for a
host maintenance event", "About VM metadata".
"""

from __future__ import annotations

from typing import Final

import msgspec

from elastic._decode import UNREADABLE
from launcher.spot.protocol import (
    TOKEN,
    InterruptionNotice,
    MetadataPoller,
    MetadataRequest,
    MetadataResponse,
    PollResult,
    ProviderInfo,
    notice,
    parsed_time,
)

HANGS_S = 60
"""A hanging request is answered after this time, whatever there is."""
ANSWERED_S = HANGS_S + 10.0
PAUSE_S = 1.0
"""Between two requests, so that a server that does not hang is not asked without end."""
TROUBLE_MAX_S = 5.0
"""A preemption leaves 30 s: a server that does not answer is asked again soon."""
HEADERS: Final = {"Metadata-Flavor": "Google"}
BASE: Final = "/computeMetadata/v1/instance"
PREEMPTED_S = 30.0
MAINTENANCE_S = 60.0
STOPS: Final = "Google Cloud stops this machine for maintenance"


class _MetadataValue(MetadataPoller):
    """One value, followed by hanging requests."""

    PATH = ""
    pause_max_s = TROUBLE_MAX_S
    _etag = ""

    def ask(self) -> MetadataRequest:
        """The value as it is, or its next change."""
        if not self._etag:
            return MetadataRequest(f"{BASE}/{self.PATH}", HEADERS)
        query = f"wait_for_change=true&timeout_sec={HANGS_S}&last_etag={self._etag}"
        return MetadataRequest(f"{BASE}/{self.PATH}?{query}", HEADERS, timeout_s=ANSWERED_S)

    def on_response(self, answer: MetadataResponse | None, now: float) -> PollResult:
        """A value; anything else is trouble."""
        if answer is None:
            return self._failed("it does not answer")
        if answer.headers.get("metadata-flavor") != "Google":
            return self._failed("it is not Google's")
        if answer.status != 200:
            return self._failed(f"it answers with {answer.status}")
        self._failures = 0
        etag = answer.headers.get("etag", "")
        self._etag = etag if TOKEN.fullmatch(etag) and etag.isalnum() else ""
        findings = self.read(answer, now)
        clear = not any(isinstance(finding, InterruptionNotice) for finding in findings)
        return PollResult(findings, PAUSE_S if self._etag else TROUBLE_MAX_S, clear=clear)

    def read(self, answer: MetadataResponse, now: float) -> tuple[InterruptionNotice | ProviderInfo, ...]:
        """What the value means."""
        raise NotImplementedError

    def _failed(self, trouble: str) -> PollResult:
        self._etag = ""
        return super()._failed(trouble)


class PreemptionPoller(_MetadataValue):
    """Whether this machine is being taken back."""

    PATH = "preempted"

    def read(self, answer: MetadataResponse, now: float) -> tuple[InterruptionNotice | ProviderInfo, ...]:
        """TRUE or FALSE."""
        if answer.text != "TRUE":
            return ()
        return (InterruptionNotice("Google Cloud takes this machine back", now + PREEMPTED_S, PREEMPTED_S),)


class _MaintenanceWindow(msgspec.Struct):
    """Both spellings are documented."""

    window_start_time: str = ""
    windowStartTime: str = ""  # noqa: N815


class MaintenancePoller(_MetadataValue):
    """What Google is about to do with the host of this machine; of a stop also when."""

    PATH = "maintenance-event"

    _stops = False
    """Whether the last answer was that the machine stops, and nobody has asked when."""

    def ask(self) -> MetadataRequest:
        """The event, or when it is."""
        return MetadataRequest(f"{BASE}/upcoming-maintenance?alt=json", HEADERS) if self._stops else super().ask()

    def on_response(self, answer: MetadataResponse | None, now: float) -> PollResult:
        """Where nobody says when, a stop is as near as one without cards."""
        if not self._stops:
            heard = super().on_response(answer, now)
            if self._stops:
                self._etag = ""  # Nothing hangs while the time runs: after this the event is read as it is.
                return PollResult(pause_s=0.0)
            return heard
        self._stops = False
        at = _begins(answer)
        said = answer if answer is not None and at is not None else MetadataResponse(0)
        stop = notice(STOPS, at or now + MAINTENANCE_S, said, now, left_min_s=MAINTENANCE_S)
        return PollResult((stop,), clear=isinstance(stop, ProviderInfo))

    def read(self, answer: MetadataResponse, now: float) -> tuple[InterruptionNotice | ProviderInfo, ...]:
        """NONE, MIGRATE_ON_HOST_MAINTENANCE or TERMINATE_ON_HOST_MAINTENANCE."""
        if answer.text.startswith("MIGRATE"):
            return (ProviderInfo("Google Cloud moves this machine to another host (live migration); training goes on"),)
        if answer.text.startswith("TERMINATE"):
            self._stops = True
        return ()


def _begins(answer: MetadataResponse | None) -> float | None:
    """When a planned maintenance begins, None if that is not said."""
    if answer is None or answer.status != 200 or answer.headers.get("metadata-flavor") != "Google":
        return None
    try:
        planned = msgspec.json.decode(answer.body, type=_MaintenanceWindow)
    except UNREADABLE:
        return None
    return parsed_time(planned.window_start_time or planned.windowStartTime)
