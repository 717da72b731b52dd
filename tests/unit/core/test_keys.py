"""Where each document stands, how it is written and read, and that nothing read from the store can do harm."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic.core.keys import JobKeys
from elastic.core.kv import KeyRange, KeyValue
from elastic.core.model import (
    SCHEMA,
    ChangeReason,
    Generation,
    GenerationMember,
    JobSpec,
    Member,
    Np,
    Outcome,
    OutcomeKind,
    SavedCheckpoint,
)
from elastic.core.view import Document, StoredDocument, StoreView, encode
from elastic.core.view_reader import DOCUMENT_BYTES_MAX, ViewReader, decode, is_known
from elastic.errors import DocumentError
from tests.support.job_transcript import member
from tests.support.strategies import KEYS, keyed

SPEC = JobSpec(np=Np(low=1, high=2, first=2), slots=1)
KIND_OF_KEY: dict[str, type] = {
    KEYS.incarnation: str,
    KEYS.spec: JobSpec,
    KEYS.member("a"): Member,
    KEYS.generation: Generation,
    KEYS.outcome(1, "a"): Outcome,
}

# --- keys ---------------------------------------------------------------------------------------------------------


def test_the_keys_of_a_job_are_those_of_the_design() -> None:
    assert KEYS.root == "/elastic/j1/"
    assert KEYS.incarnation == "/elastic/j1/incarnation"
    assert KEYS.spec == "/elastic/j1/spec"
    assert KEYS.member("h-1a2b") == "/elastic/j1/members/h-1a2b"
    assert KEYS.generation == "/elastic/j1/generation"
    assert KEYS.go == "/elastic/j1/go"
    assert KEYS.outcome(7, "h-1a2b") == "/elastic/j1/outcomes/0000000007/h-1a2b"
    assert KEYS.verdict == "/elastic/j1/verdict"
    assert KEYS.events == "/elastic/j1/events/"


@pytest.mark.parametrize("prefix", ["/a/b", "/a/b/"])
def test_any_prefix_can_be_used_with_or_without_its_slash(prefix: str) -> None:
    assert JobKeys("j1", prefix).spec == "/a/b/j1/spec"


@pytest.mark.parametrize("job_id", ["", "a/b", "a b", "ä", "a\n", "x" * 129, "a\0"])
def test_a_bad_job_id_has_no_keys(job_id: str) -> None:
    with pytest.raises(ValueError, match="job ID"):
        JobKeys(job_id)


@pytest.mark.parametrize("job_id", ["j", "x" * 128, "A.b-c_9"])
def test_a_good_job_id_has_keys(job_id: str) -> None:
    assert JobKeys(job_id).root == f"/elastic/{job_id}/"


def all_keys(keys: JobKeys) -> list[str]:
    """One key of each kind that an agent reads."""
    documents = [keys.incarnation, keys.leader, keys.spec, *keys.generations, keys.go, keys.verdict, keys.saved]
    return [*documents, keys.member("a"), keys.member("b"), keys.outcome(0, "a"), keys.outcome(9_999_999_999, "b")]


def within(ranges: Iterable[KeyRange], key: str) -> bool:
    """Tell whether the key is in one of the ranges."""
    return any(key in span for span in ranges)


def test_the_leader_follows_everything_of_its_job_but_the_history_for_people_and_advice() -> None:
    assert all(within(KEYS.everything, key) for key in all_keys(KEYS))
    assert not any(within(KEYS.everything, key) for key in (KEYS.events + "2024", KEYS.curve, KEYS.imports))


def test_the_others_follow_the_jobs_documents_and_their_own_key_only() -> None:
    followed = KEYS.followed("a")
    outside = [key for key in all_keys(KEYS) if not within(followed, key)]
    assert outside == [KEYS.member("b"), KEYS.outcome(0, "a"), KEYS.outcome(9_999_999_999, "b")]
    assert not within(KEYS.followed("a"), KEYS.member("aa"))


@pytest.mark.parametrize("other", ["j10", "j", "j1.", "j1-x", "J1", "j2"])
def test_a_job_never_touches_another_one_whose_name_begins_alike(other: str) -> None:
    for key in all_keys(JobKeys(other)):
        assert not within(KEYS.everything, key)
        assert not within(KEYS.followed("a"), key)
        assert key not in KEYS.outcomes_below(5)


def test_outcomes_below_a_generation_are_those_of_every_older_one() -> None:
    below = KEYS.outcomes_below(10)
    assert all(KEYS.outcome(g, "a") in below for g in (0, 1, 9))
    assert not any(KEYS.outcome(g, "a") in below for g in (10, 11, 100, 9_999_999_999))


# --- documents ----------------------------------------------------------------------------------------------------


@settings(max_examples=80)
@given(keyed)
def test_every_document_survives_being_written_and_read(document: tuple[str, Document]) -> None:
    key, value = document
    assert decode(KEYS, key, encode(value)) == value


@settings(max_examples=80)
@given(st.sampled_from(all_keys(KEYS)), st.binary(max_size=200))
def test_any_bytes_are_a_document_or_a_document_error(key: str, value: bytes) -> None:
    reads_or_names(key, value)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def spots(value: Any) -> list[tuple[Any, Any]]:
    """Every place inside a JSON value, as its container and its index or name."""
    inner = list(value.items()) if isinstance(value, dict) else list(enumerate(value))
    below = [spot for _, each in inner if isinstance(each, dict | list) for spot in spots(each)]
    return [(value, name) for name, _ in inner] + below


@settings(max_examples=150)
@given(keyed.filter(lambda document: document[0] != KEYS.incarnation), st.data())
def test_a_valid_document_with_something_changed_is_a_document_or_a_document_error(
    document: tuple[str, Document], data: st.DataObject
) -> None:
    key, value = document
    tree = json.loads(encode(value))
    for _ in range(data.draw(st.integers(1, 2))):
        places = spots(tree)
        if not places:
            break
        container, name = data.draw(st.sampled_from(places))
        match data.draw(st.sampled_from(["replace", "drop", "add"])):
            case "replace":
                container[name] = data.draw(json_values)
            case "drop":
                del container[name]
            case "add" if isinstance(container, dict):
                container[data.draw(st.text(max_size=5))] = data.draw(json_values)
            case "add":
                container.append(data.draw(json_values))
    reads_or_names(key, json.dumps(tree).encode())


@settings(max_examples=80)
@given(keyed, st.data())
def test_a_valid_document_cut_short_or_with_wrong_bytes_is_a_document_or_a_document_error(
    document: tuple[str, Document], data: st.DataObject
) -> None:
    key, value = document
    written = encode(value)
    at, to = sorted((data.draw(st.integers(0, len(written))), data.draw(st.integers(0, len(written)))))
    reads_or_names(key, written[:at] + data.draw(st.binary(max_size=3)) + written[to:])


def reads_or_names(key: str, value: bytes) -> None:
    """What is read has its type and can be written again; what cannot be read is named in the error."""
    named = ""
    document: Any = None
    try:
        document = decode(KEYS, key, value)
    except DocumentError as error:
        named = str(error)
    if named:
        assert named.startswith(f"{key}: ")
    else:
        assert isinstance(document, KIND_OF_KEY.get(key, type(document)))
        assert decode(KEYS, key, encode(document)) == document


@pytest.mark.parametrize(
    ("key", "value", "wrong"),
    [
        (KEYS.spec, b"", "truncated"),
        (KEYS.spec, b"null", "Expected `object`, got `null`"),
        (KEYS.spec, b'{"np":"2","slots":1}', "Expected `object`, got `str` - at `$.np`"),
        (KEYS.spec, b'{"slots":1}', "missing required field `np`"),
        (KEYS.spec, b'{"np":{"low":0,"high":1,"first":1},"slots":1}', "Expected `int` >= 1 - at `$.np.low`"),
        (KEYS.spec, b'{"np":{"low":1,"high":1,"first":1},"slots":1e9}', "at `$.slots`"),
        (KEYS.spec, b'{"np":{"low":1,"high":1,"first":1},"slots":1,"join_window_s":-1}', "at `$.join_window_s`"),
        (KEYS.spec, b'{"np":{"low":1,"high":1,"first":1},"slots":1,"join_window_s":1e999}', "at `$.join_window_s`"),
        (KEYS.spec, b'{"np":{"low":1,"high":1,"first":1},"slots":1,"join_window_s":NaN}', "invalid"),
        (KEYS.spec, b'{"np":{"low":1,"high":1,"first":1},"slots":1} x', "trailing"),
        (KEYS.incarnation, b"\xff", "invalid"),
        (KEYS.incarnation, b'"\xff"', "UTF-8"),
        (KEYS.incarnation, b"7", "Expected `str`, got `int`"),
        (KEYS.member("a"), b'{"host":"h","slots":1,"masters":[],"ports":[1]}', "length >= 1"),
        (KEYS.member("a"), b'{"host":"h","slots":1,"masters":[1],"ports":[70000]}', "<= 65535"),
        (KEYS.member("a"), b'{"host":"h","slots":1,"masters":[1],"ports":[1],"state":"flying"}', "Invalid enum"),
        (KEYS.outcome(1, "a"), b'{"ended":"ok","over":1,"host":"h"}', "Expected `bool`, got `int`"),
        (KEYS.outcomes + "1/a", b'{"ended":"ok","over":true,"host":"h"}', "not the key of an outcome"),
        (KEYS.outcomes + "0000000001/", b'{"ended":"ok","over":true,"host":"h"}', "not the key of an outcome"),
        (KEYS.outcomes + "-000000001/a", b'{"ended":"ok","over":true,"host":"h"}', "not the key of an outcome"),
        (KEYS.go, b'{"g":1}', "missing required field"),
        (KEYS.root + "stray", b"{}", "no such document in this schema"),
        (KEYS.root, b"{}", "no such document in this schema"),
    ],
)
def test_a_document_that_does_not_fit_is_named_with_what_is_wrong(key: str, value: bytes, wrong: str) -> None:
    with pytest.raises(DocumentError) as raised:
        decode(KEYS, key, value)
    assert str(raised.value).startswith(f"{key}: ")
    assert wrong.lower() in str(raised.value).lower()  # Releases of msgspec write it differently.


def test_a_document_larger_than_any_store_takes_is_not_read_at_all() -> None:
    with pytest.raises(DocumentError, match="1400001 bytes are more than the limit of 1400000"):
        decode(KEYS, KEYS.incarnation, b'"' + b"x" * (DOCUMENT_BYTES_MAX - 1) + b'"')
    assert len(decode(KEYS, KEYS.incarnation, b'"' + b"x" * (DOCUMENT_BYTES_MAX - 2) + b'"')) == DOCUMENT_BYTES_MAX - 2


def test_fields_that_this_version_does_not_know_are_passed_over() -> None:
    tree = {**json.loads(encode(SPEC)), "new_in_2031": {"a": [1, 2]}}
    assert decode(KEYS, KEYS.spec, json.dumps(tree).encode()) == SPEC


def test_fields_with_a_default_may_be_missing() -> None:
    assert decode(KEYS, KEYS.spec, b'{"np":{"low":1,"high":2,"first":2},"slots":1}') == SPEC


def test_a_generation_of_1000_nodes_fits_into_one_document() -> None:
    places = tuple(
        GenerationMember(
            f"a-long-name-{number:04d}.example-1a2b", f"10.0.{number // 256}.{number % 256}", (7,) * 3, (8,) * 8
        )
        for number in range(1000)
    )
    generation = Generation(g=1, run=1, leader="", why=ChangeReason.FIRST, reason="", members=places, slots=8)
    assert len(encode(generation)) < DOCUMENT_BYTES_MAX / 10


# --- the view -----------------------------------------------------------------------------------------------------


def entry(key: str, value: bytes, revision: int = 5, lease: int = 0) -> KeyValue:
    """A key as the store gives it."""
    return KeyValue(key, value, revision - 1, revision, lease)


def entries(*given: KeyValue) -> dict[str, KeyValue]:
    """Entries by key, as the mirror holds them."""
    return {each.key: each for each in given}


OK = Outcome(ended=OutcomeKind.OK, over=True, host="h")


def test_a_view_has_every_document_with_its_revisions_and_lease() -> None:
    view = ViewReader(KEYS).read(
        entries(
            entry(KEYS.incarnation, b'"abc"', 2),
            entry(KEYS.spec, encode(SPEC), 3),
            entry(KEYS.member("a"), encode(member()), 4, lease=77),
            entry(KEYS.outcome(12, "a/b"), encode(OK), 5),
        ),
        9,
        complete=True,
    )
    assert view.revision == 9
    assert view.incarnation == StoredDocument("abc", 1, 2)
    assert view.spec == StoredDocument(SPEC, 2, 3)
    assert view.members == {"a": StoredDocument(member(), 3, 4, 77)}
    assert view.outcomes == {(12, "a"): StoredDocument(OK, 4, 5)}
    assert (view.generation, view.go, view.verdict, view.damaged, view.unreadable) == (None, None, None, (), ())
    assert view.complete


def test_damaged_documents_are_left_out_and_named_and_those_that_the_job_stands_on_are_told_apart() -> None:
    view = ViewReader(KEYS).read(
        entries(
            entry(KEYS.spec, b"junk"),
            entry(KEYS.go, b"[]"),
            entry(KEYS.member("a"), b"junk"),
            entry(KEYS.member("b"), encode(member())),
            entry(KEYS.outcome(1, "a"), b"{}"),
            entry(KEYS.outcomes + "x/a", encode(OK)),
        ),
        9,
        complete=False,
    )
    assert (view.spec, view.go, view.outcomes) == (None, None, {})
    assert list(view.members) == ["b"]
    assert view.damaged == (
        KEYS.spec,
        KEYS.go,
        KEYS.member("a"),
        KEYS.outcome(1, "a"),
        KEYS.outcomes + "x/a",
    )
    assert view.unreadable == (KEYS.spec, KEYS.go)
    assert not view.complete


@pytest.mark.parametrize(
    "spec",
    [encode(msgspec.structs.replace(SPEC, schema=SCHEMA + 1)), b'{"schema":99}', b'{"nodes":"1-4","schema":99,"np":0}'],
)
def test_no_document_of_a_job_of_another_schema_is_read_or_called_damaged(spec: bytes) -> None:
    foreign = entries(
        entry(KEYS.spec, spec),
        entry(KEYS.incarnation, b'"abc"'),
        entry(KEYS.generation, b"\x00\x01"),
        entry(KEYS.member("a"), encode(member())),
        entry(KEYS.member("b"), b"\xff"),
    )
    view = ViewReader(KEYS).read(foreign, 9, complete=True)
    schema = msgspec.json.decode(spec)["schema"]
    assert view == StoreView(revision=9, complete=True, schema=schema)


@pytest.mark.parametrize("spec", [b'{"schema":"7"}', b'{"schema":7.5}', b"[7]", b"junk", b"", b"[" * 5000])
def test_a_spec_without_a_schema_number_is_damaged_and_the_other_documents_are_read(spec: bytes) -> None:
    view = ViewReader(KEYS).read(entries(entry(KEYS.spec, spec), entry(KEYS.incarnation, b'"abc"')), 9, complete=True)
    assert (view.schema, view.unreadable) == (None, (KEYS.spec,))
    assert view.incarnation == StoredDocument("abc", 4, 5)


def test_a_job_is_read_again_when_its_spec_is_of_this_schema_again() -> None:
    reader = ViewReader(KEYS)
    good = entries(entry(KEYS.spec, encode(SPEC)), entry(KEYS.member("a"), encode(member())))
    first = reader.read(good, 5, complete=True)
    other = good | entries(entry(KEYS.spec, b'{"schema":99}', 6))
    assert reader.read(other, 6, complete=True).schema == 99
    last = reader.read(good | entries(entry(KEYS.spec, encode(SPEC), 7)), 7, complete=True)
    assert last.schema is None
    assert last.members["a"] is first.members["a"]


def test_the_newest_checkpoint_is_no_document_that_the_job_stands_on() -> None:
    saved = SavedCheckpoint(step=500, host="a", folder="/data", run=1, g=2)
    good = ViewReader(KEYS).read(entries(entry(KEYS.saved, encode(saved), 4)), 9, complete=True)
    assert good.saved == StoredDocument(saved, 3, 4)
    bad = ViewReader(KEYS).read(entries(entry(KEYS.saved, b'{"step":-3}')), 9, complete=True)
    assert (bad.saved, bad.damaged, bad.unreadable) == (None, (KEYS.saved,), ())


def test_a_document_that_was_put_right_is_read_again_and_one_that_is_gone_is_forgotten() -> None:
    reader = ViewReader(KEYS)
    damaged = reader.read(entries(entry(KEYS.spec, b"junk", 5)), 5, complete=True)
    assert damaged.damaged == (KEYS.spec,)
    repaired = reader.read(entries(entry(KEYS.spec, encode(SPEC), 6)), 6, complete=True)
    assert repaired.spec == StoredDocument(SPEC, 5, 6)
    assert repaired.damaged == ()
    assert reader.read({}, 7, complete=True).spec is None


def test_only_what_changed_is_decoded_again() -> None:
    reader = ViewReader(KEYS)
    unchanged = entry(KEYS.member("a"), encode(member()), 4)
    first = reader.read(entries(unchanged, entry(KEYS.spec, encode(SPEC), 5)), 5, complete=True)
    other = msgspec.structs.replace(SPEC, slots=2)
    second = reader.read(entries(unchanged, entry(KEYS.spec, encode(other), 6)), 6, complete=True)
    assert second.members["a"] is first.members["a"]
    assert second.spec == StoredDocument(other, 5, 6)


def test_a_document_that_was_only_refreshed_by_its_owner_has_its_new_revision() -> None:
    reader = ViewReader(KEYS)
    for revision in (5, 6):
        view = reader.read(entries(entry(KEYS.spec, encode(SPEC), revision)), 6, complete=True)
        assert view.spec is not None
        assert view.spec.mod_revision == revision


@settings(max_examples=60)
@given(
    st.dictionaries(
        st.sampled_from([*all_keys(KEYS), KEYS.outcomes + "x", KEYS.root + "stray", KEYS.members]),
        st.binary(max_size=60) | keyed.map(lambda document: encode(document[1])),
        max_size=6,
    )
)
def test_every_entry_of_this_version_is_read_or_named(raw: dict[str, bytes]) -> None:
    view = ViewReader(KEYS).read(entries(*(entry(key, value) for key, value in raw.items())), 9, complete=True)
    single = [view.incarnation, view.leader, view.spec, view.generation, view.go, view.verdict, view.saved]
    read = sum(document is not None for document in single) + len(view.members) + len(view.outcomes)
    known = sum(is_known(KEYS, key) for key in raw) if view.schema is None else 0
    assert read + len(view.damaged) == known
    assert set(view.unreadable) <= set(view.damaged)


def test_a_probe_is_seen_by_everybody_and_an_answer_by_nobody_who_did_not_ask() -> None:
    for ranges in (KEYS.everything, KEYS.followed("a")):
        assert any(KEYS.probe in span for span in ranges)
        assert not any(KEYS.answer("0123456789abcdef", "a") in span for span in ranges)
    assert not is_known(KEYS, KEYS.probe)
