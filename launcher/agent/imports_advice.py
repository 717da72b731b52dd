"""Shares the list of modules that the job's script imports through the store, as advice for joining nodes.

A node whose fork server has loaded the list writes it; a joining node reads it once before it registers. The list has
names, not paths: a node looks for the modules itself, and loads only what its own script could import
(`launcher.nursery.import_closure`).
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from elastic._decode import UNREADABLE
from elastic.channel.messages import MODULES_MAX, PACKET_MAX, ChangedNames, ModuleName, ScriptImport, ScriptImports
from elastic.core.keys import JobKeys
from elastic.core.kv import Compare, KeyRange, Put
from elastic.core.view import encode
from elastic.errors import StoreError
from elastic.store.protocol import Store
from launcher.agent.publishers import TRIES_MAX, DocumentPublisher
from launcher.logs.logger import AgentLog

PAUSE_S: Final = 10.0
"""Minimum time between two writes."""


class AdvisedModule(msgspec.Struct, frozen=True, omit_defaults=True):
    """A module that the script imports after it has changed these variables."""

    name: ModuleName
    changed: ChangedNames = ()


class ImportAdvice(msgspec.Struct, frozen=True, omit_defaults=True):
    """The document: modules in the order of their imports, and all variables that the script changes."""

    modules: Annotated[tuple[AdvisedModule, ...], msgspec.Meta(max_length=MODULES_MAX)]
    changed: ChangedNames = ()


_decoder: Final = msgspec.json.Decoder(ImportAdvice)


def write_document(imports: ScriptImports) -> bytes:
    """Return the document of a list, without its paths."""
    modules = tuple(AdvisedModule(module.name, module.changed) for module in imports.modules)
    return msgspec.json.encode(ImportAdvice(modules, imports.changed))


def read_document(document: bytes) -> ScriptImports | None:
    """Return the list of a document, None if it cannot be read. Its names are not checked."""
    try:
        advice = _decoder.decode(document) if len(document) <= PACKET_MAX else None
    except UNREADABLE:
        return None
    if advice is None:
        return None
    modules = tuple(ScriptImport(module.name, changed=module.changed) for module in advice.modules)
    return ScriptImports(modules, advice.changed)


async def read_advice(store: Store, keys: JobKeys, agent_log: AgentLog) -> ScriptImports | None:
    """Return what other nodes advise to load, None if there is no readable document; the debug log has the reason."""
    try:
        entries = (await store.list(KeyRange.key(keys.imports))).entries
    except StoreError as error:
        agent_log.debug(f"cannot read the list of the script's imports from etcd: {error}")
        return None
    if not entries:
        return None
    advice = read_document(entries[0].value)
    if advice is None:
        agent_log.debug(f"ignoring {keys.imports}: cannot parse it")
    return advice


class ImportsPublisher(DocumentPublisher):
    """Publishes the modules that this node's fork server has loaded for the script."""

    _what = "the list of the script's imports"

    def __init__(self, store: Store, keys: JobKeys, agent_log: AgentLog) -> None:
        """Publish to `store`, at most once in `PAUSE_S` seconds."""
        super().__init__(store, keys, agent_log, PAUSE_S, hurry_pause_s=0.0)
        self._imports = ScriptImports(())
        self._incarnation = ""

    def loaded(self, imports: ScriptImports, *, incarnation: str) -> None:
        """Note that a fork server has loaded all of these modules and can fork workers.

        Repeated calls with the same object are cheap; another object is another list.
        """
        if imports.modules and (imports is not self._imports or incarnation != self._incarnation):
            self._imports, self._incarnation = imports, incarnation
            self._changed()

    async def _write(self) -> None:
        """Write unless the store has the same list, or has another job."""
        document, key, incarnation = write_document(self._imports), self._keys.imports, encode(self._incarnation)
        for _ in range(TRIES_MAX):
            if not await self._is_job(incarnation):
                return
            entries = (await self._store.list(KeyRange.key(key))).entries
            if entries and entries[0].value == document:
                return
            compares = (
                Compare.equals(self._keys.incarnation, incarnation),
                Compare.modified(key, entries[0].mod_revision if entries else 0),
            )
            if (await self._store.txn(compares, (Put(key, document),))).succeeded:
                return
