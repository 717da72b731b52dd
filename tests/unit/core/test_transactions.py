"""Every transaction of an agent, against the real in-memory store: it holds, or fails because something changed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import msgspec
import pytest

from elastic.core.kv import OPERATIONS_MAX, Put
from elastic.core.membership.decision import ConcludeJob, FormGeneration, OpenGate, Reason
from elastic.core.model import (
    Budget,
    ChangeReason,
    FinalStatus,
    Generation,
    GenerationMember,
    Go,
    JobSpec,
    Leader,
    Member,
    MemberState,
    Np,
    Outcome,
    OutcomeKind,
    Predecessor,
    SavedCheckpoint,
    Verdict,
)
from elastic.core.transactions import (
    Transaction,
    deregister,
    propose,
    record_outcome,
    register,
    run_again,
    take_lead,
    unless_superseded,
    update_member,
)
from elastic.core.view import StoreView
from tests.support.job_transcript import member, worker_exit
from tests.support.store_fixture import Shelf
from tests.support.strategies import KEYS

SPEC = JobSpec(np=Np(low=1, high=3, first=2), slots=1)
VERDICT = Verdict(status=FinalStatus.FAILED, reason="no restart is left", run=1, g=4, at=1.0)
OK = Outcome(ended=OutcomeKind.OK, over=True, host="h")
FIRST_WORD = Outcome(ended=OutcomeKind.FAILED, over=False, host="h", exits=(worker_exit(),))
LAST_WORD = Outcome(ended=OutcomeKind.FAILED, over=True, host="h", exits=(worker_exit(), worker_exit(1)))


def generation(g: int, nodes: str, before: Predecessor | None = None) -> Generation:
    """A generation of these nodes."""
    places = tuple(GenerationMember(node, "h", (7000,), (8000,)) for node in nodes.split())
    return Generation(
        g=g, run=1, leader="", why=ChangeReason.NODE_LOST, reason="", members=places, slots=1, before=before
    )


def go(g: int) -> Go:
    """The go of a generation."""
    return Go(g=g, master="h:7000", budget=Budget())


def leader(shelf: Shelf, node: str) -> Leader:
    """The leader's document of a registered node."""
    return Leader(node=node, host=node, created=created(shelf, node))


def a_running_job() -> Shelf:
    """Generation 4 of `a b` runs, led by `a`; `c` is a spare, `x` was in it and is gone; older outcomes are there."""
    shelf = Shelf(KEYS)
    shelf.put(KEYS.incarnation, "i1")
    shelf.put(KEYS.spec, SPEC)
    for node in "abc":
        shelf.put(KEYS.member(node), member(node), leased=True)
    shelf.put(KEYS.leader, leader(shelf, "a"), leased=True)
    for g in (1, 2, 3):
        shelf.put(KEYS.outcome(g, "a"), OK)
    shelf.put(KEYS.generation, generation(4, "a b x", Predecessor(3, ("a",), ChangeReason.NODE_LOST)))
    shelf.put(KEYS.go, go(4))
    shelf.put(KEYS.events + "1", "something happened")
    return shelf


def created(shelf: Shelf, node: str = "a") -> int:
    """The create revision of a member."""
    return shelf.view.members[node].create_revision


# --- proposals ----------------------------------------------------------------------------------------------------

FORM = FormGeneration(
    Reason.LOST, "", generation(5, "a b", Predecessor(4, ("a", "b", "x"), ChangeReason.NODE_LOST)), lost=("x",)
)
PLANNED = FormGeneration(
    Reason.SCALED_UP, "", generation(5, "a b c", Predecessor(4, ("a", "b", "x"), ChangeReason.SCALE_UP)), planned=True
)
OPEN = OpenGate(Reason.OPENED, "", go(4), absent=("x",))
CONCLUDE = ConcludeJob(Reason.COMPLETED, "all ended well", FinalStatus.COMPLETED, 1, 4)
DECISIONS = {"form": FORM, "planned form": PLANNED, "go": OPEN, "verdict": CONCLUDE}
EVERY_DECISION = pytest.mark.parametrize("decision", DECISIONS.values(), ids=DECISIONS.keys())


