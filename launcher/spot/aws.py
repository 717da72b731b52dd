"""Amazon EC2's interruption notice and rebalance recommendation (pure).

The token comes first (IMDSv2) and is asked for again when the server says that it has expired. Where no token can be
had the same paths are read without one, as older machines and containers behind one hop more need it: they hold no
secret. A machine that insists on tokens answers that with 401, and is asked for a token again.

Sources: EC2 user guide, "Spot Instance interruption notices", "EC2 instance rebalance recommendations", "How Instance
Metadata Service Version 2 works".
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
    clock_time,
    notice,
    parsed_time,
)

TOKEN_TTL_S = 21_600
"""Six hours, the longest that there is."""
ACTION: Final = "/latest/meta-data/spot/instance-action"
REBALANCE: Final = "/latest/meta-data/events/recommendations/rebalance"
WORDS: Final = {"stop": "AWS stops this machine", "hibernate": "AWS hibernates this machine"}
TAKES: Final = "AWS takes this machine back"


class _InstanceAction(msgspec.Struct):
    action: str
    time: str


class _Rebalance(msgspec.Struct):
    noticeTime: str  # noqa: N815


class AwsPoller(MetadataPoller):
    """Asks for both in turn; between two rounds it pauses."""

    def __init__(self) -> None:
        """Nothing was asked yet."""
        self._token = ""
        self._bare = False
        """Whether it is asked without a token."""
        self._path = ACTION

    def ask(self) -> MetadataRequest:
        """The token, the notice, or the recommendation."""
        if not self._token and not self._bare:
            return MetadataRequest(
                "/latest/api/token", {"X-aws-ec2-metadata-token-ttl-seconds": str(TOKEN_TTL_S)}, "PUT"
            )
        return MetadataRequest(self._path, {"X-aws-ec2-metadata-token": self._token} if self._token else {})

    def on_response(self, answer: MetadataResponse | None, now: float) -> PollResult:
        """404 is the usual answer: there is no notice."""
        if not self._token and not self._bare:
            return self._hear_token(answer)
        if answer is None or answer.status not in (200, 404):
            self._token, self._bare = "", False
            if answer is not None and answer.status == 401 and not self._failures:
                self._failures = 1
                return PollResult(pause_s=0.0)  # The token has expired.
            return self._failed("it does not answer" if answer is None else f"it answers with {answer.status}")
        self._failures = 0
        try:
            findings = self._read(answer, now) if answer.status == 200 else ()
        except UNREADABLE:
            return self._failed("its answer cannot be read")
        if self._path == REBALANCE:
            self._path = ACTION
            return PollResult(findings)
        self._path = REBALANCE  # At once: the pause comes after both.
        return PollResult(findings, 0.0, clear=not any(isinstance(finding, InterruptionNotice) for finding in findings))

    def _hear_token(self, answer: MetadataResponse | None) -> PollResult:
        if answer is not None and answer.status == 200 and TOKEN.fullmatch(answer.text):
            self._token = answer.text
        else:
            self._bare = True
        return PollResult(pause_s=0.0)

    def _read(self, answer: MetadataResponse, now: float) -> tuple[InterruptionNotice | ProviderInfo, ...]:
        if self._path == ACTION:
            action = msgspec.json.decode(answer.body, type=_InstanceAction)
            return (notice(WORDS.get(action.action, TAKES), parsed_time(action.time), answer, now),)
        at = parsed_time(msgspec.json.decode(answer.body, type=_Rebalance).noticeTime)
        since = f" since {clock_time(at)}" if at is not None else ""
        text = f"AWS says{since} that it may take this machine back (rebalance recommendation); training goes on"
        return (ProviderInfo(text),)

    def _failed(self, trouble: str) -> PollResult:
        self._path = ACTION
        return super()._failed(trouble)
