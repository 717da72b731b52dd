"""The documents of a parameter-server job: their types, their keys, and what the collective core asks of them."""

from __future__ import annotations

import json

import msgspec
import pytest

from elastic.core.decide import RESTORE, decide
from elastic.core.kv import Compare, Delete, KeyRange, Put
from elastic.core.membership.decision import DecisionPolicy, FormGeneration, Reason, WaitDecision
from elastic.core.membership.memory import DecisionMemory
from elastic.core.model import (
    ChangeReason,
    Generation,
    GenerationMember,
    JobMode,
    JobSpec,
    Np,
    Outcome,
    OutcomeKind,
)
from elastic.core.ps.model import ClusterSpec, PsJobSpec, PsLayout, Role, Task, TaskAssignment, TaskMember
from elastic.core.transactions import Transaction, propose
from elastic.core.view import StoreView, encode
from elastic.core.view_reader import decode
from tests.support.job_transcript import member
from tests.support.store_fixture import Shelf
from tests.support.strategies import KEYS

SPEC = PsJobSpec(np=Np(low=1, high=2, first=1), slots=1, layout=PsLayout(server_num=1, worker_num=2, separate=True))
COLLECTIVE = JobSpec(np=SPEC.np, slots=1)
WORLD = Generation(
    g=4,
    run=1,
    leader="t",
    why=ChangeReason.FIRST,
    reason="r",
    members=(GenerationMember("a", "h", (7000,), (8000,)), GenerationMember("b", "h", (), (8001,))),
    slots=1,
)
SERVING = TaskMember("a", "h", (7000,), (8000,), (Task(Role.SERVER, 0),))
WORKING = TaskMember("b", "h", (), (8001, 8002), (Task(Role.WORKER, 0), Task(Role.HETER, 0)), since=2)
CLUSTER = ClusterSpec(
    g=4,
    run=1,
    leader="t",
    why=ChangeReason.NODE_LOST,
    reason="c was lost",
    members=(SERVING, WORKING, msgspec.structs.replace(SERVING, node="c", tasks=(Task(Role.SERVER, 1),), leaving=True)),
    slots=1,
    rev=3,
)


def ps_job(*extra: tuple[str, Generation]) -> Shelf:
    """A job whose leader is `a`, with these generations under these keys."""
    shelf = Shelf(KEYS)
    shelf.put(KEYS.incarnation, "i1")
    shelf.put(KEYS.spec, SPEC)
    shelf.put(KEYS.member("a"), member(), leased=True)
    for key, generation in extra:
        shelf.put(key, generation)
    return shelf


NEXT = FormGeneration(Reason.REFORMED, "", msgspec.structs.replace(CLUSTER, g=5, rev=0, members=CLUSTER.members[:1]))


def proposal(view: StoreView, decision: FormGeneration) -> Transaction:
    """What `a` sends."""
    return propose(KEYS, view, "a", view.members["a"].create_revision, decision, 0.0)


# --- keys and text ------------------------------------------------------------------------------------------------


def test_a_cluster_spec_has_a_key_of_its_own_that_is_listed_in_one_moment_with_the_go() -> None:
    assert KEYS.generation_of(CLUSTER) == KEYS.cluster_spec == KEYS.root + ClusterSpec.document_name
    assert KEYS.generation_of(WORLD) == KEYS.generation
    assert all(key in KEYS.documents[0] for key in (*KEYS.generations, KEYS.go))


def test_a_cluster_spec_is_json_that_people_can_read() -> None:
    document = json.loads(encode(CLUSTER))
    assert document["members"] == [
        ["a", "h", [7000], [8000], [["server", 0]], 0, False],
        ["b", "h", [], [8001, 8002], [["worker", 0], ["heter", 0]], 2, False],
        ["c", "h", [7000], [8000], [["server", 1]], 0, True],
    ]
    assert (document["g"], document["rev"], document["cause"]) == (4, 3, None)


def test_a_long_cluster_spec_is_compressed_and_both_forms_are_read_back() -> None:
    members = tuple(msgspec.structs.replace(WORKING, node=f"n{number}") for number in range(100))
    long = msgspec.structs.replace(CLUSTER, members=members)
    assert encode(long).startswith(b"x")
    for cluster_spec in (CLUSTER, long):
        assert decode(KEYS, KEYS.cluster_spec, encode(cluster_spec)) == cluster_spec


@pytest.mark.parametrize("mode", [JobMode.PS, JobMode.PS_HETER])
def test_the_mode_in_the_document_says_of_which_type_a_spec_is(mode: JobMode) -> None:
    spec = msgspec.structs.replace(SPEC, mode=mode)
    assert decode(KEYS, KEYS.spec, encode(spec)) == spec
    assert type(decode(KEYS, KEYS.spec, encode(COLLECTIVE))) is JobSpec
    torchruns = msgspec.structs.replace(COLLECTIVE, mode=JobMode.TORCHRUN)
    assert decode(KEYS, KEYS.spec, encode(torchruns)) == torchruns


# --- what the collective core asks --------------------------------------------------------------------------------


def test_a_generation_has_one_start_and_a_cluster_spec_one_for_each_revision_that_gave_tasks() -> None:
    assert [WORLD.start_of(node) for node in ("a", "b", "x")] == [(4, 0), (4, 0), None]
    assert [CLUSTER.start_of(node) for node in ("a", "b", "c", "x")] == [(4, 0), (4, 2), (4, 0), None]
    assert (WORLD.later_starts, CLUSTER.later_starts) == ((), (0, 2, 0))
    assert msgspec.structs.replace(CLUSTER, rev=0).later_starts == ()
    assert [one.continues for one in (WORLD, CLUSTER, msgspec.structs.replace(CLUSTER, rev=0))] == [False, True, False]


