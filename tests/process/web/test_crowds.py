"""`elastic-ctl ui` under strangers that take its connections, its descriptors and its live places."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
from aiohttp import web

from launcher.web.job_feed import FOLLOWED_MAX
from launcher.web.server import BROWSERS_MAX
from tests.support.awaited_events import LIMIT_S, played
from tests.support.browser import browser, browser_test, look, served
from tests.support.connection_flood import crowd
from tests.support.job_harness import Job, story
from tests.support.page_server import serving


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
        aiohttp.ClientSession() as client,
        asyncio.timeout(LIMIT_S),
        client.get(f"{url}api/job/{job.job_id}/live") as stream,
    ):
        assert b'"head"' in await stream.content.readline()
        async with crowd(int(url.split(":")[2].partition("/")[0]), 700):
            for _ in range(5):
                async with client.get(url) as page:
                    assert page.status == 200
            await worker.exits(0)
            while b'"completed"' not in await stream.content.readline():
                pass
        async with client.get(url) as page:
            assert page.status == 200


ASKS_FOR_PLACES = """async ([base, count]) => {
  const ask = (path) => fetch(base + path, { mode: "no-cors", referrerPolicy: "no-referrer" }).catch(() => 0);
  const show = (path) => new Promise((done) => {
    const image = new Image();
    image.onload = image.onerror = done;
    image.src = base + path;
  });
  await Promise.all([...Array(count).keys()].flatMap((number) => [
    ask(`/api/job/j/live?${number}`),
    ask(`/api/job/none-${number}/live`),
    show(`/api/job/j/live?image${number}`),
    show(`/api/job/none-${number}`),
  ]));
}"""


@browser_test
@played
async def test_a_page_of_another_site_in_a_browser_takes_no_live_place_and_a_link_from_it_opens_the_page() -> None:
    async with serving() as one, browser() as chromium, another_site(f"{one.base}/job/j") as url:
        page = await (await chromium.new_context()).new_page()
        await page.goto(url)
        await page.evaluate(ASKS_FOR_PLACES, [one.base, FOLLOWED_MAX + BROWSERS_MAX])
        assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("follow ")]
        await page.get_by_role("link").click()
        await page.locator("body[data-contact=live]").wait_for()
        seen = await look(chromium, f"{one.base}/job/j")
        await seen.page.locator("body[data-contact=live]").wait_for()
        assert seen.troubles == []


@asynccontextmanager
async def another_site(link: str) -> AsyncIterator[str]:
    """A page under another name than 127.0.0.1, with a link to ours."""

    async def page(request: web.BaseRequest) -> web.Response:
        return web.Response(text=f'<a href="{link}">a link</a>', content_type="text/html")

    runner = web.ServerRunner(web.Server(page))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://localhost:{runner.addresses[0][1]}/"
    finally:
        await runner.cleanup()