def proposal(shelf: Shelf, view: StoreView, decision: FormGeneration | OpenGate | ConcludeJob) -> Transaction:
    """What `a` sends."""
    return propose(KEYS, view, "a", created(shelf), decision, 99.0)


def register_again(shelf: Shelf, node: str = "a") -> None:
    """A registration was lost and made again, behind the back of its node."""
    shelf.delete(KEYS.member(node))
    shelf.put(KEYS.member(node), member(node), leased=True)


def come_back_empty(shelf: Shelf) -> None:
    """The job's keys are in another store now; everything looks as before but its incarnation."""
    shelf.put(KEYS.incarnation, "i2")


CHANGES: dict[str, Callable[[Shelf], object]] = {
    "the leader is no longer registered": lambda shelf: shelf.delete(KEYS.member("a")),
    "the leader is registered anew": register_again,
    "another node leads": lambda shelf: shelf.put(KEYS.leader, leader(shelf, "b"), leased=True),
    "nobody leads": lambda shelf: shelf.delete(KEYS.leader),
    "another generation was published": lambda shelf: shelf.put(KEYS.generation, generation(5, "b")),
    "the same generation was published again": lambda shelf: shelf.put(KEYS.generation, generation(4, "a b x")),
    "the generation is gone": lambda shelf: shelf.delete(KEYS.generation),
    "a go was given": lambda shelf: shelf.put(KEYS.go, go(5)),
    "the go is gone": lambda shelf: shelf.delete(KEYS.go),
    "the spec changed": lambda shelf: shelf.put(KEYS.spec, msgspec.structs.replace(SPEC, slots=2)),
    "the spec is gone": lambda shelf: shelf.delete(KEYS.spec),
    "the store is another one": come_back_empty,
    "the incarnation is gone": lambda shelf: shelf.delete(KEYS.incarnation),
    "the job has ended": lambda shelf: shelf.put(KEYS.verdict, VERDICT),
}


@EVERY_DECISION
def test_a_proposal_holds_when_nothing_changed(decision: FormGeneration | OpenGate | ConcludeJob) -> None:
    shelf = a_running_job()
    assert shelf.send(proposal(shelf, shelf.view, decision))


@EVERY_DECISION
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_proposal_fails_and_changes_nothing_when(
    change: Callable[[Shelf], object], decision: FormGeneration | OpenGate | ConcludeJob
) -> None:
    shelf = a_running_job()
    transaction = proposal(shelf, shelf.view, decision)
    change(shelf)
    contents = shelf.contents
    assert not shelf.send(transaction)
    assert shelf.contents == contents


@EVERY_DECISION
@pytest.mark.parametrize(
    "change",
    [
        lambda shelf: shelf.put(KEYS.member("d"), member("d"), leased=True),
        lambda shelf: shelf.put(KEYS.member("a"), member("elsewhere"), leased=True),
        lambda shelf: shelf.delete(KEYS.member("b")),
        lambda shelf: shelf.put(KEYS.events + "2", "another thing happened"),
        lambda shelf: shelf.put(KEYS.outcome(3, "b"), OK),
    ],
)
def test_a_proposal_holds_although_something_else_changed(
    change: Callable[[Shelf], object], decision: FormGeneration | OpenGate | ConcludeJob
) -> None:
    shelf = a_running_job()
    transaction = proposal(shelf, shelf.view, decision)
    change(shelf)
    assert shelf.send(transaction)


def test_of_two_proposals_from_the_same_view_one_holds() -> None:
    """Also where both nodes take themselves for the leader: the compares decide."""
    shelf = a_running_job()
    view = shelf.view
    others = msgspec.structs.replace(FORM.generation, leader="b")
    mine = propose(KEYS, view, "a", created(shelf), FORM, 0.0)
    other = propose(KEYS, view, "b", created(shelf, "b"), msgspec.structs.replace(FORM, generation=others), 0.0)
    assert [shelf.send(other), shelf.send(mine)] == [True, False]
    generation = shelf.view.generation
    assert generation is not None
    assert generation.value == others


