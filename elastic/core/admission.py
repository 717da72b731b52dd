"""How a node joins a job: what it registers, what it must accept, and when it is refused (pure).

The job spec binds while any member lives; when none lives, the node that registers writes its own. The rules are a
table, `ADMISSION`; the first rule that decides is used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import msgspec
from msgspec import Struct

from elastic._text import counted
from elastic.core.keys import JobKeys
from elastic.core.model import JobMode, JobSpec, Member
from elastic.core.text import schemas_text
from elastic.core.transactions import Transaction, register, run_again
from elastic.core.versions import VersionDifference, differences
from elastic.core.view import StoreView

SPEC_FLAGS = {
    "np": "--np",
    "slots": "--nproc-per-node",
    "join_window_s": "--join-window",
    "scale_up_interval_s": "--scale-up-interval",
    "restarts_max": "--max-restarts",
    "host_cooldown_s": "--host-cooldown",
    "lease_ttl_s": "--lease-ttl",
    "silence_timeout_s": "--silence-timeout",
    "etcd_outage_timeout_s": "--etcd-outage-timeout",
    "fatal_exit_codes": "--fatal-exit-codes",
    "mode": "--run-mode",
    "ips": "--ips",
    "layout_text": "--servers, --workers",
}
"""The parts of the spec, and the flag for each. Versions are not among them, because no node can adopt them."""


Change = tuple[str, object, object]


class NodeIdentity(Struct, frozen=True):
    """The identity and the settings of this node. `incarnation` and `secret` are written if the store has none.

    `np_given` is False if the user gave no np: this node then keeps the np of a job that has no maximum.
    """

    node: str
    member: Member
    spec: JobSpec
    incarnation: str
    secret: str = ""
    force: bool = False
    rerun: bool = False
    allow_mismatch: bool = False
    np_given: bool = True


@dataclass(frozen=True, slots=True)
class AdmissionPlan:
    """A transaction to send, or a refusal, or neither if the node must first learn whether any member lives.

    `lines` and `warnings` are messages for people; --quiet does not hide warnings.
    """

    transaction: Transaction | None = None
    refusal: str = ""
    lines: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Applicant:
    """A node that wants to register, and what it knows of the store.

    `somebody_lives`: whether any member lives, None while that is not known. `incarnation` is new for each attempt and
    is written if the store has none, because a store that lost its data must get another one. `again`: replace the
    verdict by a new run. `fresh`: this node has never been registered, so a key with its name belongs to another node,
    or to an earlier attempt whose lease has ended. A node that was registered before waits instead of being refused
    when documents cannot be read, and its --force no longer applies, because an operator may have changed np.
    """

    keys: JobKeys
    view: StoreView
    me: NodeIdentity
    incarnation: str
    lease: int
    somebody_lives: bool | None
    again: bool = False
    fresh: bool = False

    @cached_property
    def stored(self) -> JobSpec:
        """The spec of the job, for rules that apply only if there is one."""
        assert self.view.spec is not None
        return self.view.spec.value

    @cached_property
    def own(self) -> JobSpec:
        """The spec that this node would write, for the current run or for the next one."""
        own: JobSpec = msgspec.structs.replace(self.me.spec, run=self.stored.run + self.again)
        return own

    @cached_property
    def changes(self) -> list[Change]:
        """The differences between the job's spec and this node's: field, the job's value, this node's value."""
        values = ((name, getattr(self.stored, name), getattr(self.own, name)) for name in SPEC_FLAGS)
        return [(name, theirs, ours) for name, theirs, ours in values if theirs != ours]

    @cached_property
    def differences(self) -> tuple[VersionDifference, ...]:
        """The versions in which this node differs from the job."""
        return differences(self.stored.versions, self.own.versions)

    def registers(
        self, spec: JobSpec | None = None, *, nobody_lives: bool = False, lines: Sequence[str] = ()
    ) -> AdmissionPlan:
        """Plan the registration, with `spec` if this node must write one."""
        me = self.me
        transaction = register(
            self.keys, self.view, me.node, me.member, self.lease,
            spec=spec, incarnation=self.incarnation, secret=me.secret, nobody_lives=nobody_lives,
        )  # fmt: skip
        return AdmissionPlan(transaction, lines=tuple(lines))


def join(applicant: Applicant) -> AdmissionPlan:
    """Plan the registration of a node: the rules of `ADMISSION`."""
    return next(plan for rule in ADMISSION if (plan := rule(applicant)) is not None)


# What the node reads first


def other_schema(it: Applicant) -> AdmissionPlan | None:
    """The spec has another schema: refuse a new node; a node that was in the job waits until the spec is restored."""
    if it.view.schema is None:
        return None
    text = f"job {it.keys.job_id} {schemas_text(it.view.schema, 'agent')}; "
    if it.fresh:
        fix = "install the job's version of elastic-launch here, or stop the job and delete it (elastic-ctl forget)"
        return AdmissionPlan(refusal=f"{text}{fix}")
    waits = f"this node was in the job, and waits until {it.keys.spec} is restored"
    return AdmissionPlan(lines=(f"{text}{waits}",))


def unreadable(it: Applicant) -> AdmissionPlan | None:
    """A document that every node needs cannot be read: refuse a new node; a node that was in the job waits."""
    spec, incarnation = it.keys.spec, it.keys.incarnation
    fixes = {
        spec: f"the job's spec in etcd cannot be read; delete it: etcdctl del {spec}",
        incarnation: f"the key {incarnation} cannot be read; delete the job's record (elastic-ctl forget)",
    }
    key = next((key for key in fixes if key in it.view.damaged), None)
    if key is None:
        return None
    if it.fresh:
        return AdmissionPlan(refusal=fixes[key])
    return AdmissionPlan(lines=(f"{key} in etcd cannot be read; waiting until it is restored",))


def name_taken(it: Applicant) -> AdmissionPlan | None:
    """A key with a new node's name exists: wait until its lease ends; refuse the node if the key cannot be read."""
    key = it.keys.member(it.me.node)
    if it.fresh and key in it.view.damaged:
        return AdmissionPlan(refusal=f"this node's own key in etcd cannot be read; delete it: etcdctl del {key}")
    if it.fresh and it.me.node in it.view.members:
        return AdmissionPlan(lines=(f"another node is registered as {it.me.node}; waiting for its lease to end",))
    return None


