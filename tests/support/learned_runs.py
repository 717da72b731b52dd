"""A script that starts with what it imports already loaded, and the same script in a fresh python."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.etcd_servers import Server
from tests.support.job_harness import Job

RANKS = (0, 1)
MOMENTS = ("imported", "worked")
FLAGS = ("--np", "1", "--nproc-per-node", str(len(RANKS)), "--verbose")
READY = r"the next workers start with the script's imports preloaded: (.*)"
PREPARED_WITHIN_S = 240.0
"""With a fifth of a core a large framework takes half a minute, on a machine that has nothing else to do."""
RUN_WITHIN_S = 240.0
"""To look at all that the modules of a large framework hold takes four workers a minute on a slow machine."""
SAME = {"PYTHONHASHSEED": "1", "ACCELERATE_USE_CPU": "true"}
"""Sets would be in another order in each process; Accelerate would make no process group."""
WRITTEN = r"(?ms)^==== elastic-launch job [^\n]* gen GENERATION [^\n]* ====\n(.*?)^==== rank \d+ gen GENERATION ended"
"""What a worker of this generation wrote, in its log."""


@dataclass
class View:
    """What one worker has written down of its process at one moment."""

    seen: dict[str, Any]
    values: dict[str, str]


@dataclass
class Runs:
    """Three starts of one script with two workers each.

    `warm`: it imported its packages itself, in a fork of the fork server. `learned`: the fork server had them.
    `fresh`: python was started for each worker.
    """

    ready: str
    """What the agent said of what is loaded."""
    views: dict[tuple[str, int, str], View] = field(default_factory=dict)
    """Of each start, rank and moment."""
    before: dict[str, set[str]] = field(default_factory=dict)
    """The modules that a worker found before its first line."""
    text: dict[tuple[str, int], str] = field(default_factory=dict)
    """What a worker wrote."""

    def of(self, start: str, moment: str) -> list[View]:
        """The views of both workers."""
        return [self.views[start, rank, moment] for rank in RANKS]


def run(etcd: Server, folder: Path, script: Path, moments: Sequence[str] = MOMENTS) -> Runs:
    """Start the script three times; it writes its views at these moments."""
    return asyncio.run(_run(etcd, folder, script, moments))


async def _run(etcd: Server, folder: Path, script: Path, moments: Sequence[str]) -> Runs:
    runs = Runs("")
    for way in ("learned", "fresh"):
        place = folder / way
        place.mkdir()
        async with Job(etcd, place).open() as job:
            own = {"HF_HOME": str(place / "hf"), "VIEWS": str(place), "XDG_CACHE_HOME": str(place / "cache")}
            more = {"WAITS": "1", "ELASTIC_NO_PRELOAD": "0"} if way == "learned" else {"ELASTIC_NO_PRELOAD": "1"}
            node = await job.node(*FLAGS, script=(str(script),), environ={**SAME, **own, **more})
            starts = {"1": "fresh"}
            if way == "learned":
                starts = {"1": "warm", "2": "learned"}
                pids = await node.says(r"started the workers of generation 1: pids (\d+), (\d+) \(preloaded\)")
                runs.ready = (await node.says(READY, within_s=PREPARED_WITHIN_S))[1]
                await node.shows("waits")
                os.kill(int(pids[1]), signal.SIGKILL)
            assert await node.exits(within_s=RUN_WITHIN_S) == 0
            for generation, start in starts.items():
                for rank in RANKS:
                    log = node.text(f"workerlog.{rank}")
                    written = re.search(WRITTEN.replace("GENERATION", generation), log)
                    assert written is not None, log
                    runs.text[start, rank] = written[1]
                    for moment in moments:
                        text = (place / f"{generation}.{rank}.{moment}").read_text()
                        for name, word in ((str(place), "FOLDER"), (node.id, "NODE"), (job.job_id, "JOB")):
                            text = text.replace(name, word)
                        view = json.loads(text)
                        runs.views[start, rank, moment] = View(view["seen"], view["values"])
                        runs.before[start] = set(view["before"])
    return runs
