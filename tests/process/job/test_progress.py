"""What workers say with our library reaches people, the store, and the workers that come after them."""

from __future__ import annotations

import json
import sys

from tests.support.job_harness import Job, story

SAVES = """
import json, os, sys, elastic
from elastic.channel.client import channel_client
from elastic.channel.messages import FirstCommit, CheckpointSaved
g = int(os.environ["ELASTIC_GENERATION"])
names = ("ELASTIC_SAVED", "ELASTIC_RESTORE_STEP", "ELASTIC_CHECK_NAN")
print("told", json.dumps({name: os.environ.get(name) for name in names}), flush=True)
elastic.report(step=7 * g, loss=0.25, accuracy=float("nan"))
end = channel_client(os.environ)
if g == 2:
    end.send(FirstCommit())
    end.send(CheckpointSaved(14, "/data/14"))
sys.exit(0 if g == 3 else 3)
"""

PREPARES = """
import os, sys, elastic
print("rank", os.environ["RANK"], flush=True)
if os.environ["RANK"] == "1":
    elastic.preparing("downloading")
    while not os.path.exists(sys.argv[1]):
        import time
        time.sleep(0.05)
elastic.init()
"""

REPORTS = """
import elastic, os
if os.environ["TRAINING_ROLE"] == "TRAINER":
    elastic.report(step=5, loss=1.5)
else:
    import time
    time.sleep(1000)
"""


async def status(job: Job) -> dict[str, object]:
    import asyncio

    asked = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "launcher.ctl", "status", "--json"),
        *("--elastic-server", job.etcd.endpoint, "--job-id", job.job_id),
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await asked.communicate()
    found = json.loads(out)
    assert isinstance(found, dict)
    return found


@story
async def test_a_committed_step_is_told_to_the_next_workers_and_to_elastic_ctl(job: Job) -> None:
    script = job.write("saves.py", SAVES)
    node = await job.node("--np", "1", "--restore-step", "3", "--check-nan", script=(str(script),))
    assert await node.exits() == 0
    told = [json.loads(line.removeprefix("told ")) for line in node.shown]
    saved = {"step": 14, "host": "127.0.0.1", "folder": "/data/14"}
    assert [json.loads(one["ELASTIC_SAVED"] or "null") for one in told] == [None, None, saved]
    assert [one["ELASTIC_RESTORE_STEP"] for one in told] == ["3", "3", None], "once: until training goes on"
    assert {one["ELASTIC_CHECK_NAN"] for one in told} == {"1"}
    found = (await status(job))["saved"]
    assert isinstance(found, dict)
    assert (found["step"], found["folder"], found["g"]) == (14, "/data/14", 2)


@story
async def test_the_progress_of_rank_0_is_one_line_of_its_node(job: Job) -> None:
    script = job.write("saves.py", SAVES)
    node = await job.node("--np", "1", script=(str(script),))
    await node.says(r"\] step 7 · world 1 · loss 0\.25 · accuracy not finite$")
    await node.says(r"\] step 14 · world 1 · ")
    quiet = await job.node("--np", "1", "--quiet", "--job-id", "another", script=(str(script),))
    assert [await node.exits(), await quiet.exits()] == [0, 0]
    assert not [line for line in quiet.lines if "step 7" in line]
    assert "step 7 · world 1" in quiet.text("launcher.log")


@story
async def test_the_nodes_of_those_who_wait_and_of_who_prepares_say_so(job: Job) -> None:
    script = job.write("prepares.py", PREPARES)
    nodes = [await job.node("--np", "2", script=(str(script), str(job.folder / "done"))) for _ in range(2)]
    for node in nodes:
        await node.says(
            r"waiting \d+ s for rank 1 \(downloading\)$|rank 1 is preparing: downloading \(\d+ s\)$",
        )
    assert sum("is preparing" in line for line in nodes[0].lines) != sum(
        "is preparing" in line for line in nodes[1].lines
    )
    (job.folder / "done").touch()
    assert [await node.exits() for node in nodes] == [0, 0]


@story
async def test_workers_of_parameter_servers_report_too(job: Job) -> None:
    script = job.write("reports.py", REPORTS)
    node = await job.node("--server-num", "1", "--worker-num", "1", script=(str(script),))
    await node.says(r"\] step 5 · world 1 · loss 1\.5$")
    assert await node.exits() == 0
