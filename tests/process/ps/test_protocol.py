"""What one server and its workers say to each other, over real connections."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc  # type: ignore[import-untyped, unused-ignore]
import msgspec
import pytest
import torch

from elastic.errors import MessageError, ModelMismatch, ServerLost, SessionReplaced
from elastic.train.ps import framing, protocol, service, sessions
from tests.support.ps_server_harness import PIECES, Bench, bench, message, shape

SYNC = protocol.UpdateMode.SYNC


def told(**given: Any) -> Callable[[Callable[..., Awaitable[None]]], Callable[..., None]]:
    """Make a test of a coroutine that gets a bench."""

    def make(story: Callable[..., Awaitable[None]]) -> Callable[..., None]:
        @functools.wraps(story)
        def test(self: object) -> None:
            async def play() -> None:
                async with bench(**given) as made:
                    await story(self, made)

            asyncio.run(play())

        del test.__wrapped__  # Pytest would look for the arguments of the story.
        return test

    return make


@contextmanager
def noticed() -> Iterator[None]:
    """Notices come at once."""
    before, service.NOTICE_EVERY_S = service.NOTICE_EVERY_S, 0.01
    try:
        yield
    finally:
        service.NOTICE_EVERY_S = before


@contextmanager
def given_up_after(seconds: float) -> Iterator[None]:
    """Workers that never came are given up so soon."""
    before, sessions.MISSING_AFTER_S = sessions.MISSING_AFTER_S, seconds
    try:
        yield
    finally:
        sessions.MISSING_AFTER_S = before


@contextmanager
def logged() -> Iterator[Callable[..., Awaitable[None]]]:
    """Wait for something that is logged."""
    heard: asyncio.Queue[str] = asyncio.Queue()

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            heard.put_nowait(record.getMessage())

    async def said(text: str, limit_s: float = 30) -> None:
        async with asyncio.timeout(limit_s):
            while await heard.get() != text:
                pass

    handler = Handler()
    logging.getLogger("elastic.train.ps").addHandler(handler)
    try:
        yield said
    finally:
        logging.getLogger("elastic.train.ps").removeHandler(handler)


class TestFirstValues:
    @told(trainers=2)
    async def test_those_of_worker_0_win_and_the_others_wait_for_them(self, made: Bench) -> None:
        other = asyncio.create_task(made.opened(1))
        await made.until(lambda: 1 in made.service.sessions.registered())
        assert "worker 0" in made.service.waits_for()
        first = await made.opened(0)
        await other
        answer, values = await first.call("Pull", protocol.SessionMessage(session="0-s"))
        assert [value.tolist() for value in values] == [[0, 0], [0, 0, 0]]
        assert answer.shapes == (shape("float64", 2), shape("float32", 3))

    @told(trainers=1)
    async def test_a_server_that_came_back_empty_gets_those_of_the_lowest_worker(self, made: Bench) -> None:
        link = await made.opened(3)
        _, values = await link.call("Pull", protocol.SessionMessage(session="3-s"))
        assert values[0].tolist() == [3, 3]


class TestPushes:
    @told()
    async def test_a_push_that_is_repeated_is_applied_once(self, made: Bench) -> None:
        link = await made.opened(0)
        assert await made.pushed(link, 1) == [-1, -1]
        assert await made.pushed(link, 1) == [-1, -1]
        assert await made.pushed(link, 2) == [-2, -2]

    @told()
    async def test_a_push_repeated_on_another_connection_is_applied_once(self, made: Bench) -> None:
        link = await made.opened(0)
        await made.pushed(link, 1)
        await link.abandon()
        await made.until(lambda: made.service.sessions.seen[0].state == "broken")
        again = await made.opened(0)
        assert await made.pushed(again, 1) == [-1, -1]
        assert await made.pushed(again, 2) == [-2, -2]

    @told()
    async def test_rows_are_pushed_and_pulled_by_id(self, made: Bench) -> None:
        link = await made.opened(0)
        ids, rows = torch.tensor([3, 3, 5]), torch.ones(3, 2, dtype=torch.float64)
        await link.call("Push", made.push("0-s", pieces=(), tables=(0,), pull=False), (ids, rows))
        _, (back,) = await link.call("Rows", protocol.RowsRequest(session="0-s", table=0), (torch.tensor([5, 3, 4]),))
        assert back[:, 0].tolist() == [-1, -2, 0]


class TestSync:
    @told(trainers=2, mode=SYNC)
    async def test_a_step_waits_for_all_and_applies_their_average_once(self, made: Bench) -> None:
        zero, one = await asyncio.gather(made.opened(0), made.opened(1))
        first = asyncio.create_task(made.pushed(zero, gradient=2.0))
        await made.until(lambda: made.service.barrier.missing() == [1])
        assert made.service.waits_for() == "step 0 of worker 1 (connected)"
        assert await made.pushed(one, gradient=4.0, weight=3.0) == [-3.5, -3.5]
        assert await first == [-3.5, -3.5]

    @told(trainers=2, mode=SYNC)
    async def test_the_first_step_waits_for_all_trainers(self, made: Bench) -> None:
        zero = await made.opened(0)
        first = asyncio.create_task(made.pushed(zero))
        await made.until(lambda: made.service.barrier._given)
        assert made.service.waits_for() == "worker 1 to join before the first step"
        one = await made.opened(1)
        assert await made.pushed(one, gradient=3.0) == [-2, -2]
        assert await first == [-2, -2]

    @told(trainers=2, mode=SYNC)
    async def test_a_worker_that_closes_holds_nobody_up(self, made: Bench) -> None:
        zero, one = await asyncio.gather(made.opened(0), made.opened(1))
        first = asyncio.create_task(made.pushed(zero))
        await made.until(lambda: made.service.barrier._given)
        await one.close()
        assert await first == [-1, -1]

    @told(trainers=2, mode=SYNC, lost_after_s=0.05)
    async def test_a_worker_that_is_lost_holds_nobody_up(self, made: Bench) -> None:
        zero, one = await asyncio.gather(made.opened(0), made.opened(1))
        first = asyncio.create_task(made.pushed(zero))
        await made.until(lambda: made.service.barrier._given)
        await one.abandon()
        assert await first == [-1, -1]
        assert [worker for worker, one in made.service.sessions.seen.items() if one.state.live] == [0]

    @told(trainers=2, mode=SYNC)
    async def test_a_step_given_twice_over_two_connections_counts_once(self, made: Bench) -> None:
        zero, one = await asyncio.gather(made.opened(0), made.opened(1))
        lost = asyncio.create_task(made.pushed(zero, gradient=2.0))
        await made.until(lambda: made.service.barrier._given)
        lost.cancel()
        again = asyncio.create_task(made.pushed(zero, gradient=2.0))
        assert await made.pushed(one, gradient=4.0) == [-3, -3]
        assert await again == [-3, -3]


class TestSessions:
    @told()
    async def test_a_newer_process_with_the_number_replaces_the_older_at_once(self, made: Bench) -> None:
        old = await made.opened(0, "0-old")
        new = await made.opened(0, "0-new")
        assert await made.pushed(new) == [-1, -1]
        with pytest.raises(SessionReplaced, match="another process has connected as worker 0"):
            await made.pushed(old)
        assert await made.pushed(new, 2) == [-2, -2], "the old one did not come back"

    @told()
    async def test_the_end_of_an_older_connection_is_not_that_of_the_newer_one(self, made: Bench) -> None:
        old = await made.opened(0)
        new = await made.opened(0)
        await old.abandon()
        assert await made.pushed(new) == [-1, -1]
        assert made.service.sessions.seen[0].state == "here"

    @told(lost_after_s=60.0)
    async def test_it_is_over_when_the_last_worker_closes(self, made: Bench) -> None:
        link = await made.opened(0)
        assert not made.service.finished.is_set()
        await link.close()
        assert made.service.finished.is_set()

    @told(trainers=2)
    async def test_a_server_that_came_back_knows_who_had_closed_before(self, made: Bench) -> None:
        made.service.restored([(0, "0-s", 4, "closed"), (1, "1-s", 7, "here")], 0)
        link = await made.opened(1)
        assert await made.pushed(link, 7) == [1, 1], "applied before the snapshot"
        assert not made.service.finished.is_set()
        await link.close()
        assert made.service.finished.is_set()

    @told()
    async def test_a_server_with_the_snapshot_of_a_job_that_had_ended_begins_another_job(self, made: Bench) -> None:
        made.service.restored([(0, "0-s", 4, "closed")], 9)
        assert not made.service.finished.is_set()
        link = await made.opened(0)
        assert await made.pushed(link) == [-1, -1]

    @told(lost_after_s=0.05)
    async def test_it_is_over_when_the_last_worker_is_lost(self, made: Bench) -> None:
        link = await made.opened(0)
        await link.abandon()
        async with asyncio.timeout(30):
            await made.service.finished.wait()

    @told(trainers=2)
    async def test_it_is_over_once_workers_that_never_came_are_given_up_and_that_is_said_once(
        self, made: Bench
    ) -> None:
        with logged() as said, given_up_after(0.05):
            link = await made.opened(0)
            await link.close()
            assert not made.service.finished.is_set()
            await said("1 of 2 workers never joined; the others have ended")
            assert made.service.finished.is_set()
            with pytest.raises(TimeoutError):
                await said("1 of 2 workers never joined; the others have ended", limit_s=0.1)

    @told(lost_after_s=0.05)
    async def test_a_worker_that_was_taken_for_lost_comes_back_by_itself(self, made: Bench) -> None:
        link = await made.opened(0)
        await made.pushed(link, 1)
        made.service.sessions.seen[0].state = made.service.sessions.seen[0].state.LOST
        assert await made.pushed(link, 1) == [-1, -1]
        assert await made.pushed(link, 2) == [-2, -2]
        assert [worker for worker, one in made.service.sessions.seen.items() if one.state.live] == [0]

    @told()
    async def test_a_worker_says_in_words_whom_it_waits_for(self, made: Bench) -> None:
        made.trainers = 2
        link = made.link(1)
        opening = asyncio.create_task(link.open())
        await made.until(lambda: 1 in made.service.sessions.registered())
        assert made.service.waits_for() == "worker 0 and its first values (never joined)"
        opening.cancel()


class TestWhoIsWaitedFor:
    @told(trainers=2, mode=SYNC)
    async def test_is_told_to_the_workers_again_and_again(self, made: Bench) -> None:
        with logged() as said, noticed():
            telling = asyncio.create_task(made.service.report_missing_workers())
            zero = await made.opened(0)
            pushing = asyncio.create_task(made.pushed(zero))
            await made.until(lambda: made.service.barrier._given)
            await said("parameter server 0 is waiting for worker 1 to join before the first step")
            telling.cancel()
            pushing.cancel()

    @told(trainers=2, mode=SYNC)
    async def test_is_fewer_when_the_launcher_says_that_there_are_fewer(self, made: Bench) -> None:
        with noticed():
            telling = asyncio.create_task(made.service.report_missing_workers())
            zero = await made.opened(0)
            pushing = asyncio.create_task(made.pushed(zero))
            await made.until(lambda: made.service.barrier._given)
            made.trainers = 1
            assert await pushing == [-1, -1]
            telling.cancel()


class TestAServerThatIsAway:
    @told()
    async def test_is_named_when_the_patience_is_over(self, made: Bench) -> None:
        link = await made.opened(0, patience_s=0.2)
        await made.server.stop(0)
        with pytest.raises(
            ServerLost, match=rf"server 0 at {made.address} has been unavailable for \d s .*; restart it"
        ):
            await made.pushed(link)

    @told()
    async def test_is_found_where_the_roster_says(self, made: Bench) -> None:
        link = made.link(0)
        link.address = "127.0.0.1:1"
        opening = asyncio.create_task(link.open())
        await asyncio.sleep(0)
        link.address = made.address
        await opening


class TestRefusals:
    @pytest.mark.parametrize(
        ("changed", "said"),
        [
            ({"job": "other"}, "belongs to job 'j', but the worker to 'other'"),
            ({"server": 1, "servers": 2}, "this is server 0 of 1, but the worker expects server 1 of 2"),
        ],
    )
    def test_a_worker_of_another_kind_is_told_so(self, changed: dict[str, Any], said: str) -> None:
        async def play() -> None:
            async with bench() as made:
                link = made.link(0)
                link._session_request = made.hello(0, **changed)
                with pytest.raises(ModelMismatch, match=said):
                    await link.open()
                assert not made.service.sessions.seen

        asyncio.run(play())

    @told()
    async def test_a_worker_that_speaks_another_version_is_told_so(self, made: Bench) -> None:
        of_version_1 = {"version": 1, "job": "j", "server": 0, "servers": 1, "worker": 0, "session": "0-s"}
        for sent in (of_version_1, {"version": 9, "nonce": "0" * 32}):
            said = await made.refusal(sent)
            assert (
                said == f"this server uses version {protocol.VERSION} of the protocol, but the worker {sent['version']}"
            )
        assert not made.service.sessions.seen

    @told()
    async def test_another_model_is_refused(self, made: Bench) -> None:
        await made.opened(0)
        with pytest.raises(ModelMismatch, match="the servers have v of shape"):
            await made.opened(1, pieces=PIECES[:1])

    @told()
    async def test_a_push_that_does_not_fit_is_refused_and_the_session_lives_on(self, made: Bench) -> None:
        link = await made.opened(0)
        with pytest.raises(MessageError, match="does not fit w of shape"):
            await link.call("Push", made.push("0-s"), (torch.ones(5),))
        assert await made.pushed(link) == [-1, -1]

    @told()
    async def test_a_server_that_answers_something_else_is_not_believed(self, made: Bench) -> None:
        link = await made.opened(0)
        with pytest.raises(MessageError, match="other tensors"):
            await link.call("Pull", protocol.SessionMessage(session="0-s"), expected=())


class TestHostile:
    @told()
    async def test_strangers_are_refused_before_their_tensors_are_read(self, made: Bench) -> None:
        link = await made.opened(0)
        big = torch.zeros(2**21)
        refused = grpc.StatusCode.FAILED_PRECONDITION
        for method, header in (
            ("Push", made.push("0-x"[:2] + "9")),
            ("Register", made.register("7-a", given=(0,))),
        ):
            code, _ = await made.raw(method, message(header, big)[0])
            assert code in (refused, grpc.StatusCode.ABORTED)
        for method, bare in (
            ("Pull", protocol.SessionMessage(session="7-a")),
            ("Close", protocol.SessionMessage(session="7-a")),
        ):
            code, _ = await made.raw(method, *message(bare))
            assert code is refused
        assert await made.pushed(link) == [-1, -1]

    @told()
    async def test_broken_messages_with_a_good_session_change_nothing(self, made: Bench) -> None:
        link = await made.opened(0)
        good = b"".join(message(made.push("0-s", 5), torch.ones(2, dtype=torch.float64)))
        ids = torch.tensor([1])
        wrong = shape("float64", 2**39)
        attacks: tuple[tuple[str, *tuple[bytes, ...]], ...] = (
            ("Push", good[:-1]),
            ("Push", good + b"x"),
            ("Push", b""),
            ("Push",),
            ("Push", b"\xff" * 100),
            ("Push", b"\x00\x00\x00\x00"),
            ("Push", *message(made.push("0-s", 5, pieces=(0, 0)), *[torch.ones(2, dtype=torch.float64)] * 2)),
            ("Push", *message(made.push("0-s", 5, lr=float("inf")), torch.ones(2, dtype=torch.float64))),
            (
                "Push",
                *message(made.push("0-s", 5, pieces=(), tables=(0,)), torch.tensor([99]), torch.ones(1, 2).double()),
            ),
            ("Push", packed(made.push("0-s", 5, shapes=(wrong,)))),
            ("Pull", *message(protocol.SessionMessage(session="0-s"), torch.ones(1))),
            ("Pull", packed(protocol.SessionMessage(session="0-s", shapes=(wrong,)))),
            ("Rows", *message(protocol.RowsRequest(session="0-s", table=7), ids)),
            ("Rows", *message(protocol.RowsRequest(session="0-s", table=0), ids.float())),
            ("Rows", *message(protocol.RowsRequest(session="0-s", table=0), torch.tensor([-1]))),
            ("Rows", *message(protocol.RowsRequest(session="0-s", table=0), torch.tensor([10]))),
            ("Rows", packed(protocol.RowsRequest(session="0-s", table=0, shapes=(shape("int64", 2**35),)))),
            ("Register", *message(made.register("0-s", given=(0,)), torch.ones(3, dtype=torch.float64))),
            ("Register", *message(made.register("0-s"), torch.ones(2, dtype=torch.float64))),
            ("Register", *message(made.register("0-s", given=(7,)), torch.ones(2, dtype=torch.float64))),
            ("Register", *message(made.register("0-s", tables=()))),
        )
        for method, *sent in attacks:
            code, back = await made.raw(method, *sent)
            assert code in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.ALREADY_EXISTS), (method, sent)
            assert back == b""
        assert await made.pushed(link) == [-1, -1]

    @told()
    async def test_there_is_no_other_method(self, made: Bench) -> None:
        assert (await made.raw("Pickle", b"x"))[0] is grpc.StatusCode.UNIMPLEMENTED


def packed(header: framing.MessageHeader) -> bytes:
    """A header that announces tensors which do not follow."""
    raw = msgspec.msgpack.encode(header)
    return framing._LENGTH.pack(len(raw)) + raw
