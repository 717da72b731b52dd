"""Every transaction that an agent sends, as a value (pure).

Safety between agents that act at the same time depends on this module only: a proposal succeeds only if the leader
still leads under the same registration, nothing that it read has changed, the store is the same one, and there is no
verdict.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from elastic.core.keys import JobKeys
from elastic.core.kv import (
    OPERATIONS_MAX,
    Compare,
    Delete,
    KeyRange,
    Operation,
    Put,
)
from elastic.core.membership.decision import ConcludeJob, FormGeneration, OpenGate
from elastic.core.model import FinalStatus, JobSpec, Leader, Member, Outcome, Verdict
from elastic.core.view import StoredDocument, StoreView, encode

LOST_COMPARED_MAX = 50
ABSENT_COMPARED_MAX = 100
UNFINISHED_MAX = 50
FORGET_MAX = 20
WRITTEN_MAX = 6
"""Members that a proposal compares one by one (a watch can miss what the store knows). More do not fit into a
transaction, and if many members are lost, even fewer of the others fit. Outcomes that are not forgotten now belong to
older starts and no longer count in any case. In addition, a proposal writes or deletes at most `WRITTEN_MAX` keys or
ranges."""


@dataclass(frozen=True, slots=True)
class Transaction:
    """A transaction to send. `kind` names it in logs and answers; `lease` and `outcome` are those that it writes."""

    kind: str
    compares: tuple[Compare, ...]
    then: tuple[Operation, ...]
    lease: int = 0
    outcome: tuple[int, Outcome] | None = None


def propose(
    keys: JobKeys,
    view: StoreView,
    node: str,
    created: int,
    decision: FormGeneration | OpenGate | ConcludeJob,
    at: float,
) -> Transaction:
    """Return the guarded transaction that carries out a decision of `elastic.core.decide`.

    `created` is the create revision of the leader's member key; `at` is the wall clock, for people.
    """
    compares = _unchanged(keys, view, node, created)
    if isinstance(decision, FormGeneration):
        return _form(keys, view, node, decision, compares)
    if isinstance(decision, OpenGate):
        absent = [_nothing_readable(view, keys.member(node)) for node in decision.absent[:ABSENT_COMPARED_MAX]]
        return Transaction("go", (*compares, *absent), (Put(keys.go, encode(decision.go)),))
    return Transaction("verdict", compares, (Put(keys.verdict, encode(verdict_at(decision, at))),))


def verdict_at(decision: ConcludeJob, at: float) -> Verdict:
    """Return the document that carries out a decision to end the job, at this time of the wall clock."""
    return Verdict(
        status=decision.status, reason=decision.reason, run=decision.run, g=decision.g, at=at, cause=decision.cause
    )


def _unchanged(keys: JobKeys, view: StoreView, node: str, created: int) -> tuple[Compare, ...]:
    """Compare that this node still leads under the same registration, and that nothing `decide` read has changed."""
    return (
        Compare.created(keys.member(node), created),
        Compare.modified(keys.leader, view.leader.mod_revision if view.leader else 0),
        *_same_store(keys, view),
        *_same_generation(keys, view),
        Compare.modified(keys.go, view.go.mod_revision if view.go else 0),
        Compare.modified(keys.spec, view.spec.mod_revision if view.spec else 0),
        Compare.modified(keys.halt, view.halt.mod_revision if view.halt else view.damaged_at.get(keys.halt, 0)),
        Compare.absent(keys.verdict),
    )


def _same_generation(keys: JobKeys, view: StoreView) -> tuple[Compare, ...]:
    """Compare that the newest generation is the one that was read, and that there is no other one."""
    stored = view.generation
    read_at = {keys.generation_of(stored.value): stored.mod_revision} if stored is not None else {}
    return tuple(Compare.modified(key, read_at.get(key, 0)) for key in keys.generations)


def _form(
    keys: JobKeys, view: StoreView, leader: str, decision: FormGeneration, unchanged: tuple[Compare, ...]
) -> Transaction:
    """Publish a generation, and delete the documents that it makes obsolete.

    A leader that is not in the new generation gives up the lead, so that the next leader is a member that others reach.
    """
    compares = [*unchanged, *_undone(keys, view, decision, OPERATIONS_MAX - len(unchanged) - WRITTEN_MAX)]
    room = OPERATIONS_MAX - len(compares) - WRITTEN_MAX
    generation = decision.generation
    oldest = generation.before.g if generation.before is not None else generation.g
    written = keys.generation_of(generation)
    then: list[Operation] = [Put(written, encode(generation)), Delete(keys.outcomes_below(oldest))]
    if view.generation is not None and (replaced := keys.generation_of(view.generation.value)) != written:
        then.append(Delete(KeyRange.key(replaced)))  # The job was of another type before all its nodes left.
    for node in decision.forget[: min(FORGET_MAX, room // 2)]:
        key = keys.outcome(_newest_g(view), node)
        then += [Delete(KeyRange.key(key)), Delete(keys.later_outcomes(_newest_g(view), node))]
    if not generation.continues:
        then += _left_over(keys, view, generation.g, go_too=decision.go is None)
    if decision.go is not None:
        then.append(Put(keys.go, encode(decision.go)))
    left = view.generation is not None and view.generation.value.index(leader) is not None
    if left and generation.members and generation.index(leader) is None:
        then.append(Delete(KeyRange.key(keys.leader)))
    return Transaction("form", tuple(compares), tuple(then))


def _left_over(keys: JobKeys, view: StoreView, g: int, *, go_too: bool) -> list[Operation]:
    """Delete the outcomes and the start signal of a deleted generation with the same number."""
    outcomes = any(written == g for written, _ in view.outcomes)
    go = go_too and view.go is not None and view.go.value.g >= g
    deleted = [KeyRange.prefix(keys.outcome(g, ""))] * outcomes + [KeyRange.key(keys.go)] * go
    return [Delete(span) for span in deleted]


def _undone(keys: JobKeys, view: StoreView, decision: FormGeneration, room: int) -> list[Compare]:
    """Compare that no unknown outcome has been recorded and that no absent node has registered since the decision."""
    compares = [Compare.empty(keys.outcome(_newest_g(view), ""))] if decision.planned else []
    for node in decision.lost[:LOST_COMPARED_MAX]:
        compares.append(_nothing_readable(view, _outcome_key(keys, view, node)))
        if node not in view.members:
            compares.append(_nothing_readable(view, keys.member(node)))
    gone = [node for node in decision.gone if node not in view.members]
    # A watch can miss that a node has registered again and that its processes run.
    some = gone[: min(LOST_COMPARED_MAX, (room - len(compares)) // 2)]
    compares += [_nothing_readable(view, keys.member(node)) for node in some]
    at_work = decision.unfinished[: min(UNFINISHED_MAX, (room - len(compares)) // 2)]
    return compares + [_nothing_readable(view, _outcome_key(keys, view, node)) for node in at_work]


def _outcome_key(keys: JobKeys, view: StoreView, node: str) -> str:
    """The key of the outcome of a node's last start in the newest generation."""
    start = view.generation.value.start_of(node) if view.generation is not None else None
    g, since = start if start is not None else (_newest_g(view), 0)
    return keys.outcome(g, node, since)


