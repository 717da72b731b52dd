"""The doctor's question and the members' answers, over a store in memory that every agent and the doctor share."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping

import pytest

from elastic.core.keys import JobKeys
from elastic.core.kv import Delete, KeyRange, KeyValue, Put
from elastic.core.model import Member
from elastic.core.view import encode
from elastic.errors import DocumentError
from elastic.store.memory import MemoryStore
from elastic.store.memory_core import MemoryCore
from launcher.doctor import probe as doctor_probe
from launcher.logs.console import Console
from launcher.logs.logger import AgentLog, Verbosity
from launcher.peers.listener import PeerListener
from launcher.peers.reachability import ProbeResponder
from launcher.wire.probe_messages import Probe, ProbeAnswer, UnreachedMember, read
from launcher.wire.probe_messages import encode as encode_probe

LIMIT_S = 30.0
KEYS = JobKeys("j1")


class Hall:
    """A store, and members that listen and answer each probe."""

    def __init__(self) -> None:
        self.core = MemoryCore()
        self.store = MemoryStore(self.core, time.monotonic)
        self.console = Console(2)
        self.agent_log = AgentLog("n", self.console, level=Verbosity.QUIET)
        self.listeners: list[PeerListener] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.registered: dict[str, int] = {}
        self.probers: dict[str, ProbeResponder] = {}

    async def member(self, node: str, link: int | None = None) -> None:
        """One more member; `link` 0 does not listen."""
        port = link
        if port is None:
            self.listeners.append(PeerListener("127.0.0.1", "j1", node))
            port = self.listeners[-1].port
        value = Member(host="127.0.0.1", slots=1, masters=(7000,), ports=(8000,), link=port)
        wrote = await self.store.txn([], [Put(KEYS.member(node), encode(value))])
        self.registered[node] = wrote.revision
        self.probers[node] = ProbeResponder(self.store, KEYS, node, self.agent_log)

    def serve(self, *nodes: str) -> None:
        """These members see every probe from now on, and answer it."""

        async def answer(entries: Mapping[str, KeyValue]) -> None:
            await asyncio.gather(*(self.look(node, entries) for node in nodes))

        self.see(answer)

    def see(self, act: Callable[[Mapping[str, KeyValue]], Awaitable[None]]) -> None:
        """Do something at each probe from now on."""
        revision = self.store.revision_seen + 1

        async def watch() -> None:
            async for batch in self.store.watch([KeyRange.key(KEYS.probe)], revision):
                entries = {change.entry.key: change.entry for change in batch.changes if not change.deleted}
                if entries:
                    await act(entries)

        self.tasks.append(asyncio.create_task(watch()))

    async def look(self, node: str, entries: Mapping[str, KeyValue]) -> bool:
        """One member looks at what its mirror has; whether it answered."""
        asked = self.probers[node].asked(entries, self.registered[node], 0)
        if asked:
            await self.probers[node].answer()
        return asked

    async def close(self) -> None:
        """Nothing stays."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        for listener in self.listeners:
            listener.close()
        self.console.close()

    async def probe(self, name: str) -> dict[str, KeyValue]:
        """A doctor asks; what a mirror shows then."""
        await self.store.txn([], [Put(KEYS.probe, encode_probe(Probe(name, 1.0)))])
        return {KEYS.probe: (await self.store.list(KeyRange.key(KEYS.probe))).entries[0]}

    async def left(self) -> list[str]:
        """The keys of probes and answers."""
        listing = await self.store.list(KeyRange.prefix(KEYS.root))
        return [entry.key for entry in listing.entries if not entry.key.startswith(KEYS.members)]


