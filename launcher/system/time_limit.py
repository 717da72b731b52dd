"""A wait with a time limit, for callers that continue in either case."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import suppress


async def wait_at_most(limit_s: float, event: Awaitable[object]) -> None:
    """Wait for an event for at most `limit_s` seconds. The caller does not learn what ended the wait."""
    with suppress(TimeoutError):
        async with asyncio.timeout(limit_s):
            await event