def _newest_g(view: StoreView) -> int:
    return view.generation.value.g if view.generation is not None else 0


def take_lead(keys: JobKeys, view: StoreView, node: str, created: int, member: Member, lease: int) -> Transaction:
    """Become the leader after a vacancy or a leader's proven death, unless another node was faster."""
    compares = (Compare.created(keys.member(node), created), _same_leader(keys, view), *_same_store(keys, view))
    leader = Leader(node=node, host=member.host, link=member.link, created=created)
    return Transaction("lead", compares, (Put(keys.leader, encode(leader), lease),), lease)


def _same_leader(keys: JobKeys, view: StoreView) -> Compare:
    at = view.leader.mod_revision if view.leader is not None else view.damaged_at.get(keys.leader, 0)
    return Compare.modified(keys.leader, at)


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
    """Write a member under its lease, and `spec` if given.

    `incarnation` is written if the store has none, and `secret` together with the incarnation or the spec. The node
    that writes the incarnation leads. Any document under the node's key is replaced, even one that cannot be read.
    With `nobody_lives`, the transaction succeeds only in a job without any member.
    """
    own = view.members.get(node)
    at = own.mod_revision if own else view.damaged_at.get(keys.member(node), 0)
    compares = [
        Compare.modified(keys.spec, view.spec.mod_revision if view.spec else 0),
        Compare.absent(keys.verdict),
        Compare.modified(keys.member(node), at),
        *_same_store(keys, view),
    ]
    then: list[Operation] = [Put(keys.member(node), encode(member), lease)]
    if nobody_lives:
        compares.append(Compare.empty(keys.members))
    if spec is not None:
        then.append(Put(keys.spec, encode(spec)))
    if view.incarnation is None:
        compares += [*map(Compare.absent, keys.generations), _same_leader(keys, view)]
        leader = Leader(node=node, host=member.host, link=member.link)
        then += [Put(keys.incarnation, encode(incarnation)), Put(keys.leader, encode(leader), lease)]
    if secret and (view.incarnation is None or (spec is not None and view.secret is None)):
        then.append(Put(keys.secret, encode(secret)))
    return Transaction("register", tuple(compares), tuple(then), lease)


