"""The thread in which a node of torchrun lives, because torch's agent is synchronous and busy with its workers.

Elsewhere this project has no threads of its own: one loop does everything. Here torch's agent has the main thread, and
calls the rendezvous handler now and then, while leases, links and watches go on all the time. So they have a loop in a
thread. Both sides meet in `put` and in the handler's condition, nowhere else.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")

JOIN_LIMIT_S = 2.0
"""The thread ends at once when it is told to; a process that ends waits no longer for it."""


class Backstage:
    """A loop in a thread of its own, from the first `begin` to `close`. One after the other may be begun and closed."""

    def __init__(self) -> None:
        """Nothing runs yet."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def begin(self, work: Callable[[], Coroutine[Any, Any, T]]) -> Future[T]:
        """Run the coroutine that `work` makes in the loop."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._loop.run_forever, name="elastic-etcd", daemon=True)
            self._thread.start()

        async def inside() -> T:
            return await work()

        return asyncio.run_coroutine_threadsafe(inside(), self._loop)

    def close(self) -> None:
        """End what runs, and the thread. A second call does nothing."""
        loop, thread = self._loop, self._thread
        if loop is None or thread is None:
            return
        self._loop = self._thread = None
        ended = asyncio.run_coroutine_threadsafe(_end_all(), loop)
        ended.add_done_callback(lambda _: loop.call_soon_threadsafe(loop.stop))
        thread.join(JOIN_LIMIT_S)
        if not thread.is_alive():
            loop.close()


async def _end_all() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
