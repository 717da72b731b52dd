"""The decisions that the leader can make, and their reasons (pure values)."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from elastic.core.model import Cause, FinalStatus, Generation, Go
from elastic.core.text import counted_down


class Reason(StrEnum):
    """Every reason that `decide` can give; the simulation checks that each of them occurs."""

    ENDED = "the job has ended"
    UNREADABLE = "a document cannot be read"
    NO_INCARNATION = "the job has begun and has no incarnation"
    NO_SPEC = "the job has no spec"
    MISSING = "nodes are missing for the first start"
    SETTLING = "waiting for others to join"
    FORMED = "first generation"
    EMPTIED = "no node of the old generation is left, and no other node is here"
    REFORMED = "no node of the old generation is left"
    COMPLETED = "every worker ended well"
    FINISHING = "some nodes have finished"
    LOST = "a member was lost"
    SECONDARY = "a worker failed, perhaps because a node was lost"
    FAILED = "a worker failed"
    STOPPED = "a member had to stop its workers"
    DRAIN_BATCH = "collecting drains"
    DRAINED = "a member drains"
    SCALED_DOWN = "fewer nodes are wanted"
    SCALE_UP_SETTLING = "collecting joining nodes"
    SCALE_UP_LATER = "too soon after the last scale-up"
    OUT_OF_REACH = "a member still runs its workers but cannot reach the store"
    RETURNING = "members may be about to register again"
    SCALED_UP = "joining nodes are admitted"
    TRAINING = "training"
    GATE_LOST = "a member was lost before the start"
    GATE_LEFT = "a member without old workers is gone before the start"
    GATE_FAILED = "a worker failed in a planned stop"
    GATE_STOPPED = "a member had to end its workers in a planned stop"
    GATE_DRAINED = "a member drains before the start"
    GATE_JOINED = "joining nodes before the start"
    BELOW_MIN = "below the minimum"
    STOPPING = "old workers are still being stopped"
    UNPROVEN = "workers of the old generation may still run"
    BACKOFF = "back-off after failures"
    QUARANTINED = "a host whose workers keep failing, or that others do not reach, is quarantined"
    NO_MASTER = "the address where the workers meet is not known"
    OPENED = "every member is ready"
    EXHAUSTED = "no restart is left"
    VACANT = "a task of the cluster spec is free"
    HALTED = "an operator stops the job"


class WaitDecision(Struct, frozen=True):
    """Wait until something changes, or until the time `until` on this agent's clock.

    `reason` is the sentence at the time of the decision. If it counts times down, `pattern` is the sentence with
    `text.COUNTED` in their places, and `ends` are the times at which each of them is over.
    """

    code: Reason
    reason: str
    until: float | None = None
    pattern: str = ""
    ends: tuple[float, ...] = ()

    def reason_at(self, now: float) -> str:
        """Return the sentence with the times that are left now."""
        return counted_down(self.pattern, [end - now for end in self.ends]) if self.ends else self.reason


class FormGeneration(Struct, frozen=True):
    """Publish this generation.

    `planned`: nothing is broken, and no outcome may have been recorded yet. `lost`: nodes that must not have recorded
    an outcome. For a generation that continues, `forget` are nodes whose outcomes belong to starts that are over,
    `unfinished` are nodes that must not have recorded an outcome, and `gone` are nodes that have been unregistered for
    so long that none of their processes runs. `go` is set for a generation that needs no gate.
    """

    code: Reason
    reason: str
    generation: Generation
    planned: bool = False
    lost: tuple[str, ...] = ()
    forget: tuple[str, ...] = ()
    unfinished: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    go: Go | None = None


class OpenGate(Struct, frozen=True):
    """Give the start signal. `absent`: unregistered nodes of the generation before, which are not waited for."""

    code: Reason
    reason: str
    go: Go
    absent: tuple[str, ...] = ()


class ConcludeJob(Struct, frozen=True):
    """Write the verdict: how run `run` ended, and with which generation (0 if the run had none)."""

    code: Reason
    reason: str
    status: FinalStatus
    run: int
    g: int
    cause: Cause | None = None


Decision = WaitDecision | FormGeneration | OpenGate | ConcludeJob


class DecisionPolicy(Struct, frozen=True):
    """What `decide` knows about the agent that calls it. `kill_s`: seconds that a SIGKILL may take to empty a node."""

    node: str
    kill_s: float = 1.0
