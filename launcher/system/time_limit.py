"""A wait with a limit, for callers that go on either way."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import suppress


async def wait_at_most(limit_s: float, event: Awaitable[object]) -> None:
    """Wait for an event for at most `limit_s` seconds. Nothing tells the caller which of the two ended the wait."""
    with suppress(TimeoutError):
        async with asyncio.timeout(limit_s):
            await event
