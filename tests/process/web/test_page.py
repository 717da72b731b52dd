"""The page of a job in a real browser: a node dies while somebody looks, orders, hostile text, the file to keep."""

from __future__ import annotations

import asyncio
import json
import re
from itertools import pairwise

import pytest

from launcher.history.training_curve import CurvePoint, TrainingCurve
from launcher.web import server
from launcher.web.html import document
from tests.support import gated_training
from tests.support.awaited_events import played
from tests.support.browser import browser, browser_test, look, served
from tests.support.ctl_commands import ctl
from tests.support.job_harness import QUICK_TTL_S, Job, story, story_with_its_own_etcd
from tests.support.job_reports import FIRST
from tests.support.page_server import TOKEN, serving
from tests.support.page_values import picture, told
from tests.support.worker_messages import reports_steps

DIGITS = ("--checkpoint_every", "20", "--print_every", "10", "--epochs", "10")
HOSTILE = "</script><script>window.taken=1</script><img src=x onerror=taken=1> \"'&\x07\x1b[31m‮ ]]>"


@browser_test
@story
async def test_who_has_the_page_open_while_a_node_is_killed_sees_the_loss_the_recovery_and_the_new_world(
    job: Job,
) -> None:
    """Real training, and nobody loads the page again."""
    with gated_training.gate(job.folder) as gate:
        await _killed(job, gate)


async def _killed(job: Job, gate: gated_training.Gate) -> None:
    async with browser() as chromium, served(job) as url:
        seen = await look(chromium, url)
        await seen.text("#notices", "There is no job")
        script = (*gate.words, *DIGITS)
        for _ in range(3):
            await job.node("--np", "3", "--preload", "sklearn.datasets", ttl_s=QUICK_TTL_S, script=script)
        await seen.text("#state", "training")
        await seen.text("#map-sum", "3 nodes, 3 workers")
        await seen.page.evaluate("window.loaded = 'once'")
        await seen.page.locator(".worker[data-tone=run]").nth(2).wait_for()
        await seen.pictures("training")
        victim = job.nodes[1]
        await victim.killed()
        await seen.text("#gone", victim.id)
        await seen.text("#recoveries", "generation 2 · node lost")
        await seen.text("#map-sum", "2 nodes, 2 workers")
        await seen.text("#state", "training")
        await seen.pictures("recovered")
        stack = await seen.page.locator("#recoveries li .stack").first.get_attribute("aria-label")
        for phase in ("detect", "stop", "group", "step"):
            assert f"{phase} " in str(stack)
        tiles = await seen.said("#tiles")
        assert "1 × node lost" in tiles
        mark = seen.page.locator('#timeline [data-choice="pause 2"]')
        await mark.hover()
        assert "was lost" in await seen.said("#timeline-caption")
        await seen.text(".chart", "Loss")
        await seen.fits()
        gate.open()
        await seen.text("#state", "completed")
        await seen.text("#sentence", "Completed: every worker of generation 2")
        assert await seen.page.evaluate("window.loaded") == "once"
        await seen.pictures("completed")
        assert seen.troubles == []


@browser_test
@story
async def test_only_who_has_the_token_sees_buttons_and_each_order_says_what_follows_and_is_carried_out(
    job: Job,
) -> None:
    for _ in range(2):
        await job.node("--np", "2")
    await job.world(1, 2)
    async with browser() as chromium, served(job, "--allow-actions", named=False) as url:
        without = await look(chromium, url.partition("#")[0])
        await without.page.get_by_role("link", name=job.job_id).click()
        await without.text("#state", "starting")
        assert await without.page.get_by_role("button", name="Stop").count() == 0
        seen = await look(chromium, url)
        assert "token" not in seen.page.url
        await seen.page.get_by_role("link", name=job.job_id).click()
        await seen.page.get_by_role("button", name="Scale").click()
        await seen.page.get_by_label("np:").fill("none")
        await seen.page.get_by_role("button", name="Scale", exact=True).click()
        await seen.text("#ask .said", "'none' is neither a number of nodes (2, or 2+) nor a range")
        await seen.page.get_by_label("np:").fill("1")
        await seen.page.get_by_role("button", name="Scale", exact=True).click()
        await seen.text("#ask .said", "1 of them will stop and wait")
        await job.world(2, 1)
        await seen.page.get_by_role("button", name="Close").click()
        await seen.text("#outside", "spare")
        spare = str(await seen.page.locator("#outside .name").inner_text())
        await seen.page.locator("#outside .name").click()
        await seen.page.get_by_role("button", name="Drain").click()
        await seen.page.get_by_role("button", name="Drain", exact=True).click()
        await seen.text("#ask .said", f"draining {spare}")
        await seen.page.get_by_role("button", name="Close").click()
        await seen.page.locator("#outside-part").wait_for(state="hidden")
        await seen.page.get_by_role("button", name="Stop").click()
        await seen.page.get_by_role("button", name="Stop the job").click()
        await seen.text("#ask .said", "the workers of 1 node will save and exit, then its agent exits")
        await seen.text("#sentence", "Stopped: elastic-ctl stop by")
        assert without.troubles == []
        assert [one for one in seen.troubles if "400 (Bad Request)" not in one] == [], "but for the np that was none"
    for node in job.nodes:
        assert await node.exits() == 0


