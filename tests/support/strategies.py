"""Hypothesis strategies: every document that the store can hold, consistent or not, and views of them.

Names and numbers are few, so that documents often speak of each other, and often wrongly.
"""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import strategies as st

from elastic.core.failure_class import FailureClass
from elastic.core.keys import JobKeys
from elastic.core.membership.memory import DecisionMemory
from elastic.core.model import (
    Budget,
    Cause,
    ChangeReason,
    FinalStatus,
    Generation,
    GenerationMember,
    Go,
    JobMode,
    JobSpec,
    Leader,
    Member,
    MemberState,
    Np,
    OtherFailure,
    Outcome,
    OutcomeKind,
    Predecessor,
    Quarantine,
    SavedCheckpoint,
    Verdict,
    WorkerExit,
)
from elastic.core.ps.model import PS_MODES, ClusterSpec, PsJobSpec, PsLayout, Role, Task, TaskMember
from elastic.core.text import SPLIT
from elastic.core.view import Document, StoredDocument, StoreView

KEYS = JobKeys("j1")

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
integers = st.one_of(st.integers(-1, 12), st.integers(-(2**70), 2**70))
counts = st.one_of(st.integers(1, 5), st.integers(1, 100_000))
seconds = st.one_of(
    st.sampled_from([0.0, 0.5, 3.0, 120.0]),
    st.floats(0, 31 * 86_400),
)
floats = st.floats(allow_nan=False, allow_infinity=False)
ports = st.lists(st.integers(1, 65_535), min_size=1, max_size=3).map(tuple)
nodes = st.sampled_from(["a", "b", "c", "d", "stranger", ""])
generations_g = st.one_of(st.integers(1, 4), st.integers(1, 9_999_999_999))
amounts = st.one_of(st.integers(0, 12), st.integers(0, 2**31))
steps = st.one_of(st.integers(-1, 12), st.integers(-1, 2**62))
hosts = st.from_regex(r"[A-Za-z0-9_.:%-]{1,12}", fullmatch=True)
masters = st.sampled_from(["host:1", "10.0.0.5:7000", "[fe80::1]:65535"])
times = st.one_of(st.integers(0, 40).map(float), st.floats(-1e6, 1e6, allow_nan=False))

nps = st.lists(counts, min_size=3, max_size=3).map(sorted).map(lambda three: Np(three[0], three[2], three[1]))
OF_EVERY_SPEC: dict[str, st.SearchStrategy[Any]] = {
    "np": nps,
    "slots": counts,
    "run": generations_g,
    "schema": st.one_of(st.just(1), integers),
    "join_window_s": seconds,
    "scale_up_interval_s": seconds,
    "restarts_max": amounts,
    "lease_ttl_s": seconds,
    "silence_timeout_s": seconds,
    "etcd_outage_timeout_s": seconds,
    "fatal_exit_codes": st.lists(integers, max_size=3).map(tuple),
}
specs = st.builds(JobSpec, **OF_EVERY_SPEC)
numbers = st.integers(0, 4)
layouts = st.builds(
    PsLayout,
    servers=st.lists(hosts, max_size=2).map(tuple),
    workers=st.lists(hosts, max_size=3).map(tuple),
    server_num=numbers,
    worker_num=numbers,
    heter_num=numbers,
    separate=st.booleans(),
)
ps_specs = st.builds(PsJobSpec, **OF_EVERY_SPEC, mode=st.sampled_from(PS_MODES), layout=layouts)
members = ports.flatmap(
    lambda held: st.builds(
        Member,
        host=hosts,
        slots=st.just(len(held)),
        masters=ports,
        ports=st.just(held),
        state=st.sampled_from(MemberState),
        drain_reason=texts,
    )
)
befores = st.builds(
    Predecessor, g=generations_g, nodes=st.lists(nodes, max_size=4).map(tuple), why=st.sampled_from(ChangeReason)
)
cooldowns = st.builds(
    Quarantine,
    host=hosts | st.sampled_from(["h", "h1", "", "x" * 253]),
    failures=amounts,
    times=amounts,
    g=st.integers(0, 4) | generations_g,
    left_s=seconds,
    words=st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    unreachable=st.booleans(),
)
budgets = st.builds(
    Budget,
    charged=amounts,
    consecutive_failures=amounts,
    step=steps,
    machine_faults=amounts,
    hosts=st.lists(cooldowns, max_size=3).map(tuple),
    judged_g=st.integers(0, 4),
)


def places(slots: int) -> st.SearchStrategy[GenerationMember]:
    held = st.lists(st.integers(1, 65_535), min_size=slots, max_size=slots).map(tuple)
    return st.builds(GenerationMember, node=nodes, host=hosts, masters=ports, ports=held)


