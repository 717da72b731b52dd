"""The words of the project as frozen values (pure).

Everything that stands in the store is one of these; `elastic.keys` writes and reads them. The words are those of the
design: job, node, member, worker, generation, go, outcome, verdict.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec

Count = Annotated[int, msgspec.Meta(ge=1, le=100_000)]
Port = Annotated[int, msgspec.Meta(ge=1, le=65_535)]
Ports = Annotated[tuple[Port, ...], msgspec.Meta(min_length=1, max_length=1024)]
Seconds = Annotated[float, msgspec.Meta(ge=0)]

SCHEMA = 1
"""Version of every document below. An agent refuses to join a job of another schema."""


class MemberState(StrEnum):
    """What a member says of itself."""

    READY = "ready"
    DRAINING = "draining"


class Ended(StrEnum):
    """How a node's workers of one generation ended."""

    OK = "ok"
    FAILED = "failed"
    STOPPED = "stopped"


class Status(StrEnum):
    """How the job ended."""

    COMPLETED = "completed"
    FAILED = "failed"


class Why(StrEnum):
    """Why a generation was made."""

    FIRST = "first"
    REFORMED = "reformed"
    LOSS = "loss"
    FAILURE = "failure"
    STOPPED = "stopped"
    DRAIN = "drain"
    GROWTH = "growth"
    JOINED = "joined"
    SHRINK = "shrink"


class Np(msgspec.Struct, frozen=True):
    """How many nodes: `first` are awaited at the first start, then anything from `low` to `high` runs."""

    low: Count
    high: Count
    first: Count

    def __str__(self) -> str:
        """Write it as on the command line."""
        if self.low == 1 and self.first == self.high:
            return str(self.high)
        return f"{self.low}:{self.high}"


class Spec(msgspec.Struct, frozen=True, kw_only=True):
    """What binds every node of the job while any member lives."""

    np: Np
    slots: Count
    run: int = 1
    schema: int = SCHEMA
    settle_s: Seconds = 3.0
    grow_every_s: Seconds = 60.0
    restarts_max: int = 3
    lease_ttl_s: Seconds = 5.0
    store_outage_limit_s: Seconds = 120.0
    fatal_exit_codes: tuple[int, ...] = ()


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """What a node registers, under its lease.

    `masters` are the ports it holds for torch's store when it is M_id 0 (one is used per generation, in turn, so that
    a straggler of an older world finds nobody there); `ports` has one port per slot.
    """

    host: str
    slots: Count
    masters: Ports
    ports: Ports
    state: MemberState = MemberState.READY
    drain_reason: str = ""


class Place(msgspec.Struct, frozen=True, array_like=True):
    """One member of a generation. Its M_id is its index in `Generation.members`."""

    node: str
    host: str
    masters: Ports
    ports: Ports


class Before(msgspec.Struct, frozen=True, array_like=True):
    """The newest generation that got its go, who was in it (whom the gate waits for), and why it was replaced."""

    g: int
    nodes: tuple[str, ...]
    why: Why


class Budget(msgspec.Struct, frozen=True, array_like=True):
    """What the job has used up.

    `charged`: restarts that count. `fruitless`: failures in a row without progress. `step`: the highest step that
    any worker reported, -1 if none ever did. `infra`: failures of the machine, not the script, in a row without
    progress (a port in use).
    """

    charged: int = 0
    fruitless: int = 0
    step: int = -1
    infra: int = 0


class Generation(msgspec.Struct, frozen=True, kw_only=True):
    """One agreed world. Written whole, in one guarded transaction, by the proposer."""

    g: int
    run: int
    tag: str
    why: Why
    reason: str
    members: tuple[Place, ...]
    slots: Count
    before: Before | None = None
    budget: Budget = Budget()

    def index(self, node: str) -> int | None:
        """M_id of a node, None if it is not in this generation."""
        for m_id, place in enumerate(self.members):
            if place.node == node:
                return m_id
        return None

    @property
    def world_size(self) -> int:
        """Workers in all."""
        return len(self.members) * self.slots


class WorkerExit(msgspec.Struct, frozen=True, kw_only=True):
    """How one worker ended, with what a person needs to see of it.

    `code` is the exit code, or minus the signal. `consequence`: its log says that a peer was lost, so that the cause
    is elsewhere. `infra`: a short word when the machine and not the script is to blame ("address in use").
    """

    rank: int
    code: int
    words: str
    log: str = ""
    tail: tuple[str, ...] = ()
    consequence: bool = False
    infra: str = ""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How a node's workers of one generation ended.

    A node whose worker failed writes it at once with `over` false, and again with `over` true when all its workers
    are gone: the gate waits for the second, everybody else acts on the first. `forced`: the node had to stop them for
    a reason of its own (its right to run ended), so that failures of its peers are an echo of that.
    """

    ended: Ended
    over: bool
    host: str
    forced: bool = False
    exits: tuple[WorkerExit, ...] = ()
    step: int = -1
    ran_s: float = 0.0


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """The first failure of a generation: where, who, how, and the last lines of its log."""

    g: int
    host: str
    node: str
    exits: Annotated[tuple[WorkerExit, ...], msgspec.Meta(min_length=1)]
    ranks: tuple[int, ...]
    world_size: int

    @property
    def first(self) -> WorkerExit:
        """The exit that is shown to people."""
        return self.exits[0]


class Go(msgspec.Struct, frozen=True, kw_only=True):
    """The word that the workers of generation `g` may start, and where they meet.

    `cause` is the failure of the generation before, if one ended it; `note` says what was charged and why.
    """

    g: int
    tag: str
    master: str
    budget: Budget
    cause: Cause | None = None
    note: str = ""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """How the job ended. `at` is the proposer's wall clock, seconds since the epoch, for people only."""

    status: Status
    reason: str
    run: int
    g: int
    tag: str
    at: float
    cause: Cause | None = None
