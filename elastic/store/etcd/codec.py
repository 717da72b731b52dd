"""Conversion of the store's values to etcd's messages, and back."""

from __future__ import annotations

from typing import Any

from elastic.core.kv import (
    Compare,
    CompareTarget,
    Delete,
    KeyChange,
    KeyRange,
    KeyValue,
    Operation,
    Put,
)
from elastic.store.etcd.stubs import kv, rpc

_TARGETS = {
    CompareTarget.CREATE: rpc.Compare.CREATE,
    CompareTarget.MOD: rpc.Compare.MOD,
    CompareTarget.VALUE: rpc.Compare.VALUE,
}


def span(of: KeyRange) -> dict[str, bytes]:
    """Return the two fields of a range. etcd accepts no empty key, so a zero byte, the lowest key, replaces it."""
    start, end = of.start.encode() or b"\0", of.end.encode()
    return {"key": start} if end == start + b"\0" else {"key": start, "range_end": end}


def compare_message(compare: Compare) -> Any:
    """Convert one compare of a transaction."""
    return rpc.Compare(
        result=rpc.Compare.EQUAL,
        target=_TARGETS[compare.target],
        **{str(compare.target): compare.operand},
        **span(compare.range),
    )


def operation_message(operation: Operation) -> Any:
    """Convert one operation of a transaction."""
    match operation:
        case Put(key, value, lease):
            return rpc.RequestOp(request_put=rpc.PutRequest(key=key.encode(), value=value, lease=lease))
        case Delete(what):
            return rpc.RequestOp(request_delete_range=rpc.DeleteRangeRequest(**span(what)))


def entry(pair: Any) -> KeyValue:
    """Convert an entry of etcd. Bytes of a foreign key that are not UTF-8 become surrogates."""
    key = pair.key.decode("utf-8", "surrogateescape")
    return KeyValue(key, pair.value, pair.create_revision, pair.mod_revision, pair.lease)


def change(event: Any) -> KeyChange:
    """Convert an event of a watch."""
    return KeyChange(entry(event.kv), deleted=event.type == kv.Event.DELETE)
