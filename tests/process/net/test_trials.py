"""The trial whether a silent node answers a new connection, between real processes."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest

from elastic import _net
from elastic.auth.handshake import new_nonce
from elastic.core.agent.actions import LinkTarget, TryPeer
from elastic.core.agent.events import PeerTried
from launcher.peers import links as links_module
from launcher.peers import trial
from launcher.peers.listener import PeerListener
from launcher.wire import link_messages
from launcher.wire.link_messages import Greeting, LinkRequest, Ping, Pong, Proof, Tried, Try
from tests.scripts.link_peer import JOB
from tests.support.awaited_events import Happenings
from tests.support.link_harness import SECRET, Watching, at, listening, nowhere, peer, played, watching
from tests.support.link_strangers import connected

LONG_S = 60.0
"""No story waits for it."""
Find = Callable[[str], Awaitable[LinkTarget | None]]


class Suspect:
    """An agent's listener, as it is known in the store, that answers only some of those that dial it.

    The first `ignored` connections get nothing at all, as if the packets to them were lost.
    """

    def __init__(self, answers: frozenset[str], ignored: int) -> None:
        self.answers = answers
        self.ignored = ignored
        self.connections = 0
        self.dialled: set[str] = set()
        self.port = 0
        self.open = 0
        self.told = Happenings()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        self.connections += 1
        is_ignored = self.connections <= self.ignored
        self.told.changed()
        greeting = Greeting(JOB, "n-1", new_nonce())
        with contextlib.suppress(ConnectionError):
            if not is_ignored:
                writer.write(link_messages.greeting_line(greeting))
            if line := await reader.readline():
                request = link_messages.decode(line.removesuffix(b"\n"))
                assert isinstance(request, LinkRequest)
                self.dialled.add(request.node)
                self.told.changed()
                if request.node in self.answers:
                    writer.write(link_messages.encode(Proof(link_messages.proofs(SECRET, greeting, request).server)))
            await reader.read()
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        self.open -= 1
        self.told.changed()


@contextlib.asynccontextmanager
async def suspect(*answers: str, ignored: int = 0) -> AsyncIterator[Suspect]:
    one = Suspect(frozenset(answers), ignored)
    server = await asyncio.start_server(one.serve, "127.0.0.1", 0)
    one.port = int(server.sockets[0].getsockname()[1])
    try:
        yield one
    finally:
        server.close()
        await one.told.until(lambda: not one.open, "no connection is left")


@contextlib.asynccontextmanager
async def three(*nodes: str) -> AsyncIterator[tuple[Watching, Watching, Watching]]:
    """One that watches these of two others, by links that are up."""
    async with watching() as watcher, listening("n-2") as (second, agent), listening("n-3") as (third, other):
        targets = {"n-2": at(agent), "n-3": at(other)}
        watcher.links.watch({node: targets[node] for node in nodes})
        if nodes:
            await watcher.until("up", *nodes)
        yield watcher, second, third


def found_at(**agents: PeerListener) -> Find:
    """Where the store says that nodes listen: `n_2` is n-2."""

    async def find(node: str) -> LinkTarget | None:
        agent = agents.get(node.replace("-", "_"))
        return at(agent, 0) if agent is not None else None

    return find


async def tried(
    watcher: Watching, port: int, *helpers: str, limit_s: float = 0.2, find: Find = nowhere, number: int = 1
) -> PeerTried:
    """Try n-1 at this port, and ask these nodes to try it; nothing of that is left when the answer is there.

    Unless it has a long limit: those whose answer does not matter any more try it until that is over.
    """
    tasks = asyncio.all_tasks()
    action = TryPeer(number, "n-1", LinkTarget("127.0.0.1", port, 5), helpers, limit_s)
    with trial_connections() as made:
        watcher.links.try_peer(action, find)
        await watcher.until("tried", number)
        if limit_s < LONG_S:
            while left := asyncio.all_tasks() - tasks:
                await asyncio.wait(left)
            for writer in made:
                with contextlib.suppress(ConnectionError):
                    await writer.wait_closed()
    return watcher.tried[-1]


@contextlib.contextmanager
def trial_connections() -> Iterator[list[asyncio.StreamWriter]]:
    """Every connection that the agents of this process make for a trial."""
    made, connect = list[asyncio.StreamWriter](), _net.connected

    async def noted(host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await connect(host, port)
        made.append(writer)
        return reader, writer

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(trial, "connected", noted)
        yield made


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A helper that answers is waited for, however busy this machine is."""
    monkeypatch.setattr(trial, "ANSWER_S", LONG_S)


