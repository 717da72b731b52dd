"""`elastic-ctl ui` under strangers that take its connections, its descriptors and its live places."""

from __future__ import annotations

import asyncio

import aiohttp

from tests.process.browsing import served
from tests.process.crowd import crowd
from tests.process.happenings import LIMIT_S
from tests.process.jobs import Job, story


@story
async def test_hundreds_of_half_sent_requests_keep_no_browser_out_of_a_page_with_few_descriptors(job: Job) -> None:
    few = "elastic-ctl: no file descriptor is free (ulimit -n 64); new connections may have to wait\n"
    await _crowded(job, "prlimit", "--nofile=64:64", warns=few)


@story
async def test_hundreds_of_half_sent_requests_keep_no_browser_out_of_a_page_with_many_descriptors(job: Job) -> None:
    await _crowded(job)


async def _crowded(job: Job, *within: str, warns: str = "") -> None:
    await job.node("--np", "1")
    (worker,) = await job.world(1, 1)
    async with (
        served(job, within=within, warns=warns) as url,
        aiohttp.ClientSession() as browser,
        asyncio.timeout(LIMIT_S),
        browser.get(f"{url}api/job/{job.job_id}/live") as stream,
    ):
        assert b'"head"' in await stream.content.readline()
        async with crowd(int(url.split(":")[2].partition("/")[0]), 700):
            for _ in range(5):
                async with browser.get(url) as page:
                    assert page.status == 200
            await worker.exits(0)
            while b'"completed"' not in await stream.content.readline():
                pass
        async with browser.get(url) as page:
            assert page.status == 200