def played(story: Callable[[Hall], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(LIMIT_S):
            hall = Hall()
            try:
                await story(hall)
            finally:
                await hall.close()

    asyncio.run(limited())


def test_every_member_answers_whom_it_reaches_and_no_key_stays() -> None:
    async def story(hall: Hall) -> None:
        await hall.member("a")
        await hall.member("b")
        await hall.member("c", link=0)
        hall.serve("a", "b", "c")
        answers = await doctor_probe.probe_members(hall.store, KEYS, ["a", "b", "c"])
        assert {node: answer.reached for node, answer in answers.items()} == {"a": 1, "b": 1, "c": 2}
        assert [(one.node, one.why) for one in answers["a"].unreached] == [("c", "its agent has no open port")]
        assert await hall.left() == []

    played(story)


def test_who_does_not_answer_in_time_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_probe, "ANSWER_LIMIT_S", 1.0)

    async def story(hall: Hall) -> None:
        await hall.member("a")
        await hall.member("b")
        hall.serve("a")
        assert set(await doctor_probe.probe_members(hall.store, KEYS, ["a", "b"])) == {"a"}
        assert await hall.left() == []

    played(story)


def test_an_answer_after_the_doctors_end_is_not_written() -> None:
    async def story(hall: Hall) -> None:
        await hall.member("a")
        old = await hall.probe("0123456789abcdef")
        await hall.probe("fedcba9876543210")
        assert await hall.look("a", old)
        assert await hall.left() == [KEYS.probe]

    played(story)


def test_a_probe_is_answered_once_and_one_from_before_the_registration_never() -> None:
    async def story(hall: Hall) -> None:
        stale = await hall.probe("0123456789abcdef")
        await hall.member("a")
        assert not await hall.look("a", stale)
        fresh = await hall.probe("fedcba9876543210")
        assert await hall.look("a", fresh)
        assert not await hall.look("a", fresh)

    played(story)


def test_a_node_that_is_not_registered_answers_nothing_and_looks_again_when_it_is() -> None:
    async def story(hall: Hall) -> None:
        await hall.member("a")
        fresh = await hall.probe("0123456789abcdef")
        assert not hall.probers["a"].asked(fresh, None, 0)
        assert not hall.probers["a"].asked(fresh, 1, None)
        assert hall.probers["a"].asked(fresh, 1, 0)

    played(story)


def test_of_many_probes_at_once_the_newest_is_answered_and_never_two_at_a_time() -> None:
    async def story(hall: Hall) -> None:
        await hall.member("a")
        prober = hall.probers["a"]
        for number in range(50):
            begins = prober.asked(await hall.probe(f"{number:016x}"), hall.registered["a"], 0)
            assert begins is (number == 0)
        await prober.answer()
        assert await hall.left() == [KEYS.answer(f"{49:016x}", "a"), KEYS.probe]
        assert prober.asked(await hall.probe(f"{50:016x}"), hall.registered["a"], 0)

    played(story)


def test_a_member_keeps_one_answer_at_most() -> None:
    async def story(hall: Hall) -> None:
        await hall.member("a")
        for name in ("0123456789abcdef", "fedcba9876543210"):
            await hall.look("a", await hall.probe(name))
        assert await hall.left() == [KEYS.answer("fedcba9876543210", "a"), KEYS.probe]

    played(story)


def test_junk_in_the_probe_or_in_an_answer_harms_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_probe, "ANSWER_LIMIT_S", 1.0)

    async def story(hall: Hall) -> None:
        await hall.member("a")
        await hall.store.txn([], [Put(KEYS.probe, b"junk")])
        await hall.look("a", {KEYS.probe: (await hall.store.list(KeyRange.key(KEYS.probe))).entries[0]})
        assert await hall.left() == [KEYS.probe]

        async def vandal(entries: Mapping[str, KeyValue]) -> None:
            probe = read(entries[KEYS.probe].value, Probe)
            await hall.store.txn([], [Put(KEYS.answer(probe.id, "b"), b"\xff{")])

        await hall.store.txn([], [Delete(KeyRange.key(KEYS.probe))])
        hall.see(vandal)
        hall.serve("a")
        assert await doctor_probe.probe_members(hall.store, KEYS, ["a", "b"]) == {"a": ProbeAnswer(0)}

    played(story)


def test_a_second_doctor_waits_for_the_first_and_gives_up_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(hall: Hall) -> None:
        await hall.member("a")
        hall.serve("a")
        both = await asyncio.gather(*(doctor_probe.probe_members(hall.store, KEYS, ["a"]) for _ in range(2)))
        assert both == [{"a": ProbeAnswer(0)}] * 2
        monkeypatch.setattr(doctor_probe, "PROBE_TTL_S", 0.2)
        await hall.probe("0123456789abcdef")
        with pytest.raises(doctor_probe.ProbeBusy, match="another elastic-ctl doctor"):
            await doctor_probe.probe_members(hall.store, KEYS, ["a"])

    played(story)


@pytest.mark.parametrize("junk", [b"", b"{}", b'{"id":"../x","at":1}', b'{"id":"00000000"}', b"\xff", b"[" * 100_000])
def test_what_is_no_document_is_refused(junk: bytes) -> None:
    with pytest.raises(DocumentError):
        read(junk, Probe)
    with pytest.raises(DocumentError):
        read(junk, ProbeAnswer)


def test_an_answer_survives_the_way_through_the_store() -> None:
    answer = ProbeAnswer(3, (UnreachedMember("b", "refused"),), 2)
    assert read(encode_probe(answer), ProbeAnswer) == answer
