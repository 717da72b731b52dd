"""Takes the screenshots of the dashboard in docs: a real job of three nodes, one of which is killed and replaced.

    python -m tests.bench.screenshots [--to docs] [--keep FOLDER]

Each node has an address of its own on this machine's loopback interface. `--keep` also keeps pictures of the whole
page in both colour schemes and sizes, while the job trains and after its end, and its HTML report.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from pathlib import Path
from typing import Any, Final

from elastic.store.embedded import find_etcd
from tests.support.agent_process import Node
from tests.support.browser import Look, browser, look, served
from tests.support.ctl_commands import ctl
from tests.support.etcd_servers import one_server
from tests.support.job_harness import Job
from tests.support.small_png import reduced

DESK: Final = {"width": 1280, "height": 900}
PHONE: Final = {"width": 390, "height": 844}
DESK_PART, PHONE_PART = "#charts-part", "#timeline-part"
"""The pictures of docs end below these parts of the page."""
MARGIN_PX: Final = 16
JOB: Final = "digits"
SCRIPT: Final = ("-m", "elastic.examples.digits", "--epochs", "170", "--step_time", "0.02", "--checkpoint_every", "100")
BETWEEN_S: Final = 12.0
"""From one change of the job to the next."""


async def join(job: Job, host: int) -> Node:
    """Start a node on an address of its own."""
    flags = ("--np", "3+", "--host", f"127.0.0.{host}", "--preload", "sklearn.datasets")
    return await job.node(*flags, script=SCRIPT)


async def take(seen: Look, size: dict[str, int], scheme: str, part: str = "") -> bytes:
    """Take a picture of the page in a window of this size, down to the end of a part, or of the whole page."""
    await seen.page.set_viewport_size(size)
    await seen.page.emulate_media(color_scheme=scheme)
    await seen.page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    if not part:
        return bytes(await seen.page.screenshot(full_page=True))
    box = await seen.page.locator(part).bounding_box()
    clip = {"x": 0, "y": 0, "width": size["width"], "height": box["y"] + box["height"] + MARGIN_PX}
    return bytes(await seen.page.screenshot(full_page=True, clip=clip))


async def keep(seen: Look, folder: Path | None, name: str) -> None:
    """Take pictures of the whole page in every size and colour scheme."""
    if folder is None:
        return
    for size in (DESK, PHONE):
        for scheme in ("light", "dark"):
            (folder / f"{name}-{size['width']}-{scheme}.png").write_bytes(await take(seen, size, scheme))


async def run(chromium: Any, job: Job, to: Path, kept: Path | None) -> None:
    """Train, lose a node, admit another one, and look at the page."""
    async with served(job) as url:
        seen = await look(chromium, url, DESK)
        nodes = [await join(job, host) for host in (11, 12, 13)]
        await seen.text("#state", "training")
        await asyncio.sleep(BETWEEN_S)
        await nodes[1].killed()
        await seen.text("#recoveries", "generation 2 · node lost")
        await asyncio.sleep(BETWEEN_S)
        await join(job, 14)
        await seen.text("#recoveries", "generation 3")
        await asyncio.sleep(BETWEEN_S)
        desk, phone = await take(seen, DESK, "light", DESK_PART), await take(seen, PHONE, "dark", PHONE_PART)
        (to / "ui-light.png").write_bytes(await reduced(chromium, desk))
        (to / "ui-dark-phone.png").write_bytes(await reduced(chromium, phone))
        await keep(seen, kept, "training")
        await seen.text("#state", "completed")
        await keep(seen, kept, "completed")
        assert seen.troubles == []
    if kept is not None:
        code, out, err = await ctl(job, "report", "--out", str(kept / "report.html"), "--force")
        assert code == 0, out + err


async def pictures(to: Path, kept: Path | None, folder: Path) -> None:
    """Run the job in a folder, and write the pictures of docs."""
    etcd = await asyncio.to_thread(one_server(find_etcd(), folder / "etcd").start)
    try:
        async with browser() as chromium:
            job = Job(etcd, folder)
            job.job_id = JOB
            async with job.open():
                await run(chromium, job, to, kept)
    finally:
        etcd.kill()


def main() -> None:
    """Take the pictures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--to", type=Path, default=Path("docs"), metavar="FOLDER")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep pictures of the whole page there")
    arguments = parser.parse_args()
    if arguments.keep is not None:
        arguments.keep.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="digits-") as folder:
        asyncio.run(pictures(arguments.to, arguments.keep, Path(folder)))


if __name__ == "__main__":
    main()
