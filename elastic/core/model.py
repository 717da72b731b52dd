"""The concepts of the protocol as frozen values: job spec, member, generation, start signal, outcome, verdict (pure).

Every document in the store is one of these; `elastic.core.view` writes them, and `elastic.core.view_reader` reads them.
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
"""The number of a generation or of a run; at most ten digits, as in the keys of outcomes."""
Amount = Annotated[int, msgspec.Meta(ge=0, le=2**31)]
Words = Annotated[str, msgspec.Meta(max_length=300)]
"""A reason, for people."""
Label = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_-]+\Z", max_length=32)]
Step = Annotated[int, msgspec.Meta(ge=-1, le=2**62)]
Host = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_.:%-]+\Z", max_length=253)]
HOST_BYTES: Final = string.ascii_letters.encode() + string.digits.encode() + b"_.:%-"
"""The ASCII characters that the pattern of `Host` allows."""
Master = Annotated[str, msgspec.Meta(pattern=r"^(\[[0-9A-Fa-f.:%a-z]+\]|[A-Za-z0-9_.-]+):[0-9]{1,5}\Z", max_length=300)]

Versions = Annotated[Mapping[Annotated[str, msgspec.Meta(max_length=32)], Annotated[str, msgspec.Meta(max_length=100)]],
                     msgspec.Meta(max_length=16)]  # fmt: skip
"""The versions on a node, by name: python, torch, nccl, launcher, script (a digest)."""

JOIN_WINDOW_MAX_S: Final = 15.0
"""The join window ends at the latest this long after the first node has registered."""

SCHEMA = 10
"""Version of every document below. The job spec contains it: an agent with another schema reads none of the job's
documents and does not join (`elastic.core.view_reader`)."""


class MemberState(StrEnum):
    """The state that a member has registered."""

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
    NODE_LOST = "node lost"
    FAILURE = "failure"
    STOPPED = "stopped"
    DRAIN = "drain"
    SCALE_UP = "scale-up"
    JOINED = "joined"
    LEFT = "left"
    QUARANTINED = "quarantined"
    SCALE_DOWN = "scale-down"
    STOP = "stop"


Stamp = tuple[int, int]
"""One start of a node's processes: the generation, and the number of the start within it (0 for the first)."""

PLANNED: Final = (
    ChangeReason.DRAIN,
    ChangeReason.SCALE_UP,
    ChangeReason.SCALE_DOWN,
    ChangeReason.STOP,
    ChangeReason.JOINED,
    ChangeReason.LEFT,
)
"""Changes that break nothing: workers get time to save and to exit. The last two happen while a gate is closed."""


class JobMode(StrEnum):
    """How the processes of a job work together."""

    COLLECTIVE = "collective"
    PS = "ps"
    PS_HETER = "ps-heter"
    TORCHRUN = "torchrun"
    """Collective, with workers run by torch's agents: our plugin only decides which node is in which world."""


class Np(msgspec.Struct, frozen=True):
    """How many nodes run: the first start waits for `first`; later the job runs with any number from `low` to `high`.

    A job whose np is `unlimited` starts as soon as `first` nodes are here, and admits every node that joins later.
    """

    low: Count
    high: Count
    first: Count

    @property
    def unlimited(self) -> bool:
        """Return whether there is no maximum."""
        return self.high == NP_UNLIMITED

    def __str__(self) -> str:
        """Return the value as it is given on the command line."""
        if self.unlimited:
            return f"{self.first}+"
        if self.low == 1 and self.first == self.high:
            return str(self.high)
        return f"{self.low}:{self.high}"


class JobSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The settings that bind every node of the job while any member lives.

    `scale_up_interval_s` None: no minimum interval if workers save before they leave, otherwise
    `planned_changes.SCALE_UP_INTERVAL_S`.
    `host_cooldown_s`: seconds of the first quarantine of a host whose workers keep failing; 0: no quarantine.
    `silence_timeout_s`: a node that sends no heartbeat for this time is suspected; 0: no node is ever suspected.
    """

    np: Np
    slots: Count
    run: Number = 1
    schema: int = SCHEMA
    join_window_s: Seconds = 3.0
    scale_up_interval_s: Seconds | None = None
    restarts_max: Amount = 3
    host_cooldown_s: Seconds = 60.0
    lease_ttl_s: Seconds = 5.0
    silence_timeout_s: Seconds = 1.0
    etcd_outage_timeout_s: Seconds = 120.0
    fatal_exit_codes: tuple[int, ...] = ()
    mode: JobMode = JobMode.COLLECTIVE
    ips: tuple[Host, ...] = ()
    versions: Versions = msgspec.field(default_factory=dict)
    one_world: ClassVar[bool] = True
    """Whether all workers form one world: they start together, and end together if one fails or is lost."""

    @property
    def generation_type(self) -> type[Generation]:
        """The type of this job's generation documents."""
        return Generation

    @property
    def layout_text(self) -> str:
        """The flags that fix which process runs where; "" if the job has none."""
        return ""

    def contradiction(self) -> str:
        """Describe how the parts of the document contradict each other; "" if they do not."""
        low, high, first = self.np.low, self.np.high, self.np.first
        return "" if low <= first <= high else f"np {low}:{high} starts with {first}"


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """The document that a node registers, under its lease.

    `masters` are the ports that the node reserves for torch's store when it is M_id 0. The generations use them in
    turn, so that a straggler of an older generation finds no listener. `ports` has one port per slot. `link` is the
    port on which the agent itself listens, 0 if it does not.
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
        """Describe how the parts of the document contradict each other; "" if they do not."""
        return "" if len(self.ports) == self.slots else f"{self.slots} slots and {len(self.ports)} ports"


class Leader(msgspec.Struct, frozen=True, kw_only=True):
    """The leading node, under its lease, and the port on which its agent listens (`link`, 0 if it does not).

    `created`: the create revision of the node's key; 0 if both keys were written in one transaction.
    """

    node: str
    host: Host
    link: Annotated[int, msgspec.Meta(ge=0, le=65_535)] = 0
    created: Annotated[int, msgspec.Meta(ge=0)] = 0


class GenerationMember(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One member of a generation. Its M_id is its index in `Generation.members`.

    `host` is a `Host`. `Generation.contradiction` checks this for all members at once, because a pattern for each
    member would take more than half of the time for decoding a generation. `masters` are those that the node
    registered, () if no processes meet at this member.

    `gc=False`: there may be thousands of members, and none of them is part of a reference cycle.
    """

    node: str
    host: Annotated[str, msgspec.Meta(min_length=1, max_length=253)]
    masters: PortsIfAny
    ports: Ports

    def process_count(self, slots: int) -> int:
        """The number of processes of this member in a job with `slots` slots on each node."""
        return slots

    def is_meeting_place(self, m_id: int) -> bool:
        """Return whether processes of other nodes may meet at this member, which has this M_id."""
        return m_id == 0


class Predecessor(msgspec.Struct, frozen=True, array_like=True):
    """The newest started generation, its nodes (the gate waits for them), and why it was replaced.

    `since` are the newest starts of the nodes within that generation, in their order; it is empty if all are 0.
    `broken`: the change was not planned, or a node or a worker failed while the workers were being stopped.
    """

    g: Number
    nodes: tuple[str, ...]
    why: ChangeReason
    since: tuple[Amount, ...] = ()
    broken: bool = False

    def start(self, node: str) -> Stamp | None:
        """The last start of a node in this generation; None if the node was not in it."""
        if node not in self.nodes:
            return None
        at = self.nodes.index(node)
        return self.g, self.since[at] if at < len(self.since) else 0


class Quarantine(msgspec.Struct, frozen=True, array_like=True):
    """A host whose workers failed on their own, or that others could not reach (`elastic.core.quarantine`).

    `failures`: failures in a row without progress. `times`: how often the host was quarantined since it last took part
    in progress. `g`: the generation whose failure last caused that, 0 if none did. `left_s`: seconds of quarantine that
    are left, 0 if the host is not quarantined; each reader counts them from when it first sees the document, because
    wall clocks differ. `words`: how the workers ended. `unreachable`: the host was quarantined because others could not
    reach it (`elastic.core.partition`), and `words` names them.
    """

    host: Annotated[str, msgspec.Meta(max_length=253)]
    failures: Amount = 0
    times: Amount = 0
    g: Annotated[int, msgspec.Meta(ge=0, le=9_999_999_999)] = 0
    left_s: Seconds = 0.0
    words: Annotated[str, msgspec.Meta(max_length=200)] = ""
    unreachable: bool = False


