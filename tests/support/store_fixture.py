"""The keys of one job in a real in-memory store, as several agents write them."""

from __future__ import annotations

from elastic.core.keys import JobKeys
from elastic.core.kv import Delete as DeleteOperation
from elastic.core.kv import KeyRange, KeyValue, Operation, Put
from elastic.core.transactions import Transaction
from elastic.core.view import Document, StoreView, encode
from elastic.core.view_reader import ViewReader
from elastic.store.memory_core import MemoryCore

TTL_S = 5.0


class Shelf:
    """A store with one job in it. Leases end only when a test ends them."""

    def __init__(self, keys: JobKeys) -> None:
        self.keys = keys
        self.core = MemoryCore()
        self._reader = ViewReader(keys)

    def put(self, key: str, document: Document, *, leased: bool = False) -> int:
        """Write a document; its revision."""
        lease = self.core.grant(TTL_S, 0.0).id if leased else 0
        return self._write(Put(key, encode(document), lease))

    def delete(self, key: str) -> None:
        """Delete a key."""
        self._write(DeleteOperation(KeyRange.key(key)))

    def send(self, transaction: Transaction) -> bool:
        """Send a transaction as an agent does; whether its guards held."""
        return self.core.txn(transaction.compares, transaction.then).succeeded

    def entry(self, key: str) -> KeyValue | None:
        """One key as it stands there."""
        found = self.core.list(KeyRange.key(key)).entries
        return found[0] if found else None

    @property
    def view(self) -> StoreView:
        """Everything of the job, as its proposer sees it."""
        listing = self.core.list(KeyRange(self.keys.generation, self.keys.root[:-1] + "0"))
        entries = {entry.key: entry for entry in listing.entries}
        return self._reader.read(entries, listing.revision, complete=True)

    @property
    def contents(self) -> tuple[KeyValue, ...]:
        """Every key there is."""
        return self.core.list(KeyRange.prefix("/")).entries

    def _write(self, operation: Operation) -> int:
        return self.core.txn((), (operation,)).revision