def begins_the_job(it: Applicant) -> AdmissionPlan | None:
    """There is no spec: write it, unless it was deleted together with the incarnation and workers may run."""
    if it.view.spec is not None:
        return None
    deleted = it.view.incarnation is None and it.view.generation is not None
    return AdmissionPlan() if deleted else it.registers(it.me.spec)


def incarnation_is_to_come(it: Applicant) -> AdmissionPlan | None:
    """The view is assembled range by range, and the incarnation is still missing: wait, unless it was deleted."""
    return AdmissionPlan() if it.view.incarnation is None else None


# Rules for a job that has a spec


def begins_a_run(it: Applicant) -> AdmissionPlan | None:
    """Begin a new run, once it is known that no member lives."""
    if not it.again:
        return None
    if it.somebody_lives is not False:
        return AdmissionPlan()
    line = f"--rerun: run {it.own.run} of the job begins" + (f": {_changes_text(it)}" if it.changes else "")
    transaction = run_again(it.keys, it.view, it.me.node, it.me.member, it.lease, it.own)
    return AdmissionPlan(transaction, lines=(line,))


def agrees(it: Applicant) -> AdmissionPlan | None:
    """The spec of this node is that of the job: register."""
    return it.registers() if not it.changes and it.stored.versions == it.own.versions else None


def ask_who_lives(it: Applicant) -> AdmissionPlan | None:
    """Find out whether a member lives, because the spec of the job binds only then."""
    return AdmissionPlan() if it.somebody_lives is None else None


def takes_over(it: Applicant) -> AdmissionPlan | None:
    """No member lives: the spec of this node becomes that of the job."""
    if it.somebody_lives:
        return None
    line = f"no node is registered, so the job takes this node's settings: {_changes_text(it)}"
    return it.registers(it.own, nobody_lives=True, lines=(line,) if it.changes else ())


def refused(it: Applicant) -> AdmissionPlan | None:
    """This node is incompatible with the settings of the job: the rules of `INCOMPATIBILITIES`."""
    refusal = next((text for rule in INCOMPATIBILITIES if (text := rule(it))), "")
    return AdmissionPlan(refusal=refusal) if refusal else None


def forces_np(it: Applicant) -> AdmissionPlan | None:
    """A new node changes np with --force, and adopts the other settings of the job."""
    if not it.me.force or not it.fresh or it.stored.np == it.own.np:
        return None
    forced: JobSpec = msgspec.structs.replace(it.stored, np=it.own.np)
    line = f"--force: the job's --np {it.stored.np} becomes {it.own.np}"
    lines = (line, *_ignored_settings([change for change in it.changes if change[0] != "np"]))
    return _warned(it, it.registers(forced, lines=lines))


def follows(it: Applicant) -> AdmissionPlan:
    """Register, and adopt the settings of the job."""
    return _warned(it, it.registers(lines=_ignored_settings(it.changes)))