OF_EVERY_GENERATION: dict[str, st.SearchStrategy[Any]] = {
    "g": generations_g,
    "run": generations_g,
    "leader": texts,
    "why": st.sampled_from(ChangeReason),
    "reason": texts,
    "before": st.none() | befores,
    "budget": budgets,
}
generations = st.integers(1, 3).flatmap(
    lambda slots: st.builds(
        Generation,
        **OF_EVERY_GENERATION,
        members=st.lists(places(slots), max_size=4).map(tuple),
        slots=st.just(slots),
    )
)
tasks = st.builds(Task, role=st.sampled_from(Role), index=numbers)


def task_places(held: tuple[Task, ...]) -> st.SearchStrategy[TaskMember]:
    return st.builds(
        TaskMember,
        node=nodes,
        host=hosts,
        masters=ports,
        ports=st.just(tuple(range(8000, 8000 + len(held)))),
        tasks=st.just(held),
        since=numbers,
        leaving=st.booleans(),
    )


cluster_specs = st.builds(
    ClusterSpec,
    **OF_EVERY_GENERATION,
    members=st.lists(st.lists(tasks, min_size=1, max_size=3).map(tuple).flatmap(task_places), max_size=4).map(tuple),
    slots=st.just(1),
    rev=numbers,
)
worker_exits = st.builds(
    WorkerExit,
    rank=integers,
    code=integers,
    words=texts,
    log=texts,
    tail=st.lists(texts, max_size=2).map(tuple),
    failure=st.sampled_from(FailureClass),
    why=texts,
    role=st.sampled_from(Role),
)
failed_too = st.builds(OtherFailure, rank=integers, host=texts, words=texts, log=texts, role=st.sampled_from(Role))
outcomes = st.builds(
    Outcome,
    ended=st.sampled_from(OutcomeKind),
    over=st.booleans(),
    host=texts,
    forced=st.booleans(),
    exits=st.lists(worker_exits, max_size=2).map(tuple),
    also=st.lists(worker_exits, max_size=2).map(tuple),
    step=steps,
    ran_s=st.floats(0, 1e9),
    unreached=st.lists(nodes, max_size=4).map(tuple),
)
causes = st.builds(
    Cause,
    g=generations_g,
    host=texts,
    node=nodes,
    exits=st.lists(worker_exits, min_size=1, max_size=2).map(tuple),
    ranks=st.lists(integers, max_size=3).map(tuple),
    world_size=integers,
    others=st.lists(failed_too, max_size=2).map(tuple),
)
goes = st.builds(
    Go,
    g=generations_g,
    master=masters,
    budget=budgets,
    cause=st.none() | causes,
    note=texts,
)
saveds = st.builds(
    SavedCheckpoint,
    step=st.integers(0, 2**62),
    host=texts,
    folder=texts,
    run=generations_g,
    g=generations_g,
    at=floats,
)
verdicts = st.builds(
    Verdict,
    status=st.sampled_from(FinalStatus),
    reason=texts,
    run=integers,
    g=generations_g,
    at=floats,
    cause=st.none() | causes,
)

leaders = st.builds(Leader, node=nodes, host=hosts, link=st.integers(0, 65_535), created=st.integers(0, 12))

keyed: st.SearchStrategy[tuple[str, Document]] = st.one_of(
    st.tuples(st.just(KEYS.incarnation), texts),
    st.tuples(st.just(KEYS.leader), leaders),
    st.tuples(st.just(KEYS.spec), specs | ps_specs),
    st.tuples(st.just(KEYS.member("a")), members),
    st.tuples(st.just(KEYS.generation), generations),
    st.tuples(st.just(KEYS.cluster_spec), cluster_specs),
    st.tuples(st.just(KEYS.go), goes),
    st.tuples(st.just(KEYS.outcome(1, "a")), outcomes),
    st.tuples(st.just(KEYS.verdict), verdicts),
    st.tuples(st.just(KEYS.saved), saveds),
)
"""A key of the job, and a document that fits it."""

revisions = st.integers(1, 12)


def stored(documents: st.SearchStrategy[Any]) -> st.SearchStrategy[StoredDocument[Any]]:
    """A document at any revision, with or without a lease."""
    return st.builds(StoredDocument, documents, revisions, revisions, st.integers(0, 3))


def views(*, complete: bool | None = None) -> st.SearchStrategy[StoreView]:
    """A view of any documents, whatever they say of each other."""
    return st.builds(
        StoreView,
        revision=st.integers(0, 12),
        incarnation=st.none() | stored(st.sampled_from(["i1", "i2"])),
        leader=st.none() | stored(leaders),
        spec=st.none() | stored(specs | ps_specs),
        generation=st.none() | stored(generations | cluster_specs),
        go=st.none() | stored(goes),
        verdict=st.none() | stored(verdicts),
        saved=st.none() | stored(saveds),
        members=st.dictionaries(nodes, stored(members), max_size=3),
        outcomes=st.dictionaries(st.tuples(generations_g, nodes), stored(outcomes), max_size=3),
        complete=st.booleans() if complete is None else st.just(complete),
        damaged=st.lists(st.sampled_from([KEYS.spec, KEYS.incarnation, KEYS.member("a")]), max_size=1).map(tuple),
        unreadable=st.lists(st.just(KEYS.go), max_size=1).map(tuple),
    )


