"""What a script reports of its progress: `elastic.report`, `elastic.preparing`, `elastic.ready`.

Reports go to the agent of this node over the local channel. No call waits or fails: training does not depend on them.
Outside elastic-launch there is no agent, and a call does nothing.
"""

from __future__ import annotations

import atexit
import math
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

from elastic import environment
from elastic.channel.client import ChannelClient, channel_client
from elastic.channel.messages import (
    METRICS_MAX,
    AgentLogLine,
    PreparationOver,
    Preparing,
    Progress,
    clock,
    truncate_text,
)
from elastic.errors import ConfigError
from elastic.train import stack_dump

INTERVAL_S: Final = 0.5
"""Reports are sent at most this often; one that comes earlier costs well below a microsecond and goes with the next."""
STEP_MAX: Final = 2**62
NAME_MAX: Final = 64
WHAT_MAX: Final = 1000
UNREADABLE: Final = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""What a value raises that is no number. RuntimeError: torch's errors; the next operation of the script shows them."""


class ProgressChannel:
    """One process's reports. `connect` gives the channel at the first one, None if there is no agent."""

    def __init__(self, connect: Callable[[], ChannelClient | None], clock: Callable[[], float] = clock) -> None:
        self._connect = connect
        self._clock = clock
        self._end: ChannelClient | None = None
        self._connected = False
        self._next = 0.0
        self._at = 0.0
        self._step: Any = 0
        self._counts = 1
        """What a report without a step adds to the number of steps."""
        self._sent: int | None = None
        self._reported = False
        self._world = 1
        self._preparing = False
        self._loss: Any = None
        self._total: Any = 0
        self._metrics: dict[str, Any] = {}
        """What was reported too early for its turn: it goes with the next message."""

    @property
    def end(self) -> ChannelClient | None:
        """The channel, connected at its first use; None if there is no agent."""
        if not self._connected:
            self._connected = True
            self._end = self._connect()
            with suppress(ConfigError):  # `elastic.init` says what is wrong.
                self._world = environment.read(os.environ).world_size
            if self._end is not None:
                atexit.register(self.flush_pending)
        return self._end

    def report(self, step: Any, loss: Any, metrics: Mapping[str, Any], total: Any = None) -> None:
        """Remember the step, and send it with the rest if one is due. A `total` that can be called is asked then."""
        if total is not None:
            self._total = total
        try:
            self._step = step if step is not None else self._step + self._counts
        except UNREADABLE:
            self._step = 0
        self._reported = True
        now = self._at = self._clock()
        if now < self._next:
            if self._end is not None:
                self._loss = self._loss if loss is None else loss
                if metrics:
                    self._metrics |= metrics
            return
        self._next = now + INTERVAL_S
        end = self.end
        if end is None:
            self._next = math.inf  # Nobody will ever listen.
            return
        if self._preparing:
            self.ready()
        loss = self._loss if loss is None else loss
        merged = {**self._metrics, **metrics}
        self._loss, self._metrics = None, {}
        self._send(end, {"loss": loss, **merged} if loss is not None else merged)

    def commit(self, step: int, loss: Any, total: int | Callable[[], int]) -> None:
        """Report a step that was committed: from now on a report without a step belongs to the newest one."""
        self._counts = 0
        self.report(step, loss, {}, total)

    def preparing(self, what: str) -> None:
        """Say that the script is alive and not ready yet."""
        self._preparing = True
        if (end := self.end) is not None:
            end.send(Preparing(truncate_text(str(what), WHAT_MAX)))

    def ready(self) -> None:
        """Say that it is ready; nothing if it did not say that it prepares."""
        if self._preparing:
            self._preparing = False
            if (end := self.end) is not None:
                end.send(PreparationOver())

    def flush_pending(self) -> None:
        """Send what came too early for its turn: the last step, and plain numbers; a tensor may cost something."""
        left = {"loss": self._loss, **self._metrics}
        plain = {name: value for name, value in left.items() if isinstance(value, int | float)}
        if self._end is not None and self._reported and (plain or _whole(self._step) != self._sent):
            self._loss, self._metrics = None, {}
            self._send(self._end, plain)

    def _send(self, end: ChannelClient, metrics: Mapping[str, Any]) -> None:
        step = _whole(self._step)
        if step is None:
            return
        numbers: dict[str, float | None] = {}
        for name, value in metrics.items():
            number = one_number(value)
            if number is not None and len(numbers) < METRICS_MAX:
                numbers[truncate_text(str(name), NAME_MAX)] = number if math.isfinite(number) else None
        total = self._total() if callable(self._total) else self._total
        if end.send(Progress(step, self._world, numbers, self._at, _whole(total) or 0)):
            self._sent = step


def one_number(value: Any) -> float | None:
    """A value as a float; None if it is not one number.

    A tensor on a card is waited for. One that is spread over ranks and not yet summed is left out: to sum it, all
    ranks would have to ask at the same step.
    """
    if isinstance(value, str | bytes) or value is None:
        return None
    try:
        if hasattr(value, "placements"):
            if not all(placement.is_replicate() for placement in value.placements):
                return None
            value = value.to_local()
        return float(value.detach() if hasattr(value, "detach") else value)
    except UNREADABLE:
        return None


def _whole(step: Any) -> int | None:
    try:
        number = int(step)
    except UNREADABLE:
        return None
    return number if 0 <= number <= STEP_MAX else None


def connect() -> ChannelClient | None:
    """The channel of this process, which can then be asked for its stacks. A parameter server makes no steps."""
    if not os.environ.get("ELASTIC_CHANNEL") or os.environ.get("ELASTIC_ROLE") == "server":
        return None
    return channel_client(os.environ, stacks_signal=stack_dump.register())


this_process = ProgressChannel(connect)


def end() -> ChannelClient | None:
    """The channel of this process, None if there is no agent."""
    return this_process.end


def reported(step: int, loss: Any, total: int | Callable[[], int]) -> None:
    """Report a step that was committed. A `total` that can be called is called when the report is sent."""
    this_process.commit(step, loss, total)


def report(step: int | None = None, loss: Any = None, *, total: int | None = None, **metrics: Any) -> None:
    """Report the progress of training, for the console and as a sign of life (`--hang_timeout`).

    Call it in every step, from any rank; the numbers of rank 0 are shown. A report is sent at most twice a second, and
    tensors are read only then, so that a step does not wait for the GPU; what comes in between goes with the next one.
    Returns at once and raises nothing; outside elastic-launch it does nothing.

    Args:
        step: The step that was made. Without it, it is the newest committed step in a script with an `elastic.State`,
            whose commits report too; in any other script the calls are counted.
        loss: A number, or a tensor of one element.
        total: The number of steps that there will be, for a progress bar. It need be given only once.
        metrics: Further numbers by name, or tensors of one element. A value that is not one number is left out.
    """
    this_process.report(step, loss, metrics, total)


def log_to_agent(text: str, *, warn: bool = False) -> None:
    """Say something once, in one line; never fails. `warn`: also with --quiet."""
    text = truncate_text(" ".join(text.splitlines()))
    channel = end()
    if channel is None or not channel.send(AgentLogLine(text, warn)):
        sys.stderr.write(f"[elastic] {text}\n")
        sys.stderr.flush()
