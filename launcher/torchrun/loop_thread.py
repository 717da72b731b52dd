"""The thread that runs a node of torchrun, because torch's agent is synchronous and busy with its workers.

Elsewhere this project starts no threads: one loop does everything. Here torch's agent has the main thread, and calls
the rendezvous handler from time to time, while leases, links and watches need service all the time. So they have a
loop in a separate thread. Both sides communicate only through `put` and the handler's condition.

The loop runs gRPC, which works in one process only: a child made by `fork` has its state and none of its threads, and
calls in it wait indefinitely and disturb those of the parent. So a child may neither start a loop, nor touch the one
that it inherited.
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")

JOIN_LIMIT_S = 2.0
"""The thread ends at once on request; an exiting process waits no longer than this for it."""
FORKED = (
    "this process was forked from one in which elastic-etcd had already run, and gRPC does not work after a fork; "
    'start the agent as a new process (multiprocessing with "spawn", or subprocess)'
)

_process: int | None = None
"""The process in which the first loop was started: this process, or an ancestor that it was forked from."""


class AgentLoopThread:
    """A loop in a separate thread, from the first `begin` to `close`. It may be started again after that."""

    def __init__(self) -> None:
        """Create the object; the first `begin` starts the thread."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._begun = weakref.WeakSet[asyncio.Task[Any]]()
        self._stop = asyncio.Event()
        """Ends the loop that runs, or the next one."""

    @property
    def forked(self) -> bool:
        """Whether this process was forked from one in which a loop had been started."""
        return _process not in (None, os.getpid())

    @property
    def inside(self) -> bool:
        """Whether this is the loop's thread."""
        return self._thread is threading.current_thread()

    def begin(self, work: Callable[[], Coroutine[Any, Any, T]]) -> Future[T]:
        """Run the coroutine that `work` returns in the loop. The process must not be `forked`."""
        global _process
        assert not self.forked
        _process = os.getpid()
        if self._loop is None:
            started: Future[asyncio.AbstractEventLoop] = Future()
            self._thread = threading.Thread(
                target=lambda: asyncio.run(self._live(started)), name="elastic-etcd", daemon=True
            )
            self._thread.start()
            self._loop = started.result()

        async def tracked() -> T:
            task = asyncio.current_task()
            assert task is not None
            self._begun.add(task)
            return await work()

        return asyncio.run_coroutine_threadsafe(tracked(), self._loop)

    async def _live(self, started: Future[asyncio.AbstractEventLoop]) -> None:
        """Run until `close`; then cancel the coroutines, which end in order whatever they have started."""
        started.set_result(asyncio.get_running_loop())
        await self._stop.wait()
        for task in self._begun:
            task.cancel()
        await asyncio.gather(*self._begun, return_exceptions=True)

    def call(self, callback: Callable[[], object]) -> None:
        """Call this in the loop's thread. It does nothing if the thread has ended."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(callback)

    def close(self, limit_s: float = JOIN_LIMIT_S) -> None:
        """End what runs, and the thread, for which it waits at most `limit_s`. A second call does nothing.

        It may be called from any thread, the loop's own included, which then ends afterwards.
        """
        loop, thread = self._loop, self._thread
        if loop is None or thread is None or self.forked:
            return
        self._loop = self._thread = None
        loop.call_soon_threadsafe(self._stop.set)
        self._stop = asyncio.Event()
        if thread is not threading.current_thread():
            thread.join(limit_s)