ADMISSION: Final[Sequence[Callable[[Applicant], AdmissionPlan | None]]] = (
    other_schema, unreadable, name_taken, begins_the_job, incarnation_is_to_come,
    begins_a_run, agrees, ask_who_lives, takes_over, refused, forces_np, follows,
)  # fmt: skip


# Incompatibilities


def another_launcher(it: Applicant) -> str:
    """The job and this node run under different launchers: torchrun and elastic-launch."""
    modes = (it.stored.mode, it.own.mode)
    if it.stored.mode is it.own.mode or JobMode.TORCHRUN not in modes:
        return ""
    theirs, ours = ("torchrun" if mode is JobMode.TORCHRUN else "elastic-launch" for mode in modes)
    fix = "use one of them on every node, or another job ID"
    return f"job {it.keys.job_id} runs under {theirs}, and this node under {ours}; {fix}"


def another_mode(it: Applicant) -> str:
    """The job has another mode."""
    if it.stored.mode is it.own.mode:
        return ""
    text = f"job {it.keys.job_id} runs with --run-mode {it.stored.mode}, this node has {it.own.mode}"
    return f"{text}; use the same everywhere"


def other_slots(it: Applicant) -> str:
    """The job has another number of workers on each node."""
    theirs, ours = it.stored.slots, it.own.slots
    if theirs == ours:
        return ""
    fix = f"use --nproc-per-node {theirs}, or as many GPUs with --gpus"
    name, job = it.me.node, it.keys.job_id
    return f"node {name} runs {counted(ours, 'worker')}, job {job} runs {theirs} on every node; {fix}"


def other_hosts(it: Applicant) -> str:
    """The job has another list of hosts, or a list without this one."""
    theirs, ours, job = it.stored.ips, it.own.ips, it.keys.job_id
    if ours and not theirs:
        fix = "leave it out here, or give another --job-id"
        return f"this node has --ips {_words(ours)}, and job {job} was started without --ips; {fix}"
    if ours and theirs != ours:
        fix = "use the same list in the same order on every node"
        return f"--ips of this node is {_words(ours)}, that of job {job} is {_words(theirs)}; {fix}"
    if theirs and it.me.member.host not in theirs:
        fix = "add it to --ips on every node, or choose this node's entry with --host"
        return f"this node is {it.me.member.host}, which is not in --ips of job {job} ({_words(theirs)}); {fix}"
    return ""


def another_layout(it: Applicant) -> str:
    """The processes of the job have another layout."""
    theirs, ours = it.stored.layout_text, it.own.layout_text
    if theirs == ours:
        return ""
    text = f"the servers and workers of this node are {ours}, of job {it.keys.job_id} {theirs}"
    return f"{text}; use the same flags on every node"


def other_versions(it: Applicant) -> str:
    """Versions differ in an incompatible way, and the user has not allowed that."""
    apart = [one for one in it.differences if one.refused]
    if not apart or it.me.allow_mismatch:
        return ""
    values = ", ".join(one.words(f"in job {it.keys.job_id}", "on this node") for one in apart)
    return f"{values}; {apart[0].hint}, or join anyway with --allow-mismatch"


INCOMPATIBILITIES: Final[Sequence[Callable[[Applicant], str]]] = (
    another_launcher, another_mode, other_slots, other_hosts, another_layout, other_versions,
)  # fmt: skip
"""The rules that return why the node is refused, "" if it is not."""


# Messages


def _warned(it: Applicant, plan: AdmissionPlan) -> AdmissionPlan:
    """Add a warning to the plan if this node joins although versions differ."""
    others = it.differences
    if not others:
        return plan
    values = ", ".join(one.words("in the job", "on this node") for one in others)
    allowed = " (--allow-mismatch)" if any(one.refused for one in others) else ""
    return replace(plan, warnings=(f"this node joins although {values}{allowed}; {others[0].hint}",))


def _changes_text(it: Applicant) -> str:
    """Say which settings of the job change."""
    return ", ".join(f"{SPEC_FLAGS[name]} {_words(old)} becomes {_words(new)}" for name, old, new in it.changes)


def _ignored_settings(changes: Sequence[Change]) -> tuple[str, ...]:
    """One line that says which of this node's settings are ignored, if any."""
    ignored = [f"{SPEC_FLAGS[name]} is {_words(theirs)} there, {_words(ours)} here" for name, theirs, ours in changes]
    return (f"this node uses the job's settings: {', '.join(ignored)}",) if ignored else ()


def _words(value: object) -> str:
    if value in (None, ""):
        return "the default"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, tuple):
        return ",".join(map(str, value)) or "none"
    return str(value)
