"""Requests to a metadata server, its answers, and what they mean (pure).

A `Watch` sends one request after the other. It keeps its own state and knows no clock, no socket and no other watch.
Whatever a server answers becomes a notice, a remark, nothing, or an error.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from datetime import UTC, datetime
from typing import Final, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

POLL_S = 5.0
"""Between two polls: what AWS advises (Spot Instance interruption notices, EC2 user guide)."""
PAUSE_MAX_S = 60.0
"""Between two polls of a server that does not answer."""
TIMEOUT_S = 5.0
"""A metadata server answers within milliseconds; one that does not within this time is polled again later."""
LEFT_MIN_S = 10.0
"""Minimum time that counts as left. A notice can name a time that has passed, or none; trying to save costs nothing,
and if the machine disappears meanwhile that is a node failure like any other."""
NEAR_S = 600.0
"""A notice with more time than this is logged but does not drain the node yet: until then it makes steps. Azure
announces failing hardware days ahead, and Google a stop of a machine with GPUs an hour ahead."""
TOKEN: Final = re.compile(r"[!-~]{1,1024}")
"""What may be sent back to a server in a header."""


class MetadataRequest(Struct, frozen=True):
    """One request."""

    path: str
    headers: Mapping[str, str] = {}
    method: str = "GET"
    timeout_s: float = TIMEOUT_S


class MetadataResponse(Struct, frozen=True):
    """The answer of a server; status 0: none. `came_at` is this host's Unix time. Header names are in lower case."""

    status: int = 0
    headers: Mapping[str, str] = {}
    body: bytes = b""
    came_at: float = 0.0

    @property
    def text(self) -> str:
        """The body as text."""
        return self.body.decode("utf-8", "replace").strip()

    @property
    def error(self) -> str:
        """The error that its status shows, "" if there is none."""
        if self.status == 200:
            return ""
        return f"it answers with {self.status}" if self.status else "it does not answer"


class InterruptionNotice(Struct, frozen=True):
    """This machine goes away. `text`: "AWS reclaims this machine"; `at` is Unix time, `left_s` counts from now."""

    text: str
    at: float
    left_s: float

    @property
    def reason(self) -> str:
        """The notice with its time, as all nodes show it."""
        return f"{self.text} at {clock_time(self.at)}"


class PollResult(Struct, frozen=True):
    """The result of one answer, the pause before the next request, and the error, "" if there is none.

    `notices` are the current ones, None if the answer does not tell. `remarks` may be of interest to a user, and change
    nothing.
    """

    notices: tuple[InterruptionNotice, ...] | None = None
    remarks: tuple[str, ...] = ()
    pause_s: float = POLL_S
    error: str = ""


Ask = Callable[[MetadataRequest], Awaitable[MetadataResponse]]


class Watch(NamedTuple):
    """One value of a metadata server: `poll` sends one request after the other, and yields the results."""

    poll: Callable[[Ask], AsyncIterator[PollResult]]
    pause_max_s: float = PAUSE_MAX_S
    """Between two requests while there is an error."""


async def polled(watch: Watch, ask: Ask) -> AsyncIterator[PollResult]:
    """Yield the results of a watch, until cancelled. The pause grows while an error lasts."""
    failures = 0
    while True:
        try:
            async for heard in watch.poll(ask):
                failures = failures + 1 if heard.error else 0
                pause_s = min(POLL_S * 2.0 ** min(failures - 1, 10), watch.pause_max_s) if failures else heard.pause_s
                yield replace(heard, pause_s=pause_s)
        except Exception as error:  # noqa: BLE001  Whatever a server answers, training continues.
            text = f"its answer is unexpected: {type(error).__name__}"
            yield PollResult(pause_s=PAUSE_MAX_S, error=text)


def standing(found: Collection[InterruptionNotice | str], pause_s: float = POLL_S) -> PollResult:
    """Return the result of an answer about notices: the current ones, and remarks."""
    notices = tuple(one for one in found if isinstance(one, InterruptionNotice))
    return PollResult(notices, tuple(one for one in found if isinstance(one, str)), pause_s)


def notice(
    text: str, at: float | None, answer: MetadataResponse, *, left_min_s: float = LEFT_MIN_S
) -> InterruptionNotice | str:
    """Return a notice, or a remark if it is further away than `NEAR_S`.

    `at` is by the server's clock, which is its Date header if it has one; None: the machine may stop at any time.
    """
    theirs = parsed_time(answer.headers.get("date", ""))
    left_s = 0.0 if at is None else at - (theirs if theirs is not None else answer.came_at)
    if at is not None and left_s > NEAR_S:
        return f"{text} at {date_time(at)}: this node drains {NEAR_S / 60:.0f} minutes before, unless that changes"
    return InterruptionNotice(text, answer.came_at if at is None else at, max(left_s, left_min_s))


def parsed_time(text: str) -> float | None:
    """Return the Unix time of an HTTP date or of an ISO one in UTC, None if it is neither."""
    for form in ("%a, %d %b %Y %H:%M:%S GMT", "%Y-%m-%dT%H:%M:%SZ", "%Y-%m-%dT%H:%M:%S.%fZ"):
        try:
            return datetime.strptime(text.strip(), form).replace(tzinfo=UTC).timestamp()
        except ValueError:
            continue
    return None


def clock_time(at: float) -> str:
    """Return a Unix time as 12:03:44Z. A time that no clock has is "an unknown time"."""
    return _shown(at, "%H:%M:%SZ")


def date_time(at: float) -> str:
    """Return the same with its date: 2027-01-18 12:03:44Z."""
    return _shown(at, "%Y-%m-%d %H:%M:%SZ")


def _shown(at: float, form: str) -> str:
    try:
        return datetime.fromtimestamp(at, UTC).strftime(form)
    except (OverflowError, OSError, ValueError):
        return "an unknown time"