def test_a_proposal_that_was_carried_out_does_not_hold_a_second_time() -> None:
    shelf = a_running_job()
    transaction = proposal(shelf, shelf.view, FORM)
    assert [shelf.send(transaction), shelf.send(transaction)] == [True, False]


def test_the_very_first_generation_needs_that_there_is_none() -> None:
    shelf = Shelf(KEYS)
    shelf.put(KEYS.incarnation, "i1")
    shelf.put(KEYS.spec, SPEC)
    shelf.put(KEYS.member("a"), member(), leased=True)
    first = FormGeneration(Reason.FORMED, "", generation(1, "a"))
    late = proposal(shelf, shelf.view, first)
    assert shelf.send(proposal(shelf, shelf.view, first))
    assert not shelf.send(late)


def test_a_first_generation_with_its_go_is_written_in_one_transaction_over_what_an_older_run_left() -> None:
    shelf = a_running_job()
    go = msgspec.structs.replace(OPEN.go, g=5)
    first = FormGeneration(Reason.FORMED, "", generation(5, "a"), go=go)
    assert shelf.send(proposal(shelf, shelf.view, first))
    view = shelf.view
    assert view.generation is not None
    assert view.go is not None
    assert view.go.mod_revision == view.generation.mod_revision
    assert view.go.value == go


def test_a_verdict_is_written_with_its_time() -> None:
    shelf = a_running_job()
    assert shelf.send(proposal(shelf, shelf.view, CONCLUDE))
    verdict = shelf.view.verdict
    assert verdict is not None
    assert verdict.value == Verdict(status=FinalStatus.COMPLETED, reason="all ended well", run=1, g=4, at=99.0)


def test_a_new_generation_deletes_the_outcomes_of_those_before_the_one_that_the_gate_judges() -> None:
    shelf = a_running_job()
    shelf.put(KEYS.outcome(4, "b"), OK)
    assert shelf.send(proposal(shelf, shelf.view, FORM))
    assert set(shelf.view.outcomes) == {(4, "b")}


def test_a_generation_that_is_replaced_at_the_gate_keeps_the_outcomes_of_the_one_that_ran() -> None:
    shelf = a_running_job()
    shelf.put(KEYS.outcome(4, "b"), OK)
    again = FormGeneration(
        Reason.GATE_LOST, "", generation(7, "a", Predecessor(4, ("a", "b", "x"), ChangeReason.NODE_LOST))
    )
    assert shelf.send(proposal(shelf, shelf.view, again))
    assert set(shelf.view.outcomes) == {(4, "b")}


def test_a_first_generation_deletes_what_an_older_run_left() -> None:
    shelf = a_running_job()
    assert shelf.send(proposal(shelf, shelf.view, FormGeneration(Reason.FORMED, "", generation(5, "a"))))
    assert shelf.view.outcomes == {}


def test_a_generation_deletes_what_was_said_of_one_with_its_number_that_somebody_deleted() -> None:
    shelf = a_running_job()
    for key in (KEYS.generation, KEYS.go):
        shelf.delete(key)
    shelf.put(KEYS.outcome(1, "x"), OK)
    assert shelf.send(proposal(shelf, shelf.view, FormGeneration(Reason.FORMED, "", generation(1, "a"))))
    assert shelf.view.outcomes.keys().isdisjoint({(1, "x")})


@pytest.mark.parametrize("outcome", [OK, FIRST_WORD], ids=["ok", "failing"])
def test_a_planned_change_fails_when_any_member_has_recorded_an_outcome(outcome: Outcome) -> None:
    shelf = a_running_job()
    transaction = proposal(shelf, shelf.view, PLANNED)
    shelf.put(KEYS.outcome(4, "b"), outcome)
    assert not shelf.send(transaction)


def test_an_unplanned_change_holds_although_a_member_has_recorded_an_outcome() -> None:
    shelf = a_running_job()
    transaction = proposal(shelf, shelf.view, FORM)
    shelf.put(KEYS.outcome(4, "b"), OK)
    assert shelf.send(transaction)


def test_a_loss_fails_when_the_lost_member_has_recorded_ok() -> None:
    shelf = a_running_job()
    transaction = proposal(shelf, shelf.view, FORM)
    shelf.put(KEYS.outcome(4, "x"), OK)
    assert not shelf.send(transaction)