@browser_test
@played
async def test_an_address_whose_token_cannot_be_read_opens_the_page_all_the_same() -> None:
    async with serving(TOKEN) as one, browser() as chromium:
        seen = await look(chromium, f"{one.base}/job/j#token=100%zz")
        await seen.page.locator("body[data-contact=live]").wait_for()
        assert "token" not in seen.page.url
        assert seen.troubles == []


@browser_test
@story
async def test_text_of_a_job_stays_text_on_the_page_and_in_the_file_to_keep(job: Job) -> None:
    node = await job.node("--np", "1", "--max-restarts", "0")
    (worker,) = await job.world(1, 1)
    await worker.obeys("print", HOSTILE)
    await worker.obeys("complain", HOSTILE)
    await reports_steps(worker, 1, 2)
    async with browser() as chromium, served(job) as url:
        seen = await look(chromium, url)
        await seen.page.get_by_role("button", name="rank 0").click()
        await seen.page.get_by_role("button", name="Show last log lines").click()
        await seen.text("#panel pre", "<script>window.taken=1</script>")
        await seen.page.get_by_role("button", name="Close").click()
        await worker.exits(3)
        assert await node.exits() == 1
        await seen.text("#failure-words", "Rank 0")
        await seen.text("#failure-tail", "<script>window.taken=1</script>")
        await seen.text("#state", "failed")

        path = job.folder / "kept.html"
        code, out, err = await ctl(job, "report", "--out", str(path))
        assert (code, err) == (0, "")
        assert out.startswith(f"The report of job {job.job_id} is {path} (")
        code, out, err = await ctl(job, "report", "--out", str(path))
        assert (code, out) == (2, "")
        assert err.endswith(f"{path} already exists; add --force to replace it, or name another file with --out\n")
        kept = await look(chromium, path.as_uri())
        await kept.text("#failure-tail", "<script>window.taken=1</script>")
        await kept.text("#contact", "as of ")
        await kept.fits()
        await kept.pictures("failed")
        for one in (seen, kept):
            assert await one.page.evaluate("window.taken") is None
            assert one.troubles == []
    code, out, err = await ctl(job, "report", "--out", "-")
    assert (code, err, out.startswith("<!doctype html>")) == (0, "", True)
    assert out.count("</script>") == 3


@browser_test
def test_a_page_for_which_there_is_no_room_says_so_and_not_that_nobody_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "BROWSERS_MAX", 0)

    @played
    async def full() -> None:
        async with serving() as one, browser() as chromium:
            seen = await look(chromium, f"{one.base}/job/j")
            await seen.text("#notices", "pages are open already")
            await seen.page.wait_for_event("request", lambda request: request.url.endswith("/live"))
            assert "has not answered" not in await seen.said("#notices")
            monkeypatch.setattr(server, "BROWSERS_MAX", 1)
            await seen.page.locator("body[data-contact=live]").wait_for()
            assert await seen.said("#notices") == ""

    full()


@browser_test
@story_with_its_own_etcd
async def test_a_page_outlives_an_etcd_that_goes_away_and_says_since_when(job: Job) -> None:
    await job.node("--np", "1")
    (worker,) = await job.world(1, 1)
    await reports_steps(worker, 1)
    async with browser() as chromium, served(job) as url:
        seen = await look(chromium, url)
        await seen.text("#state", "training")
        await asyncio.to_thread(job.etcd.kill)
        await seen.text("#notices", "etcd has not answered since")
        assert await seen.page.locator("body").get_attribute("data-contact") == "stale"
        assert await seen.said("#title") == job.job_id
        await asyncio.to_thread(job.etcd.start)
        await seen.page.locator("body[data-contact=live]").wait_for()
        assert await seen.said("#notices") == ""
        await worker.exits(0)
        await seen.text("#state", "completed")


