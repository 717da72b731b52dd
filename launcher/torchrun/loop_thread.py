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
import weakref
from collections.abc import Callable, Coroutine
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
        """Run the coroutine that `work` makes in the loop. The process must not be `forked`."""
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
        """Run until `close`; then cancel what was begun, which ends in order whatever it has started itself."""
        started.set_result(asyncio.get_running_loop())
        await self._stop.wait()
        for task in self._begun:
            task.cancel()
        await asyncio.gather(*self._begun, return_exceptions=True)

    def call(self, callback: Callable[[], object]) -> None:
        """Have this called in the loop's thread. It does nothing where there is none any more."""
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
