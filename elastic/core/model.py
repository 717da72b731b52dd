"""The words of the project as frozen values (pure).

Every document in the store is one of these; `elastic.core.view` writes and `elastic.core.view_reader` reads them. The
words are those of the design: job, node, member, worker, generation, go, outcome, verdict.
"""

from __future__ import annotations

import string
from collections.abc import Iterable, Mapping
from enum import StrEnum
from functools import cached_property
from typing import Annotated, ClassVar, Final

import msgspec

from elastic.core.failure_class import FailureClass

NP_UNLIMITED: Final = 100_000
"""`Np.high` of a job without a maximum. A typed maximum is lower."""
Count = Annotated[int, msgspec.Meta(ge=1, le=NP_UNLIMITED)]
Port = Annotated[int, msgspec.Meta(ge=1, le=65_535)]
Ports = Annotated[tuple[Port, ...], msgspec.Meta(min_length=1, max_length=1024)]
PortsIfAny = Annotated[tuple[Port, ...], msgspec.Meta(max_length=1024)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=31 * 86_400)]
Number = Annotated[int, msgspec.Meta(ge=1, le=9_999_999_999)]
"""A generation, or a run; ten digits, as in the keys of outcomes."""
Amount = Annotated[int, msgspec.Meta(ge=0, le=2**31)]
Words = Annotated[str, msgspec.Meta(max_length=300)]
"""A reason, for people."""
Label = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_-]+\Z", max_length=32)]
Step = Annotated[int, msgspec.Meta(ge=-1, le=2**62)]
Host = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_.:%-]+\Z", max_length=253)]
HOST_BYTES: Final = string.ascii_letters.encode() + string.digits.encode() + b"_.:%-"
"""The characters of the pattern of `Host`, in ASCII."""
Master = Annotated[str, msgspec.Meta(pattern=r"^(\[[0-9A-Fa-f.:%a-z]+\]|[A-Za-z0-9_.-]+):[0-9]{1,5}\Z", max_length=300)]

Versions = Annotated[Mapping[Annotated[str, msgspec.Meta(max_length=32)], Annotated[str, msgspec.Meta(max_length=100)]],
                     msgspec.Meta(max_length=16)]  # fmt: skip
"""What runs on a node, by name: python, torch, nccl, launcher, script (a digest)."""

SETTLE_MAX_S: Final = 15.0
"""The settling window ends at the latest this long after the first node has come."""

SCHEMA = 9
"""Version of every document below. It is in the spec of a job: an agent of another schema reads none of the job's
documents, and does not join (`elastic.core.view_reader`)."""


class MemberState(StrEnum):
    """What a member says of itself."""

    READY = "ready"
    DRAINING = "draining"


class OutcomeKind(StrEnum):
    """How a node's workers of one generation ended."""

    OK = "ok"
    FAILED = "failed"
    STOPPED = "stopped"


class FinalStatus(StrEnum):
    """How the job ended."""

    COMPLETED = "completed"
    FAILED = "failed"
    STOPPED = "stopped"


class ChangeReason(StrEnum):
    """Why a generation was made."""

    FIRST = "first"
    REFORMED = "reformed"
    LOSS = "loss"
    FAILURE = "failure"
    STOPPED = "stopped"
    DRAIN = "drain"
    GROWTH = "growth"
    JOINED = "joined"
    LEFT = "left"
    QUARANTINED = "kept out"
    SHRINK = "shrink"
    STOP = "stop"


Stamp = tuple[int, int]
"""One start of a node's processes: the generation, and the start within it (0, unless they start again in it)."""

PLANNED: Final = (
    ChangeReason.DRAIN,
    ChangeReason.GROWTH,
    ChangeReason.SHRINK,
    ChangeReason.STOP,
    ChangeReason.JOINED,
    ChangeReason.LEFT,
)
"""Nothing is broken by these: workers get time to save and to end. The last two come while a gate is closed."""