@browser_test
@story
async def test_the_page_has_a_name_for_everything_that_can_be_pressed_and_headings_in_their_order(job: Job) -> None:
    await job.node("--np", "1")
    (worker,) = await job.world(1, 1)
    await reports_steps(worker, 1, 2, 3)
    async with browser() as chromium, served(job) as url:
        seen = await look(chromium, url)
        await seen.text("#recoveries", "generation 1")
        unnamed = """[...document.querySelectorAll('button, a[href], [tabindex="0"], input')].filter(
            (one) => !(one.getAttribute('aria-label') || one.textContent || one.labels?.length).trim?.()).length"""
        assert await seen.page.evaluate(unnamed) == 0
        shown = "[...document.querySelectorAll('h1, h2, h3')].filter((one) => one.offsetParent)"
        levels = await seen.page.evaluate(f"{shown}.map((one) => +one.tagName[1])")
        assert levels[0] == 1
        assert all(after - before <= 1 for before, after in pairwise(levels))
        await seen.page.keyboard.press("Tab")
        assert await seen.page.evaluate("document.activeElement.textContent") == "Skip to the job"
        for scheme in ("light", "dark"):
            await seen.page.emulate_media(color_scheme=scheme)
            pale = json.loads(await seen.page.evaluate(PALE))
            assert pale == [], scheme


@browser_test
@story
async def test_a_page_that_nobody_sees_leaves_its_connection_to_others_and_goes_on_when_it_is_seen_again(
    job: Job,
) -> None:
    """A browser has six of them to one server."""
    async with browser() as chromium, served(job) as url:
        first = await look(chromium, url)
        page = first.page
        for _ in range(7):
            await page.locator("body[data-contact=live]").wait_for()
            await page.evaluate(SEEN, False)
            page = await first.page.context.new_page()
            await page.goto(url)
        await job.node("--np", "1")
        await job.world(1, 1)
        await first.page.evaluate(SEEN, True)
        await first.text("#map-sum", "1 node")
        assert first.troubles == []


SEEN = """(seen) => {
  Object.defineProperty(document, "hidden", { value: !seen, configurable: true });
  document.dispatchEvent(new Event("visibilitychange"));
}"""
"""What a browser does when somebody comes to another page, or back to this one."""

NARROW = [(0.3, 0.30000000000000004), (0.9999999999999999, 1.0), (-1e308, 1e308), (5e-324, 5e-324), (0.1, 0.1)]


@browser_test
@story
async def test_values_that_differ_by_their_last_bit_or_by_all_there_is_are_drawn_and_one_that_is_none_is_named(
    job: Job,
) -> None:
    """The marks beside a chart never end its drawing."""
    names = tuple(f"metric {number}" for number in range(len(NARROW) - 1))
    points = tuple(
        CurvePoint(step, 10.0 + step, 1, NARROW[0][step], None, tuple(pair[step] for pair in NARROW[1:]))
        for step in (0, 1)
    )
    data = told(picture(5, loss=None), *FIRST[:2], points=TrainingCurve(names=names, points=points))
    path = job.folder / "narrow.html"
    path.write_bytes(document({"job": "j"}, data).html)
    async with browser() as chromium:
        seen = await look(chromium, path.as_uri())
        await seen.text("#tiles", "not finite")
        assert await seen.page.locator(".chart svg").count() == len(NARROW)
        lines = await seen.page.locator(".chart .line").evaluate_all(
            "(found) => found.map((one) => one.getAttribute('d'))"
        )
        for line in lines:
            heights = [float(piece.split()[1]) for piece in re.split("[ML]", line)[1:]]
            assert len(heights) == 2, line
            assert all(0 <= height <= 190 for height in heights), line
        marks = await seen.page.locator(".chart .grid").count()
        assert 2 * len(NARROW) <= marks <= 6 * len(NARROW)
        assert seen.troubles == []


PALE = """JSON.stringify([...document.querySelectorAll('body *')].filter((one) => one.offsetParent
  && !one.closest('svg')
  && [...one.childNodes].some((part) => part.nodeType === 3 && part.textContent.trim())).map((one) => {
  const parts = (text) => text.match(/[0-9.]+/g).map(Number);
  const light = (text) => {
    const linear = (part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
    const [r, g, b] = parts(text).map((part) => linear(part / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  let below = one;
  while (below && (parts(getComputedStyle(below).backgroundColor)[3] ?? 1) === 0) below = below.parentElement;
  const pair = [light(getComputedStyle(one).color), below ? light(getComputedStyle(below).backgroundColor) : 1];
  const contrast = (Math.max(...pair) + 0.05) / (Math.min(...pair) + 0.05);
  return [`${one.className}: ${one.textContent.trim().slice(0, 40)}`, contrast];
}).filter(([, contrast]) => contrast < 4.5))"""
"""Texts whose contrast with what is below them is too low to read (WCAG AA)."""