def unless_superseded(keys: JobKeys, view: StoreView, transaction: Transaction) -> Transaction:
    """Guard the registration of a node that still has workers: it fails if another generation has started since.

    The gate has not waited for these workers in that case, and the leader must not take the node for a joining one
    while they exist. A watch that has lost the generation may still show its start signal, so both are compared.
    """
    seen_at = {keys.go: view.go.mod_revision} if view.go is not None else {}
    if view.generation is not None:
        seen_at[keys.generation_of(view.generation.value)] = view.generation.mod_revision
    seen_at.update(view.damaged_at)
    unchanged = [Compare.modified(key, seen_at.get(key, 0)) for key in (*keys.generations, keys.go)]
    return replace(transaction, compares=(*transaction.compares, *unchanged))


def run_again(keys: JobKeys, view: StoreView, node: str, member: Member, lease: int, spec: JobSpec) -> Transaction:
    """Replace a verdict by a new run, and register, if no member is alive.

    The newest committed checkpoint of a failed job stays recorded, so that training does not silently start over; a
    completed job may start over.
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
    """Update the document of a member (to announce its drain)."""
    compares = (Compare.created(keys.member(node), created), *_same_store(keys, view))
    return Transaction("say", compares, (Put(keys.member(node), encode(member), lease),))


def record_outcome(keys: JobKeys, view: StoreView, node: str, g: int, outcome: Outcome) -> Transaction:
    """Record how a node's workers of generation g ended. The outcome has no lease: it outlives its node.

    A first report of a failure (`over` false) never overwrites the final one, however late it arrives.
    """
    key = keys.outcome(g, node, outcome.since)
    compares = _same_store(keys, view) if outcome.over else (*_same_store(keys, view), Compare.absent(key))
    return Transaction("record", compares, (Put(key, encode(outcome)),), outcome=(g, outcome))


def deregister(keys: JobKeys, node: str, created: int, leader: StoredDocument[Leader] | None) -> Transaction:
    """Delete the member, if it is still the same registration, and the order to drain it.

    `leader` is the leader's key if this node leads: it is deleted too, so that the next leader need not wait for its
    lease to end.
    """
    key = keys.member(node)
    compares = [Compare.created(key, created)]
    then: list[Operation] = [Delete(KeyRange.key(key)), Delete(KeyRange.key(keys.leave(node)))]
    if leader is not None:
        compares.append(Compare.modified(keys.leader, leader.mod_revision))
        then.append(Delete(KeyRange.key(keys.leader)))
    return Transaction("leave", tuple(compares), tuple(then))


def evict(keys: JobKeys, view: StoreView, leader: str, created: int, node: str) -> Transaction:
    """Delete the key of a silent member, if it is still the registration that was silent, and `leader` still leads.

    A lease can only be revoked unconditionally, so it is revoked after this transaction: a leader that was suspended in
    between and wakes up revokes no lease.
    """
    member = view.members[node]
    compares = (
        Compare.created(keys.member(leader), created),
        Compare.modified(keys.leader, view.leader.mod_revision if view.leader else 0),
        Compare.created(keys.member(node), member.create_revision),
        Compare.absent(keys.verdict),
        *_same_store(keys, view),
    )
    return Transaction("evict", compares, (Delete(KeyRange.key(keys.member(node))),), member.lease)


def _nothing_readable(view: StoreView, key: str) -> Compare:
    """Compare that the key is absent or still unreadable; the node that the key belongs to rewrites it."""
    at = view.damaged_at.get(key)
    return Compare.absent(key) if at is None else Compare.modified(key, at)


def _same_store(keys: JobKeys, view: StoreView) -> tuple[Compare, ...]:
    if view.incarnation is None:
        return (Compare.absent(keys.incarnation),)
    return (Compare.equals(keys.incarnation, encode(view.incarnation.value)),)
