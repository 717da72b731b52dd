"""The thread in which a node of torchrun lives, because torch's agent is synchronous and busy with its workers.

Elsewhere this project has no threads of its own: one loop does everything. Here torch's agent has the main thread, and
calls the rendezvous handler now and then, while leases, links and watches go on all the time. So they have a loop in a
thread. Both sides meet in `put` and in the handler's condition, nowhere else.

The loop runs gRPC, which works in one process only: a child made by `fork` has its state and none of its threads, and
calls in it wait for ever and disturb those of the parent. So a child may neither start a loop, nor touch the one that
it inherited.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Set
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")

JOIN_LIMIT_S = 2.0
"""The thread ends at once when it is told to; a process that ends waits no longer for it."""
FORKED = (
    "this process was forked from one in which elastic-etcd had already run, and gRPC does not work after a fork; "
    'start the agent as a new process (multiprocessing with "spawn", or subprocess)'
)

_process: int | None = None
"""The process in which the first loop was started: it, or one that was forked from it, is this one."""


class AgentLoopThread:
    """A loop in a thread of its own, from the first `begin` to `close`. One after the other may be begun and closed."""

    def __init__(self) -> None:
        """Nothing runs yet."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._begun: set[asyncio.Task[Any]] = set()

    @property
    def forked(self) -> bool:
        """Whether this process was forked from one in which a loop had been started."""
        return _process not in (None, os.getpid())

    @property
    def inside(self) -> bool:
        """Whether this is the loop's thread."""
        return self._thread is threading.current_thread()

    def begin(self, work: Callable[[], Coroutine[Any, Any, T]]) -> Future[T]:
        """Run the coroutine that `work` makes in the loop. The process must not be `forked`."""
        global _process
        assert not self.forked
        _process = os.getpid()
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._loop.run_forever, name="elastic-etcd", daemon=True)
            self._thread.start()

        async def tracked() -> T:
            task = asyncio.current_task()
            assert task is not None
            self._begun.add(task)
            try:
                return await work()
            finally:
                self._begun.discard(task)

        return asyncio.run_coroutine_threadsafe(tracked(), self._loop)

    def close(self, limit_s: float = JOIN_LIMIT_S) -> None:
        """End what runs, and the thread, for which it waits at most `limit_s`. A second call does nothing.

        It may be called from any thread, the loop's own included, which then ends afterwards.
        """
        loop, thread = self._loop, self._thread
        if loop is None or thread is None or self.forked:
            return
        self._loop = self._thread = None
        ended = asyncio.run_coroutine_threadsafe(_end(self._begun), loop)
        ended.add_done_callback(lambda _: loop.call_soon_threadsafe(loop.stop))
        if thread is threading.current_thread():
            return
        thread.join(limit_s)
        if not thread.is_alive():
            loop.close()


async def _end(begun: Set[asyncio.Task[Any]]) -> None:
    """Cancel what was begun, which ends in order whatever it has started itself."""
    tasks = list(begun)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
