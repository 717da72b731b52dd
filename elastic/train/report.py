"""Progress reports of a script: `elastic.report`, and the messages behind `elastic.preparing` and `elastic.ready`.

Reports go to the agent of this node over the local channel. No call blocks or raises: training does not depend on
reports. Outside elastic-launch there is no agent, and a call does nothing.
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
"""The interval between reports. An earlier call takes well below a microsecond; its values go with the next report."""
STEP_MAX: Final = 2**62
NAME_MAX: Final = 64
WHAT_MAX: Final = 1000
UNREADABLE: Final = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""Errors of the conversion to a number. RuntimeError: torch's errors, which the script's next operation raises."""


class ProgressChannel:
    """The reports of one process. `connect` opens the channel at the first report; None if there is no agent."""

    def __init__(self, connect: Callable[[], ChannelClient | None], clock: Callable[[], float] = clock) -> None:
        self._connect = connect
        self._clock = clock
        self._end: ChannelClient | None = None
        self._connected = False
        self._next = 0.0
        self._at = 0.0
        self._step: Any = 0
        self._counts = 1
        """The number of steps that a report without a step adds."""
        self._sent: int | None = None
        self._reported = False
        self._world = 1
        self._preparing = False
        self._loss: Any = None
        self._total: Any = 0
        self._metrics: dict[str, Any] = {}
        """Values reported within `INTERVAL_S` of a message; they go with the next one."""

    @property
    def end(self) -> ChannelClient | None:
        """The channel, connected at its first use; None if there is no agent."""
        if not self._connected:
            self._connected = True
            self._end = self._connect()
            with suppress(ConfigError):  # `elastic.init` reports it.
                self._world = environment.read(os.environ).world_size
            if self._end is not None:
                atexit.register(self.flush_pending)
        return self._end

    def report(self, step: Any, loss: Any, metrics: Mapping[str, Any], total: Any = None) -> None:
        """Record the step, and send a report if `INTERVAL_S` has passed. A callable `total` is called only then."""
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
            self._next = math.inf  # There will never be an agent.
            return
        if self._preparing:
            self.ready()
        loss = self._loss if loss is None else loss
        merged = {**self._metrics, **metrics}
        self._loss, self._metrics = None, {}
        self._send(end, {"loss": loss, **merged} if loss is not None else merged)

    def commit(self, step: int, loss: Any, total: int | Callable[[], int]) -> None:
        """Report a committed step; from now on a report without a step refers to the newest committed one."""
        self._counts = 0
        self.report(step, loss, {}, total)

    def preparing(self, what: str) -> None:
        """Report that the script is alive and not ready to train yet."""
        self._preparing = True
        if (end := self.end) is not None:
            end.send(Preparing(truncate_text(str(what), WHAT_MAX)))

    def ready(self) -> None:
        """Report that the script is ready; does nothing unless `preparing` was called before."""
        if self._preparing:
            self._preparing = False
            if (end := self.end) is not None:
                end.send(PreparationOver())

    def flush_pending(self) -> None:
        """Send the values that wait for the next report, without tensors: reading one may wait for the GPU."""
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
    """Convert a value to a float; None if it is not a single number.

    A tensor on a GPU is waited for. A DTensor that is sharded or not yet reduced gives None: to reduce it, all ranks
    would have to report at the same step.
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
    """Open the channel of this process and register it for stack traces; None for a parameter server."""
    if not os.environ.get("ELASTIC_CHANNEL") or os.environ.get("ELASTIC_ROLE") == "server":
        return None
    return channel_client(os.environ, stacks_signal=stack_dump.register())


this_process = ProgressChannel(connect)


def end() -> ChannelClient | None:
    """Return the channel of this process, None if there is no agent."""
    return this_process.end


def reported(step: int, loss: Any, total: int | Callable[[], int]) -> None:
    """Report a committed step. A callable `total` is called when the report is sent."""
    this_process.commit(step, loss, total)


def report(step: int | None = None, loss: Any = None, *, total: int | None = None, **metrics: Any) -> None:
    """Report the progress of training: for the progress display, and as a heartbeat for `--hang-timeout`.

    Call it in every step, on any rank; the progress display shows the values of rank 0. A report is sent at most every
    0.5 s, and tensors are read only then, so that a step does not wait for the GPU; values of calls in between go with
    the next report. It returns immediately and never raises. Outside elastic-launch it does nothing.

    Args:
        step: The number of finished steps. By default the newest committed step of the `elastic.State`, whose commits
            report too; in a script without a `State`, the number of calls.
        loss: The training loss: a number, or a tensor with one element.
        total: The number of steps of the whole training, for a progress bar. Passing it once is enough.
        **metrics: Further numbers by name, or tensors with one element. A value that is not a single number is
            dropped.
    """
    this_process.report(step, loss, metrics, total)


def log_to_agent(text: str, *, warn: bool = False) -> None:
    """Log a message on one line, through the agent or else to stderr; never raises. `warn`: shown even with --quiet."""
    text = truncate_text(" ".join(text.splitlines()))
    channel = end()
    if channel is None or not channel.send(AgentLogLine(text, warn)):
        sys.stderr.write(f"[elastic] {text}\n")
        sys.stderr.flush()
