"""A range that does not fit into one answer, read in pages that all show it as it was at one revision.

etcd bounds an answer by the number of keys, not by bytes. An honest job fits into one answer, so a range is read whole
first. A writer of the prefix can make the range larger than that, which must not stop its readers; nor may an etcd that
is too slow to have the whole range ready in the time of one try.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from elastic.errors import Compacted, StoreUnavailable, TooLarge
from elastic.store.etcd.codec import entry
from elastic.store.etcd.endpoint import MESSAGE_BYTES_MAX
from elastic.store.etcd.stubs import rpc

PAGE_KEYS = 8
"""Keys in the first page. Eight documents of 1.5 MiB, etcd's own limit for a request, fit into one answer."""
LISTING_BYTES_MAX = 128 << 20
"""The most that a reader holds of one range. A thousand nodes whose eight workers all fail leave 16 MB there, with 20
lines of 100 characters each. Without a limit a stranger's documents could take all memory of every agent."""
TRIES_MAX = 3
"""Times that a range is read from its start because etcd was compacted between two pages, which is rare."""

Ask = Callable[[Any], Awaitable[Any]]
"""Sends a range request; the answer. Raises `TooLarge` if it is longer than `MESSAGE_BYTES_MAX`."""


async def in_pages(ask: Ask, request: Any) -> tuple[int, list[Any]]:
    """The revision of the first page, and all keys that the request is for, as etcd shows them.

    Raises `TooLarge`, with the key in its text, for a document that does not fit into an answer, and for a range of
    more than `LISTING_BYTES_MAX`.
    """
    for _ in range(TRIES_MAX):
        try:
            return await _once(ask, request)
        except Compacted:
            pass
    raise StoreUnavailable(f"etcd was compacted {TRIES_MAX} times while a range of several pages was read; try again")


async def _once(ask: Ask, request: Any) -> tuple[int, list[Any]]:
    limit = request.limit
    page = rpc.RangeRequest()
    page.CopyFrom(request)
    revision, size, pairs = 0, 0, list[Any]()
    keys = PAGE_KEYS if request.range_end else 1
    while True:
        page.limit = min(keys, limit - len(pairs)) if limit else keys
        try:
            answer = await ask(page)
        except TooLarge:
            if page.limit == 1:
                raise TooLarge(await _named(ask, page)) from None
            keys = page.limit // 2
            continue
        page.revision = revision = revision or answer.header.revision
        pairs += answer.kvs
        page_bytes = sum(len(pair.key) + len(pair.value) for pair in answer.kvs)
        size += page_bytes
        if size > LISTING_BYTES_MAX:
            where = request.key.decode("utf-8", "replace")
            raise TooLarge(
                f"etcd holds more than {LISTING_BYTES_MAX >> 20} MiB from {where} on, more than any job writes; "
                "delete what does not belong there: etcdctl del KEY"
            )
        if not answer.more or (limit and len(pairs) >= limit):
            break
        page.key = answer.kvs[-1].key + b"\0"
        if 4 * page_bytes < MESSAGE_BYTES_MAX:
            keys *= 2
    return revision, pairs


async def _named(ask: Ask, page: Any) -> str:
    """What to say of a page of one document that does not fit into an answer."""
    page.keys_only = True
    key = entry((await ask(page)).kvs[0]).key
    return f"the document at {key} in etcd is larger than {MESSAGE_BYTES_MAX >> 20} MiB; delete it: etcdctl del {key}"
