"""The server of the page beside strangers: other names, other origins, crowds, browsers that do not read."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiohttp
import pytest
from msgspec.structs import replace

from elastic.core.keys import JobKeys
from elastic.core.kv import Delete, KeyRange, Put
from elastic.core.view import StoreView, encode
from launcher.job.named_job import NamedJob
from launcher.job.overview import JobOverview
from launcher.job.status import describe
from launcher.job.submit import DEADLINE_MIN_S
from launcher.web import api, job_feed, server
from launcher.web.job_feed import FOLLOWED_MAX
from launcher.web.server import BROWSERS_MAX
from launcher.wire.inspect_messages import WorkerState
from tests.support.awaited_events import played
from tests.support.inspect_documents import window, worker
from tests.support.page_server import TOKEN, serving
from tests.support.stored_job import MEMBER, SPEC


@played
async def test_every_answer_is_kept_by_nobody_and_read_by_no_other_origin() -> None:
    async with serving() as one:
        for path in ("/", "/job/j", "/api/jobs", "/api/job/j", "/nowhere"):
            _, headers, _ = await one.get(path)
            assert headers["Cache-Control"] == "no-store"
            assert headers["X-Content-Type-Options"] == "nosniff"
            assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
            assert "Access-Control-Allow-Origin" not in headers
        assert (await one.get("/"))[1]["Content-Security-Policy"].startswith("default-src 'none'; ")


@played
async def test_who_came_by_a_name_that_is_not_ours_gets_nothing() -> None:
    async with serving() as one:
        for name in ("evil.example", "localhost.evil.example:80", "[::1].evil.example", "10.0.0.1", ""):
            status, _, said = await one.get("/api/job/j", Host=name)
            assert status == 403, name
            assert "head" not in said
        for name in ("localhost:1", "127.0.0.1", "[::1]:80", "LOCALHOST"):
            assert (await one.get("/api/jobs", Host=name))[0] == 200, name


@played
async def test_a_server_for_every_address_answers_under_addresses_and_no_name_of_others() -> None:
    async with serving(host="0.0.0.0") as one:
        assert (await one.get("/api/jobs", Host="10.0.0.7:80"))[0] == 200
        assert (await one.get("/api/jobs", Host="evil.example"))[0] == 403


@played
async def test_a_job_is_told_whole_and_all_jobs_in_a_list() -> None:
    async with serving() as one:
        told = json.loads((await one.get("/api/job/j"))[2])
        assert (told["head"]["job_id"], told["head"]["generation"], len(told["nodes"])) == ("j", 3, 2)
        assert [job["job_id"] for job in json.loads((await one.get("/api/jobs"))[2])["jobs"]] == ["j"]
        told = json.loads((await one.get("/api/job/other"))[2])
        assert "There is no job other in etcd" in told["absent"]


@played
async def test_a_page_of_one_job_shows_no_other() -> None:
    async with serving(only="j") as one:
        assert (await one.get("/api/job/j"))[0] == 200
        for path in ("/api/jobs", "/api/job/k", "/job/k", "/api/job/..%2Fj"):
            assert (await one.get(path))[0] == 404, path


@played
async def test_actions_need_the_token_the_pages_own_origin_and_json() -> None:
    async with serving(TOKEN) as one:
        before = one.core.revision
        for headers in (
            {"Authorization": ""},
            {"Authorization": "Bearer wrong"},
            {"Authorization": "Bearer tökèn"},
            {"Origin": "http://evil.example"},
            {"Origin": "null"},
            {"Content-Type": "text/plain"},
        ):
            assert (await one.act({"action": "stop"}, **headers))[0] == 403, headers
        short = {"action": "drain", "node": "a", "deadline": str(DEADLINE_MIN_S - 1)}
        wrong_ones: tuple[object, ...] = ("stop", {}, {"action": "shout"}, {"action": "scale", "np": "0"}, [], short)
        for wrong in (*wrong_ones, {"action": "stop", "more": 1}):
            status, said = await one.act(wrong)
            assert status == 400, wrong
            assert "\n" not in said["error"]
        assert one.core.revision == before, "nothing was written"
        status, said = await one.act({"action": "scale", "np": "1"})
        assert (status, said["said"]) == (
            200,
            "j: --np 2 becomes 1; 2 nodes run: 1 of them will stop and wait as a spare",
        )


@played
async def test_without_a_token_there_are_no_actions() -> None:
    async with serving() as one:
        for given in ("", "Bearer ", "Bearer None"):
            status, said = await one.act({"action": "stop", "now": True}, Authorization=given)
            assert (status, said["error"]) == (403, "this page is read-only; start elastic-ctl ui with --allow-actions")


def test_who_asks_for_job_after_job_makes_it_follow_some_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_feed, "FOLLOWED_MAX", 2)

    @played
    async def some() -> None:
        async with serving() as one:
            one.core.txn((), [Put(JobKeys(f"j{number}", "/p").spec, encode(SPEC)) for number in range(5)])
            answers = [await one.get(f"/api/job/j{number}") for number in range(4)]
            assert [status for status, _, _ in answers] == [200, 200, 409, 409]
            assert "2 jobs are followed already" in answers[-1][2]
            status, headers, said = await one.get("/api/job/j4/live")
            assert (status, headers["Content-Type"]) == (200, server.STREAM)
            assert 'data: {"full":"2 jobs are followed already' in said

    some()


@played
async def test_jobs_that_do_not_exist_take_no_place() -> None:
    async with serving() as one:
        for number in range(FOLLOWED_MAX + BROWSERS_MAX):
            status, headers, said = await one.get(f"/api/job/none-{number}/live")
            assert (status, headers["Content-Type"]) == (200, server.STREAM)
            assert f"There is no job none-{number} in etcd" in said
        assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("follow ")]
        async with one.client.get(f"{one.base}/api/job/j/live") as stream:
            assert b'"head"' in await stream.content.readline()


@played
async def test_a_page_of_another_site_gets_nothing_and_takes_no_place_but_a_link_to_the_page_can_be_followed() -> None:
    """With the headers that Chromium sends."""
    async with serving(TOKEN) as one:
        for site in ("cross-site", "same-site"):
            image = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"}
            for path in ("/", "/job/j", "/api/jobs", "/api/job/j", "/api/job/j/live", "/api/job/j/log/worker:0"):
                assert (await one.get(path, **image))[0] == 403, path
            for _ in range(BROWSERS_MAX):
                assert (await one.get("/api/job/j/live", **image))[0] == 403
            link = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "navigate"}
            assert (await one.get("/job/j", **link, **{"Sec-Fetch-Dest": "document"}))[0] == 200
            assert (await one.get("/job/j", **link, **{"Sec-Fetch-Dest": "iframe"}))[0] == 403
            assert (await one.get("/api/job/j/live", **link, **{"Sec-Fetch-Dest": "document"}))[0] == 403
            assert (await one.act({"action": "stop"}, **{"Sec-Fetch-Site": site}))[0] == 403
        assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("follow ")]
        own = {"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors", "Sec-Fetch-Dest": "empty"}
        assert (await one.get("/api/job/j", **own))[0] == 200


@played
async def test_many_look_at_a_job_and_the_store_is_read_once_and_written_never() -> None:
    async with serving() as one:
        before = one.core.revision
        streams = [await one.client.get(f"{one.base}/api/job/j/live") for _ in range(BROWSERS_MAX)]
        for stream in streams:
            assert b'"head"' in await stream.content.readline()
        async with one.client.get(f"{one.base}/api/job/j/live") as late:
            assert "16 pages are open already" in await late.text()
        one.core.txn((), (Put(JobKeys("j", "/p").spec, encode(SPEC)),))
        for stream in streams:
            stream.close()
        assert one.core.revision == before + 1
        assert len([task for task in asyncio.all_tasks() if task.get_name() == "follow j"]) == 1


def handlers() -> list[asyncio.Task[Any]]:
    """What makes answers at the moment, in aiohttp."""
    return [task for task in asyncio.all_tasks() if "_handle_request" in repr(task.get_coro())]


def test_the_place_of_a_page_is_free_as_soon_as_its_browser_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "QUIET_S", 1000.0)
    monkeypatch.setattr(job_feed, "ASK_EVERY_S", 1000.0)

    @played
    async def free() -> None:
        async with serving() as one:
            for _ in range(3):
                streams = [await one.client.get(f"{one.base}/api/job/j/live") for _ in range(BROWSERS_MAX)]
                answering = handlers()
                assert len(answering) == BROWSERS_MAX
                for stream in streams:
                    assert b'"head"' in await stream.content.readline()
                    stream.close()
                await asyncio.wait(answering)

    free()


def test_an_action_that_is_not_sent_in_time_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "ACTION_S", 0.1)

    @played
    async def late() -> None:
        async with serving(TOKEN) as one:
            before = one.core.revision
            reader, writer = await asyncio.open_connection("127.0.0.1", int(one.base.rpartition(":")[2]))
            host = one.base.removeprefix("http://")
            writer.write(
                f"POST /api/job/j/actions HTTP/1.1\r\nHost: {host}\r\nOrigin: {one.base}\r\n"
                f"Authorization: Bearer {TOKEN}\r\nContent-Type: application/json\r\nContent-Length: 17\r\n\r\n"
                '{"action":"stop"'.encode()
            )
            assert (await reader.read()).startswith(b"HTTP/1.1 408 ")
            assert one.core.revision == before
            writer.close()

    late()


def test_an_action_is_carried_out_whole_although_its_browser_goes_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    began, goes, done = asyncio.Event(), asyncio.Event(), asyncio.Event()
    ordered = api.carry_out

    async def slowly(job: NamedJob, asked: bytes) -> str:
        began.set()
        await goes.wait()
        said = await ordered(job, asked)
        done.set()
        return said

    monkeypatch.setattr(server, "carry_out", slowly)

    @played
    async def gone() -> None:
        async with serving(TOKEN) as one:
            before = one.core.revision
            asking = asyncio.create_task(one.act({"action": "scale", "np": "1"}))
            await began.wait()
            answering = handlers()
            asking.cancel()
            await asyncio.wait(answering)
            goes.set()
            await done.wait()
            assert one.core.revision > before

    gone()


def answering(now: dict[str, Any]) -> Callable[[NamedJob, StoreView], Awaitable[JobOverview]]:
    """Nodes that have stood since a whole second and make no steps but those that are put into `now`."""
    began = time.monotonic() - 100.0 - time.time() % 1

    async def picture(job: NamedJob, view: StoreView) -> JobOverview:
        age_s = time.monotonic() - began
        one = replace(worker(0, WorkerState.STEPPING, step=now["step"]), step_age_s=0.1, since_s=age_s)
        said = replace(window(one), since_s=age_s, up_s=age_s)
        windows = {node: said for node in view.members if now.get("reached", True)}
        return JobOverview(status=describe(view, job.job_id), snapshots=windows, unreachable={}, asked_at=time.time())

    return picture


async def sections_of(answer: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    async for line in answer.content:
        if line.startswith(b"data:"):
            yield json.loads(line.removeprefix(b"data:"))


def test_what_stands_still_is_since_the_same_moment_in_each_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_feed, "ASK_EVERY_S", 1.2)
    monkeypatch.setattr(job_feed, "overview_of", answering({"step": 7}))

    @played
    async def still() -> None:
        seen = []
        async with serving() as one, one.client.get(f"{one.base}/api/job/j/live") as answer:
            heads = 0
            async for found in sections_of(answer):
                heads += "head" in found
                seen += [node for node in found.get("nodes", ()) if "since" in node]
                if heads == 4:
                    break
        assert len(seen) == 2, "each node is told once"
        assert len({node["since"] for node in seen}) == 1

    still()


def test_the_curve_of_a_job_that_was_forgotten_is_not_drawn_in_the_next_one_of_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(job_feed, "ASK_EVERY_S", 0.4)
    now: dict[str, Any] = {"step": 1000}
    monkeypatch.setattr(job_feed, "overview_of", answering(now))

    @played
    async def forgotten() -> None:
        async with serving() as one, one.client.get(f"{one.base}/api/job/j/live") as answer:
            told = sections_of(answer)
            await anext(found async for found in told if found.get("course", {}).get("points"))
            now["reached"] = False
            keys = JobKeys("j", "/p")
            stored = one.core.list(KeyRange.prefix(keys.root)).entries
            one.core.txn((), (Delete(KeyRange.prefix(keys.root)),))
            await anext(found async for found in told if found.get("absent"))
            again = [Put(entry.key, entry.value) for entry in stored if entry.key != keys.incarnation]
            one.core.txn((), (*again, Put(keys.incarnation, encode("i2"))))
            found = await anext(found async for found in told if "course" in found)
            assert found["course"]["points"] == []

    forgotten()


def test_a_browser_that_takes_nothing_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "SLOW_S", 0.2)
    monkeypatch.setattr(job_feed, "PACE_S", 0.0)
    monkeypatch.setattr(server, "message", lambda *_: b'"' + b"x" * (1 << 20) + b'"')

    @played
    async def cut_off() -> None:
        async with serving() as one:
            reader, writer = await asyncio.open_connection("127.0.0.1", int(one.base.rpartition(":")[2]), limit=1024)
            writer.write(b"GET /api/job/j/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
            keys = JobKeys("j", "/p")
            while not reader.at_eof():  # Nothing is read, and something changes all the time.
                one.core.txn((), (Put(keys.member("a"), encode(MEMBER)),))
                await asyncio.sleep(0.05)
                if reader.exception() is not None or writer.transport.is_closing():
                    break
                writer.write(b"\r\n")
            writer.close()

    cut_off()
