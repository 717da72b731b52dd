"""How a generation is written: every value comes back, and a member and a worker cost few bytes."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from elastic.core.generation_codec import MARK, read, write
from elastic.core.membership.next_generation import strip_unused_ports
from elastic.core.model import ChangeReason, Generation, GenerationMember, Predecessor, Role, Task, contradiction
from elastic.core.view import decode
from elastic.errors import DocumentError
from tests.support.strategies import KEYS, budgets, causes, generations_g, hosts, texts

MEMBERS = 1000
MEMBER_BYTES, WORKER_BYTES = 40, 6
"""What a member and each of its workers may cost (the issue)."""
FRAME_BYTES = 400
"""What a document costs that has no member."""

NAMES = {
    "ec2": ("ip-10-{a}-{b}-{c}.ec2.internal", True),
    "ec2 elsewhere": ("ip-10-{a}-{b}-{c}.us-west-2.compute.internal", True),
    "address": ("10.{a}.{b}.{c}", True),
    "name": ("gpu-node-{n:04d}", True),
    "pod": ("training-job-worker-{n}.training-job.research.svc.cluster.local", True),
}


def hosts_of(kind: str) -> list[str]:
    pattern, _ = NAMES[kind]
    numbers = [(7919 * n) % 60_000 for n in range(MEMBERS)]
    return [
        pattern.format(n=n, a=100 + number % 100, b=number // 256, c=number % 256) for n, number in enumerate(numbers)
    ]


def world(kind: str, slots: int, *, scattered: bool = False) -> Generation:
    """A thousand nodes; ports that follow each other on each, or any (`scattered`), as a kernel gives them."""
    places = []
    for n, host in enumerate(hosts_of(kind)):
        first = 30_000 + 37 * n % 20_000
        held = tuple(first + (101 * at if scattered else at) for at in range(slots))
        places.append(GenerationMember(f"{host}-{n * 2654435761 % 2**24:06x}", host, (7000, 7001, 7002), held))
    return Generation(
        g=7,
        run=1,
        tag=f"{places[0].node}/123456/12",
        why=ChangeReason.LOSS,
        reason=f"{places[1].node} was lost (its process is gone)",
        members=strip_unused_ports(places),
        slots=slots,
        before=Predecessor(6, tuple(place.node for place in places), ChangeReason.FIRST),
    )


@pytest.mark.parametrize("kind", NAMES)
@pytest.mark.parametrize("slots", [1, 8])
@pytest.mark.parametrize("scattered", [False, True])
def test_a_member_costs_at_most_40_bytes_and_each_of_its_workers_6(kind: str, slots: int, scattered: bool) -> None:
    generation = world(kind, slots, scattered=scattered)
    limit = FRAME_BYTES + MEMBERS * (MEMBER_BYTES + WORKER_BYTES * slots)
    assert len(write(generation)) <= limit
    assert read(write(generation)) == generation


@pytest.mark.parametrize("kind", NAMES)
def test_the_world_before_costs_next_to_nothing_whoever_was_lost(kind: str) -> None:
    whole = world(kind, 1)
    lost = {3, 4, 500, 999}
    after = msgspec.structs.replace(
        whole, members=tuple(place for n, place in enumerate(whole.members) if n not in lost)
    )
    without = msgspec.structs.replace(after, before=None)
    assert len(write(after)) - len(write(without)) <= 50 + len(lost) * (80 + 12)
    assert read(write(after)) == after


def test_a_document_can_be_read_by_people() -> None:
    places = (
        GenerationMember("gpu-1.cluster-3f2a6q", "gpu-1.cluster", (7000,), (8001, 8002, 8003)),
        GenerationMember("gpu-2.cluster-9b01dv", "gpu-2.cluster", (), (8001, 8003, 8004)),
        GenerationMember("other-77aam2", "other", (), (9, 7, 5)),
        GenerationMember("odd", "10.0.0.1", (), (1, 2, 3)),
    )
    before = Predecessor(
        4, ("gpu-1.cluster-3f2a6q", "gone-1234", "gpu-2.cluster-9b01dv", "other-77aam2"), ChangeReason.FIRST
    )
    generation = Generation(
        g=5, run=1, tag="t", why=ChangeReason.LOSS, reason="r", members=places, slots=3, before=before
    )
    document = json.loads(write(generation))
    assert document["members"] == ["gpu-1.cluster-3f2a6q", "gpu-2.cluster-9b01dv", "other-77aam2", ["odd", "10.0.0.1"]]
    assert document["ports"] == [8001, -2, 8001, 8003, -1, 9, 7, 5, 1, -2]
    assert document["masters"] == [[0, 7000]]
    assert document["before"] == [4, "first", [0, "gone-1234", 1, -1], [], False]
    assert not {"seats", "since", "leaving", "domain"} & set(document)
    assert read(write(generation)) == generation


def test_a_domain_is_written_once() -> None:
    places = tuple(GenerationMember(f"n{n}.example.org-00000{n}", f"n{n}.example.org", (), (1,)) for n in range(9))
    stranger = GenerationMember("m.elsewhere-000000", "m.elsewhere", (), (1,))
    generation = Generation(g=1, run=1, tag="", why=ChangeReason.FIRST, reason="", members=(*places, stranger), slots=1)
    document = json.loads(write(generation))
    assert document["domain"] == ".example.org"
    assert document["members"][0] == "n0-000000"
    assert document["members"][-1] == ["m.elsewhere-000000"]
    assert read(write(generation)) == generation


# --- any value, and any bytes -------------------------------------------------------------------------------------

nodes = st.one_of(
    st.sampled_from(["a", "b", "", "host-1a2b3c"]),
    st.builds(
        "{}{}".format, st.sampled_from(["h1.a.org", "h2.a.org", "h3.a.org", "h"]), st.sampled_from(["-1a2b3c", ""])
    ),
    texts,
)
ports = st.one_of(st.integers(1, 12), st.integers(1, 65_535))
amounts = st.one_of(st.just(0), st.integers(0, 2**31))


@st.composite
def places(draw: st.DrawFn, slots: int, *, cluster_spec: bool) -> GenerationMember:
    node = draw(nodes)
    host = node[:-MARK] if node[:-MARK].isascii() and node[:-MARK].isalnum() and draw(st.booleans()) else draw(hosts)
    tasks: tuple[Task, ...] = ()
    if cluster_spec:
        tasks = tuple(draw(st.lists(st.builds(Task, st.sampled_from(Role), st.integers(0, 12)), max_size=4)))
    count = len(tasks) or slots
    held = tuple(draw(st.lists(ports, min_size=count, max_size=count)))
    masters = tuple(draw(st.lists(ports, max_size=3)))
    return GenerationMember(node, host, masters, held, tasks, draw(amounts), draw(st.booleans()))


@st.composite
def generations(draw: st.DrawFn) -> Generation:
    slots = draw(st.integers(1, 4))
    cluster_spec = draw(st.booleans())
    members = tuple(draw(st.lists(places(slots, cluster_spec=cluster_spec), max_size=5)))
    named = st.lists(st.one_of(nodes, st.sampled_from([place.node for place in members] or ["x"])), max_size=6)
    befores = st.builds(
        Predecessor,
        generations_g,
        named.map(tuple),
        st.sampled_from(ChangeReason),
        st.lists(amounts, max_size=3).map(tuple),
    )
    return Generation(
        g=draw(generations_g),
        run=draw(generations_g),
        tag=draw(texts),
        why=draw(st.sampled_from(ChangeReason)),
        reason=draw(texts),
        members=members,
        slots=slots,
        before=draw(st.none() | befores),
        budget=draw(budgets),
        rev=draw(amounts),
        cause=draw(st.none() | causes),
        distrusted=tuple(draw(st.lists(st.sampled_from(["h", "10.0.0.1"]), max_size=2))),
    )


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(generations())
def test_every_generation_is_read_back_as_it_was(generation: Generation) -> None:
    assert not contradiction(generation)
    assert decode(KEYS, KEYS.generation, write(generation)) == generation


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_whatever_is_changed_in_a_document_it_is_a_generation_or_a_document_error(data: st.DataObject) -> None:
    tree = json.loads(write(data.draw(generations())))
    junk = st.recursive(
        st.none() | st.integers(-9, 9) | st.integers(-(2**70), 2**70) | texts | st.sampled_from(["s", "w"]),
        lambda inner: st.lists(inner, max_size=4),
        max_leaves=8,
    )
    field = data.draw(st.sampled_from(sorted({*tree, "seats", "since", "leaving", "masters", "domain", "before"})))
    tree[field] = data.draw(junk)
    try:
        found = decode(KEYS, KEYS.generation, json.dumps(tree).encode())
    except DocumentError:
        return
    assert msgspec.convert(msgspec.to_builtins(found), Generation) == found
    assert not contradiction(found)
    assert decode(KEYS, KEYS.generation, write(found)) == found