def test_a_loss_fails_when_the_lost_member_is_registered_after_all() -> None:
    shelf = a_running_job()
    transaction = proposal(shelf, shelf.view, FORM)
    shelf.put(KEYS.member("x"), member(), leased=True)
    assert not shelf.send(transaction)


def test_a_loss_that_a_link_has_proven_holds_although_the_registration_still_stands() -> None:
    shelf = a_running_job()
    proven = FormGeneration(
        Reason.LOST, "", generation(5, "a", Predecessor(4, ("a", "b", "x"), ChangeReason.NODE_LOST)), lost=("b", "x")
    )
    assert shelf.send(proposal(shelf, shelf.view, proven))


def test_a_go_fails_when_a_member_that_it_passes_over_is_registered_again() -> None:
    shelf = a_running_job()
    transaction = proposal(shelf, shelf.view, OPEN)
    shelf.put(KEYS.member("x"), member(), leased=True)
    assert not shelf.send(transaction)


@pytest.mark.parametrize("count", [1, 60, 5000])
def test_a_proposal_fits_into_a_transaction_however_many_are_lost(count: int) -> None:
    lost = tuple(f"n{number}" for number in range(count))
    shelf = a_running_job()
    for decision in (
        FormGeneration(Reason.LOST, "", FORM.generation, lost=lost),
        FormGeneration(Reason.LOST, "", FORM.generation, lost=lost, forget=lost, unfinished=lost, gone=lost),
        FormGeneration(Reason.LOST, "", FORM.generation, gone=lost),
        FormGeneration(Reason.LOST, "", FORM.generation, lost=("x",), forget=lost, unfinished=lost),
        OpenGate(Reason.OPENED, "", OPEN.go, absent=lost),
    ):
        transaction = proposal(shelf, shelf.view, decision)
        assert len(transaction.compares) + len(transaction.then) <= OPERATIONS_MAX
        assert shelf.send(transaction)


def test_a_leader_that_is_not_in_the_generation_that_it_forms_gives_up_the_lead() -> None:
    shelf = a_running_job()
    without = FormGeneration(Reason.DRAINED, "", generation(5, "b", FORM.generation.before), planned=True)
    assert shelf.send(proposal(shelf, shelf.view, without))
    assert shelf.view.leader is None


def test_a_leader_that_was_no_member_keeps_the_lead_when_it_forms_a_generation_without_itself() -> None:
    shelf = a_running_job()
    shelf.put(KEYS.leader, leader(shelf, "c"), leased=True)
    assert shelf.send(propose(KEYS, shelf.view, "c", created(shelf, "c"), FORM, 99.0))
    assert shelf.view.leader is not None
    assert shelf.view.leader.value.node == "c"


@pytest.mark.parametrize("nodes", ["a b", ""], ids=["with it", "of nobody"])
def test_a_leader_keeps_the_lead_when_it_forms_a_generation(nodes: str) -> None:
    shelf = a_running_job()
    formed = FormGeneration(Reason.LOST, "", generation(5, nodes, FORM.generation.before), lost=("x",))
    assert shelf.send(proposal(shelf, shelf.view, formed))
    assert shelf.view.leader is not None


# --- registration -------------------------------------------------------------------------------------------------


def test_the_first_node_writes_the_spec_and_the_incarnation() -> None:
    shelf = Shelf(KEYS)
    lease = shelf.core.grant(5.0, 0.0).id
    transaction = register(KEYS, shelf.view, "a", member(), lease, spec=SPEC, incarnation="i1")
    assert (transaction.kind, transaction.lease) == ("register", lease)
    assert shelf.send(transaction)
    view = shelf.view
    assert view.spec is not None
    assert view.incarnation is not None
    assert (view.spec.value, view.incarnation.value) == (SPEC, "i1")
    assert view.members["a"].value == member()
    assert view.members["a"].lease == lease


