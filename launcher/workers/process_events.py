"""What happens to the processes of a node, as its nursery tells the agent."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from launcher.text.sanitize import OutputTail


class NurseryPrepared(Struct, frozen=True):
    """The nursery has imported what it was to; `cold` says why it did not. `said` is what its imports wrote."""

    cold: str
    said: str = ""


class ProcessesSpawned(Struct, frozen=True):
    """The workers of `g` run, in the order of their specs; pid 0 is one that could not be forked.

    `cold` says of each why it started cold, "" if it started warm.
    """

    g: int
    pids: tuple[int, ...]
    cold: tuple[str, ...] = ()


class ProcessExited(Struct, frozen=True):
    """A worker ended with an exit code, or minus a signal, at `at_s` on `CLOCK_BOOTTIME`.

    `stopped`: we had signalled it before, or it left as it was asked to (`asked`). `said`: the end of what it said, for
    `logs.tail`; `said_before`: the same as it was when it was to be stopped, None if it never was.
    """

    g: int
    local_rank: int
    code: int
    at_s: float
    stopped: bool = False
    said: OutputTail = OutputTail()
    said_before: OutputTail | None = None
    asked: bool = False


class ProcessesGone(Struct, frozen=True):
    """Nothing of `g` runs any more. `left` are processes of another user (sudo) that may not be killed."""

    g: int
    left: tuple[int, ...] = ()


class DeadlinePassed(Struct, frozen=True):
    """The workers of `g` are killed at their run deadline. `ProcessExited` and `ProcessesGone` follow."""

    g: int


class NurseryDied(Struct, frozen=True):
    """The nursery is gone and so are the workers; no `ProcessExited` or `ProcessesGone` follows.

    `left` are processes of the workers that could not be ended. `said`: the end of what each of those said that died
    with it, by local rank.
    """

    left: tuple[int, ...] = ()
    said: Mapping[int, OutputTail] = {}


WorkerEvent = NurseryPrepared | ProcessesSpawned | ProcessExited | ProcessesGone | DeadlinePassed | NurseryDied
