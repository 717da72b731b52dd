"""Every transaction that an agent sends, as a value (pure).

Safety between agents that act at the same time is here and nowhere else: a proposal holds only if the proposer is
still the member it was, nothing it looked at has changed, the store is the same one, and no verdict is there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import msgspec

from elastic.core.keys import JobKeys
from elastic.core.kv import (
    OPERATIONS_MAX,
    Compare,
    Delete,
    ElseIf,
    KeyRange,
    KeyValue,
    Operation,
    Put,
    ReadRange,
    TxnResult,
)
from elastic.core.membership.decision import ConcludeJob, FormGeneration, OpenGate
from elastic.core.model import Arrival, FinalStatus, Generation, Go, JobSpec, Member, Outcome, Verdict
from elastic.core.view import StoreView, decode, encode
from elastic.errors import DocumentError

LOST_COMPARED_MAX = 50
ABSENT_COMPARED_MAX = 100
UNFINISHED_MAX = 50
FORGET_MAX = 20
WRITTEN_MAX = 3
"""Members that a proposal compares one by one (a watch can miss what the store knows); more do not fit into a
transaction, and where many are lost still fewer of the others. What is not forgotten now is of an older start, and
counts no more in any case. Besides, a proposal writes or deletes at most `WRITTEN_MAX` keys or ranges."""
ARRIVED_REVISIONS_MAX = 1000
"""To watch from a revision of the past costs etcd as much as everything that was written since: what a member was then
is of use only if it is not older than that."""


@dataclass(frozen=True, slots=True)
class Transaction:
    """What to send. `kind` names it in logs and answers; `lease` and `outcome` say what it was about."""

    kind: str
    compares: tuple[Compare, ...]
    then: tuple[Operation, ...]
    lease: int = 0
    otherwise: ElseIf | tuple[()] = ()
    outcome: tuple[int, Outcome] | None = None


def propose(
    keys: JobKeys,
    view: StoreView,
    node: str,
    created: int,
    decision: FormGeneration | OpenGate | ConcludeJob,
    tag: str,
    at: float,
) -> Transaction:
    """The guarded transaction that carries out a decision of `membership.decide`.

    `created` is the create revision of the proposer's member key; `tag` is unlike that of any other proposal; `at` is
    the wall clock, for people.
    """
    compares = [
        Compare.created(keys.member(node), created),
        *_same_store(keys, view),
        Compare.modified(keys.generation, view.generation.mod_revision if view.generation else 0),
        Compare.modified(keys.go, view.go.mod_revision if view.go else 0),
        Compare.modified(keys.spec, view.spec.mod_revision if view.spec else 0),
        Compare.modified(keys.halt, view.halt.mod_revision if view.halt else view.damaged_at.get(keys.halt, 0)),
        Compare.absent(keys.verdict),
    ]
    if isinstance(decision, FormGeneration):
        generation: Generation = msgspec.structs.replace(decision.generation, tag=tag)
        g = view.generation.value.g if view.generation is not None else 0
        if decision.planned:
            compares.append(Compare.empty(keys.outcome(g, "")))
        since = {place.node: place.since for place in view.generation.value.members} if view.generation else {}
        for lost in decision.lost[:LOST_COMPARED_MAX]:
            compares.append(_nothing_readable(view, keys.outcome(g, lost, since.get(lost, 0))))
            if lost not in view.members:
                compares.append(_nothing_readable(view, keys.member(lost)))
        room = OPERATIONS_MAX - len(compares) - WRITTEN_MAX
        gone = [other for other in decision.gone if other not in view.members]
        # A watch can miss that one is registered again, and its processes run.
        compares += [_nothing_readable(view, keys.member(other)) for other in gone[: min(LOST_COMPARED_MAX, room // 2)]]
        room = OPERATIONS_MAX - len(compares) - WRITTEN_MAX
        at_work = decision.unfinished[: min(UNFINISHED_MAX, room // 2)]
        compares += [_nothing_readable(view, keys.outcome(g, other, since.get(other, 0))) for other in at_work]
        oldest = generation.before.g if generation.before is not None else generation.g
        then: tuple[Operation, ...] = (
            Put(keys.generation, encode(generation)),
            Delete(keys.outcomes_below(oldest)),
        )
        for old in decision.forget[: min(FORGET_MAX, (room - len(at_work)) // 2)]:
            then = (*then, Delete(KeyRange.key(keys.outcome(g, old))), Delete(keys.later_outcomes(g, old)))
        if not generation.rev and any(written == generation.g for written, _ in view.outcomes):
            then = (*then, Delete(KeyRange.prefix(keys.outcome(generation.g, ""))))  # Of one that somebody deleted.
        if decision.go is not None:
            then = (*then, Put(keys.go, encode(msgspec.structs.replace(decision.go, tag=tag))))
        elif view.go is not None and view.go.value.g >= generation.g and not generation.rev:
            then = (*then, Delete(KeyRange.key(keys.go)))  # Left over from a generation that somebody deleted.
        return Transaction("form", tuple(compares), then)
    if isinstance(decision, OpenGate):
        compares += [_nothing_readable(view, keys.member(node)) for node in decision.absent[:ABSENT_COMPARED_MAX]]
        go: Go = msgspec.structs.replace(decision.go, tag=tag)
        return Transaction("go", tuple(compares), (Put(keys.go, encode(go)),))
    verdict: Verdict = msgspec.structs.replace(decision.verdict, tag=tag, at=at)
    return Transaction("verdict", tuple(compares), (Put(keys.verdict, encode(verdict)),))


def register(
    keys: JobKeys,
    view: StoreView,
    node: str,
    member: Member,
    lease: int,
    *,
    spec: JobSpec | None = None,
    incarnation: str = "",
    secret: str = "",
    nobody_lives: bool = False,
) -> Transaction:
    """Put a member under its lease; with `spec`, write that too.

    `incarnation` is used if the store has none, and so is `secret`, with the incarnation or the spec. If somebody else
    has just begun the empty job, with the very same spec, this node joins that one: of a thousand nodes that are
    started together all but one come second, and need no second transaction.

    What stands under the node's key is replaced, also if it cannot be read. `nobody_lives` holds the transaction to a
    job without any member. It reads who registered last before it: the one to follow in line, most likely, whom each
    would otherwise look for among all, and read.
    """
    own = view.members.get(node)
    at = own.mod_revision if own else view.damaged_at.get(keys.member(node), 0)
    fits = (Compare.absent(keys.verdict), Compare.modified(keys.member(node), at))
    compares = [
        Compare.modified(keys.spec, view.spec.mod_revision if view.spec else 0),
        *fits,
        *_same_store(keys, view),
    ]
    then: list[Operation] = [
        ReadRange(KeyRange.key(keys.arrived)),
        Put(keys.arrived, encode(Arrival(node) if at else Arrival(node, lease, member))),
        Put(keys.member(node), encode(member), lease),
    ]
    otherwise: ElseIf | tuple[()] = ()
    if spec is not None and view.spec is None and view.incarnation is None:
        otherwise = ElseIf((Compare.equals(keys.spec, encode(spec)), *fits), tuple(then))
    if nobody_lives:
        compares.append(Compare.empty(keys.members))
    if spec is not None:
        then.append(Put(keys.spec, encode(spec)))
    if view.incarnation is None:
        compares.append(Compare.absent(keys.generation))
        then.append(Put(keys.incarnation, encode(incarnation)))
    if secret and (view.incarnation is None or (spec is not None and view.secret is None)):
        then.append(Put(keys.secret, encode(secret)))
    return Transaction("register", tuple(compares), tuple(then), lease, otherwise)


def unless_superseded(keys: JobKeys, view: StoreView, transaction: Transaction) -> Transaction:
    """The same for a node whose workers run, or are being stopped: only if no world has started since.

    Nobody has waited for its workers then, and nobody is to take it for a newcomer while they are there.
    """
    at = view.go.mod_revision if view.go is not None else view.damaged_at.get(keys.go, 0)
    return replace(transaction, compares=(*transaction.compares, Compare.modified(keys.go, at)))


def registered_before(keys: JobKeys, transaction: Transaction, result: TxnResult) -> KeyValue | None:
    """The member that registered last before a transaction of `register`, as it was then; None if nobody knows.

    Its revisions are 0 if more than its name is not known.
    """
    if transaction.kind != "register" or not result.done or not result.reads or not result.reads[0]:
        return None
    try:
        arrival: Arrival = decode(keys, keys.arrived, result.reads[0][0].value)
    except DocumentError:
        return None
    key, at = keys.member(arrival.node), result.reads[0][0].mod_revision
    if arrival.member is None or at < result.revision - ARRIVED_REVISIONS_MAX:
        return KeyValue(key, b"", 0, 0)
    return KeyValue(key, encode(arrival.member), at, at, arrival.lease)


def run_again(keys: JobKeys, view: StoreView, node: str, member: Member, lease: int, spec: JobSpec) -> Transaction:
    """Replace a verdict by a new run, and register, if no member is alive.

    The newest committed checkpoint of a job that failed stays known, so that training does not start over in silence;
    one that has completed may.
    """
    compares = (
        Compare.modified(keys.verdict, view.verdict.mod_revision if view.verdict else 0),
        Compare.modified(keys.spec, view.spec.mod_revision if view.spec else 0),
        Compare.empty(keys.members),
        *_same_store(keys, view),
    )
    then: tuple[Operation, ...] = (
        Delete(KeyRange.key(keys.verdict)),
        Put(keys.spec, encode(spec)),
        Delete(KeyRange.prefix(keys.outcomes)),
        Delete(KeyRange.key(keys.halt)),
        Delete(KeyRange.prefix(keys.leaves)),
        Put(keys.member(node), encode(member), lease),
    )
    if view.verdict is not None and view.verdict.value.status is FinalStatus.COMPLETED:
        then = (*then, Delete(KeyRange.key(keys.saved)))
    return Transaction("register", compares, then, lease=lease)


def update_member(keys: JobKeys, view: StoreView, node: str, created: int, member: Member, lease: int) -> Transaction:
    """Write what a member says of itself anew (that it drains)."""
    compares = (Compare.created(keys.member(node), created), *_same_store(keys, view))
    return Transaction("say", compares, (Put(keys.member(node), encode(member), lease),))


def record_outcome(keys: JobKeys, view: StoreView, node: str, g: int, outcome: Outcome) -> Transaction:
    """Record how a node's workers of generation g ended. Not leased: it outlives its node.

    The first word about a failure is never written over the last one, however late it arrives.
    """
    key = keys.outcome(g, node, outcome.since)
    compares = _same_store(keys, view) if outcome.over else (*_same_store(keys, view), Compare.absent(key))
    return Transaction("record", compares, (Put(key, encode(outcome)),), outcome=(g, outcome))


def deregister(keys: JobKeys, node: str, created: int) -> Transaction:
    """Take the member away, if it is still the one that was registered, and what told it to leave."""
    key = keys.member(node)
    then = (Delete(KeyRange.key(key)), Delete(KeyRange.key(keys.leave(node))))
    return Transaction("leave", (Compare.created(key, created),), then)


def _nothing_readable(view: StoreView, key: str) -> Compare:
    """Nothing stands under the key, or still what cannot be read; a node whose key it is puts it right."""
    at = view.damaged_at.get(key)
    return Compare.absent(key) if at is None else Compare.modified(key, at)


def _same_store(keys: JobKeys, view: StoreView) -> tuple[Compare, ...]:
    if view.incarnation is None:
        return (Compare.absent(keys.incarnation),)
    return (Compare.equals(keys.incarnation, encode(view.incarnation.value)),)
