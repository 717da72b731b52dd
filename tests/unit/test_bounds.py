"""What no document may say: each of these once crashed or stalled an agent that believed it."""

from __future__ import annotations

import pytest

from elastic.errors import DocumentError
from elastic.keys import decode, encode
from elastic.model import Generation, Go, Member, Np, Spec
from tests.unit.documents import KEYS

MEMBER = b'{"host":"h","slots":1,"masters":[1],"ports":[2]}'
PLACE = b'["a","h",[1],[2]]'
GENERATION = b'{"g":1,"run":1,"tag":"","why":"first","reason":"","members":[%s],"slots":1}' % PLACE
GO = b'{"g":1,"tag":"","master":"h:1","budget":[]}'
SPEC = b'{"np":{"low":1,"high":2,"first":1},"slots":1}'


def test_the_documents_that_are_changed_below_are_good() -> None:
    assert decode(KEYS, KEYS.member("a"), MEMBER) == Member(host="h", slots=1, masters=(1,), ports=(2,))
    assert isinstance(decode(KEYS, KEYS.generation, GENERATION), Generation)
    assert isinstance(decode(KEYS, KEYS.go, GO), Go)
    assert decode(KEYS, KEYS.spec, SPEC) == Spec(np=Np(1, 2, 1), slots=1)


@pytest.mark.parametrize(
    ("key", "document", "old", "new"),
    [
        (KEYS.go, GO, b"h:1", b"nonsense"),
        (KEYS.go, GO, b'"g":1', b'"g":-5'),
        (KEYS.generation, GENERATION, b'"slots":1', b'"slots":7'),
        (KEYS.generation, GENERATION, b'"g":1', b'"g":-5'),
        (KEYS.generation, GENERATION, b'"g":1', b'"g":10000000000'),
        (KEYS.generation, GENERATION, b'"h"', b'"a\\u0000b"'),
        (KEYS.spec, SPEC, b'"slots":1', b'"slots":1,"lease_ttl_s":1e300'),
        (KEYS.spec, SPEC, b'"first":1', b'"first":3'),
        (KEYS.member("a"), MEMBER, b'"h"', b'"a\\u0000b"'),
        (KEYS.member("a"), MEMBER, b"[2]", b"[0]"),
        (KEYS.member("a"), MEMBER, b"[2]", b"[2,3]"),
    ],
)
def test_a_document_beyond_its_bounds_is_a_document_error(key: str, document: bytes, old: bytes, new: bytes) -> None:
    assert old in document
    with pytest.raises(DocumentError, match=key):
        decode(KEYS, key, document.replace(old, new, 1))


def test_a_document_of_ours_is_within_its_bounds() -> None:
    member = Member(host="fe80::1%eth0", slots=2, masters=(1,), ports=(2, 3))
    assert decode(KEYS, KEYS.member("a"), encode(member)) == member
