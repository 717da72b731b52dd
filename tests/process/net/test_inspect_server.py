"""The window of an agent beside strangers, crowds, and askers that say nonsense or do not read."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from elastic.core.model import Member
from elastic.core.ps.model import Role
from launcher.agent import inspect_server
from launcher.agent.inspect_server import ASKERS_MAX, FOLLOWERS_MAX
from launcher.job import inspect_client
from launcher.job.inspect_client import InspectBusy, InspectClient, InspectError, ask_all
from launcher.logs.recent_starts import LogPosition
from launcher.logs.worker_log import WorkerStartLog
from launcher.wire import inspect_messages, link_messages
from launcher.wire.inspect_messages import (
    InspectRefusal,
    InspectWelcome,
    LogEnd,
    LogPiece,
    LogQuestion,
    LogStart,
    NodeSnapshot,
    StacksQuestion,
    StackText,
)
from launcher.workers.reports import stacks
from tests.scripts.link_peer import JOB
from tests.support.inspect_documents import snapshot
from tests.support.inspect_harness import NODE, looked
from tests.support.link_harness import SECRET, played
from tests.support.link_strangers import Stranger, connected, impostor
from tests.support.start_logs import Nowhere, start

FOLLOWED = LogQuestion(Role.WORKER, 3, follow=True)


async def lets_in(stranger: Stranger, secret: str = SECRET) -> inspect_messages.InspectAnswer:
    """Prove by hand; the agent's answer."""
    await stranger.prove_to_look(secret)
    return inspect_messages.read_answer(await stranger.line())


async def told(log: LogQuestion, asking: InspectClient) -> tuple[bytes, LogEnd]:
    data = b""
    async for answer in asking.log(log):
        if isinstance(answer, LogPiece):
            data += answer.data
        if isinstance(answer, LogEnd):
            return data, answer
    raise AssertionError("it did not end")


async def until(look: Callable[[], bool]) -> None:
    while not look():  # noqa: ASYNC110  # Nobody tells of it.
        await asyncio.sleep(0.01)


# Who asks


def test_who_proves_the_secret_is_answered_one_question_after_the_other() -> None:
    async def story() -> None:
        async with looked() as agent, agent.asking() as one:
            agent.log.write(b"one\ntwo\n")
            assert await one.snapshot() == snapshot(1)
            assert await told(LogQuestion(Role.WORKER, 3, 1), one) == (b"two\n", LogEnd(1, 0, over=False))
            assert await one.stacks(StacksQuestion(Role.WORKER, 3)) == StackText("x" * 3000, "somehow")
            assert await one.snapshot() == snapshot(1)

    played(story)


@pytest.mark.parametrize(
    ("secret", "node", "why"), [("wrong", NODE, "not know the job.s secret"), (SECRET, "n-2", "another node")]
)
def test_another_secret_or_node_is_shown_nothing(secret: str, node: str, why: str) -> None:
    async def story() -> None:
        async with looked() as agent:
            with pytest.raises(InspectError, match=why):
                async with agent.asking(secret, node):
                    pass
            assert not agent.window._askers
            assert agent.complaints == [] or "does not know the job's secret" in agent.complaints[0]

    played(story)


def test_a_recorded_proof_opens_nothing_later() -> None:
    async def story() -> None:
        async with looked() as agent:
            async with connected(agent.agent) as first:
                said = await first.prove_to_look()
                assert isinstance(inspect_messages.read_answer(await first.line()), InspectWelcome)
            async with connected(agent.agent) as again:
                await again.greeted()
                again.say(said)
                assert isinstance(link_messages.decode(await again.line()), link_messages.Proof)
                assert await again.line() == b""
                await until(lambda: any("for status: it does not know" in text for text in agent.complaints))

    played(story)


def test_who_answers_for_an_agent_and_cannot_prove_it_is_not_believed() -> None:
    async def story() -> None:
        greeting = link_messages.greeting_line(link_messages.Greeting(JOB, NODE, "0" * 32))
        async with impostor(greeting, link_messages.encode(link_messages.Proof("0" * 64)), close=False) as port:
            member = Member(host="127.0.0.1", slots=1, masters=(7000,), ports=(8000,), link=port)
            with pytest.raises(InspectError, match=r"does not know the job.s secret"):
                async with InspectClient.connect(JOB, SECRET, NODE, member):
                    pass
        async with impostor(b"SSH-2.0-OpenSSH_9.2\n") as port:
            members = {NODE: Member(host="127.0.0.1", slots=1, masters=(7000,), ports=(8000,), link=port)}
            snapshots, unreachable = await ask_all(JOB, SECRET, members, 5.0)
            assert snapshots == {}
            assert "not elastic-launch" in unreachable[NODE]

    played(story)