class JobMode(StrEnum):
    """How the processes of a job work together."""

    COLLECTIVE = "collective"
    PS = "ps"
    PS_HETER = "ps-heter"
    TORCHRUN = "torchrun"
    """Collective, and torch's agents have the workers: our plugin only says who is in which world."""


class Np(msgspec.Struct, frozen=True):
    """How many nodes: `first` are awaited at the first start, then anything from `low` to `high` runs.

    A job whose np is `unlimited` starts with `first` nodes at once, and takes in every node that joins later.
    """

    low: Count
    high: Count
    first: Count

    @property
    def unlimited(self) -> bool:
        """Tell whether there is no maximum."""
        return self.high == NP_UNLIMITED

    def __str__(self) -> str:
        """Write it as on the command line."""
        if self.unlimited:
            return f"{self.first}+"
        if self.low == 1 and self.first == self.high:
            return str(self.high)
        return f"{self.low}:{self.high}"


class JobSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What binds every node of the job while any member lives.

    `grow_every_s` None: no limit where workers save before they leave, `membership.GROW_EVERY_S` for others.
    `host_cooldown_s`: so long a host whose workers keep failing is kept out the first time; 0: nobody ever is.
    `silence_timeout_s`: a node that sends no heartbeat for this time is suspected; 0: no node ever is.
    """

    np: Np
    slots: Count
    run: Number = 1
    schema: int = SCHEMA
    settle_s: Seconds = 3.0
    grow_every_s: Seconds | None = None
    restarts_max: Amount = 3
    host_cooldown_s: Seconds = 60.0
    lease_ttl_s: Seconds = 5.0
    silence_timeout_s: Seconds = 1.0
    store_outage_limit_s: Seconds = 120.0
    fatal_exit_codes: tuple[int, ...] = ()
    mode: JobMode = JobMode.COLLECTIVE
    ips: tuple[Host, ...] = ()
    versions: Versions = msgspec.field(default_factory=dict)
    one_world: ClassVar[bool] = True
    """Whether all workers form one world: they start together, and end together if one fails or is lost."""

    @property
    def generation_type(self) -> type[Generation]:
        """The document in which this job's generations are written."""
        return Generation

    @property
    def layout_text(self) -> str:
        """The flags that fix which process runs where, "" if the job has none."""
        return ""

    def contradiction(self) -> str:
        """Say in which way the parts of the document do not fit each other; "" if they do."""
        low, high, first = self.np.low, self.np.high, self.np.first
        return "" if low <= first <= high else f"np {low}:{high} starts with {first}"


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """What a node registers, under its lease.

    `masters` are the ports it holds for torch's store when it is M_id 0 (one is used per generation, in turn, so that
    a straggler of an older world finds nobody there); `ports` has one port per slot. `link` is where the agent itself
    listens, 0 if it does not.
    """

    host: Host
    slots: Count
    masters: Ports
    ports: Ports
    state: MemberState = MemberState.READY
    drain_reason: str = ""
    versions: Versions = msgspec.field(default_factory=dict)
    link: Annotated[int, msgspec.Meta(ge=0, le=65_535)] = 0

    def contradiction(self) -> str:
        """Say in which way the parts of the document do not fit each other; "" if they do."""
        return "" if len(self.ports) == self.slots else f"{self.slots} slots and {len(self.ports)} ports"


class Leader(msgspec.Struct, frozen=True, kw_only=True):
    """Which node leads, under its lease, and where its agent listens (`link`, 0 if it does not).

    `created`: the create revision of the node's key; 0 if both keys were written at once.
    """

    node: str
    host: Host
    link: Annotated[int, msgspec.Meta(ge=0, le=65_535)] = 0
    created: Annotated[int, msgspec.Meta(ge=0)] = 0


