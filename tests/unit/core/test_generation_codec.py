"""How a generation is written: every value is read back, a long one is compressed, and a reader is never flooded."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tracemalloc
import zlib

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from elastic.core.generation_codec import INFLATED_BYTES_MAX, PLAIN_BYTES_MAX, read, write
from elastic.core.membership.next_generation import strip_unused_ports
from elastic.core.model import ChangeReason, Generation, GenerationMember, Predecessor, contradiction
from elastic.core.ps.model import ClusterSpec, Role, Task, TaskMember
from elastic.core.view_reader import decode
from elastic.errors import DocumentError
from tests.support.strategies import KEYS, budgets, causes, generations_g, hosts, texts

MEMBERS = 1000
MEMBER_BYTES, WORKER_BYTES = 40, 6
"""What a member and each of its workers may cost (the issue)."""
FRAME_BYTES = 400
"""What a document costs that has no member."""
SIGNS = "0123456789abcdefghjkmnpqrstvwxyz"
"""Those that node ids end with (`launcher.agent.node_id`)."""

NAMES = {
    "ec2": "ip-10-{a}-{b}-{c}.ec2.internal",
    "ec2 elsewhere": "ip-10-{a}-{b}-{c}.us-west-2.compute.internal",
    "address": "10.{a}.{b}.{c}",
    "name": "gpu-node-{n:04d}",
    "pod": "training-job-worker-{n}.training-job.research.svc.cluster.local",
}


def world(kind: str = "ec2", slots: int = 1, *, scattered: bool = False, count: int = MEMBERS) -> Generation:
    """So many nodes; the ports of each follow each other, or are any (`scattered`), as a kernel gives them."""
    chance = random.Random(7)
    places = []
    for n in range(count):
        number = (7919 * n) % 60_000
        host = NAMES[kind].format(n=n, a=100 + number % 100, b=number // 256, c=number % 256)
        first = chance.randrange(32_768, 60_000)
        held = tuple(chance.randrange(32_768, 61_000) if scattered else first + at for at in range(slots))
        places.append(GenerationMember(f"{host}-{''.join(chance.choices(SIGNS, k=6))}", host, (7000, 7001), held))
    return Generation(
        g=7,
        run=1,
        leader=places[0].node,
        why=ChangeReason.NODE_LOST,
        reason=f"{places[1].node} was lost (its process is gone)",
        members=strip_unused_ports(places),
        slots=slots,
        before=Predecessor(6, tuple(place.node for place in places), ChangeReason.FIRST),
    )


SMALL = world("name", count=2)
"""One that is written as plain JSON."""
DECODER = msgspec.json.Decoder(Generation)


# --- what is written ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", NAMES)
@pytest.mark.parametrize("slots", [1, 8])
@pytest.mark.parametrize("scattered", [False, True])
def test_a_member_costs_at_most_40_bytes_and_each_of_its_workers_6(kind: str, slots: int, scattered: bool) -> None:
    generation = world(kind, slots, scattered=scattered)
    limit = FRAME_BYTES + MEMBERS * (MEMBER_BYTES + WORKER_BYTES * slots)
    assert len(write(generation)) <= limit
    assert read(write(generation), DECODER) == generation


def test_a_short_document_is_json_that_people_can_read() -> None:
    places = (
        GenerationMember("gpu-1-3f2a6q", "gpu-1", (7000,), (8001, 8002, 8003)),
        GenerationMember("gpu-2-9b01dv", "gpu-2", (), (8001, 8003, 8004)),
    )
    before = Predecessor(4, ("gpu-1-3f2a6q", "gone-1234"), ChangeReason.FIRST)
    generation = Generation(
        g=5, run=1, leader="t", why=ChangeReason.NODE_LOST, reason="r", members=places, slots=3, before=before
    )
    document = json.loads(write(generation))
    assert document["members"] == [
        ["gpu-1-3f2a6q", "gpu-1", [7000], [8001, 8002, 8003]],
        ["gpu-2-9b01dv", "gpu-2", [], [8001, 8003, 8004]],
    ]
    assert document["before"] == [4, ["gpu-1-3f2a6q", "gone-1234"], "first", [], False]
    assert read(write(generation), DECODER) == generation


@pytest.mark.parametrize(("length", "compressed"), [(PLAIN_BYTES_MAX, False), (PLAIN_BYTES_MAX + 1, True)])
def test_json_beyond_4_kb_is_compressed(length: int, compressed: bool) -> None:
    rest = len(write(SMALL)) - len(SMALL.reason)
    generation = msgspec.structs.replace(SMALL, reason="r" * (length - rest))
    document = write(generation)
    text = zlib.decompress(document) if compressed else document
    assert len(text) == length
    assert json.loads(text)["g"] == 7
    assert read(document, DECODER) == generation


DECODES = """
import contextlib, sys
from elastic.core.keys import JobKeys
from elastic.core.view_reader import decode
from elastic.errors import DocumentError

