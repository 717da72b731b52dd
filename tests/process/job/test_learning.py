"""What a script imports is loaded before its next start: after a failure, in the next job, and on a node that joins."""

from __future__ import annotations

import json
import os
import signal

from elastic.core.keys import JobKeys
from elastic.core.kv import Put
from elastic.store.etcd import EtcdStore
from tests.support.agent_process import Node
from tests.support.job_harness import Job, story

SCRIPT = """
import sys
found = sorted({"wave", "idlelib.idle", "imaplib", "antigravity"} & set(sys.modules))
import os, time
import wave
import torch.distributed as dist
dist.init_process_group("gloo")
print("found", found, flush=True)
while not os.path.exists(os.environ["ENDS"]):
    time.sleep(0.01)
"""
READY = r"the next workers start with the script's imports preloaded: ([\w., ]+)"
NOTHING = "the script imports nothing that the fork server has not loaded"


async def start(job: Job, cache: str, *flags: str) -> Node:
    """A node whose workers say which modules they found, with the cache of this name."""
    environ = {"XDG_CACHE_HOME": str(job.folder / cache), "ENDS": str(job.folder / "ends")}
    path = job.folder / "script.py"
    if not path.exists():  # An edited script is learned again.
        path.write_text(SCRIPT)
    return await job.node("--verbose", *flags, script=(str(path),), environ=environ)


async def kill_worker(node: Node, g: int) -> None:
    pids = await node.says(rf"started the workers of generation {g}: pids (\d+)")
    os.kill(int(pids[1]), signal.SIGKILL)


@story
async def test_the_next_start_and_the_next_job_find_what_the_script_imports(job: Job) -> None:
    first = await start(job, "cache", "--np", "1")
    assert (await first.says(READY))[1] == "wave"
    await kill_worker(first, 1)
    await first.shows(r"found \['wave'\]")
    await first.says(NOTHING)
    (job.folder / "ends").touch()
    assert await first.exits() == 0
    assert len(list((job.folder / "cache" / "elastic-launch" / "imports").iterdir())) == 1
    second = await start(job, "cache", "--np", "1", "--job-id", f"{job.job_id}-2")
    assert (await second.says(READY))[1] == "wave"
    await second.says("joining: registered")
    log = second.text("launcher.log")
    assert log.index("preloaded: wave") < log.index("joining: registered"), "it registers when it is loaded"
    assert await second.exits() == 0
    assert second.text("workerlog.0").count("found ['wave']") == 1


@story
async def test_without_learning_nothing_is_loaded_and_nothing_kept(job: Job) -> None:
    node = await start(job, "cache", "--np", "1", "--no-learn")
    await node.shows(r"found \[\]")
    await kill_worker(node, 1)
    await node.says(r"started the workers of generation 2: .*\(preloaded\)")
    (job.folder / "ends").touch()
    assert await node.exits() == 0
    assert node.text("workerlog.0").count("found []") == 2
    assert "preparing a fork server" not in node.text("launcher.log")
    assert not (job.folder / "cache").exists()


@story
async def test_a_script_that_was_edited_is_learned_again(job: Job) -> None:
    node = await start(job, "cache", "--np", "1")
    await node.says(READY)
    await kill_worker(node, 1)
    await node.shows(r"found \['wave'\]")
    job.write("script.py", SCRIPT.replace("import wave", "import imaplib"))
    await kill_worker(node, 2)
    await node.shows(r"found \[\]")
    assert (await node.says("preloaded: (imaplib)"))[1] == "imaplib"
    (job.folder / "ends").touch()
    assert await node.exits() == 0


async def advise(job: Job, *names: str) -> None:
    """Other nodes have loaded these, as the store says."""
    store = EtcdStore((job.etcd.endpoint,))
    try:
        advice = json.dumps({"modules": [{"name": name} for name in names]}).encode()
        await store.txn((), (Put(JobKeys(job.job_id).imports, advice),))
    finally:
        await store.close()


@story
async def test_of_a_list_that_names_nothing_of_the_script_nothing_is_loaded_and_it_learns_by_itself(job: Job) -> None:
    await advise(job, "antigravity", "idlelib.idle")
    node = await start(job, "cache", "--np", "1")
    await node.shows(r"found \[\]")
    assert (await node.says(READY))[1] == "wave"
    (job.folder / "ends").touch()
    assert await node.exits() == 0


@story
async def test_a_node_that_joins_loads_what_the_others_have_and_only_names_that_its_script_imports(
    job: Job,
) -> None:
    first = await start(job, "cache", "--np", "1:2")
    await first.says(READY)
    await advise(job, "antigravity", "os; import x", "../evil", "idlelib.idle", "__main__", "wave")
    joining = await start(job, "empty", "--np", "1:2")
    assert (await joining.says(READY))[1] == "wave"
    await first.shows(r"found \['wave'\]")
    (job.folder / "ends").touch()
    assert await joining.exits() == 0
    assert await first.exits() == 0
    assert "found ['wave']" in joining.text("workerlog.1")
