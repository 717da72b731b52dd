"""Links between real processes, on real sockets: who is up, who is dead, and what proves nothing."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import signal
import socket
import statistics
import struct
import time

import pytest

from elastic.core.agent.actions import LinkTarget
from elastic.core.agent.events import Event
from elastic.core.membership.decision import Reason
from elastic.core.model import Leader
from elastic.core.view import StoredDocument
from launcher.logs.console import Console
from launcher.logs.logger import AgentLog
from launcher.peers import links as links_module
from launcher.peers import peer_link
from launcher.peers.core_adapter import LinkAdapter
from launcher.peers.listener import PeerListener
from launcher.system.clock import boottime
from launcher.wire.link_messages import wait_told
from tests.scripts.link_peer import JOB
from tests.support.agent_harness import Bench
from tests.support.link_harness import SECRET, Watching, at, listening, nowhere, peer, played, proves_nothing, watching

# A death


def test_a_killed_process_is_proven_dead_each_of_thirty_times() -> None:
    took: list[float] = []

    async def once(watcher: Watching, number: int) -> None:
        node = f"n-{number}"
        async with peer(node) as one:
            target = one.target._replace(create_revision=number)
            watcher.links.watch({node: target})
            await watcher.until("up", node)
            killed_at = time.monotonic()
            one.kill()
            took.append(await watcher.until("proof", node, number, "127.0.0.1") - killed_at)

    async def story() -> None:
        async with watching() as watcher:
            for number in range(1, 31):
                await once(watcher, number)

    played(story)
    assert len(took) == 30
    print(f"kill to proof: median {statistics.median(took) * 1e3:.2f} ms, worst {max(took) * 1e3:.2f} ms")


def test_a_process_that_came_back_as_another_node_at_the_same_port_proves_the_death_of_the_first() -> None:
    async def story() -> None:
        async with watching() as watcher, listening("n-1") as (first, agent):
            watcher.links.watch({"n-1": at(agent)})
            await watcher.until("up", "n-1")
            async with listening("n-2") as (second, _):
                agent.hand_to(second.links.accept)  # The address leads to another node now.
                first.links.close_inbound(["w-1"])
                await watcher.until("up")
                await watcher.until("proof", "n-1", 5, "127.0.0.1")

    played(story)


def cut_after(connected: socket.socket) -> None:
    """What the kernel does to a connection that waits at a process that ends."""
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connected.close()


def test_a_reconnect_that_is_cut_is_tried_again_until_it_is_refused() -> None:
    async def story() -> None:
        async with watching() as watcher, listening("n-1") as (first, agent):
            watcher.links.watch({"n-1": at(agent)})
            await watcher.until("up", "n-1")
            cuts = 0

            def cut(connected: socket.socket) -> None:
                nonlocal cuts
                cuts += 1
                cut_after(connected)
                if cuts == 3:
                    agent.close()

            agent.hand_to(cut)
            first.links.close_inbound(["w-1"])
            await watcher.until("proof", "n-1")
            assert cuts == 3

    played(story)


# What proves nothing


def test_a_reconnect_that_is_always_cut_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        async with watching() as watcher, listening("n-1") as (first, agent):
            watcher.links.watch({"n-1": at(agent)})
            await watcher.until("up", "n-1")
            decided = asyncio.Event()
            monkeypatch.setattr(watcher.links, "is_decided", lambda one: decided.set())
            agent.hand_to(cut_after)
            first.links.close_inbound(["w-1"])
            await decided.wait()
            agent.hand_to(first.links.accept)
            await watcher.until("up")
            await watcher.until("up", "n-1")
            assert not watcher.proofs()

    played(story)


def test_a_link_that_is_closed_by_a_process_that_lives_comes_back_without_a_proof() -> None:
    async def story() -> None:
        async with watching() as watcher, listening("n-1") as (first, agent):
            watcher.links.watch({"n-1": at(agent)})
            await watcher.until("up", "n-1")
            for _ in range(5):
                first.links.close_inbound(["w-1"])
                await watcher.until("up")
                await watcher.until("up", "n-1")
            assert not watcher.proofs()

    played(story)


def test_a_link_that_is_closed_again_and_again_is_dialled_with_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_link, "SHORT_S", 1000.0)

    async def story() -> None:
        async with watching() as watcher, listening("n-1") as (first, agent):
            watcher.links.watch({"n-1": at(agent)})
            await watcher.until("up", "n-1")
            for _ in range(peer_link.SHORT_MAX):
                first.links.close_inbound(["w-1"])
                await watcher.until("up")
                await watcher.until("up", "n-1")
            first.links.close_inbound(["w-1"])
            await watcher.until("up")
            one = watcher.links._watched["n-1"]
            assert not one.redialling
            await watcher.until("up", "n-1")
            assert one._pause_s > peer_link.PAUSE_S
            assert not watcher.proofs()

    played(story)


def test_a_member_that_leaves_in_order_says_so_and_there_is_no_proof() -> None:
    async def story() -> None:
        async with watching() as watcher, peer() as one:
            watcher.links.watch({"n-1": one.target})
            await watcher.until("up", "n-1")
            await one.order("bye")
            await watcher.until("up")
            await one.process.wait()
            watcher.links.ask(1)
            await watcher.until("answered", 1)
            assert not watcher.proofs()

    played(story)


def test_a_frozen_process_is_not_dead_and_does_not_answer_a_question() -> None:
    async def story() -> None:
        async with watching() as watcher, listening("n-2") as (_, agent), peer("n-1") as one:
            watcher.links.watch({"n-1": one.target, "n-2": at(agent)})
            await watcher.until("up", "n-1", "n-2")
            os.kill(one.process.pid, signal.SIGSTOP)
            watcher.links.ask(1)
            await watcher.until("answered", 1, "n-2")
            assert watcher.last == ("answered", 1, "n-2")
            os.kill(one.process.pid, signal.SIGCONT)
            watcher.links.ask(2)
            await watcher.until("answered", 2, "n-1", "n-2")
            assert not watcher.proofs()

    played(story)


def test_a_frozen_process_whose_link_was_closed_is_not_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_link, "DIAL_LIMIT_S", 0.3)

    async def story() -> None:
        async with watching() as watcher, peer("n-1") as one:
            watcher.links.watch({"n-1": one.target})
            await watcher.until("up", "n-1")
            decided = asyncio.Event()
            monkeypatch.setattr(watcher.links, "is_decided", lambda one: decided.set())
            await one.order("freeze")
            await decided.wait()
            os.kill(one.process.pid, signal.SIGCONT)
            await watcher.until("up", "n-1")
            assert not watcher.proofs()

    played(story)


def test_who_was_never_linked_is_never_proven_dead() -> None:
    async def story() -> None:
        async with watching() as watcher, listening("n-3") as (_, agent):
            with socket.socket() as bound:
                bound.bind(("127.0.0.1", 0))
                refused = LinkTarget("127.0.0.1", bound.getsockname()[1], 1)
                silent = at(agent)._replace(port=0)
                watcher.links.watch({"n-1": refused, "n-2": at(agent), "n-3": at(agent), "n-4": silent})
                await watcher.until("up", "n-3")
                for number in range(5):
                    watcher.links.ask(number)
                    await watcher.until("answered", number, "n-3")
                assert not watcher.proofs()

    played(story)


def test_one_death_gives_one_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        dialled = asyncio.Semaphore(0)
        rest = peer_link.PeerLink._rest

        async def rests(one: peer_link.PeerLink) -> None:
            dialled.release()
            await rest(one)

        async with watching() as watcher, peer("n-1") as one:
            watcher.links.watch({"n-1": one.target})
            await watcher.until("up", "n-1")
            one.kill()
            await watcher.until("proof", "n-1")
            monkeypatch.setattr(peer_link.PeerLink, "_rest", rests)
            for _ in range(3):  # It is dialled, and refused.
                await dialled.acquire()
            assert not watcher.proofs()

    played(story)


def test_another_registration_of_the_same_process_keeps_the_link_and_is_named_by_the_proof() -> None:
    async def story() -> None:
        async with watching() as watcher, peer("n-1") as one:
            watcher.links.watch({"n-1": one.target})
            await watcher.until("up", "n-1")
            watcher.links.watch({"n-1": one.target._replace(create_revision=9)})
            one.kill()
            await watcher.until("proof", "n-1", 9, "127.0.0.1")

    played(story)


def test_who_is_not_watched_any_more_is_let_go_and_is_not_proven_dead() -> None:
    async def story() -> None:
        async with watching() as watcher, peer("n-1") as one, listening("n-2") as (other, agent):
            watcher.links.watch({"n-1": one.target, "n-2": at(agent)})
            await watcher.until("up", "n-1", "n-2")
            watcher.links.watch({"n-2": at(agent)})
            await watcher.until("up", "n-2")
            one.kill()
            await one.process.wait()
            watcher.links.ask(1)
            await watcher.until("answered", 1, "n-2")
            assert not watcher.proofs()
            assert set(other.links._inbound.links) == {"w-1"}

    played(story)


def test_when_a_link_closed_is_forgotten_with_the_member_so_that_a_later_proof_is_not_counted_from_then() -> None:
    async def story() -> None:
        async with watching() as watcher, listening("n-1") as (_, agent):
            watcher.links.watch({"n-1": at(agent)})
            await watcher.until("up", "n-1")
            watcher.links.watch({})
            await watcher.until("up")
            watcher.links.watch({"n-1": at(agent)})
            await watcher.until("up", "n-1")
            assert watcher.links._watched["n-1"].closed_at == 0.0

    played(story)


def test_who_watched_a_node_and_does_not_any_more_is_not_taken_for_dead_where_it_cannot_be_dialled() -> None:
    async def story() -> None:
        async with listening("n-1") as (node, agent), listening("n-2") as (_, third), watching("w-1") as watcher:
            watcher.links.watch({"n-1": at(agent)})
            await watcher.until("up", "n-1")
            watcher.links.watch({"n-2": at(third)})
            await watcher.until("up", "n-2")
            await proves_nothing(node, "w-1", third)

    played(story)


def test_a_listener_that_is_closed_while_its_process_lives_is_taken_for_dead_once_its_link_is_closed() -> None:
    async def story() -> None:
        async with watching() as watcher, peer("n-1") as one:
            watcher.links.watch({"n-1": one.target})
            await watcher.until("up", "n-1")
            await one.order("deaf")
            await one.said("deaf")
            watcher.links.ask(1)
            await watcher.until("answered", 1, "n-1")
            await one.order("shut")
            await watcher.until("proof", "n-1")

    played(story)


# How it is reached


@pytest.mark.parametrize("host", ["localhost", "::1", "127.0.0.77"])
def test_names_addresses_of_both_kinds_and_other_ones_of_the_loopback_are_linked(host: str) -> None:
    if host == "::1" and not socket.has_ipv6:
        pytest.skip("this machine has no IPv6")

    async def story() -> None:
        own = host if host != "localhost" else "127.0.0.1"
        async with watching() as watcher, peer("n-1", own) as one:
            watcher.links.watch({"n-1": LinkTarget(host, one.target.port, 5)})
            await watcher.until("up", "n-1")
            one.kill()
            await watcher.until("proof", "n-1", 5, host)

    played(story)


def test_a_name_that_is_not_known_is_tried_again() -> None:
    known: list[str] = []

    def look(host: str, *words: object, **more: object) -> list[tuple[object, ...]]:
        known.append(host)
        if len(known) < 3:
            raise socket.gaierror(socket.EAI_NONAME, "not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0)) for address in ("127.0.0.9", "127.0.0.1")]

    async def story() -> None:
        async with watching() as watcher, listening("n-1") as (_, agent):
            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(socket, "getaddrinfo", look)
                watcher.links.watch({"n-1": LinkTarget("a-name", agent.port, 1)})
                await watcher.until("up", "n-1")

    played(story)
    assert known == ["a-name"] * 3


def test_many_are_linked_with_no_more_than_64_dials_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    dialled, most = 0, 0
    attempt = peer_link.PeerLink._try

    async def counted(one: peer_link.PeerLink, address: str) -> peer_link.DialResult:
        nonlocal dialled, most
        dialled += 1
        most = max(most, dialled)
        try:
            return await attempt(one, address)
        finally:
            dialled -= 1

    monkeypatch.setattr(peer_link.PeerLink, "_try", counted)

    async def story() -> None:
        async with watching() as watcher, contextlib.AsyncExitStack() as stack:
            targets = {}
            for number in range(200):
                _, agent = await stack.enter_async_context(listening(f"n-{number:03}"))
                targets[f"n-{number:03}"] = at(agent)
            watcher.links.watch(targets)
            await watcher.until("up", *targets)

    played(story)
    assert most == links_module.DIALS_MAX


# Questions


def test_all_that_are_alive_answer_a_question() -> None:
    async def story() -> None:
        async with watching() as watcher, listening("n-1") as (_, agent), listening("n-2") as (_, other):
            watcher.links.ask(1)
            await watcher.until("answered", 1)
            watcher.links.watch({"n-1": at(agent), "n-2": at(other)})
            await watcher.until("up", "n-1", "n-2")
            for number in (2, 3):
                watcher.links.ask(number)
                await watcher.until("answered", number, "n-1", "n-2")

    played(story)


def test_a_vouch_counts_from_the_time_of_the_question() -> None:
    async def story() -> None:
        async with watching() as watcher, listening("n-1") as (asker, agent):
            watcher.links.watch({"n-1": at(agent)})
            await watcher.until("up", "n-1")
            before = boottime()
            asker.links.ask_vouch(4)
            after = boottime()
            await asker.until("vouched", 4)
            until = asker.last[2]
            assert isinstance(until, float)
            assert before + 7.0 <= until <= after + 7.0
            assert ("asked", "n-1", 4) in watcher.told

    played(story)


def test_a_vouch_that_is_refused_is_not_told() -> None:
    async def story() -> None:
        async with watching() as watcher, listening("n-1") as (asker, agent):
            watcher.links.watch({"n-1": at(agent)})
            await watcher.until("up", "n-1")
            watcher.grant_s = 0.0
            asker.links.ask_vouch(5)
            await watcher.until("asked", "n-1", 5)
            watcher.grant_s = 1.0
            asker.links.ask_vouch(6)
            await asker.until("vouched")
            assert asker.last[1] == 6

    played(story)


# What a node waits for


def test_the_nodes_that_are_named_hear_what_they_wait_for() -> None:
    async def story() -> None:
        async with watching() as watcher, listening("n-1") as (first, one), listening("n-2") as (second, other):
            watcher.links.watch({"n-1": at(one), "n-2": at(other)})
            await watcher.until("up", "n-1", "n-2")
            watcher.links.tell(("n-2", "n-3"), wait_told("TRAINING", "training", ()))
            watcher.links.tell(("n-1", "n-2"), wait_told("SCALE_UP_LATER", "n-1 joins in \ufffc", (41.25,)))
            await first.until("waits", "w-1", "n-1 joins in \ufffc", 41.25)
            await second.until("waits", "w-1", "training")
            await second.until("waits", "w-1", "n-1 joins in \ufffc", 41.25)
            assert not [told for told in first.told if told[0] == "waits"]

    played(story)


def _leader(node: str) -> StoredDocument[Leader]:
    return StoredDocument(Leader(node=node, host="127.0.0.1"), 1, 1, 1)


def test_what_was_told_counts_for_as_long_as_the_link_is_up() -> None:
    async def story() -> None:
        hello = PeerListener("127.0.0.1", JOB, "n-1")
        facts, news = Bench("n-1").facts, asyncio.Event()

        def changed(event: Event) -> None:
            news.set()

        facts.store.view = dataclasses.replace(facts.view, leader=_leader("w-1"))
        heard = asyncio.Event()
        log = AgentLog("n-1", Console(2))
        adapter = LinkAdapter(hello, JOB, facts, changed, log, find=nowhere, on_heard_wait=heard.set)
        adapter.learn(dataclasses.replace(facts.view, secret=StoredDocument(SECRET, 1, 1)))
        async with watching() as watcher:
            watcher.links.watch({"n-1": at(hello)})
            await watcher.until("up", "n-1")
            watcher.links.tell(("n-1",), wait_told("SCALE_UP_LATER", "n-1 joins in \ufffc", (41.0,)))
            await heard.wait()
            told = adapter.heard_wait()
            assert told is not None
            assert (told.node, told.code) == ("w-1", Reason.SCALE_UP_LATER)
            assert told.reason_at(boottime() + 11.0) == "n-1 joins in 30 s"
            heard.clear()
            facts.store.view = dataclasses.replace(facts.view, leader=_leader("n-1"))
            watcher.links.tell(("n-1",), wait_told("TRAINING", "training", ()))
            await is_answered(watcher)
            assert not heard.is_set(), "it leads, and knows better"
            news.clear()
            watcher.links.watch({})
            await news.wait()
            assert adapter.heard_wait() is None
        adapter.close()
        hello.close()

    played(story)


async def is_answered(watcher: Watching) -> None:
    """What was said before was read."""
    watcher.links.ask(99)
    await watcher.until("answered", 99, "n-1")
