"""How a node comes into a job: what it registers, what it must accept, when it is refused (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
from msgspec import Struct

from elastic.core.keys import JobKeys
from elastic.core.model import JobMode, JobSpec, Member
from elastic.core.text import schemas_text
from elastic.core.transactions import Transaction, register, run_again
from elastic.core.versions import VersionDifference, differences
from elastic.core.view import StoreView

SPEC_FLAGS = {
    "np": "--np",
    "slots": "--nproc_per_node",
    "settle_s": "--settle",
    "grow_every_s": "--grow_every",
    "restarts_max": "--max_restarts",
    "host_cooldown_s": "--host_cooldown",
    "lease_ttl_s": "--lease_ttl",
    "store_outage_limit_s": "--store_outage_limit",
    "fatal_exit_codes": "--fatal_exit_codes",
    "mode": "--run_mode",
    "ips": "--ips",
    "layout_text": "--servers, --workers",
}
"""The parts of the spec, and the flag that gives each. The versions are apart: no node follows them."""


@dataclass(frozen=True, slots=True)
class AdmissionPlan:
    """One of: a transaction to send, a refusal, or neither: first it must be known whether any member lives.

    `lines` are for people; `warnings`, too, and --quiet does not hide them.
    """

    transaction: Transaction | None = None
    refusal: str = ""
    lines: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def join(
    keys: JobKeys,
    view: StoreView,
    me: NodeIdentity,
    incarnation: str,
    lease: int,
    somebody_lives: bool | None,
    *,
    again: bool = False,
    fresh: bool = False,
) -> AdmissionPlan:
    """Plan the registration of a node, given what stands in the store.

    The spec binds while any member lives; when none lives, the node that registers writes its own. `somebody_lives`
    is None while that is not known. `incarnation` is new for each try, and is written if the store has none; one that
    came back empty must get another. `again`: replace the verdict by a new run. `fresh`: this node has never been
    registered, so that a key of its name is somebody else's, or of a try of its own whose lease is over. One that has
    been is not sent away by what cannot be read: it waits. Its --force is over, too: an operator may have changed np.
    """
    if view.schema is not None:
        return _of_other_schema(keys, view.schema, fresh=fresh)
    for key in (keys.spec, keys.incarnation):
        if key in view.damaged and not fresh:
            return AdmissionPlan(lines=(f"{key} in etcd cannot be read; waiting until somebody has put it right",))
    if keys.spec in view.damaged:
        return AdmissionPlan(refusal=f"the job's spec in the store ({keys.spec}) cannot be read; delete that key")
    if keys.incarnation in view.damaged:
        return AdmissionPlan(refusal=f"the key {keys.incarnation} cannot be read; delete everything of this job")
    if fresh and keys.member(me.node) in view.damaged:
        return AdmissionPlan(refusal=f"this node's own key {keys.member(me.node)} cannot be read; delete it")
    if fresh and me.node in view.members:
        return AdmissionPlan(lines=(f"another node is registered as {me.node}; waiting for its lease to end",))
    stored = view.spec.value if view.spec is not None else None
    if stored is None:
        if view.incarnation is None and view.generation is not None:
            return AdmissionPlan()  # Somebody deleted both, and workers may run: this is not where a job begins.
        return AdmissionPlan(_register(keys, view, me, incarnation, lease, me.spec))
    if view.incarnation is None:
        return AdmissionPlan()  # The view is put together range by range: the key comes, unless somebody deleted it.
    own: JobSpec = msgspec.structs.replace(me.spec, run=stored.run)
    if again:
        if somebody_lives is not False:
            return AdmissionPlan()
        own = msgspec.structs.replace(own, run=stored.run + 1)
        changes = _changes(stored, own)
        line = f"--rerun: run {own.run} of the job begins" + (f": {_changes_text(changes)}" if changes else "")
        return AdmissionPlan(run_again(keys, view, me.node, me.member, lease, own), lines=(line,))
    changes = _changes(stored, own)
    others = differences(stored.versions, own.versions)
    if not changes and stored.versions == own.versions:
        return AdmissionPlan(_register(keys, view, me, incarnation, lease, None))
    if somebody_lives is None:
        return AdmissionPlan()
    if not somebody_lives:
        line = f"nobody is registered, so this node's settings are the job's: {_changes_text(changes)}"
        lines = (line,) if changes else ()
        return AdmissionPlan(_register(keys, view, me, incarnation, lease, own, nobody_lives=True), lines=lines)
    if refusal := _incompatibility(keys, me, stored, own) or _mismatch(keys, me, others):
        return AdmissionPlan(refusal=refusal)
    warnings = _warnings(others)
    if me.force and fresh and stored.np != own.np:
        line = f"--force: the job's --np {stored.np} becomes {own.np}"
        forced: JobSpec = msgspec.structs.replace(stored, np=own.np)
        follows = _ignored_settings([change for change in changes if change[0] != "np"])
        return AdmissionPlan(
            _register(keys, view, me, incarnation, lease, forced), lines=(line, *follows), warnings=warnings
        )
    return AdmissionPlan(
        _register(keys, view, me, incarnation, lease, None), lines=_ignored_settings(changes), warnings=warnings
    )


def _incompatibility(keys: JobKeys, me: NodeIdentity, stored: JobSpec, own: JobSpec) -> str:
    """Say why this node does not fit into the world that the job's nodes have agreed on; "" if it does."""
    if stored.mode is not own.mode and JobMode.TORCHRUN in (stored.mode, own.mode):
        theirs, ours = (
            "torchrun" if mode is JobMode.TORCHRUN else "elastic-launch" for mode in (stored.mode, own.mode)
        )
        return (
            f"job {keys.job_id} runs under {theirs}, and this node under {ours}; use one of them on every node, or "
            "another job id"
        )
    if stored.mode is not own.mode:
        return (
            f"job {keys.job_id} runs with --run_mode {stored.mode}, this node has {own.mode}; use the same everywhere"
        )
    if stored.slots != own.slots:
        return (
            f"node {me.node} offers {own.slots} card{'' if own.slots == 1 else 's'}, job {keys.job_id} uses "
            f"{stored.slots} on every node; use --nproc_per_node {stored.slots}, or as many cards with --gpus"
        )
    if own.ips and not stored.ips:
        return (
            f"this node has --ips {_words(own.ips)}, and job {keys.job_id} was begun without --ips; leave it out "
            "here, or give another --job_id"
        )
    if own.ips and stored.ips != own.ips:
        return (
            f"--ips of this node is {_words(own.ips)}, that of job {keys.job_id} is {_words(stored.ips)}; "
            "use the same list in the same order on every node"
        )
    if stored.ips and me.member.host not in stored.ips:
        return f"this node is {me.member.host}, which is not in --ips of job {keys.job_id}: {_words(stored.ips)}"
    if stored.layout_text != own.layout_text:
        return (
            f"the servers and workers of this node are {own.layout_text}, of job {keys.job_id} "
            f"{stored.layout_text}; the same flags on every node"
        )
    return ""


