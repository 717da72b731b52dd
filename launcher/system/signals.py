"""Signals to the agent: the first asks it to leave gracefully, the second ends it at once. Handlers only enqueue."""

from __future__ import annotations

import asyncio
import signal

HEARD = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class SignalQueue:
    """The received signals as awaitables. Requires a running event loop."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.first: asyncio.Future[signal.Signals] = loop.create_future()
        self.second = asyncio.Event()
        for number in HEARD:
            if signal.getsignal(number) is not signal.SIG_IGN:  # As under nohup.
                loop.add_signal_handler(number, self._note, number)

    def _note(self, number: signal.Signals) -> None:
        if self.first.done():
            self.second.set()
        else:
            self.first.set_result(number)
