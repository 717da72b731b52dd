"""What the leader can decide, and for which reasons (pure values)."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from elastic.core.model import Cause, FinalStatus, Generation, Go
from elastic.core.text import counted_down


class Reason(StrEnum):
    """Every reason that `decide` can give; the simulation counts them and wants to see each."""

    ENDED = "the job has ended"
    UNREADABLE = "a document cannot be read"
    NO_INCARNATION = "the job has begun and has no incarnation"
    NO_SPEC = "the job has no spec"
    MISSING = "nodes are missing for the first start"
    SETTLING = "waiting for others to join"
    FORMED = "first generation"
    EMPTIED = "nobody of the old world is left, and nobody else is here"
    REFORMED = "nobody of the old world is left"
    COMPLETED = "every worker ended well"
    FINISHING = "some nodes are done"
    LOST = "a member was lost"
    SECONDARY = "a worker failed, perhaps because a node was lost"
    FAILED = "a worker failed"
    STOPPED = "a member had to stop its workers"
    DRAIN_BATCH = "collecting drains"
    DRAINED = "a member drains"
    SHRUNK = "fewer nodes are wanted"
    GROW_SETTLING = "joining nodes settle"
    GROW_LATER = "too soon after the last growth"
    OUT_OF_REACH = "a member that works on does not reach the store"
    RETURNING = "members may be about to register again"
    GROWN = "joining nodes are admitted"
    TRAINING = "training"
    GATE_LOST = "a member was lost before the start"
    GATE_LEFT = "a member without old workers is gone before the start"
    GATE_FAILED = "a worker failed in a planned stop"
    GATE_STOPPED = "a member had to end its workers in a planned stop"
    GATE_DRAINED = "a member drains before the start"
    GATE_JOINED = "joining nodes before the start"
    BELOW_MIN = "below the minimum"
    STOPPING = "old workers are still being stopped"
    UNPROVEN = "the old world may still run"
    BACKOFF = "pause after failures"
    QUARANTINED = "a host whose workers keep failing, or that others do not reach, is kept out"
    NO_MASTER = "nobody knows where the workers meet"
    OPENED = "everybody is ready"
    EXHAUSTED = "no restart is left"
    VACANT = "a seat of the roster is free"
    HALTED = "an operator stops the job"


class WaitDecision(Struct, frozen=True):
    """Nothing to do until something changes, or until `until` (this agent's clock).

    `reason` is the sentence at the time of the decision. Where it counts times down, `pattern` is the sentence without
    them, and `ends` are when each of them is over.
    """

    code: Reason
    reason: str
    until: float | None = None
    pattern: str = ""
    ends: tuple[float, ...] = ()

    def reason_at(self, now: float) -> str:
        """The sentence as it is to be said now."""
        return counted_down(self.pattern, [end - now for end in self.ends]) if self.ends else self.reason


class FormGeneration(Struct, frozen=True):
    """Publish this generation.

    `planned`: nothing is broken, and no outcome may be there yet. `lost`: these must not have recorded one. For a
    generation that continues: `forget` are nodes whose outcomes are of starts that are over, `unfinished` those that
    must not have recorded one, `gone` those that have not been registered for so long that nothing of them runs. `go`
    is given with a generation that has no gate to wait at.
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
    """Give the go. `absent`: these are passed over because they are not registered."""

    code: Reason
    reason: str
    go: Go
    absent: tuple[str, ...] = ()


class ConcludeJob(Struct, frozen=True):
    """Write the verdict: how run `run` ended, and with which generation (0 if it had none)."""

    code: Reason
    reason: str
    status: FinalStatus
    run: int
    g: int
    cause: Cause | None = None


Decision = WaitDecision | FormGeneration | OpenGate | ConcludeJob


class DecisionPolicy(Struct, frozen=True):
    """What `decide` knows of the agent that asks. `kill_s`: how long a SIGKILL may take to empty a node."""

    node: str
    kill_s: float = 1.0