class Budget(msgspec.Struct, frozen=True, array_like=True):
    """The used part of the job's restart budget.

    `charged`: restarts that count against `--max-restarts`. `consecutive_failures`: failures in a row without progress.
    `step`: the highest step that any worker reported, -1 without one. `machine_faults`: failures of the machine, not of
    the script, in a row without progress (a port in use, for example). `hosts`: hosts with recent failures of their
    own, and quarantined hosts. `judged_g`: the newest generation whose failure was charged before its successor
    started, because hosts were quarantined for it.
    """

    charged: Amount = 0
    consecutive_failures: Amount = 0
    step: Step = -1
    machine_faults: Amount = 0
    hosts: Annotated[tuple[Quarantine, ...], msgspec.Meta(max_length=512)] = ()
    judged_g: Annotated[int, msgspec.Meta(ge=0, le=9_999_999_999)] = 0


ANY_RANK: Final = -1
"""The rank of a worker if only its node is known, as under torchrun."""
WORKER_ROLE: Final = "worker"
"""The role of processes in a job in which all processes do the same."""


class WorkerExit(msgspec.Struct, frozen=True, kw_only=True):
    """How one worker ended, with the details that users need.

    `code` is the exit code, or minus the signal. `failure` says how a failure counts, and `why` is the visible cause
    for the classes that have one: the fault of the machine ("address in use"), why each further start would fail in the
    same way, or the error at the start of the script. `rank` counts the processes of a `role`; it may be `ANY_RANK`.
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
        """Whether the worker only lost a peer."""
        return self.failure is FailureClass.SECONDARY


class OtherFailure(msgspec.Struct, frozen=True, array_like=True):
    """A process that failed on its own on another node than that of the root cause, and where its log is."""

    rank: int
    host: str
    words: str
    log: str = ""
    role: Label = WORKER_ROLE


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """The root cause of a generation's failure: where and how a worker failed, with the last lines of its log.

    `exits` are those of the node that failed first. `ranks` are the workers of all nodes that failed on their own;
    `others` are the failures on other nodes, with their logs.
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
        """The exit to show to people."""
        return self.exits[0]


class EvictedNode(msgspec.Struct, frozen=True, array_like=True):
    """A node that the leader has evicted because it was silent, and the create revision of the evicted registration.

    `left_s`: seconds, from when the generation was made, during which the silence of the node's host does not count.
    """

    node: str
    host: Annotated[str, msgspec.Meta(max_length=253)]
    create_revision: Annotated[int, msgspec.Meta(ge=0)]
    left_s: Seconds