class GenerationMember(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One member of a generation. Its M_id is its index in `Generation.members`.

    `host` is a `Host`. `Generation.contradiction` checks that for all members at once: a pattern for each of them would
    take more than half of the time in which a generation is decoded. `masters` are those that it registered, () in the
    document of a generation in which nobody meets at this member.

    `gc=False`: there may be thousands, and none of them is part of a cycle.
    """

    node: str
    host: Annotated[str, msgspec.Meta(min_length=1, max_length=253)]
    masters: PortsIfAny
    ports: Ports

    def process_count(self, slots: int) -> int:
        """How many processes it has, where each node of the job offers so many slots."""
        return slots

    def is_meeting_place(self, m_id: int) -> bool:
        """Tell whether processes of other nodes may meet at this member, which has that M_id."""
        return m_id == 0


class Predecessor(msgspec.Struct, frozen=True, array_like=True):
    """The newest generation that got its go, who was in it (whom the gate waits for), and why it was replaced.

    `since` are the newest starts of the nodes within that generation, in their order; it is empty if all are 0.
    `broken`: it was not replaced as planned, or a loss or a failure came while its workers were being stopped.
    """

    g: Number
    nodes: tuple[str, ...]
    why: ChangeReason
    since: tuple[Amount, ...] = ()
    broken: bool = False

    def start(self, node: str) -> Stamp | None:
        """The last start that was asked of a node; None if it was not in it."""
        if node not in self.nodes:
            return None
        at = self.nodes.index(node)
        return self.g, self.since[at] if at < len(self.since) else 0


class Quarantine(msgspec.Struct, frozen=True, array_like=True):
    """A host whose workers failed by themselves (`elastic.core.quarantine`).

    `failures`: so often in a row without progress. `times`: how often it was quarantined, until it takes part in
    progress again; `g`: the generation whose failure did it last, 0 if none did. `left_s`: so long it is quarantined,
    counted by each reader from when it first sees this, because wall clocks differ; 0 if it is not. `words`: how its
    workers ended. `unreachable`: it was quarantined because others did not reach it (`elastic.core.partition`), and
    `words` say who.
    """

    host: Annotated[str, msgspec.Meta(max_length=253)]
    failures: Amount = 0
    times: Amount = 0
    g: Annotated[int, msgspec.Meta(ge=0, le=9_999_999_999)] = 0
    left_s: Seconds = 0.0
    words: Annotated[str, msgspec.Meta(max_length=200)] = ""
    unreachable: bool = False


class Budget(msgspec.Struct, frozen=True, array_like=True):
    """What the job has used up.

    `charged`: restarts that count. `fruitless`: failures in a row without progress. `step`: the highest step that
    any worker reported, -1 if none ever did. `machine_faults`: failures of the machine, not the script, in a row
    without progress (a port in use). `hosts`: those that failed by themselves lately, and those that are quarantined
    for it. `judged_g`: the newest generation whose failure has been charged before its successor starts, because hosts
    were quarantined for it.
    """

    charged: Amount = 0
    fruitless: Amount = 0
    step: Step = -1
    machine_faults: Amount = 0
    hosts: Annotated[tuple[Quarantine, ...], msgspec.Meta(max_length=512)] = ()
    judged_g: Annotated[int, msgspec.Meta(ge=0, le=9_999_999_999)] = 0


ANY_RANK: Final = -1
"""The rank of a worker of which only its node is known, as under torchrun."""
WORKER_ROLE: Final = "worker"
"""The role of a process where all processes do the same."""


class WorkerExit(msgspec.Struct, frozen=True, kw_only=True):
    """How one worker ended, with what a person needs to see of it.

    `code` is the exit code, or minus the signal. `failure` is how it counts if it is a failure, and `why` says what was
    seen of its cause, where the class has such a text: what is wrong with the machine ("address in use"), why each
    further start would end like this, the error at the start of the script. `rank` counts the processes of a `role`; it
    may be `ANY_RANK`.
    """

    rank: int
    code: int
    words: str
    log: str = ""
    tail: tuple[str, ...] = ()
    failure: FailureClass = FailureClass.SCRIPT
    why: str = ""
    role: Label = WORKER_ROLE

    @property
    def secondary(self) -> bool:
        """Whether it only lost a peer."""
        return self.failure is FailureClass.SECONDARY


class OtherFailure(msgspec.Struct, frozen=True, array_like=True):
    """A process that failed by itself on another node than the first one, and where its log is."""

    rank: int
    host: str
    words: str
    log: str = ""
    role: Label = WORKER_ROLE


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """The first failure of a generation: where, who, how, and the last lines of its log.

    `exits` are those of the first node. `ranks` are the workers of all nodes that failed by themselves; `others` says
    where the logs of those are that ran on other nodes.
    """

    g: int
    host: str
    node: str
    exits: Annotated[tuple[WorkerExit, ...], msgspec.Meta(min_length=1)]
    ranks: tuple[int, ...]
    world_size: int
    others: tuple[OtherFailure, ...] = ()

    @property
    def first(self) -> WorkerExit:
        """The exit that is shown to people."""
        return self.exits[0]


class EvictedNode(msgspec.Struct, frozen=True, array_like=True):
    """A node that the leader has taken out of the job because it was silent, and which registration of it that was.

    `left_s`: seconds, from when the generation was made, in which the silence of its host does not count.
    """

    node: str
    host: Annotated[str, msgspec.Meta(max_length=253)]
    create_revision: Annotated[int, msgspec.Meta(ge=0)]
    left_s: Seconds


class Generation(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """One agreed world. Written whole, in one guarded transaction, by the leader.

    `leader` is the node that proposed it. `distrusted` are hosts that spoke after a link had shown their death: only
    their leases count. `evicted` are nodes that were evicted lately (`elastic.core.membership.evictions`). `unlinked`
    are members that listen for links and to which no leader has had one yet.
    """

    g: Number
    run: Number
    leader: str
    why: ChangeReason
    reason: str
    members: tuple[GenerationMember, ...]
    slots: Count
    before: Predecessor | None = None
    budget: Budget = Budget()
    distrusted: tuple[Host, ...] = ()
    evicted: Annotated[tuple[EvictedNode, ...], msgspec.Meta(max_length=512)] = ()
    unlinked: tuple[str, ...] = ()
    document_name: ClassVar[str] = "generation"
    """Its key, below that of the job."""
    one_world: ClassVar[bool] = True
    """Whether all workers form one world: they start together, and end together if one fails or is lost."""

    @property
    def planned(self) -> bool:
        """Whether whoever still runs the world before has time to save and to end."""
        return self.why in PLANNED and not (self.before is not None and self.before.broken)

    def index(self, node: str) -> int | None:
        """M_id of a node, None if it is not in this generation."""
        return self._m_ids.get(node)

    @cached_property
    def _m_ids(self) -> Mapping[str, int]:
        """M_ids by node. Of members with the same name the first one counts."""
        names = [place.node for place in self.members]
        return dict(zip(reversed(names), reversed(range(len(names))), strict=True))

    def member(self, node: str) -> GenerationMember | None:
        """The member that a node is to be; None if it has no part, or no part any more."""
        index = self.index(node)
        return self.members[index] if index is not None else None

    def start_of(self, node: str) -> Stamp | None:
        """The last start that was asked of a node; None if it is not in this generation."""
        return (self.g, 0) if self.index(node) is not None else None

    def withdrawn_start(self, node: str) -> Stamp | None:
        """The start that a node must end although the generation runs on, None if there is none."""
        return None

    @property
    def later_starts(self) -> tuple[int, ...]:
        """The starts of the members within this generation, in their order; empty if all are the first one."""
        return ()

    @property
    def continues(self) -> bool:
        """Whether processes of this same generation run on: it is not its first document."""
        return False

    @property
    def world_size(self) -> int:
        """Workers in all."""
        return len(self.members) * self.slots

    def contradiction(self) -> str:
        """Say in which way the parts of the document do not fit each other; "" if they do."""
        if any(len(member.ports) != member.process_count(self.slots) for member in self.members):
            return f"{self.slots} slots, and a member with another number of ports"
        return "" if _are_hosts(member.host for member in self.members) else "a member whose host is no host"


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How a node's workers of one generation ended.

    A node whose worker failed writes it at once with `over` false, and again with `over` true when all its workers
    are gone: the gate waits for the second, everybody else acts on the first. `forced`: the node had to stop them for
    a reason of its own (its right to run ended), so that failures of its peers are an echo of that. `also` are workers
    that had raised an exception by themselves before they were stopped: they are named, and cost nothing. `unreached`
    are nodes of its world that it could not reach while its workers waited. `since`: which start of the node in this
    generation ended (`Stamp`).
    """

    ended: OutcomeKind
    over: bool
    host: str
    forced: bool = False
    exits: tuple[WorkerExit, ...] = ()
    also: tuple[WorkerExit, ...] = ()
    step: Step = -1
    since: Amount = 0
    ran_s: Annotated[float, msgspec.Meta(ge=0, le=1e9)] = 0.0
    unreached: Annotated[tuple[Annotated[str, msgspec.Meta(max_length=300)], ...], msgspec.Meta(max_length=64)] = ()


class Go(msgspec.Struct, frozen=True, kw_only=True):
    """The word that the workers of generation `g` may start, and where they meet.

    `cause` is the failure of the generation before, if one ended it; `note` says what was charged and why.
    """

    g: Number
    master: Master
    budget: Budget
    cause: Cause | None = None
    note: str = ""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """How the job ended. `at` is the leader's wall clock, seconds since the epoch, for people only."""

    status: FinalStatus
    reason: str
    run: int
    g: int
    at: float
    cause: Cause | None = None


class StopOrder(msgspec.Struct, frozen=True, kw_only=True):
    """An operator stops the run: workers save and leave, then the verdict is written. `at` is for people only."""

    run: Number
    reason: Words
    at: Annotated[float, msgspec.Meta(ge=0)] = 0.0


class DrainOrder(msgspec.Struct, frozen=True, kw_only=True):
    """An operator tells one node to leave.

    `within_s`: the node may be gone so long after it has heard of it, and its workers get a little less (as in any
    drain with a deadline); None: nobody is in a hurry. `at` is for people only.
    """

    reason: Words
    within_s: Seconds | None = None
    at: Annotated[float, msgspec.Meta(ge=0)] = 0.0


class SavedCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """The newest checkpoint that the job's workers committed, and the host on which it was said.

    `folder` is a full path there; whether others can read it, nobody knows yet. `at` is that host's wall clock, for
    people only. Nothing is decided by it: it keeps a job from starting over silently.
    """

    step: Annotated[int, msgspec.Meta(ge=0, le=2**62)]
    host: Annotated[str, msgspec.Meta(max_length=253)]
    folder: Annotated[str, msgspec.Meta(max_length=4096)]
    run: Number
    g: Number
    at: float = 0.0

    def replaces(self, other: SavedCheckpoint | None) -> bool:
        """Tell whether this is the newer word.

        A later generation counts more than a higher step: it may have gone back to an older checkpoint.
        """
        return other is None or (self.run, self.g, self.step) > (other.run, other.g, other.step)


def contradiction(document: object) -> str:
    """Say in which way the parts of a document do not fit each other; "" if they do."""
    return document.contradiction() if isinstance(document, JobSpec | Member | Generation) else ""


def _are_hosts(names: Iterable[str]) -> bool:
    """Tell whether names have only characters that a `Host` may have."""
    return not "".join(names).encode(errors="replace").translate(None, HOST_BYTES)
