"""The list of the script's imports in the store: nodes that have loaded it write it, joining nodes read it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic.channel.messages import MODULES_MAX, PACKET_MAX, OwnFile, ScriptImport, ScriptImports
from elastic.core.kv import KeyRange, Put
from elastic.core.view import encode
from elastic.errors import StoreUnavailable
from launcher.agent.imports_advice import ImportsPublisher, read_advice, read_document, write_document
from tests.support.single_job_store import OneJob
from tests.support.strategies import KEYS

IMPORTS = ScriptImports(
    (ScriptImport("wave", "/lib/wave.py"), ScriptImport("sklearn.tree", "/lib/sklearn/tree.py", ("A", "sys.argv"))),
    ("A", "B", "sys.argv"),
    (OwnFile("__main__", "/home/me/train.py"),),
)
ADVICE = ScriptImports((ScriptImport("wave"), ScriptImport("sklearn.tree", "", ("A", "sys.argv"))), IMPORTS.changed)
OTHER = ScriptImports((ScriptImport("json"),))

names = st.text(max_size=8)
changes = st.lists(names, max_size=3).map(tuple)
lists = st.builds(
    ScriptImports, st.lists(st.builds(ScriptImport, names, st.just(""), changes), max_size=4).map(tuple), changes
)


class Job(OneJob):
    """A store with one job, and a node whose fork server loads what the script imports."""

    def loaded(self, *lists: ScriptImports, incarnation: str = "i1") -> None:
        """Fork servers of one node have loaded these lists; on return the node has left."""

        async def main() -> None:
            publisher = ImportsPublisher(self.store, KEYS, self.agent_log)
            running = asyncio.create_task(publisher.run())
            for imports in lists:
                publisher.loaded(imports, incarnation=incarnation)
            await publisher.settle(10)
            running.cancel()
            await asyncio.wait([running])

        asyncio.run(main())

    def put(self, document: bytes) -> None:
        self.core.txn((), (Put(KEYS.imports, document),))

    @property
    def stored(self) -> bytes | None:
        entries = self.core.list(KeyRange.key(KEYS.imports)).entries
        return entries[0].value if entries else None

    def read(self) -> ScriptImports | None:
        return asyncio.run(read_advice(self.store, KEYS, self.agent_log))

    @property
    def lines(self) -> list[str]:
        return self.output.read_text().splitlines()


@pytest.fixture
def job(tmp_path: Path) -> Any:
    it = Job(tmp_path)
    yield it
    it.console.close()


def test_no_agent_watches_it() -> None:
    assert not any(KEYS.imports in span for span in (*KEYS.everything, *KEYS.followed("a")))


def test_a_joining_node_reads_names_in_their_order_and_no_path(job: Job) -> None:
    assert job.read() is None
    job.loaded(IMPORTS)
    assert job.read() == ADVICE
    assert job.stored is not None
    assert b"/" not in job.stored
    assert job.lines == []


def test_the_newest_list_is_written_once(job: Job) -> None:
    before = job.core.revision
    job.loaded(OTHER, IMPORTS, IMPORTS)
    assert (job.read(), job.core.revision) == (ADVICE, before + 1)


def test_a_list_that_the_store_has_is_not_written_again(job: Job) -> None:
    job.loaded(IMPORTS)
    before = job.core.revision
    job.loaded(IMPORTS)
    assert job.core.revision == before


def test_another_list_and_one_that_cannot_be_read_are_replaced(job: Job) -> None:
    for document in (write_document(OTHER), b"junk"):
        job.put(document)
        job.loaded(IMPORTS)
        assert job.read() == ADVICE


def test_a_node_that_has_loaded_nothing_writes_nothing(job: Job) -> None:
    job.loaded(ScriptImports(()))
    assert job.stored is None


def test_nothing_is_written_into_a_store_that_has_another_job(job: Job) -> None:
    job.loaded(IMPORTS, incarnation="another")
    assert job.stored is None


def test_a_write_that_another_node_came_before_is_tried_again(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    others, ask = [write_document(OTHER)], job.store.txn

    async def overtaken(compares: Any, then: Any) -> Any:
        if others:
            job.put(others.pop())
        return await ask(compares, then)

    monkeypatch.setattr(job.store, "txn", overtaken)
    job.loaded(IMPORTS)
    assert job.read() == ADVICE


def test_a_job_that_came_back_in_that_moment_is_not_written_to(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    ask = job.store.txn

    async def another(compares: Any, then: Any) -> Any:
        job.core.txn((), (Put(KEYS.incarnation, encode("i2")),))
        return await ask(compares, then)

    monkeypatch.setattr(job.store, "txn", another)
    job.loaded(IMPORTS)
    assert job.stored is None


@pytest.mark.parametrize("call", ["list", "txn"])
def test_a_store_that_does_not_answer_costs_a_line_of_detail(
    job: Job, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    async def fails(*_: Any, **__: Any) -> Any:
        raise StoreUnavailable("nobody answers")

    monkeypatch.setattr(job.store, call, fails)
    job.loaded(IMPORTS)
    assert len(job.lines) == 1
    if call == "list":
        assert job.read() is None
        assert len(job.lines) == 2


MODULE = {"name": "wave"}
HOSTILE: tuple[object, ...] = (
    None,
    [],
    {},
    {"modules": "wave"},
    {"modules": ["wave"]},
    {"modules": [{"name": 1}]},
    {"modules": [{"name": "x" * 201}]},
    {"modules": [MODULE] * (MODULES_MAX + 1)},
    {"modules": [{**MODULE, "changed": ["A"] * 101}]},
    {"modules": [{**MODULE, "changed": ["A" * 201]}]},
    {"modules": [MODULE], "changed": {"A": 1}},
)


@pytest.mark.parametrize("document", [*map(msgspec.json.encode, HOSTILE), b"", b"\xff", b"{", b"[" * 100_000])
def test_a_document_that_does_not_fit_is_ignored_with_a_line_of_detail(job: Job, document: bytes) -> None:
    job.put(document)
    assert job.read() is None
    assert len(job.lines) == 1


def test_a_document_that_is_too_long_is_ignored(job: Job) -> None:
    job.put(write_document(IMPORTS) + b" " * PACKET_MAX)
    assert job.read() is None


def test_a_path_or_a_file_in_a_document_is_not_taken_over(job: Job) -> None:
    job.put(msgspec.json.encode({"modules": [{**MODULE, "file": "/evil.py"}], "own": [{"name": "m", "file": "/e"}]}))
    assert job.read() == ScriptImports((ScriptImport("wave"),))


@given(lists)
def test_what_is_written_is_read(imports: ScriptImports) -> None:
    assert read_document(write_document(imports)) == imports


@given(st.binary(max_size=60), st.integers(0, 120), st.integers(0, 40))
def test_a_damaged_document_is_a_list_or_none(data: bytes, at: int, length: int) -> None:
    good = write_document(IMPORTS)
    for document in (data, good[:at] + data + good[at + length :]):
        found = read_document(document)
        assert found is None or read_document(write_document(found)) == found