class Generation(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """One agreed world. The leader writes all of it in one guarded transaction.

    `leader` is the node that proposed it. `distrusted` are hosts that sent something after a link had shown their
    death: only their leases count. `evicted` are recently evicted nodes (`elastic.core.membership.evictions`).
    `unlinked` are members that listen for links and that no leader has been linked to yet.
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
    """The key of the document, below that of the job."""
    one_world: ClassVar[bool] = True
    """Whether all workers form one world: they start together, and end together if one fails or is lost."""

    @property
    def planned(self) -> bool:
        """Whether the workers of the generation before have time to save and to exit."""
        return self.why in PLANNED and not (self.before is not None and self.before.broken)

    def index(self, node: str) -> int | None:
        """The M_id of a node; None if it is not in this generation."""
        return self._m_ids.get(node)

    @cached_property
    def _m_ids(self) -> Mapping[str, int]:
        """The M_ids by node. The first of several members with the same name counts."""
        names = [place.node for place in self.members]
        return dict(zip(reversed(names), reversed(range(len(names))), strict=True))

    def member(self, node: str) -> GenerationMember | None:
        """The member for a node; None if the node has no part in this generation, or no part any more."""
        index = self.index(node)
        return self.members[index] if index is not None else None

    def start_of(self, node: str) -> Stamp | None:
        """The last start that the leader asked of a node; None if the node is not in this generation."""
        return (self.g, 0) if self.index(node) is not None else None

    def withdrawn_start(self, node: str) -> Stamp | None:
        """The start that a node must end although the generation continues; None if there is none."""
        return None

    @property
    def later_starts(self) -> tuple[int, ...]:
        """The numbers of the members' starts within this generation, in their order; empty if all are 0."""
        return ()

    @property
    def continues(self) -> bool:
        """Whether processes of this generation continue to run: this is not its first document."""
        return False

    @property
    def world_size(self) -> int:
        """The number of all workers."""
        return len(self.members) * self.slots

    def contradiction(self) -> str:
        """Describe how the parts of the document contradict each other; "" if they do not."""
        if any(len(member.ports) != member.process_count(self.slots) for member in self.members):
            return f"{self.slots} slots, and a member with another number of ports"
        return "" if _are_hosts(member.host for member in self.members) else "a member with an invalid host"


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How a node's workers of one generation ended.

    A node whose worker failed writes its outcome at once with `over` false, and again with `over` true when all its
    workers are gone: the gate waits for the second, and the other rules act on the first. `forced`: the node had to
    stop its workers for a reason of its own (its lease expired, for example), so that failures of its peers are
    secondary. `also` are workers that had raised an exception on their own before they were stopped: they are listed,
    and cost nothing. `unreached` are nodes of the generation that this node could not reach while its workers waited.
    `since`: the number of the start in this generation that ended (`Stamp`).
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
    """The start signal for the workers of generation `g`, and the address where they meet.

    `cause` is the root cause if a failure ended the generation before; `note` says what that failure costs and why.
    """

    g: Number
    master: Master
    budget: Budget
    cause: Cause | None = None
    note: str = ""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The final status of the job. `at` is the leader's wall clock in seconds since the epoch, for people only."""

    status: FinalStatus
    reason: str
    run: int
    g: int
    at: float
    cause: Cause | None = None


class StopOrder(msgspec.Struct, frozen=True, kw_only=True):
    """An operator stops the run: workers save and exit, then the leader writes the verdict. `at` is for people only."""

    run: Number
    reason: Words
    at: Annotated[float, msgspec.Meta(ge=0)] = 0.0


class DrainOrder(msgspec.Struct, frozen=True, kw_only=True):
    """An operator asks one node to leave.

    `within_s`: seconds after the node has received the order within which it must be gone; its workers get a little
    less, as in any drain with a deadline. None: there is no deadline. `at` is for people only.
    """

    reason: Words
    within_s: Seconds | None = None
    at: Annotated[float, msgspec.Meta(ge=0)] = 0.0


class SavedCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """The newest checkpoint that the job's workers committed, and the host that reported it.

    `folder` is an absolute path on that host; other hosts may be unable to read it. `at` is that host's wall clock, for
    people only. No rule depends on this document: it keeps a job from silently starting over.
    """

    step: Annotated[int, msgspec.Meta(ge=0, le=2**62)]
    host: Annotated[str, msgspec.Meta(max_length=253)]
    folder: Annotated[str, msgspec.Meta(max_length=4096)]
    run: Number
    g: Number
    at: float = 0.0

    def replaces(self, other: SavedCheckpoint | None) -> bool:
        """Return whether this report is newer than another one.

        A later generation counts more than a higher step: it may have returned to an older checkpoint.
        """
        return other is None or (self.run, self.g, self.step) > (other.run, other.g, other.step)


def contradiction(document: object) -> str:
    """Describe how the parts of a document contradict each other; "" if they do not."""
    return document.contradiction() if isinstance(document, JobSpec | Member | Generation) else ""


def _are_hosts(names: Iterable[str]) -> bool:
    """Return whether the names have only characters that a `Host` may have."""
    return not "".join(names).encode(errors="replace").translate(None, HOST_BYTES)