def test_the_first_node_of_an_empty_store_leads_and_its_key_hangs_on_its_lease() -> None:
    shelf = Shelf(KEYS)
    lease = shelf.core.grant(5.0, 0.0).id
    listens = msgspec.structs.replace(member(), link=9000)
    assert shelf.send(register(KEYS, shelf.view, "a", listens, lease, spec=SPEC, incarnation="i1"))
    stored = shelf.view.leader
    assert stored is not None
    assert (stored.value, stored.lease) == (Leader(node="a", host=listens.host, link=9000), lease)
    assert stored.create_revision == created(shelf)
    shelf.core.revoke(lease)
    assert shelf.view.leader is None


def test_the_first_node_does_not_take_the_lead_from_a_node_that_has_it_meanwhile() -> None:
    shelf = Shelf(KEYS)
    first = register(KEYS, shelf.view, "a", member(), shelf.core.grant(5.0, 0.0).id, spec=SPEC, incarnation="i1")
    shelf.put(KEYS.leader, Leader(node="b", host="h"), leased=True)
    assert not shelf.send(first)


def test_a_later_node_does_not_lead() -> None:
    shelf = a_running_job()
    before = shelf.entry(KEYS.leader)
    assert shelf.send(register(KEYS, shelf.view, "d", member(), shelf.core.grant(5.0, 0.0).id, incarnation="unused"))
    assert shelf.entry(KEYS.leader) == before


def test_of_two_first_nodes_one_writes_the_spec() -> None:
    shelf = Shelf(KEYS)
    view = shelf.view
    other = msgspec.structs.replace(SPEC, slots=8)
    first = register(KEYS, view, "a", member(), shelf.core.grant(5.0, 0.0).id, spec=SPEC, incarnation="i1")
    second = register(KEYS, view, "b", member(), shelf.core.grant(5.0, 0.0).id, spec=other, incarnation="i2")
    assert [shelf.send(first), shelf.send(second)] == [True, False]
    assert list(shelf.view.members) == ["a"]


def test_a_later_node_leaves_the_spec_and_the_incarnation_as_they_are() -> None:
    shelf = a_running_job()
    before = (shelf.entry(KEYS.spec), shelf.entry(KEYS.incarnation))
    lease = shelf.core.grant(5.0, 0.0).id
    assert shelf.send(register(KEYS, shelf.view, "d", member(), lease, incarnation="unused"))
    assert (shelf.entry(KEYS.spec), shelf.entry(KEYS.incarnation)) == before


def test_a_member_disappears_with_its_lease() -> None:
    shelf = a_running_job()
    lease = shelf.core.grant(5.0, 0.0).id
    assert shelf.send(register(KEYS, shelf.view, "d", member(), lease))
    shelf.core.revoke(lease)
    assert "d" not in shelf.view.members


REGISTER_CHANGES = {
    name: CHANGES[name]
    for name in (
        "the spec changed",
        "the spec is gone",
        "the store is another one",
        "the incarnation is gone",
        "the job has ended",
    )
} | {"the node is registered": lambda shelf: shelf.put(KEYS.member("d"), member(), leased=True)}


@pytest.mark.parametrize("change", REGISTER_CHANGES.values(), ids=REGISTER_CHANGES.keys())
def test_a_registration_fails_and_changes_nothing_when(change: Callable[[Shelf], object]) -> None:
    shelf = a_running_job()
    transaction = register(KEYS, shelf.view, "d", member(), shelf.core.grant(5.0, 0.0).id)
    change(shelf)
    contents = shelf.contents
    assert not shelf.send(transaction)
    assert shelf.contents == contents


def test_a_registration_takes_the_place_of_an_older_one_of_the_same_node() -> None:
    shelf = a_running_job()
    lease = shelf.core.grant(5.0, 0.0).id
    assert shelf.send(register(KEYS, shelf.view, "a", member("elsewhere"), lease))
    assert shelf.view.members["a"].lease == lease


def test_a_registration_that_rewrites_the_spec_fails_while_any_member_lives() -> None:
    shelf = a_running_job()
    for node in "abc":
        shelf.delete(KEYS.member(node))
    lease = shelf.core.grant(5.0, 0.0).id
    other = msgspec.structs.replace(SPEC, slots=4)
    transaction = register(KEYS, shelf.view, "d", member(), lease, spec=other, nobody_lives=True)
    shelf.put(KEYS.member("b"), member(), leased=True)
    assert not shelf.send(transaction)
    shelf.delete(KEYS.member("b"))
    assert shelf.send(transaction)


