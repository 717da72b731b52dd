"""Amazon EC2's interruption notice and rebalance recommendation (pure).

The token comes first (IMDSv2), and a new one is requested when the server says that it has expired. If there is no
token, the same paths are read without one, as older machines and containers one hop further away require; they hold no
secret. A machine that requires tokens answers that with 401, and is asked for a token again.

Sources: EC2 user guide, "Spot Instance interruption notices", "EC2 instance rebalance recommendations", "How Instance
Metadata Service Version 2 works".
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import cycle
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
    clock_time,
    notice,
    parsed_time,
    standing,
)

TOKEN_TTL_S = 21_600
"""Six hours, the maximum."""
ASK_TOKEN: Final = MetadataRequest(
    "/latest/api/token", {"X-aws-ec2-metadata-token-ttl-seconds": str(TOKEN_TTL_S)}, "PUT"
)
ACTION: Final = "/latest/meta-data/spot/instance-action"
REBALANCE: Final = "/latest/meta-data/events/recommendations/rebalance"
WORDS: Final = {"stop": "AWS stops this machine", "hibernate": "AWS hibernates this machine"}
TAKES: Final = "AWS reclaims this machine"


class _InstanceAction(msgspec.Struct):
    action: str
    time: str


class _Rebalance(msgspec.Struct):
    noticeTime: str  # noqa: N815


async def poll(ask: Ask) -> AsyncIterator[PollResult]:
    """Request both in turn, with a token before, and again after anything else than an answer."""
    while True:
        given = await ask(ASK_TOKEN)
        token = {"X-aws-ec2-metadata-token": given.text} if TOKEN.fullmatch(given.text) and not given.error else {}
        worked = False
        for path in cycle((ACTION, REBALANCE)):
            answer = await ask(MetadataRequest(path, token))
            if answer.status == 401 and worked:
                break  # The token has expired.
            heard = _read(path, answer)
            yield heard
            if heard.error:
                break
            worked = True


WATCHES: Final = (Watch(poll),)


def _read(path: str, answer: MetadataResponse) -> PollResult:
    """Return what an answer says. 404 is the usual one: there is no notice."""
    there = answer.status != 404
    if there and answer.error:
        return PollResult(error=answer.error)
    try:
        if path == REBALANCE:
            return PollResult(remarks=(_recommendation(answer),) if there else ())
        return standing([_action(answer)] if there else [], 0.0)  # The pause comes after both.
    except UNREADABLE:
        return PollResult(error="its answer cannot be parsed")


def _action(answer: MetadataResponse) -> InterruptionNotice | str:
    action = msgspec.json.decode(answer.body, type=_InstanceAction)
    return notice(WORDS.get(action.action, TAKES), parsed_time(action.time), answer)


def _recommendation(answer: MetadataResponse) -> str:
    at = parsed_time(msgspec.json.decode(answer.body, type=_Rebalance).noticeTime)
    since = f" since {clock_time(at)}" if at is not None else ""
    return f"AWS says{since} that it may reclaim this machine (rebalance recommendation); training continues"
