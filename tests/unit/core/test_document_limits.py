"""What no document may say: each of these once crashed or stalled an agent that believed it."""

from __future__ import annotations

import pytest

from elastic.core.model import Generation, Go, JobSpec, Member, Np
from elastic.core.ps.model import ClusterSpec
from elastic.core.view import encode
from elastic.core.view_reader import decode
from elastic.errors import DocumentError
from tests.support.strategies import KEYS

MEMBER = b'{"host":"h","slots":1,"masters":[1],"ports":[2]}'
GENERATION = (
    b'{"g":1,"run":1,"leader":"","why":"first","reason":"","members":[["a","h",[1],[2]]],"slots":1,'
    b'"before":[1,["a","b"],"first"]}'
)
CLUSTER_SPEC = GENERATION.replace(b"[2]]", b'[2],[["server",0]],0,false]')
GO = b'{"g":1,"master":"h:1","budget":[]}'
SPEC = b'{"np":{"low":1,"high":2,"first":1},"slots":1}'


def test_the_documents_that_are_changed_below_are_good() -> None:
    assert decode(KEYS, KEYS.member("a"), MEMBER) == Member(host="h", slots=1, masters=(1,), ports=(2,))
    assert type(decode(KEYS, KEYS.generation, GENERATION)) is Generation
    assert type(decode(KEYS, KEYS.cluster_spec, CLUSTER_SPEC)) is ClusterSpec
    assert isinstance(decode(KEYS, KEYS.go, GO), Go)
    assert decode(KEYS, KEYS.spec, SPEC) == JobSpec(np=Np(1, 2, 1), slots=1)


@pytest.mark.parametrize(
    ("key", "document", "old", "new"),
    [
        (KEYS.go, GO, b"h:1", b"nonsense"),
        (KEYS.go, GO, b'"g":1', b'"g":-5'),
        (KEYS.generation, GENERATION, b'"slots":1', b'"slots":7'),
        (KEYS.generation, GENERATION, b'"g":1', b'"g":-5'),
        (KEYS.generation, GENERATION, b'"g":1', b'"g":10000000000'),
        (KEYS.generation, GENERATION, b'"h"', b'"a\\u0000b"'),
        (KEYS.generation, GENERATION, b'"h"', b'"a b"'),
        (KEYS.generation, GENERATION, b'"h"', b'"h\\n"'),
        (KEYS.generation, GENERATION, b'"h"', b'"\\u00e4"'),
        (KEYS.generation, GENERATION, b'"h"', b'""'),
        (KEYS.generation, GENERATION, b'"h"', b'"' + 254 * b"h" + b'"'),
        (KEYS.generation, GENERATION, b'["a","h",[1],[2]]', b'"a"'),
        (KEYS.generation, GENERATION, b'["a","h",[1],[2]]', b'["a","h"]'),
        (KEYS.generation, GENERATION, b'["a","h",[1],[2]]', b"[]"),
        (KEYS.generation, GENERATION, b"[2]", b"[]"),
        (KEYS.generation, GENERATION, b"[2]", b"[0]"),
        (KEYS.generation, GENERATION, b"[2]", b"[70000]"),
        (KEYS.generation, GENERATION, b"[2]", b"[-1]"),
        (KEYS.generation, GENERATION, b"[2]", b"[2,3]"),
        (KEYS.generation, GENERATION, b"[2]", b"[" + 1024 * b"2," + b"2]"),
        (KEYS.generation, GENERATION, b"[1]", b"[0]"),
        (KEYS.generation, GENERATION, b"[1]", b"[70000]"),
        (KEYS.generation, GENERATION, b"[1]", b"[" + 1024 * b"1," + b"1]"),
        (KEYS.generation, GENERATION, b'"a","b"', b'"a",1'),
        (KEYS.cluster_spec, CLUSTER_SPEC, b"0,false", b"-1,false"),
        (KEYS.cluster_spec, CLUSTER_SPEC, b"0,false", b"0,1"),
        (KEYS.cluster_spec, CLUSTER_SPEC, b'[["server",0]],0', b"[[1]],0"),
        (KEYS.cluster_spec, CLUSTER_SPEC, b'[["server",0]],0', b'[["s",1]],0'),
        (KEYS.cluster_spec, CLUSTER_SPEC, b'[["server",0]],0', b'[["worker",-1]],0'),
        (KEYS.cluster_spec, CLUSTER_SPEC, b'[["server",0]],0', b'[["worker",100001]],0'),
        (KEYS.cluster_spec, CLUSTER_SPEC, b'[["server",0]],0', b'[["worker",0],["worker",1]],0'),
        (KEYS.cluster_spec, CLUSTER_SPEC, b'"h"', b'"a b"'),
        (KEYS.cluster_spec, CLUSTER_SPEC, b'"slots":1', b'"slots":1,"rev":-1'),
        (KEYS.spec, SPEC, b'"slots":1', b'"slots":1,"lease_ttl_s":1e300'),
        (KEYS.spec, SPEC, b'"slots":1', b'"slots":1,"mode":"ps"'),
        (KEYS.spec, SPEC, b'"slots":1', b'"slots":1,"mode":"ps","layout":null'),
        (KEYS.spec, SPEC, b'"slots":1', b'"slots":1,"mode":["ps"]'),
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
