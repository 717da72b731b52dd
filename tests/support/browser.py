"""A headless Chromium in which tests look at pages as people do, and `elastic-ctl ui` that serves them."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.awaited_events import LIMIT_S
from tests.support.job_harness import Job

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
REQUIRED = os.environ.get("ELASTIC_BROWSER_REQUIRED") == "1"
SCREENSHOTS = os.environ.get("ELASTIC_SCREENSHOTS")
"""A folder for pictures of what the tests saw."""
WIDE, PHONE = {"width": 1360, "height": 900}, {"width": 360, "height": 740}

browser_test = pytest.mark.browser


class Look:
    """One page in the browser, and whatever went wrong on it."""

    def __init__(self, page: Any, origin: str) -> None:
        self.page = page
        self.troubles: list[str] = []
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.troubles.append(f"error: {error}"))
        page.on("dialog", lambda dialog: self.troubles.append(f"dialog: {dialog.message}"))
        page.on("request", lambda request: self._request(request.url, origin))

    def _console(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.troubles.append(f"{message.type}: {message.text}")

    def _request(self, url: str, origin: str) -> None:
        if not url.startswith((origin, "data:")):
            self.troubles.append(f"asked elsewhere: {url}")

    async def text(self, selector: str, wanted: str) -> None:
        """Wait until an element has this in its text."""
        await self.page.locator(selector).filter(has_text=wanted).first.wait_for(timeout=LIMIT_S * 1000)

    async def said(self, selector: str) -> str:
        """The text of an element."""
        return str(await self.page.locator(selector).inner_text())

    async def fits(self) -> None:
        """See that nothing is wider than the window, on a phone and on a desk, and keep pictures of both."""
        for name, size in (("phone", PHONE), ("wide", WIDE)):
            await self.page.set_viewport_size(size)
            wide = await self.page.evaluate("document.documentElement.scrollWidth")
            assert wide <= size["width"], f"{name}: {wide}"

    async def pictures(self, name: str) -> None:
        """Keep pictures of all that the page is, if somebody wants them."""
        if not SCREENSHOTS:
            return
        for kind, size in (("phone", PHONE), ("wide", WIDE)):
            for scheme in ("light", "dark"):
                await self.page.set_viewport_size(size)
                await self.page.emulate_media(color_scheme=scheme)
                path = Path(SCREENSHOTS) / f"{name}-{kind}-{scheme}.png"
                await self.page.screenshot(path=path, full_page=True)
        await self.page.emulate_media(color_scheme="light")


@asynccontextmanager
async def browser() -> AsyncIterator[Any]:
    """A browser, or a skipped test where there is none."""
    if CHROMIUM is None and not REQUIRED:
        pytest.skip("there is no Chromium (Debian: apt-get install chromium)")
    assert CHROMIUM is not None, "ELASTIC_BROWSER_REQUIRED is set, and there is no Chromium"
    from playwright.async_api import async_playwright

    async with async_playwright() as playwright:
        found = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        try:
            yield found
        finally:
            await found.close()


async def look(browser: Any, url: str, size: Mapping[str, int] = WIDE) -> Look:
    """Open a page in a window of its own."""
    context = await browser.new_context(viewport=size, reduced_motion="reduce")
    page = await context.new_page()
    origin = "/".join(url.split("/")[:3]) + "/"
    found = Look(page, "file:///" if url.startswith("file:") else origin)
    await page.goto(url)
    return found


@asynccontextmanager
async def served(
    job: Job, *flags: str, named: bool = True, within: tuple[str, ...] = (), warns: str = ""
) -> AsyncIterator[str]:
    """`elastic-ctl ui` of this job, or of all, started by the command `within`: the address that it prints.

    At its end it has said nothing on stderr but `warns`.
    """
    process = await asyncio.create_subprocess_exec(
        *(*within, sys.executable, "-m", "launcher.ctl", "ui", "--elastic-server", job.etcd.endpoint),
        *(("--job-id", job.job_id) if named else ()),
        *flags,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        line = (await asyncio.wait_for(process.stdout.readline(), LIMIT_S)).decode()
        assert " is at http://" in line, line + (await process.communicate())[1].decode()
        yield next(word for word in line.split() if word.startswith("http"))
        process.terminate()
        assert (await process.communicate())[1].decode() == warns
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