@pytest.mark.parametrize(("at_once", "silent"), [(inspect_client.AT_ONCE, 70), (2, 4)])
def test_nodes_that_listen_and_say_nothing_hide_no_other(
    at_once: int, silent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inspect_client, "AT_ONCE", at_once)

    async def story() -> None:
        async with looked() as agent, impostor(b"", b"", close=False) as port:
            members = {f"n-silent-{number}": agent.member(port) for number in range(silent)} | {NODE: agent.member()}
            snapshots, unreachable = await ask_all(JOB, SECRET, members, 6.0)
            assert set(snapshots) == {NODE}
            assert len(unreachable) == silent
            assert all("no answer within" in why for why in unreachable.values())

    played(story)


def test_of_who_was_never_tried_it_is_not_said_that_it_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    limit_s = 0.1

    async def takes_all_the_time(_host: str, _port: int) -> None:
        time.sleep(2 * limit_s)  # noqa: ASYNC251  # Nobody else has a turn.
        await asyncio.Event().wait()

    monkeypatch.setattr(inspect_client, "AT_ONCE", 1)
    monkeypatch.setattr(inspect_client, "connected", takes_all_the_time)

    async def story() -> None:
        async with looked() as agent:
            snapshots, unreachable = await ask_all(JOB, SECRET, {"n-2": agent.member(), NODE: agent.member()}, limit_s)
            assert snapshots == {}
            assert ": no answer within 0.05 s" in unreachable["n-2"]
            assert unreachable[NODE].endswith("was not queried: other nodes took all of the 0.1 s")

    played(story)


def test_nobody_at_an_address_and_silence_are_said_with_the_address() -> None:
    async def story() -> None:
        async with looked() as agent, impostor(b"", b"", close=False) as silent:
            gone = Member(host="127.0.0.1", slots=1, masters=(7000,), ports=(8000,), link=1)
            members = {NODE: agent.member(), "n-2": agent.member(silent), "n-3": gone}
            snapshots, unreachable = await ask_all(JOB, SECRET, members, 0.5)
            assert set(snapshots) == {NODE}
            assert unreachable["n-2"].startswith(f"cannot query node n-2 at 127.0.0.1:{silent}: no answer within 0.5 s")
            assert unreachable["n-3"].startswith("cannot query node n-3 at 127.0.0.1:1: refused")

    played(story)


# Limits


def test_the_ninth_asker_is_told_that_there_are_eight_and_gets_in_when_one_has_gone() -> None:
    async def story() -> None:
        async with looked() as agent, contextlib.AsyncExitStack() as stack:
            crowd = [await stack.enter_async_context(agent.asking()) for _ in range(ASKERS_MAX)]
            with pytest.raises(InspectError, match=r"too many clients \(8\) are querying this node"):
                async with agent.asking() as late:
                    await late.snapshot()
            crowd[0].writer.transport.abort()
            await until(lambda: len(agent.window._askers) < ASKERS_MAX)
            async with agent.asking() as late:
                assert isinstance(await late.snapshot(), NodeSnapshot)

    played(story)


def test_who_follows_logs_takes_no_place_of_those_that_ask_and_one_too_many_can_come_later() -> None:
    async def story() -> None:
        async with looked() as agent, contextlib.AsyncExitStack() as stack:
            agent.log.write(b"one\n")
            crowd = []
            for _ in range(FOLLOWERS_MAX):
                crowd.append(await stack.enter_async_context(agent.asking()))
                assert isinstance(await anext(crowd[-1].log(FOLLOWED)), LogStart)
            async with agent.asking() as late:
                assert isinstance(await late.snapshot(), NodeSnapshot)
                with pytest.raises(InspectBusy, match=r"too many clients \(32\) follow logs of this node"):
                    await anext(late.log(FOLLOWED))
                assert isinstance(await late.snapshot(), NodeSnapshot)
            crowd[0].writer.transport.abort()
            await until(lambda: len(agent.window._followers) < FOLLOWERS_MAX)
            async with agent.asking() as late:
                assert isinstance(await anext(late.log(FOLLOWED)), LogStart)

    played(story)