keys, called = JobKeys("j"), set()
sys.setprofile(lambda frame, event, _: called.add(frame.f_code.co_name))
for key in keys.generations:
    with contextlib.suppress(DocumentError):
        decode(keys, key, sys.argv[1].encode())
sys.setprofile(None)
print("_read" in called, "get_class_annotations" in called)
"""
"""Reads a document as both types for the first time in a process, and looks whether msgspec learns them only then."""


def test_a_type_is_known_before_its_first_document_so_that_two_threads_may_read_their_first_at_once() -> None:
    document = write(SMALL).decode()
    ran = subprocess.run([sys.executable, "-c", DECODES, document], capture_output=True, text=True, check=False)
    assert (ran.stdout, ran.stderr) == ("True False\n", "")


def test_both_forms_are_read_at_any_length() -> None:
    for generation in (SMALL, world()):
        plain = msgspec.json.encode(generation)
        for document in (plain, b" " + plain + b"\n", zlib.compress(plain, 9)):
            assert read(document, DECODER) == generation


# --- what is refused ----------------------------------------------------------------------------------------------


COMPRESSED = zlib.compress(write(SMALL))


@pytest.mark.parametrize(
    ("document", "words"),
    [
        (COMPRESSED[:-1], "is truncated"),
        (COMPRESSED[:20], "is truncated"),
        (b"x", "is truncated"),
        (COMPRESSED + b"\n", "1 bytes follow the end"),
        (COMPRESSED + COMPRESSED, f"{len(COMPRESSED)} bytes follow the end"),
        (COMPRESSED[:-1] + bytes([COMPRESSED[-1] ^ 1]), "is damaged: .* incorrect data check"),
        (b"xyz", "is damaged: .* incorrect header check"),
        (zlib.compress(COMPRESSED), "malformed"),
        (zlib.compress(b""), "truncated"),
        (b"", "truncated"),
        (b"junk", "malformed"),
    ],
)
def test_what_is_wrong_with_a_document_is_said(document: bytes, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        read(document, DECODER)
    with pytest.raises(DocumentError, match=f"{KEYS.generation}: .*{words}"):
        decode(KEYS, KEYS.generation, document)


def test_the_longest_json_is_read_and_one_byte_more_is_refused() -> None:
    longest = write(SMALL).ljust(INFLATED_BYTES_MAX)
    assert read(zlib.compress(longest, 1), DECODER) == SMALL
    with pytest.raises(ValueError, match=f"inflates to more than {INFLATED_BYTES_MAX} bytes"):
        read(zlib.compress(longest + b" ", 1), DECODER)


def test_a_bomb_takes_no_more_memory_than_the_longest_document() -> None:
    packer = zlib.compressobj(1)
    bomb = b"".join(packer.compress(bytes(1 << 20)) for _ in range(200)) + packer.flush()
    assert len(bomb) < 1_000_000
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="inflates to more than"):
            read(bomb, DECODER)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 3 * INFLATED_BYTES_MAX


def many(item: str) -> str:
    return ",".join([item] * 20_000)


@pytest.mark.parametrize(
    ("members", "more"),
    [
        (many('["","h",[],[9999]]'), ""),
        (many('["","h",[999],[999]]'), ""),
        ("", f',"before":[1,[{many(chr(34) + "a" + chr(34))}],"first"]'),
        ("", f',"before":[1,[],"first",[{many("999")}]]'),
        ("", f',"distrusted":[{many(chr(34) + "h1" + chr(34))}]'),
        ("", f',"another_field":[{many("[[]]")}]'),
    ],
)
def test_decoding_takes_at_most_17_times_the_length_of_the_json(members: str, more: str) -> None:
    text = f'{{"g":1,"run":1,"leader":"","why":"first","reason":"","slots":1,"members":[{members}]{more}}}'.encode()
    tracemalloc.start()
    try:
        generation = read(text, DECODER)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert generation.g == 1
    assert peak <= 17 * len(text)


# --- any value, and any bytes -------------------------------------------------------------------------------------

nodes = st.one_of(st.sampled_from(["a", "b", "", "host-1a2b3c"]), texts)
ports = st.one_of(st.integers(1, 12), st.integers(1, 65_535))
amounts = st.one_of(st.just(0), st.integers(0, 2**31))


@st.composite
def places(draw: st.DrawFn, slots: int, *, cluster_spec: bool) -> GenerationMember:
    tasks: tuple[Task, ...] = ()
    if cluster_spec:
        tasks = tuple(draw(st.lists(st.builds(Task, st.sampled_from(Role), st.integers(0, 12)), max_size=4)))
    count = len(tasks) or slots
    held = tuple(draw(st.lists(ports, min_size=count, max_size=count)))
    masters = tuple(draw(st.lists(ports, max_size=3)))
    if not cluster_spec:
        return GenerationMember(draw(nodes), draw(hosts), masters, held)
    return TaskMember(draw(nodes), draw(hosts), masters, held, tasks, draw(amounts), draw(st.booleans()))


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
    common = {
        "g": draw(generations_g),
        "run": draw(generations_g),
        "leader": draw(texts),
        "why": draw(st.sampled_from(ChangeReason)),
        "reason": draw(texts),
        "members": members,
        "slots": slots,
        "before": draw(st.none() | befores),
        "budget": draw(budgets),
        "distrusted": tuple(draw(st.lists(st.sampled_from(["h", "10.0.0.1"]), max_size=2))),
    }
    if not cluster_spec:
        return Generation(**common)
    return ClusterSpec(**common, rev=draw(amounts), cause=draw(st.none() | causes))


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(generations())
def test_every_generation_is_read_back_as_it_was(generation: Generation) -> None:
    assert not contradiction(generation)
    key = KEYS.generation_of(generation)
    assert decode(KEYS, key, write(generation)) == generation
    assert decode(KEYS, key, zlib.compress(msgspec.json.encode(generation))) == generation


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_whatever_is_changed_in_a_document_it_is_a_generation_or_a_document_error(data: st.DataObject) -> None:
    generation = data.draw(generations())
    tree = json.loads(write(generation))
    junk = st.recursive(
        st.none() | st.booleans() | st.integers(-9, 9) | st.integers(-(2**70), 2**70) | texts,
        lambda inner: st.lists(inner, max_size=4),
        max_leaves=8,
    )
    tree[data.draw(st.sampled_from(sorted(tree)))] = data.draw(junk)
    text = json.dumps(tree).encode()
    try:
        key = KEYS.generation_of(generation)
        found = decode(KEYS, key, zlib.compress(text) if data.draw(st.booleans()) else text)
    except DocumentError:
        return
    assert msgspec.convert(msgspec.to_builtins(found), type(generation)) == found
    assert not contradiction(found)
    assert decode(KEYS, key, write(found)) == found
