"""Documents written to a real etcd by a test, in one transaction without conditions."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from elastic.core.kv import Put
from elastic.core.view import Document, encode
from elastic.store.etcd import EtcdStore


def put_documents(endpoint: str, documents: Mapping[str, Document]) -> None:
    async def write() -> None:
        store = EtcdStore([endpoint])
        try:
            await store.txn([], [Put(key, encode(document)) for key, document in documents.items()])
        finally:
            await store.close()

    asyncio.run(write())