def test_a_node_that_is_leaving_has_no_part_and_a_start_to_end() -> None:
    assert [CLUSTER.member(node) for node in ("a", "c", "x")] == [SERVING, None, None]
    assert [CLUSTER.withdrawn_start(node) for node in ("a", "c", "x")] == [None, (4, 0), None]
    assert [WORLD.withdrawn_start(node) for node in ("a", "x")] == [None, None]


def test_the_world_of_a_cluster_spec_are_its_workers_of_both_kinds() -> None:
    assert (WORLD.world_size, CLUSTER.world_size) == (2, 2)
    assert CLUSTER.task_assignments(Role.HETER) == (TaskAssignment(Task(Role.HETER, 0), "b", "h", 8002),)
    assert (WORLD.one_world, COLLECTIVE.one_world, CLUSTER.one_world, SPEC.one_world) == (True, True, False, False)


def test_the_first_process_of_each_role_has_ports_where_others_meet() -> None:
    assert [WORLD.members[1].is_meeting_place(m_id) for m_id in (0, 1)] == [True, False]
    second = msgspec.structs.replace(WORKING, tasks=(Task(Role.WORKER, 1), Task(Role.HETER, 1)))
    assert [place.is_meeting_place(1) for place in (WORKING, second)] == [True, False]


def test_a_generation_of_before_there_were_servers_is_a_cluster_spec_without_tasks() -> None:
    former = ClusterSpec.of(WORLD)
    assert (former.g, former.rev, [place.tasks for place in former.members]) == (4, 0, [(), ()])
    assert ClusterSpec.of(CLUSTER) is CLUSTER


def test_the_layout_of_a_job_is_written_as_on_the_command_line() -> None:
    assert (COLLECTIVE.layout_text, SPEC.layout_text) == ("", "--server-num 1 --worker-num 2 with --np")


# --- in the store -------------------------------------------------------------------------------------------------


def test_the_view_has_the_newest_generation_under_whichever_key_it_is() -> None:
    for key, generation in ((KEYS.generation, WORLD), (KEYS.cluster_spec, CLUSTER)):
        stored = ps_job((key, generation)).view.generation
        assert stored is not None
        assert stored.value == generation


@pytest.mark.parametrize("document", [b"\xff{", b"{}", encode(WORLD).replace(b'"slots":1', b'"slots":9')])
def test_a_damaged_cluster_spec_is_named_and_nothing_is_decided(document: bytes) -> None:
    shelf = ps_job()
    shelf.core.txn((), (Put(KEYS.cluster_spec, document),))
    view = shelf.view
    assert view.generation is None
    assert view.damaged == view.unreadable == (KEYS.cluster_spec,)
    assert view.damaged_at == {KEYS.cluster_spec: view.revision}


@pytest.mark.parametrize("last", [KEYS.generation, KEYS.cluster_spec])
def test_of_two_generations_the_one_written_last_counts_until_a_person_deletes_the_other(last: str) -> None:
    documents = {KEYS.generation: WORLD, KEYS.cluster_spec: CLUSTER}
    (older,) = documents.keys() - {last}
    view = ps_job((older, documents[older]), (last, documents[last])).view
    assert view.generation is not None
    assert view.generation.value == documents[last]
    assert view.unreadable == (older,)


def test_a_job_that_gets_servers_after_all_its_nodes_left_has_its_generations_under_the_other_key() -> None:
    shelf = ps_job((KEYS.generation, WORLD))
    assert shelf.send(proposal(shelf.view, NEXT))
    assert shelf.entry(KEYS.generation) is None
    assert shelf.view.generation is not None
    assert (shelf.view.generation.value.g, shelf.view.unreadable) == (5, ())


@pytest.mark.parametrize("key", [KEYS.generation, KEYS.cluster_spec])
def test_a_generation_that_the_leader_has_not_seen_under_either_key_keeps_it_from_publishing_its_own(key: str) -> None:
    shelf = ps_job()
    view = shelf.view
    shelf.put(key, WORLD if key == KEYS.generation else CLUSTER)
    assert not shelf.send(proposal(view, NEXT))


def test_a_revision_keeps_outcomes_and_go_and_compares_the_outcomes_of_the_newest_starts() -> None:
    shelf = ps_job((KEYS.cluster_spec, CLUSTER))
    shelf.put(KEYS.outcome(4, "b", 2), Outcome(ended=OutcomeKind.OK, over=True, host="h", since=2))
    again = msgspec.structs.replace(CLUSTER, rev=4)
    decision = FormGeneration(Reason.LOST, "", again, lost=("b",))
    transaction = proposal(shelf.view, decision)
    assert Compare.absent(KEYS.outcome(4, "b", 2)) in transaction.compares
    assert Delete(KeyRange.prefix(KEYS.outcome(4, ""))) not in transaction.then


def test_a_view_of_two_starts_of_a_node_has_the_outcome_of_the_newer_one() -> None:
    shelf = ps_job((KEYS.cluster_spec, CLUSTER))
    for since in (2, 0):
        shelf.put(KEYS.outcome(4, "b", since), Outcome(ended=OutcomeKind.OK, over=True, host="h", since=since))
    assert {at: stored.value.since for at, stored in shelf.view.outcomes.items()} == {(4, "b"): 2}


def test_nothing_is_decided_while_a_cluster_spec_cannot_be_read() -> None:
    shelf = ps_job()
    shelf.core.txn((), (Put(KEYS.cluster_spec, b"{}"),))
    decision, _ = decide(shelf.view, DecisionMemory(), DecisionPolicy("a"), 0.0)
    assert isinstance(decision, WaitDecision)
    assert decision.reason == f"{KEYS.cluster_spec} cannot be read; {RESTORE}"