def _mismatch(keys: JobKeys, me: NodeIdentity, others: tuple[VersionDifference, ...]) -> str:
    """Say which versions keep this node out of the job; "" if none does, or if it is to join all the same."""
    apart = [one for one in others if one.refused]
    if not apart or me.allow_mismatch:
        return ""
    values = ", ".join(one.words(f"in job {keys.job_id}", "on this node") for one in apart)
    return f"{values}; {apart[0].hint}, or join all the same with --allow_mismatch"


def _warnings(others: tuple[VersionDifference, ...]) -> tuple[str, ...]:
    """One line that says what differs although this node joins, if anything."""
    if not others:
        return ()
    values = ", ".join(one.words("in the job", "on this node") for one in others)
    allowed = " (--allow_mismatch)" if any(one.refused for one in others) else ""
    return (f"this node joins although {values}{allowed}; {others[0].hint}",)


def _of_other_schema(keys: JobKeys, schema: int, *, fresh: bool) -> AdmissionPlan:
    """Refuse a new node. A node that was in the job waits: somebody has overwritten the spec since it registered."""
    text = f"job {keys.job_id} {schemas_text(schema, 'agent')}; "
    if fresh:
        fix = "install the job's version of elastic-launch here, or stop the job and delete it (elastic-ctl forget)"
        return AdmissionPlan(refusal=f"{text}{fix}")
    return AdmissionPlan(lines=(f"{text}this node was in the job, and waits until somebody has restored {keys.spec}",))


def _changes_text(changes: list[tuple[str, object, object]]) -> str:
    """Say what of the spec is another now."""
    return ", ".join(f"{SPEC_FLAGS[name]} {_words(old)} becomes {_words(new)}" for name, old, new in changes)


def _ignored_settings(changes: list[tuple[str, object, object]]) -> tuple[str, ...]:
    """One line that says which of this node's settings do not count, if any."""
    if not changes:
        return ()
    return (
        "this node follows the job: "
        + ", ".join(f"{SPEC_FLAGS[name]} is {_words(old)} there, {_words(new)} here" for name, old, new in changes),
    )


def _register(
    keys: JobKeys,
    view: StoreView,
    me: NodeIdentity,
    incarnation: str,
    lease: int,
    spec: JobSpec | None,
    *,
    nobody_lives: bool = False,
) -> Transaction:
    return register(
        keys,
        view,
        me.node,
        me.member,
        lease,
        spec=spec,
        incarnation=incarnation,
        secret=me.secret,
        nobody_lives=nobody_lives,
    )


def _changes(stored: JobSpec, mine: JobSpec) -> list[tuple[str, object, object]]:
    return [
        (name, getattr(stored, name), getattr(mine, name))
        for name in SPEC_FLAGS
        if getattr(stored, name) != getattr(mine, name)
    ]


def _words(value: object) -> str:
    if value in (None, ""):
        return "the default"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, tuple):
        return ",".join(map(str, value)) or "none"
    if isinstance(value, Mapping):
        return " ".join(f"{name} {text}" for name, text in value.items()) or "none"
    return str(value)


class NodeIdentity(Struct, frozen=True):
    """This node. `incarnation` and `secret` are written if the store has none.

    `np_given` is False where the user named no np: this node then keeps the np of a job that has no maximum.
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