# --- the lead -----------------------------------------------------------------------------------------------------


def candidate(shelf: Shelf, node: str, view: StoreView | None = None) -> Transaction:
    """How a registered node tries to lead, by what it saw."""
    view = view or shelf.view
    stored = view.members[node]
    return take_lead(KEYS, view, node, stored.create_revision, stored.value, stored.lease)


def test_a_node_takes_the_lead_under_its_lease_when_nobody_has_it() -> None:
    shelf = a_running_job()
    shelf.delete(KEYS.leader)
    assert shelf.send(candidate(shelf, "b"))
    stored = shelf.view.leader
    assert stored is not None
    assert stored.value == Leader(node="b", host="b", created=created(shelf, "b"))
    assert stored.lease == shelf.view.members["b"].lease
    shelf.core.revoke(stored.lease)
    assert shelf.view.leader is None


def test_of_two_candidates_one_leads() -> None:
    shelf = a_running_job()
    shelf.delete(KEYS.leader)
    view = shelf.view
    assert [shelf.send(candidate(shelf, node, view)) for node in "cb"] == [True, False]


def test_a_leader_that_is_proven_dead_is_replaced_though_its_key_stands() -> None:
    shelf = a_running_job()
    assert shelf.send(candidate(shelf, "b"))
    assert shelf.view.leader is not None
    assert shelf.view.leader.value.node == "b"


def test_a_damaged_key_of_the_leader_is_replaced() -> None:
    shelf = a_running_job()
    shelf.put(KEYS.leader, "junk")
    assert shelf.view.leader is None
    assert shelf.send(candidate(shelf, "b"))
    assert shelf.view.leader is not None


LEAD_CHANGES: dict[str, Callable[[Shelf], object]] = {
    "another node leads": lambda shelf: shelf.put(KEYS.leader, leader(shelf, "c"), leased=True),
    "the candidate is no longer registered": lambda shelf: shelf.delete(KEYS.member("b")),
    "the candidate is registered anew": lambda shelf: register_again(shelf, "b"),
    "the store is another one": come_back_empty,
}


@pytest.mark.parametrize("before", ["nobody leads", "a dead node leads", "the key is damaged"])
@pytest.mark.parametrize("change", LEAD_CHANGES.values(), ids=LEAD_CHANGES.keys())
def test_a_node_does_not_take_the_lead_when(change: Callable[[Shelf], object], before: str) -> None:
    shelf = a_running_job()
    if before == "nobody leads":
        shelf.delete(KEYS.leader)
    elif before == "the key is damaged":
        shelf.put(KEYS.leader, "junk")
    transaction = candidate(shelf, "b")
    change(shelf)
    contents = shelf.contents
    assert not shelf.send(transaction)
    assert shelf.contents == contents


# --- another run --------------------------------------------------------------------------------------------------

AGAIN = msgspec.structs.replace(SPEC, run=2)


def an_ended_job() -> Shelf:
    """A job with a verdict and no member."""
    shelf = a_running_job()
    for node in "abc":
        shelf.delete(KEYS.member(node))
    shelf.put(KEYS.verdict, VERDICT)
    return shelf


def test_another_run_replaces_the_verdict_and_registers_in_one_step() -> None:
    shelf = an_ended_job()
    assert shelf.send(run_again(KEYS, shelf.view, "d", member(), shelf.core.grant(5.0, 0.0).id, AGAIN))
    view = shelf.view
    assert view.spec is not None
    assert view.generation is not None
    assert (view.verdict, view.outcomes, list(view.members)) == (None, {}, ["d"])
    assert view.spec.value.run == 2
    assert view.generation.value.g == 4  # Numbers go on, so that no two worlds ever have the same.


