"""What the proposer can decide, for which reasons, and what it remembers from call to call (pure values)."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct, field

from elastic.core.model import Generation, Go, Verdict


class Reason(StrEnum):
    """Every reason that `decide` can give; the simulation counts them and wants to see each."""

    ENDED = "the job has ended"
    UNREADABLE = "a document cannot be read"
    NO_SPEC = "the job has no spec"
    MISSING = "nodes are missing for the first start"
    SETTLING = "waiting for others to join"
    FORMED = "first generation"
    REFORMED = "nobody of the old world is left"
    COMPLETED = "every worker ended well"
    FINISHING = "some nodes are done"
    LOST = "a member was lost"
    ASKING = "a worker failed, perhaps because a node was lost"
    FAILED = "a worker failed"
    STOPPED = "a member had to stop its workers"
    DRAIN_BATCH = "collecting drains"
    DRAINED = "a member drains"
    SHRUNK = "fewer nodes are wanted"
    GROW_SETTLING = "newcomers settle"
    GROW_LATER = "too soon after the last growth"
    OUT_OF_REACH = "a member that works on does not reach the store"
    RETURNING = "members may be about to register again"
    GROWN = "newcomers join"
    TRAINING = "training"
    GATE_LOST = "a member was lost before the start"
    GATE_LEFT = "a member without old workers is gone before the start"
    GATE_FAILED = "a worker failed in a planned stop"
    GATE_STOPPED = "a member had to end its workers in a planned stop"
    GATE_DRAINED = "a member drains before the start"
    GATE_JOINED = "newcomers before the start"
    BELOW_MIN = "below the minimum"
    STOPPING = "old workers are still being stopped"
    UNPROVEN = "the old world may still run"
    BACKOFF = "pause after failures"
    QUARANTINED = "a host whose workers keep failing, or that others do not reach, is kept out"
    OPENED = "everybody is ready"
    EXHAUSTED = "no restart is left"
    VACANT = "a seat of the roster is free"
    HALTED = "an operator stops the job"


class WaitDecision(Struct, frozen=True):
    """Nothing to do until something changes, or until `until` (this agent's clock)."""

    code: Reason
    reason: str
    until: float | None = None


class FormGeneration(Struct, frozen=True):
    """Publish this generation.

    `planned`: nothing is broken, and no outcome may be there yet. `lost`: these must not have recorded one. For a
    revision of a roster: `forget` are nodes whose outcomes are of starts that are over, `unfinished` those that must
    not have recorded one, `gone` those whose seats are free because they have not been registered for so long. `go` is
    given with a generation that has no gate to wait at.
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
    """Write the verdict."""

    code: Reason
    reason: str
    verdict: Verdict


Decision = WaitDecision | FormGeneration | OpenGate | ConcludeJob


class DecisionPolicy(Struct, frozen=True):
    """What `decide` knows of the agent that asks. `kill_s`: how long a SIGKILL may take to empty a node."""

    node: str
    kill_s: float = 1.0


class DecisionMemory(Struct, frozen=True):
    """What is remembered from call to call, all on this agent's clock.

    `linked`: members that can be heard at this moment. `unheard`: those that could be heard once. `late`: unheard
    members whose links are up, and that missed the newest question but answered the one before. `astray`: nodes that
    have just said that they do not reach the store. `gone`: members (with their create revision) whose process was
    proven dead over the link, which can be wrong. `dead`: nodes whose process was seen dead on this very machine.
    `distrusted`: hosts that spoke after such a proof; it is not believed again. `listening`: the newest generation
    whose workers on this node can be asked to finish a step and to save before they leave. `back_at`: when this node
    was registered, if that was after the newest generation, with the create revision `own_created`. `seen_since`: when
    each node that is not linked yet was first seen. `asked_g`, `answered_g`: the newest generation of which, after a
    worker had failed, every linked member was asked whether it is still there. `since_revision`: what was in the store
    when this agent began to decide. `quarantine_deadlines`: until when hosts are kept out, by host and by the
    generation whose failure did it. `size_before`: how many nodes ran the job in the previous store, after an empty one
    took its place.
    """

    linked: frozenset[str] = frozenset()
    unheard: frozenset[str] = frozenset()
    late: frozenset[str] = frozenset()
    astray: frozenset[str] = frozenset()
    gone: frozenset[tuple[str, int]] = frozenset()
    dead: frozenset[str] = frozenset()
    distrusted: frozenset[str] = frozenset()
    absent_since: Mapping[str, float] = field(default_factory=dict)
    seen_since: Mapping[str, float] = field(default_factory=dict)
    ready_since: Mapping[str, float] = field(default_factory=dict)
    draining_since: Mapping[str, float] = field(default_factory=dict)
    ended_since: Mapping[str, float] = field(default_factory=dict)
    quarantine_deadlines: Mapping[tuple[str, int], float] = field(default_factory=dict)
    gate_since: tuple[int, float] | None = None
    grown_at: float | None = None
    generation_seen: int = 0
    listening: int = 0
    asked_g: int = 0
    answered_g: int = 0
    since_revision: int = 0
    own_created: int = 0
    back_at: float | None = None
    size_before: int = 0