@contextlib.contextmanager
def pauses(begins: Callable[[int], Awaitable[object]]) -> Iterator[list[float]]:
    """The pauses before the connections of one trial. Instead of its pause, connection `n` waits for `begins(n)`."""
    asked: list[float] = []

    async def pause(seconds: float) -> None:
        asked.append(seconds)
        await begins(len(asked) - 1)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(asyncio, "sleep", pause)
        yield asked


async def is_reached(host: str, port: int) -> bool | None:
    """Try n-1 there, with time enough for every answer."""
    return await trial.reaches(JOB, SECRET, "w-1", "n-1", host, port, LONG_S)


@pytest.mark.parametrize("ignored", [0, 1, 3])
def test_a_node_that_leaves_connections_unanswered_is_reached_by_a_later_one_of_four(ignored: int) -> None:
    async def story() -> None:
        async with suspect("w-1", ignored=ignored) as one:

            async def begins(number: int) -> None:
                """Each is made once those before are taken, none after the one that is answered."""
                await one.told.until(lambda: number <= min(one.connections, ignored), "those before are taken")

            with pauses(begins) as paused:
                assert await is_reached("127.0.0.1", one.port)
            assert paused == [0.0, LONG_S / 4, LONG_S / 2, LONG_S * 3 / 4]
            assert one.connections == ignored + 1

    played(story)


LIVE, DEAD = "127.0.0.1", "127.0.0.2"