@pytest.mark.parametrize(
    "data", [b"\n", b"{}\n", b"x" * (1 << 20) + b"\n", b"[" * 1000 + b"\n", b'{"type":"drain"}\n', b"\xff\n"]
)
def test_what_is_no_question_is_answered_by_a_sentence_and_the_end(data: bytes) -> None:
    async def story() -> None:
        async with looked() as agent, connected(agent.agent) as stranger:
            assert isinstance(await lets_in(stranger), InspectWelcome)
            stranger.say(data)
            with contextlib.suppress(link_messages.LinkError):  # Where much was unread, the answer may be lost with it.
                answer = inspect_messages.read_answer(await stranger.line())
                assert isinstance(answer, InspectRefusal)
            await stranger.is_closed()
            assert agent.complaints == []
            async with agent.asking() as one:
                assert await one.snapshot() == snapshot(1)

    played(story)


def test_an_asker_that_does_not_read_is_sent_away_and_costs_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspect_server, "SLOW_LIMIT_S", 0.3)

    async def story() -> None:
        async with looked() as agent, connected(agent.agent) as stranger:
            assert isinstance(await lets_in(stranger), InspectWelcome)
            stranger.writer.transport.pause_reading()  # type: ignore[attr-defined]
            stranger.say(inspect_messages.question_line(LogQuestion(Role.WORKER, 3, follow=True)))
            await until(lambda: bool(agent.window._followers))
            while agent.window._followers:
                agent.log.write(b"x" * (1 << 18))
                await asyncio.sleep(0.01)
            assert agent.complaints == []

    played(story)


def test_an_asker_that_asks_nothing_is_sent_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspect_server, "IDLE_LIMIT_S", 0.1)

    async def story() -> None:
        async with looked() as agent, connected(agent.agent) as stranger:
            assert isinstance(await lets_in(stranger), InspectWelcome)
            await stranger.is_closed()
            assert not agent.window._askers

    played(story)


def test_a_mistake_of_ours_in_an_answer_ends_the_asker_and_is_heard() -> None:
    async def story() -> None:
        async with looked() as agent:
            with pytest.raises(InspectError, match="closed the connection"):
                async with agent.asking() as one:
                    await one.stacks(StacksQuestion(Role.WORKER, 99))
            assert "a mistake of ours" in agent.complaints[0]
            async with agent.asking() as one:
                assert await one.snapshot() == snapshot(1)

    played(story)


@pytest.mark.parametrize("sign", ["x", "ж", "训", "🔥"])
def test_stacks_without_end_are_cut(sign: str) -> None:
    async def story() -> None:
        async with looked() as agent, agent.asking() as one:
            agent.sign = sign
            found = await one.stacks(StacksQuestion(Role.WORKER, 98))
            assert found.text.strip(sign) == "\n… (cut here)"

    played(story)


