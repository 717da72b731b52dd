"""The values of a key-value store: ranges, entries, compares, transactions and leases (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from msgspec import Struct

from elastic.errors import StoreError

OPERATIONS_MAX = 128
"""Compares plus operations in one transaction (etcd's own default limit)."""


class KeyRange(Struct, frozen=True):
    """The keys from `start` up to, but not including, `end`."""

    start: str
    end: str

    @classmethod
    def key(cls, key: str) -> KeyRange:
        """Exactly one key."""
        return cls(key, key + "\0")

    @classmethod
    def prefix(cls, prefix: str) -> KeyRange:
        """Every key that starts with `prefix`, which must end in "/" (so that j1/ does not include j10/)."""
        if not prefix.endswith("/"):
            raise ValueError(f"a prefix ends in '/': {prefix!r}")
        return cls(prefix, prefix[:-1] + "0")  # "0" is the character after "/"

    def __contains__(self, key: object) -> bool:
        """Return whether `key` is in the range."""
        return isinstance(key, str) and self.start <= key < self.end


class KeyValue(Struct, frozen=True):
    """One key as it was at some revision. `lease` is 0 for a key without one."""

    key: str
    value: bytes
    create_revision: int
    mod_revision: int
    lease: int = 0


class Listing(Struct, frozen=True):
    """A range as it was at `revision`, ordered by key."""

    revision: int
    entries: tuple[KeyValue, ...]


class CompareTarget(StrEnum):
    """The property of a key that a compare checks."""

    CREATE = "create_revision"
    MOD = "mod_revision"
    VALUE = "value"


class Compare(Struct, frozen=True):
    """`target` of every key in `range` equals `operand`. An absent key has revisions 0 and no value."""

    range: KeyRange
    target: CompareTarget
    operand: int | bytes

    @classmethod
    def created(cls, key: str, revision: int) -> Compare:
        """The key exists and was created at `revision`."""
        return cls(KeyRange.key(key), CompareTarget.CREATE, revision)

    @classmethod
    def modified(cls, key: str, revision: int) -> Compare:
        """The key was last written at `revision` (0: it is absent)."""
        return cls(KeyRange.key(key), CompareTarget.MOD, revision)

    @classmethod
    def absent(cls, key: str) -> Compare:
        """The key does not exist."""
        return cls(KeyRange.key(key), CompareTarget.CREATE, 0)

    @classmethod
    def empty(cls, prefix: str) -> Compare:
        """There is no key under the prefix."""
        return cls(KeyRange.prefix(prefix), CompareTarget.CREATE, 0)

    @classmethod
    def equals(cls, key: str, value: bytes) -> Compare:
        """The key exists and has this value."""
        return cls(KeyRange.key(key), CompareTarget.VALUE, value)


class Put(Struct, frozen=True):
    """Write a key; `lease` 0 detaches it from any lease."""

    key: str
    value: bytes
    lease: int = 0


class Delete(Struct, frozen=True):
    """Delete every key in the range."""

    range: KeyRange


Operation = Put | Delete


def check_txn(compares: Sequence[Compare], then: Sequence[Operation]) -> None:
    """Raise `StoreError` for a transaction that no store accepts: too long, or with a key put twice or also deleted.

    Both stores call it before they send anything, so that they refuse the same transactions with the same messages.
    """
    count = len(compares) + len(then)
    if count > OPERATIONS_MAX:
        raise StoreError(f"a transaction of {count} compares and operations; at most {OPERATIONS_MAX}")
    deleted = [operation.range for operation in then if isinstance(operation, Delete)]
    put: set[str] = set()
    for operation in then:
        if not isinstance(operation, Put):
            continue
        if not operation.key:
            raise StoreError("a transaction that puts the empty key")
        if operation.key in put or any(operation.key in span for span in deleted):
            raise StoreError(f"a transaction that writes {operation.key!r} twice")
        put.add(operation.key)


def merged(ranges: Sequence[KeyRange]) -> tuple[KeyRange, ...]:
    """Return the fewest ranges with the same keys, in order: overlapping and adjoining ranges become one."""
    result: list[KeyRange] = []
    for span in sorted(ranges, key=lambda each: each.start):
        if result and span.start <= result[-1].end:
            result[-1] = KeyRange(result[-1].start, max(result[-1].end, span.end))
        else:
            result.append(span)
    return tuple(result)


class TxnResult(Struct, frozen=True):
    """Whether the compares held, so that the operations were carried out, and the revision of the store afterwards."""

    succeeded: bool
    revision: int


class KeyChange(Struct, frozen=True):
    """A change of one key. For a deletion, `entry` has an empty value and the `mod_revision` of the deletion."""

    entry: KeyValue
    deleted: bool = False


class WatchBatch(Struct, frozen=True):
    """Changes in order. `revision` is the revision of the store after them."""

    revision: int
    changes: tuple[KeyChange, ...]


NOW = 0
"""The start revision of a watch that reports only future changes."""


class Lease(Struct, frozen=True):
    """A granted lease. The store may grant a longer time than the client asked for."""

    id: int
    ttl_s: float


class RefreshResult(Struct, frozen=True):
    """The result of refreshing a lease: the seconds that it is valid now, 0.0 if it is lost.

    `revision` is that of the store before the refresh, according to the server that answered, which may lag a little.
    """

    ttl_s: float
    revision: int


class EndpointStatus(Struct, frozen=True):
    """One endpoint, for people: its address, version, revision, and whether it leads."""

    endpoint: str
    version: str
    revision: int
    leader: bool