small = st.integers(1, 4)
plain_place = st.builds(
    GenerationMember, node=nodes, host=st.just("h"), masters=st.just((7000,)), ports=st.just((8000,))
)
plain_member = st.builds(
    Member,
    host=st.just("h"),
    slots=st.sampled_from([1, 1, 1, 2]),
    masters=st.just((7000,)),
    ports=st.just((8000,)),
    state=st.sampled_from([MemberState.READY, MemberState.READY, MemberState.DRAINING]),
)
plain_leader = st.builds(
    Leader, node=nodes, host=st.just("h"), link=st.sampled_from([0, 9000]), created=st.integers(0, 4)
)
plain_exit = st.builds(
    WorkerExit,
    rank=small,
    code=st.sampled_from([1, 9, 101, -9]),
    words=st.just("words"),
    failure=st.sampled_from(FailureClass),
    why=st.sampled_from(["", "address in use", SPLIT]),
)
plain_outcome = st.builds(
    Outcome,
    ended=st.sampled_from(OutcomeKind),
    over=st.booleans(),
    host=st.just("h"),
    forced=st.booleans(),
    exits=st.lists(plain_exit, max_size=1).map(tuple),
    step=integers,
    unreached=st.lists(nodes, max_size=2).map(tuple),
)


@st.composite
def job_views(draw: st.DrawFn, *, complete: bool | None = None) -> StoreView:
    """A view of a job that has begun: documents that nearly fit each other, so that the deeper rules are reached."""
    g = draw(st.integers(2, 3))
    spec = JobSpec(
        np=Np(low=draw(small), high=draw(small), first=draw(small)),
        slots=1,
        restarts_max=draw(st.integers(-1, 4)),
        fatal_exit_codes=(9,),
        scale_up_interval_s=draw(st.sampled_from([0.0, 60.0, None])),
    )
    if draw(st.integers(0, 3)) == 0:
        spec = PsJobSpec(**msgspec.structs.asdict(spec) | {"mode": JobMode.PS}, layout=draw(layouts))
    names = draw(st.lists(nodes, max_size=3).map(tuple))
    before = draw(st.none() | st.builds(Predecessor, st.just(g - 1), st.just(names), st.sampled_from(ChangeReason)))
    generation = Generation(
        g=g,
        run=draw(st.sampled_from([1, 1, 1, 2])),
        leader="",
        why=draw(st.sampled_from(ChangeReason)),
        reason="any",
        members=draw(st.lists(plain_place, max_size=3).map(tuple)),
        slots=1,
        before=before,
        budget=Budget(
            charged=draw(st.integers(0, 5)),
            consecutive_failures=draw(integers),
            machine_faults=draw(st.integers(0, 4)),
            hosts=draw(st.lists(cooldowns, max_size=3).map(tuple)),
            judged_g=draw(st.integers(0, 4)),
        ),
    )
    if draw(st.booleans() if isinstance(spec, PsJobSpec) else st.just(False)):
        own = st.lists(tasks, min_size=1, max_size=2).map(tuple).flatmap(task_places)
        fields = msgspec.structs.asdict(generation) | {"members": draw(st.lists(own, max_size=3).map(tuple))}
        generation = ClusterSpec(**fields, rev=draw(numbers))
    go = Go(g=draw(st.sampled_from([g - 1, g, g, g + 1])), master="h:7000", budget=draw(budgets))
    outcome_of = st.tuples(st.sampled_from([g - 1, g]), nodes)
    return StoreView(
        revision=draw(st.integers(8, 12)),
        incarnation=draw(
            st.sampled_from([StoredDocument("i1", 1, 1), StoredDocument("i1", 1, 1), StoredDocument("i2", 1, 1), None])
        ),
        leader=draw(st.none() | stored(plain_leader)),
        spec=StoredDocument(spec, 1, 1),
        generation=StoredDocument(generation, 1, draw(revisions)),
        go=draw(st.none() | st.just(StoredDocument(go, 1, 1))),
        members=draw(st.dictionaries(nodes, stored(plain_member), max_size=4)),
        outcomes=draw(st.dictionaries(outcome_of, stored(plain_outcome), max_size=4)),
        complete=draw(st.booleans()) if complete is None else complete,
    )


memories = st.builds(
    DecisionMemory,
    linked=st.frozensets(nodes, max_size=2),
    gone=st.frozensets(st.tuples(nodes, revisions), max_size=2),
    dead=st.frozensets(nodes, max_size=2),
    absent_since=st.dictionaries(nodes, times, max_size=3),
    ready_since=st.dictionaries(nodes, times, max_size=3),
    quarantine_deadlines=st.dictionaries(st.tuples(hosts | st.just("h"), generations_g), times, max_size=2),
    draining_since=st.dictionaries(nodes, times, max_size=2),
    gate_since=st.none() | st.tuples(generations_g, times),
    scaled_up_at=st.none() | times,
    generation_seen=generations_g,
    listening=generations_g,
)
