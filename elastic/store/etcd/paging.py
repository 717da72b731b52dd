"""Reads a range that does not fit into one answer in pages, all at one revision.

etcd limits an answer by the number of keys, not by bytes. The documents of a job fit into one answer, so the client
first reads a range in one request. Another writer of the prefix can make the range larger, which must not stop its
readers; nor must an etcd that is too slow to answer with the whole range within the timeout of one attempt.
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
"""The most bytes of one range that a reader holds. If eight workers fail on each of a thousand nodes, with log tails of
20 lines of 100 characters, they leave 16 MB there. Without a limit, another writer's documents could exhaust the memory
of every agent."""
TRIES_MAX = 3
"""Attempts to read a range from its start, because etcd may be compacted between two pages, which is rare."""

Ask = Callable[[Any], Awaitable[Any]]
"""Sends a range request and returns the answer. Raises `TooLarge` if it is longer than `MESSAGE_BYTES_MAX`."""


async def in_pages(ask: Ask, request: Any) -> tuple[int, list[Any]]:
    """Return the revision of the first page, and all entries of the request, as etcd's messages.

    Raises `TooLarge` for a document that does not fit into an answer, with its key in the text, and for a range of more
    than `LISTING_BYTES_MAX`.
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
    """Return the message about a single document that does not fit into an answer."""
    page.keys_only = True
    key = entry((await ask(page)).kvs[0]).key
    return f"the document at {key} in etcd is larger than {MESSAGE_BYTES_MAX >> 20} MiB; delete it: etcdctl del {key}"