def test_a_name_that_the_kernel_has_cut_within_a_sign_is_no_hindrance() -> None:
    rename = "ctypes.CDLL(None).prctl(15, 'обучение rank 0'.encode(), 0, 0, 0)"
    argv = [sys.executable, "-c", f"import ctypes; {rename}; print(flush=True); input()"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        assert stacks._catches(process.pid, signal.SIGINT)
        assert not stacks._catches(process.pid, stacks.OWN_SIGNAL)
        process.communicate(b"\n")


# Logs


def test_a_log_is_followed_until_its_start_has_ended() -> None:
    async def story() -> None:
        async with looked() as agent, agent.asking() as one:
            following = asyncio.create_task(told(LogQuestion(Role.WORKER, 3, follow=True), one))
            for number in range(5):
                agent.log.write(b"line %d\n" % number)
                await asyncio.sleep(0.03)
            agent.log.line("==== ended ====")
            agent.log.close()
            data, end = await following
            assert data == b"==== gen 1 ====\n" + b"".join(b"line %d\n" % n for n in range(5)) + b"==== ended ====\n"
            assert end == LogEnd(1, 0, over=True)

    played(story)


def test_who_lost_the_connection_goes_on_where_it_was_and_gets_nothing_twice() -> None:
    async def story() -> None:
        async with looked() as agent:
            agent.log.write(b"one\ntwo\n")
            async with agent.asking() as one:
                log = one.log(LogQuestion(Role.WORKER, 3, follow=True))
                pieces = [answer async for answer in until_size(log, 24)]
            agent.log.write(b"three\n")
            agent.log.close()
            last = pieces[-1]
            async with agent.asking() as one:
                asked = LogQuestion(Role.WORKER, 3, follow=True, g=last.g, rev=last.rev, offset=last.offset)
                assert await told(asked, one) == (b"three\n", LogEnd(1, 0, over=True))
            async with agent.asking() as one:
                assert await told(LogQuestion(Role.WORKER, 3, 1, g=9, offset=5), one) == (b"", LogEnd(0, 0, over=False))

    played(story)


async def until_size(log: AsyncIterator[object], size: int) -> AsyncIterator[LogPiece]:
    """The pieces of a log until it has so many bytes."""
    async for answer in log:
        if isinstance(answer, LogPiece):
            yield answer
            size -= len(answer.data)
            if size <= 0:
                return


def test_a_connection_that_the_kernel_gives_up_is_said_to_who_follows_a_log_without_a_limit() -> None:
    async def story() -> None:
        async with looked() as agent, agent.asking() as client:
            client.reader.set_exception(TimeoutError(errno.ETIMEDOUT, "Connection timed out"))
            with pytest.raises(InspectError, match="cannot query node"):
                await told(FOLLOWED, client)

    played(story)


def test_the_next_start_is_waited_for_and_told_from_its_beginning() -> None:
    async def story() -> None:
        async with looked() as agent, agent.asking() as one:
            agent.log.close()
            following = asyncio.create_task(told(LogQuestion(Role.WORKER, 3, 0, follow=True, g=1), one))
            await asyncio.sleep(0.2)
            log = start(agent.logs, (2, 0))
            log.write(b"first\n")
            log.close()
            assert await following == (b"==== gen 2 ====\nfirst\n", LogEnd(2, 0, over=True))

    played(story)


def test_a_log_that_does_not_grow_is_not_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspect_server, "FOLLOW_PAUSE_S", 0)

    async def story() -> None:
        async with looked() as agent, agent.asking() as one, agent.asking() as other:
            looks, piece = 0, agent.logs.piece

            def counted(name: str, place: LogPosition) -> tuple[bytes, int, LogPosition]:
                nonlocal looks
                looks += 1
                return piece(name, place)

            monkeypatch.setattr(agent.logs, "piece", counted)
            following = asyncio.create_task(told(FOLLOWED, one))
            await until(lambda: looks == 2)  # The header, and that nothing comes after it.
            for _ in range(3):
                await other.snapshot()
            assert looks == 2
            agent.log.close()
            await following

    played(story)


def test_a_start_that_is_forgotten_while_it_is_followed_is_over() -> None:
    async def story() -> None:
        async with looked() as agent, agent.asking() as one:
            following = asyncio.create_task(told(LogQuestion(Role.WORKER, 3, follow=True), one))
            await until(lambda: bool(agent.window._followers))
            await asyncio.sleep(0.2)
            for g in (2, 3):
                start(agent.logs, (g, 0), "workerlog.0")
            assert await following == (b"==== gen 1 ====\n", LogEnd(1, 0, over=True))

    played(story)


def test_an_agent_that_ends_gives_followers_what_there_is() -> None:
    async def story() -> None:
        async with looked() as agent, agent.asking() as one:
            following = asyncio.create_task(told(LogQuestion(Role.WORKER, 3, follow=True), one))
            await until(lambda: bool(agent.window._followers))
            await asyncio.sleep(0.2)
            agent.log.write(b"the last words\n")
            await agent.window.close()
            assert await following == (b"==== gen 1 ====\nthe last words\n", LogEnd(1, 0, over=False))

    played(story)


def test_a_process_that_has_not_run_here_is_said() -> None:
    async def story() -> None:
        async with looked() as agent, agent.asking() as one:
            with pytest.raises(InspectError, match="rank 4 has not run here"):
                await told(LogQuestion(Role.WORKER, 4), one)

    played(story)


def test_what_a_follower_is_too_slow_for_is_counted() -> None:
    async def story() -> None:
        async with looked() as agent, agent.asking() as one:
            missing = size = 0
            log = WorkerStartLog(Nowhere(), Path("workerlog.5"), "==== gen 1 ====")
            agent.logs.begin("/log/workerlog.5", "workerlog.5", (1, 0), "==== gen 1 ====", log)
            async for answer in one.log(LogQuestion(Role.WORKER, 5, follow=True)):
                if isinstance(answer, LogPiece):
                    missing, size = missing + answer.missing, size + len(answer.data)
                    if not log.closed:
                        for _ in range(64):
                            log.write(b"x" * (1 << 16))
                        log.close()
            assert missing + size == log.bytes_written + len("==== gen 1 ====\n")
            assert missing > 0

    played(story)