@pytest.mark.parametrize("status", FinalStatus)
def test_another_run_of_a_job_that_has_not_completed_knows_its_newest_checkpoint_and_of_others_does_not(
    status: FinalStatus,
) -> None:
    shelf = an_ended_job()
    shelf.put(KEYS.saved, SavedCheckpoint(step=500, host="a", folder="/data", run=1, g=3))
    shelf.put(KEYS.verdict, msgspec.structs.replace(VERDICT, status=status))
    assert shelf.send(run_again(KEYS, shelf.view, "d", member(), shelf.core.grant(5.0, 0.0).id, AGAIN))
    assert (shelf.view.saved is not None) is (status is not FinalStatus.COMPLETED)


RUN_AGAIN_CHANGES: dict[str, Callable[[Shelf], object]] = {
    "the verdict is another one": lambda shelf: shelf.put(KEYS.verdict, VERDICT),
    "the verdict is gone": lambda shelf: shelf.delete(KEYS.verdict),
    "a member is alive": lambda shelf: shelf.put(KEYS.member("b"), member(), leased=True),
    "the spec changed": CHANGES["the spec changed"],
    "the store is another one": come_back_empty,
}


@pytest.mark.parametrize("change", RUN_AGAIN_CHANGES.values(), ids=RUN_AGAIN_CHANGES.keys())
def test_another_run_fails_and_changes_nothing_when(change: Callable[[Shelf], object]) -> None:
    shelf = an_ended_job()
    transaction = run_again(KEYS, shelf.view, "d", member(), shelf.core.grant(5.0, 0.0).id, AGAIN)
    change(shelf)
    contents = shelf.contents
    assert not shelf.send(transaction)
    assert shelf.contents == contents


def test_of_two_nodes_that_begin_another_run_one_does() -> None:
    shelf = an_ended_job()
    first = run_again(KEYS, shelf.view, "d", member(), shelf.core.grant(5.0, 0.0).id, AGAIN)
    second = run_again(KEYS, shelf.view, "e", member(), shelf.core.grant(5.0, 0.0).id, AGAIN)
    assert [shelf.send(first), shelf.send(second)] == [True, False]


# --- outcomes -----------------------------------------------------------------------------------------------------


def recorded(shelf: Shelf) -> Outcome:
    """What stands there for `b` in generation 4."""
    return shelf.view.outcomes[4, "b"].value


def test_a_last_word_takes_the_place_of_the_first_word() -> None:
    shelf = a_running_job()
    assert shelf.send(record_outcome(KEYS, shelf.view, "b", 4, FIRST_WORD))
    assert shelf.send(record_outcome(KEYS, shelf.view, "b", 4, LAST_WORD))
    assert recorded(shelf) == LAST_WORD


def test_a_late_first_word_never_takes_the_place_of_the_last_word() -> None:
    shelf = a_running_job()
    late = record_outcome(KEYS, shelf.view, "b", 4, FIRST_WORD)
    assert shelf.send(record_outcome(KEYS, shelf.view, "b", 4, LAST_WORD))
    assert not shelf.send(late)
    assert not shelf.send(record_outcome(KEYS, shelf.view, "b", 4, FIRST_WORD))
    assert recorded(shelf) == LAST_WORD


def test_an_outcome_outlives_its_node() -> None:
    shelf = a_running_job()
    lease = shelf.view.members["b"].lease
    assert shelf.send(record_outcome(KEYS, shelf.view, "b", 4, OK))
    shelf.core.revoke(lease)
    assert recorded(shelf) == OK
    assert shelf.view.outcomes[4, "b"].lease == 0


def test_an_outcome_can_be_recorded_by_a_node_that_is_no_longer_registered_and_after_the_verdict() -> None:
    shelf = an_ended_job()
    assert shelf.send(record_outcome(KEYS, shelf.view, "b", 4, OK))


@pytest.mark.parametrize("outcome", [FIRST_WORD, LAST_WORD], ids=["first word", "last word"])
@pytest.mark.parametrize("change", ["the store is another one", "the incarnation is gone"])
def test_an_outcome_is_not_recorded_in_another_store(change: str, outcome: Outcome) -> None:
    shelf = a_running_job()
    transaction = record_outcome(KEYS, shelf.view, "b", 4, outcome)
    CHANGES[change](shelf)
    assert not shelf.send(transaction)


