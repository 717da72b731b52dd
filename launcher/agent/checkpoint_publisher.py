"""Publishes the job's newest committed checkpoint in the store (`SavedCheckpoint`), at low priority."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from elastic.core.keys import JobKeys
from elastic.core.kv import Compare, KeyRange, Put
from elastic.core.model import SavedCheckpoint
from elastic.core.view import encode
from elastic.core.view_reader import decode
from elastic.errors import DocumentError, StoreError
from elastic.store.protocol import Store
from launcher.logs.logger import AgentLog

PAUSE_S = 1.0
"""At most one write in this time, however often workers save."""
TRIES_MAX = 5
"""How often a write is tried that another node's write came before."""


@dataclass(frozen=True, slots=True)
class _PendingCheckpoint:
    saved: SavedCheckpoint
    incarnation: str


class CheckpointPublisher:
    """Takes what this node's workers committed; of what comes meanwhile only the newest is written.

    A store that does not answer costs a line of detail: the word is said again with the next checkpoint.
    """

    def __init__(self, store: Store, keys: JobKeys, host: str, agent_log: AgentLog) -> None:
        """Nothing is written before `run`."""
        self._store = store
        self._keys = keys
        self._host = host
        self._agent_log = agent_log
        self._newest: SavedCheckpoint | None = None
        self._incarnation = ""
        self._word: _PendingCheckpoint | None = None
        self._heard = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._hurry = asyncio.Event()

    def committed(self, step: int, folder: str, *, run: int, g: int, incarnation: str) -> None:
        """A worker of generation `g` says that its checkpoint of `step` is complete in `folder`."""
        saved = SavedCheckpoint(step=step, host=self._host, folder=folder, run=run, g=g, at=time.time())
        if incarnation != self._incarnation or saved.replaces(self._newest):  # A new store counts from 1 again.
            self._newest, self._incarnation = saved, incarnation
            self._word = _PendingCheckpoint(saved, incarnation)
            self._idle.clear()
            self._heard.set()

    def hurry(self) -> None:
        """The workers are gone: what they said is written at once."""
        if self._word is not None:
            self._hurry.set()

    def for_workers(self, stored: SavedCheckpoint | None) -> str:
        """What workers learn of it as JSON: the newer of the store's word and ours, "" without either."""
        newest = stored if self._newest is None or not self._newest.replaces(stored) else self._newest
        if newest is None:
            return ""
        return msgspec.json.encode({"step": newest.step, "host": newest.host, "folder": newest.folder}).decode()

    async def run(self) -> None:
        """Write what comes."""
        while True:
            await self._heard.wait()
            self._heard.clear()
            self._hurry.clear()  # Not later: who is in a hurry while this writes is so for the next word.
            word, self._word = self._word, None
            if word is not None:
                try:
                    await self._write(word)
                except StoreError as error:
                    self._agent_log.debug(f"the checkpoint of step {word.saved.step} is not in the store: {error}")
            if self._word is None:
                self._idle.set()
            with suppress(TimeoutError):
                async with asyncio.timeout(PAUSE_S):
                    await self._hurry.wait()

    async def settle(self, limit_s: float) -> None:
        """Wait until everything is written, at most so long."""
        self.hurry()
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self._idle.wait()

    async def _write(self, word: _PendingCheckpoint) -> None:
        """Write unless the store has a newer word; one that cannot be read is replaced."""
        key, incarnation = self._keys.saved, encode(word.incarnation)
        same_job = Compare.equals(self._keys.incarnation, incarnation)
        for _ in range(TRIES_MAX):
            stored = await self._store.list(KeyRange.key(self._keys.incarnation))
            if [entry.value for entry in stored.entries] != [incarnation]:
                return  # Another store, or it came back empty: it does not know the job whose checkpoint this is.
            entries = (await self._store.list(KeyRange.key(key))).entries
            if entries and not word.saved.replaces(self._read(entries[0].value)):
                return
            same = Compare.modified(key, entries[0].mod_revision if entries else 0)
            if (await self._store.txn((same_job, same), (Put(key, encode(word.saved)),))).succeeded:
                self._agent_log.debug(f"the checkpoint of step {word.saved.step} is the job's newest")
                return

    def _read(self, value: bytes) -> SavedCheckpoint | None:
        with suppress(DocumentError):
            found = decode(self._keys, self._keys.saved, value)
            return found if isinstance(found, SavedCheckpoint) else None
        return None