@pytest.mark.parametrize("listens", [True, False], ids=["it answers nothing", "it refuses"])
@pytest.mark.parametrize("dialled", [(DEAD, LIVE), (LIVE, DEAD, LIVE)], ids=["dead first", "dead second"])
def test_a_node_with_two_addresses_of_which_one_is_dead_is_reached_at_the_other(
    dialled: tuple[str, ...], listens: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of three connections the first one is lost."""
    tried_at: list[str] = []

    async def resolved(host: str) -> tuple[str, ...]:
        assert host == "n-1.example"
        return dialled[:2]

    async def noted(host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        tried_at.append(host)
        return await _net.connected(host, port)

    async def begins(number: int) -> None:
        if number >= len(dialled):
            await asyncio.Event().wait()

    async def story() -> None:
        async with suspect("w-1", ignored=len(dialled) - 2) as one:
            with socket.socket() as dead, pauses(begins):
                dead.bind((DEAD, one.port))
                if listens:
                    dead.listen()
                assert await is_reached("n-1.example", one.port)
            assert tuple(tried_at) == dialled

    monkeypatch.setattr(trial, "resolved", resolved)
    monkeypatch.setattr(trial, "connected", noted)
    played(story)


def test_a_node_that_this_agent_reaches_is_there_and_no_other_is_waited_for(patient: None) -> None:
    async def story() -> None:
        async with suspect("w-1") as one, three("n-2", "n-3") as (watcher, *_):
            answer = await tried(watcher, one.port, "n-2", "n-3", limit_s=LONG_S)
            assert answer == PeerTried(1, "n-1", ("w-1",), ())

    played(story)


def test_a_node_that_only_a_helper_reaches_is_there(patient: None) -> None:
    async def story() -> None:
        async with suspect("n-3") as one, three("n-2", "n-3") as (watcher, *_):
            answer = await tried(watcher, one.port, "n-2", "n-3", limit_s=LONG_S)
            assert answer == PeerTried(1, "n-1", ("n-3",), ())

    played(story)


def test_a_node_that_nobody_reaches_was_tried_by_all_that_were_asked(patient: None) -> None:
    async def story() -> None:
        async with suspect() as one, three("n-2", "n-3") as (watcher, *_):
            answer = await tried(watcher, one.port, "n-2", "n-3")
            assert (answer.reached_by, set(answer.unreached_by)) == ((), {"n-2", "n-3"})
            one.dialled.clear()
            action = TryPeer(2, "n-1", LinkTarget("127.0.0.1", one.port, 5), ("n-2", "n-3"), LONG_S)
            watcher.links.try_peer(action, nowhere)
            await one.told.until(lambda: one.dialled == {"w-1", "n-2", "n-3"}, "all three try")

    played(story)


def test_a_node_whose_machine_refuses_connections_is_not_reached(patient: None) -> None:
    async def story() -> None:
        async with suspect() as one, three("n-2") as (watcher, *_):
            pass
        async with three("n-2") as (watcher, *_):
            answer = await tried(watcher, one.port, "n-2")  # Its listener is closed.
            assert answer == PeerTried(1, "n-1", (), ("n-2",))

    played(story)


def test_an_address_where_another_node_listens_is_not_the_node(patient: None) -> None:
    async def story() -> None:
        async with listening("n-9") as (_, agent), three("n-2", "n-3") as (watcher, *_):
            answer = await tried(watcher, agent.port, "n-2", "n-3")
            assert (answer.reached_by, set(answer.unreached_by)) == ((), {"n-2", "n-3"})

    played(story)


def test_a_listener_with_another_secret_is_not_the_node(patient: None) -> None:
    async def story() -> None:
        async with listening("n-1", secret="another") as (_, agent), three("n-2") as (watcher, *_):
            answer = await tried(watcher, agent.port, "n-2")
            assert answer == PeerTried(1, "n-1", (), ("n-2",))

    played(story)


def test_a_trial_that_no_node_could_make_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        async with suspect("w-1") as one, three("n-2") as (watcher, *_):
            names = TryPeer(1, "n-1", LinkTarget("nobody.invalid", one.port, 5), ("n-2",), 0.2)
            assert await trial.try_peer(watcher.links, names, nowhere, frozenset) is None, "the name is not known"

            async def none_left(host: str, port: int) -> None:
                raise OSError(errno.EMFILE, "no descriptor is left")

            monkeypatch.setattr(trial, "connected", none_left)
            address = TryPeer(2, "n-1", LinkTarget("127.0.0.1", one.port, 5), ("n-2",), 0.2)
            assert await trial.try_peer(watcher.links, address, nowhere, frozenset) is None
            assert not one.dialled

    played(story)


class FarLinks:
    """Links to n-1 and n-2 with long round trips; n-2 is asked, and reaches n-1."""

    job_id, node, secret_text = "job", "w-1", SECRET

    def __init__(self, round_trip_s: float) -> None:
        self._round_trip_s = round_trip_s
        self.limit_s = 0.0

    def is_linked(self, node: str) -> bool:
        return True

    def round_trip_s(self, node: str) -> float:
        return self._round_trip_s

    async def ask_to_try(self, helper: str, question: Try) -> bool:
        self.limit_s = question.limit_s
        return True


@pytest.mark.parametrize(("round_trip_s", "limit_s"), [(0.0, 0.25), (0.1, 0.65), (1.0, 0.85)])
def test_a_trial_has_more_time_over_a_long_way(round_trip_s: float, limit_s: float) -> None:
    async def story() -> None:
        async with suspect() as one:
            links = FarLinks(round_trip_s)
            target = LinkTarget("127.0.0.1", one.port, 5)
            answer = await trial.try_peer(links, TryPeer(1, "n-1", target, ("n-2",), 0.25), nowhere, frozenset)
            assert answer is not None
            assert answer.reached_by == ("n-2",)
            assert links.limit_s == pytest.approx(limit_s)

    played(story)


def test_the_round_trip_of_a_link_is_known_at_both_of_its_ends() -> None:
    async def story() -> None:
        async with three("n-2") as (watcher, second, _):
            await second.until("dialled", "w-1")
            assert 0.0 < watcher.links.round_trip_s("n-2") < 1.0
            assert 0.0 < second.links.round_trip_s("w-1") < 1.0
            assert watcher.links.round_trip_s("n-3") == 0.0

    played(story)


def test_a_node_that_is_frozen_is_not_reached_although_its_kernel_takes_connections(patient: None) -> None:
    async def story() -> None:
        async with peer("n-1") as one, three("n-2") as (watcher, *_):
            os.kill(one.process.pid, signal.SIGSTOP)
            answer = await tried(watcher, one.target.port, "n-2")
            assert answer == PeerTried(1, "n-1", (), ("n-2",))
            os.kill(one.process.pid, signal.SIGCONT)
            again = await tried(watcher, one.target.port, "n-2", limit_s=LONG_S, number=2)
            assert again.reached_by

    played(story)


def test_a_helper_that_does_not_answer_is_not_among_those_that_do_not_reach_the_node() -> None:
    async def story() -> None:
        async with watching() as watcher, peer("n-2") as helper, suspect() as one:
            watcher.links.watch({"n-2": helper.target})
            await watcher.until("up", "n-2")
            os.kill(helper.process.pid, signal.SIGSTOP)
            answer = await tried(watcher, one.port, "n-2")
            assert answer == PeerTried(1, "n-1", (), ())

    played(story)


def test_a_node_that_this_one_does_not_watch_is_asked_over_a_link_for_the_question(patient: None) -> None:
    async def story() -> None:
        async with suspect("n-2") as one, watching() as watcher, listening("n-2") as (helper, agent):
            answer = await tried(watcher, one.port, "n-2", find=found_at(n_2=agent), limit_s=LONG_S)
            assert answer == PeerTried(1, "n-1", ("n-2",), ())
            one.answers = frozenset()
            again = await tried(watcher, one.port, "n-2", find=found_at(n_2=agent), number=2)
            assert again == PeerTried(2, "n-1", (), ("n-2",))
            assert not helper.links.watchers
            assert not helper.links._inbound.cut, "the link was closed in order"
            assert not [told for told in watcher.told if told[0] in ("up", "proof")]

    played(story)


def test_a_helper_that_is_linked_is_not_looked_up(patient: None) -> None:
    async def never(node: str) -> LinkTarget | None:
        raise AssertionError(f"{node} is looked up in the store")

    async def story() -> None:
        async with suspect() as one, three("n-2", "n-3") as (watcher, *_):
            answer = await tried(watcher, one.port, "n-2", "n-3", find=never)
            assert set(answer.unreached_by) == {"n-2", "n-3"}

    played(story)


def test_helpers_that_are_not_found_or_are_other_nodes_or_are_frozen_do_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trial, "CONNECT_S", 0.1)

    async def story() -> None:
        async with suspect() as one, watching() as watcher, listening("n-9") as (_, other), peer("n-4") as frozen:
            os.kill(frozen.process.pid, signal.SIGSTOP)

            async def find(node: str) -> LinkTarget | None:
                return {"n-3": at(other), "n-4": frozen.target, "n-5": LinkTarget("127.0.0.1", 1, 0)}.get(node)

            answer = await tried(watcher, one.port, "n-2", "n-3", "n-4", "n-5", find=find)
            assert answer == PeerTried(1, "n-1", (), ())

    played(story)


def test_a_helper_that_is_killed_while_it_tries_does_not_answer() -> None:
    async def story() -> None:
        async with suspect() as one, watching() as watcher, peer("n-2") as helper:

            async def find(node: str) -> LinkTarget | None:
                return helper.target

            action = TryPeer(1, "n-1", LinkTarget("127.0.0.1", one.port, 5), ("n-2",), 0.5)
            watcher.links.try_peer(action, find)
            await one.told.until(lambda: "n-2" in one.dialled, "n-2 tries")
            helper.kill()
            await watcher.until("tried", 1)
            assert watcher.tried == [PeerTried(1, "n-1", (), ())]
            assert not watcher.proofs(), "it was not watched"

    played(story)


def test_a_trial_ends_with_the_links() -> None:
    async def story() -> None:
        async with suspect() as one, three("n-2") as (watcher, *_):
            action = TryPeer(1, "n-1", LinkTarget("127.0.0.1", one.port, 5), ("n-2", "n-3"), LONG_S)
            watcher.links.try_peer(action, nowhere)
            await one.told.until(lambda: one.dialled == {"w-1", "n-2"}, "both try")
            trials = tuple(watcher.links._trials)
            assert trials
            watcher.links.close()
            await asyncio.wait(trials)
            assert not watcher.tried

    played(story)


# Strangers


@pytest.mark.parametrize("proof", [b"", link_messages.encode(Proof("0" * 64))], ids=["none", "false"])
def test_a_stranger_without_the_secret_has_nobody_dialled(proof: bytes) -> None:
    async def story() -> None:
        async with suspect("n-2") as one, listening("n-2") as (node, agent), connected(agent) as stranger:
            question = link_messages.encode(Try(1, "n-1", "127.0.0.1", one.port, LONG_S))
            await stranger.greeted()
            stranger.say(link_messages.encode(LinkRequest("w-2", "0" * 32)) + proof + question)
            await stranger.is_closed()
            assert not node.links._trials
            assert not one.dialled

    played(story)


def test_a_node_of_the_job_has_another_dialled_and_gets_the_answer() -> None:
    async def story() -> None:
        async with suspect("n-2") as one, listening("n-2") as (_, agent), connected(agent) as asker:
            await asker.prove("w-2")
            await asker.line()
            asker.say(link_messages.encode(Try(7, "n-1", "127.0.0.1", one.port, LONG_S)))
            assert link_messages.decode(await asker.line()) == Tried(7, True)
            assert one.dialled == {"n-2"}

    played(story)


def test_a_peer_that_asks_for_many_trials_has_a_few_at_a_time() -> None:
    async def story() -> None:
        async with suspect() as one, listening("n-2") as (node, agent), connected(agent) as asker:
            await asker.prove("w-2")
            await asker.line()
            for number in range(2 * links_module.TRIALS_MAX):
                asker.say(link_messages.encode(Try(number, "n-1", "127.0.0.1", one.port, LONG_S)))
            asker.say(link_messages.encode(Ping(1)))
            assert link_messages.decode(await asker.line()) == Pong(1)
            assert len(node.links._trials) == links_module.TRIALS_MAX

    played(story)


def test_an_answer_that_nobody_asked_for_changes_nothing() -> None:
    async def story() -> None:
        async with listening("n-2") as (node, agent), connected(agent) as stranger:
            await stranger.prove("w-2")
            await stranger.line()
            stranger.say(link_messages.encode(Tried(1, True)))
            await stranger.is_closed()  # Only a node that is asked says that.
            assert not node.tried

    played(story)