# --- what a member says of itself ---------------------------------------------------------------------------------


def draining() -> Member:
    """A member that leaves."""
    return msgspec.structs.replace(member(), state=MemberState.DRAINING, drain_reason="SIGTERM")


def test_a_member_says_that_it_drains_and_stays_the_member_that_it_was() -> None:
    shelf = a_running_job()
    old = shelf.view.members["a"]
    assert shelf.send(update_member(KEYS, shelf.view, "a", old.create_revision, draining(), old.lease))
    new = shelf.view.members["a"]
    assert (new.value, new.create_revision, new.lease) == (draining(), old.create_revision, old.lease)


@pytest.mark.parametrize(
    "change", ["the leader is no longer registered", "the leader is registered anew", "the store is another one"]
)
def test_a_member_says_nothing_when(change: str) -> None:
    shelf = a_running_job()
    old = shelf.view.members["a"]
    transaction = update_member(KEYS, shelf.view, "a", old.create_revision, draining(), old.lease)
    CHANGES[change](shelf)
    contents = shelf.contents
    assert not shelf.send(transaction)
    assert shelf.contents == contents


def test_a_member_that_leaves_takes_only_itself_away() -> None:
    shelf = a_running_job()
    before = {entry.key for entry in shelf.contents}
    assert shelf.send(deregister(KEYS, "b", created(shelf, "b"), None))
    assert before - {entry.key for entry in shelf.contents} == {KEYS.member("b")}


def test_a_member_that_was_registered_anew_is_not_taken_away_by_an_older_word() -> None:
    shelf = a_running_job()
    transaction = deregister(KEYS, "a", created(shelf), None)
    register_again(shelf)
    assert not shelf.send(transaction)
    assert "a" in shelf.view.members


def test_a_leader_that_leaves_takes_its_key_as_the_leader_away() -> None:
    shelf = a_running_job()
    before = {entry.key for entry in shelf.contents}
    assert shelf.send(deregister(KEYS, "a", created(shelf), shelf.view.leader))
    assert before - {entry.key for entry in shelf.contents} == {KEYS.member("a"), KEYS.leader}


def test_a_node_that_leaves_does_not_take_away_the_key_of_the_next_leader() -> None:
    shelf = a_running_job()
    transaction = deregister(KEYS, "a", created(shelf), shelf.view.leader)
    shelf.put(KEYS.leader, leader(shelf, "b"), leased=True)
    assert not shelf.send(transaction)
    assert shelf.view.leader is not None
    assert shelf.view.leader.value.node == "b"


@pytest.mark.parametrize("went", [False, True])
def test_a_node_with_workers_does_not_register_once_others_have_gone_on_without_them(went: bool) -> None:
    shelf = a_running_job()
    lease = shelf.core.grant(5.0, 0.0).id
    transaction = unless_superseded(KEYS, shelf.view, register(KEYS, shelf.view, "x", member("x"), lease))
    if went:
        shelf.put(KEYS.go, go(5))
    assert shelf.send(transaction) is not went


def test_nor_if_its_watch_has_lost_the_generation_and_shows_the_go_of_it() -> None:
    shelf = a_running_job()
    before, lease = shelf.view, shelf.core.grant(5.0, 0.0).id
    shelf.put(KEYS.generation, generation(5, "a b"))
    shelf.put(KEYS.go, go(5))
    torn = dataclasses.replace(shelf.view, generation=before.generation)
    assert not shelf.send(unless_superseded(KEYS, torn, register(KEYS, torn, "x", member("x"), lease)))
    assert shelf.send(unless_superseded(KEYS, shelf.view, register(KEYS, shelf.view, "x", member("x"), lease)))


@pytest.mark.parametrize("key", [KEYS.generation, KEYS.go])
def test_a_node_with_workers_registers_although_somebody_has_damaged_what_it_runs(key: str) -> None:
    shelf = a_running_job()
    lease = shelf.core.grant(5.0, 0.0).id
    shelf.core.txn((), (Put(key, b"junk"),))
    assert shelf.send(unless_superseded(KEYS, shelf.view, register(KEYS, shelf.view, "x", member("x"), lease)))
