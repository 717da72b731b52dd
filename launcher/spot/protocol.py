"""What is asked of a metadata server, what it answers, and what that means (pure).

A `MetadataPoller` asks one question after the other: `ask` is the next request, `on_response` takes what came of it. It
keeps its own state and knows no clock, no socket and no other watch. Whatever a server answers is only ever a notice, a
remark, nothing, or trouble.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from msgspec import Struct

POLL_S = 5.0
"""Between two looks: what AWS advises (Spot Instance interruption notices, EC2 user guide)."""
PAUSE_MAX_S = 60.0
"""Between two looks at a server that does not answer."""
TIMEOUT_S = 5.0
"""A metadata server answers within milliseconds; who does not within this time is asked again later."""
LEFT_MIN_S = 10.0
"""So much time counts as left at least. A notice can name a moment that is over, or none; to try to save costs nothing,
and if the machine goes meanwhile it is a loss like any other."""
NEAR_S = 600.0
"""A machine that goes later than this is worth a line and no drain yet: until then it makes steps. Azure announces
hardware that is about to fail days ahead, and Google a stop of a machine with cards an hour ahead."""
TOKEN: Final = re.compile(r"[!-~]{1,1024}")
"""What may be sent back to a server in a header."""


class MetadataRequest(Struct, frozen=True):
    """One request."""

    path: str
    headers: Mapping[str, str] = {}
    method: str = "GET"
    timeout_s: float = TIMEOUT_S


class MetadataResponse(Struct, frozen=True):
    """What a server said. The names of `headers` are in lower case."""

    status: int
    headers: Mapping[str, str] = {}
    body: bytes = b""

    @property
    def text(self) -> str:
        """The body as text."""
        return self.body.decode("utf-8", "replace").strip()


class InterruptionNotice(Struct, frozen=True):
    """This machine goes. `text`: "AWS takes this machine back"; `at` is Unix time, `left_s` counts from now."""

    text: str
    at: float
    left_s: float

    @property
    def reason(self) -> str:
        """The notice with its time, as all nodes are told."""
        return f"{self.text} at {clock_time(self.at)}"


class ProviderInfo(Struct, frozen=True):
    """What an operator may want to know, and what changes nothing."""

    text: str


class PollResult(Struct, frozen=True):
    """What came of one request: what was found, the pause before the next one, and what is wrong, "" if nothing.

    `clear`: this answer says that no notice stands.
    """

    found: tuple[InterruptionNotice | ProviderInfo, ...] = ()
    pause_s: float = POLL_S
    trouble: str = ""
    clear: bool = False


class MetadataPoller:
    """One line of questions to a metadata server. It begins with nothing asked."""

    pause_max_s = PAUSE_MAX_S
    _failures = 0
    """In a row."""

    def ask(self) -> MetadataRequest:
        """Give the next request."""
        raise NotImplementedError

    def on_response(self, answer: MetadataResponse | None, now: float) -> PollResult:
        """Take in what came of it; None: no answer. `now` is this machine's Unix time."""
        raise NotImplementedError

    def _failed(self, trouble: str) -> PollResult:
        """What comes of an answer that says nothing: the longer it has been so, the longer the pause."""
        self._failures += 1
        return PollResult((), min(POLL_S * 2.0 ** min(self._failures - 1, 10), self.pause_max_s), trouble)


def notice(
    text: str, at: float | None, answer: MetadataResponse, now: float, *, left_min_s: float = LEFT_MIN_S
) -> InterruptionNotice | ProviderInfo:
    """Make a notice, or a remark if it is further away than `NEAR_S`.

    `at` is by the server's clock, which is its Date header where it has one; None: it is due.
    """
    theirs = parsed_time(answer.headers.get("date", ""))
    left_s = 0.0 if at is None else at - (theirs if theirs is not None else now)
    if at is not None and left_s > NEAR_S:
        return ProviderInfo(
            f"{text} at {date_time(at)}: this node drains {NEAR_S / 60:.0f} minutes before, if that stands"
        )
    return InterruptionNotice(text, now if at is None else at, max(left_s, left_min_s))


def parsed_time(text: str) -> float | None:
    """Unix time of an HTTP date or of an ISO one in UTC, None if it is neither."""
    for form in ("%a, %d %b %Y %H:%M:%S GMT", "%Y-%m-%dT%H:%M:%SZ", "%Y-%m-%dT%H:%M:%S.%fZ"):
        try:
            return datetime.strptime(text.strip(), form).replace(tzinfo=UTC).timestamp()
        except ValueError:
            continue
    return None


def clock_time(at: float) -> str:
    """Unix time as people read it: 12:03:44Z. A time that no clock has is "an unknown time"."""
    return _shown(at, "%H:%M:%SZ")


def date_time(at: float) -> str:
    """The same with its date: 2027-01-18 12:03:44Z."""
    return _shown(at, "%Y-%m-%d %H:%M:%SZ")


def _shown(at: float, form: str) -> str:
    try:
        return datetime.fromtimestamp(at, UTC).strftime(form)
    except (OverflowError, OSError, ValueError):
        return "an unknown time"
