"""What torch's agent and its Python API may expect of the plugin: forks, the truth about the end, closing, dropping."""

from __future__ import annotations

import asyncio
import textwrap

import pytest

from tests.support.agent_process import Node
from tests.support.job_harness import Stage
from tests.support.torchrun_harness import Torchruns, ctl

MADE = """
import multiprocessing, os, sys, threading, time
from torch.distributed.elastic.agent.server.api import WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import RendezvousClosedError, RendezvousError, RendezvousParameters
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

CONF = {"last_call_timeout": "0", "join_timeout": "30", "connect_timeout": "1", "close_timeout": "8", "quiet": "1"}

def made(job=sys.argv[2], **conf):
    return get_rendezvous_handler(RendezvousParameters("elastic-etcd", sys.argv[1], job, 1, 1, **{**CONF, **conf}))

def launched(entry, *args, job=sys.argv[2], method="spawn", **more):
    config = LaunchConfig(
        min_nodes=1, max_nodes=1, nproc_per_node=2, run_id=job, rdzv_endpoint=sys.argv[1], rdzv_backend="elastic-etcd",
        rdzv_configs={**CONF, **more}, start_method=method, monitor_interval=0.05, max_restarts=0,
    )
    return elastic_launch(config, entry)(*args)

def agent(handler, code, kind=LocalElasticAgent):
    spec = WorkerSpec(
        role="r", local_world_size=1, fn=None, entrypoint=sys.executable, args=("-c", f"raise SystemExit({code})"),
        rdzv_handler=handler, max_restarts=0, monitor_interval=0.05,
    )
    return kind(spec, DefaultLogsSpecs())

def sum_of_ranks(base):
    return base + int(os.environ["RANK"]), not {"GRPC_VERBOSITY", "GRPC_ENABLE_FORK_SUPPORT"} & os.environ.keys()

def say(*words):
    print(*words, flush=True)
"""

FORKED_WORKERS = """
for number in range(3):
    say(sorted(launched(sum_of_ranks, 10, job=f"{sys.argv[2]}-{number}", method="fork").items()))
"""

FORKED_AGENT = """
def child(handler):
    for one in (handler, made()):
        try:
            one.next_rendezvous()
        except RendezvousError as error:
            say(type(error).__name__, error.code)
        say(one.shutdown())

handler = made()
handler.next_rendezvous()
forked = multiprocessing.get_context("fork").Process(target=child, args=(handler,))
forked.start()
forked.join()
say(forked.exitcode, handler.num_nodes_waiting(), handler.is_closed())
say(handler.shutdown())
"""

FAILED_RUN = """
handler = made()
result = agent(handler, 3).run()
say(result.is_failed(), handler.shutdown(), made().is_closed())
handler = made()
result = agent(handler, 0).run()
say(result.is_failed(), handler.shutdown(), made().is_closed())
"""

OLDER_AGENT = """
class OlderAgent(LocalElasticAgent):
    def _shutdown(self, *args, **more):
        super()._shutdown(*args, **more)
        handler.shutdown()

def launched_by_older():
    try:
        raise ChildFailedError("worker", agent(handler, 3, OlderAgent).run().failures)
    finally:
        handler.shutdown()

handler = made()
try:
    launched_by_older()
except ChildFailedError as error:
    say(error.get_first_failure()[1].exitcode, made().is_closed())
"""

RAISED = """
job = sys.argv[2]
try:
    launched(sys.executable, "-c", "raise SystemExit(3)", job=f"{job}-1")
except ChildFailedError:
    say("failed", made(f"{job}-1").is_closed())
    launched(sys.executable, "-c", "pass", job=f"{job}-2")
    handler = made(f"{job}-2")
    try:
        handler.next_rendezvous()
    except RendezvousClosedError as closed:
        say("the second ended with", closed.code)
    handler = made(f"{job}-3")
    agent(handler, 3).run()
    say(handler.shutdown(), made(f"{job}-3").is_closed())
"""

DROPPED = """
def threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("elastic-etcd")]

handler = made()
assert handler.next_rendezvous().world_size == 1
assert len(threads()) == 1
del handler
say(len(threads()))
handler = made()
say(handler.next_rendezvous().world_size)
handler.shutdown()
"""

NOT_CLOSED = """
try:
    made().set_closed()
    say("closed")
except RendezvousError as error:
    say(type(error).__name__, error.code, error)
"""

AWAY = """
handler = made(close_timeout="2")
handler.next_rendezvous()
say("joined")
while not os.path.exists(sys.argv[3]):
    time.sleep(0.02)
try:
    handler.set_closed()
    say("closed")
except RendezvousError as error:
    say(type(error).__name__, error)
say(handler.shutdown())
"""


async def started(job: Torchruns, script: str, *more: str, endpoint: str = "") -> Node:
    """Start a script with the endpoint, the job ID, and `more` as its arguments."""
    path = job.folder / "script.py"
    path.write_text(f"{MADE}\nif __name__ == '__main__':\n{textwrap.indent(script, '    ')}")
    return await job.fork(str(path), endpoint or job.etcd.endpoint, job.job_id, *more)


async def shown(job: Torchruns, script: str, *, endpoint: str = "") -> list[str]:
    """What a script says, which ends with 0."""
    caller = await started(job, script, endpoint=endpoint)
    assert await caller.exits() == 0
    return caller.shown


@pytest.mark.timeout(180)  # It may be the first that needs a process with torch loaded.
def test_workers_may_be_forked_while_the_plugin_runs(stage: Stage) -> None:
    async def story() -> None:
        async with Torchruns(stage.etcd, stage.folder).open() as job:
            assert await shown(job, FORKED_WORKERS) == ["[(0, (10, True)), (1, (11, True))]"] * 3

    asyncio.run(story())


def test_an_agent_forked_from_one_that_had_joined_says_that_it_cannot_and_does_not_disturb_it(stage: Stage) -> None:
    async def story() -> None:
        async with Torchruns(stage.etcd, stage.folder).open() as job:
            refused = ["NodeRejected 2", "True"]
            assert await shown(job, FORKED_AGENT) == [*refused, *refused, "0 0 False", "True"]
            line = "[elastic-launch] this process was forked from one in which elastic-etcd had already run"
            lines = [
                one for one in job.nodes[0].lines if one.startswith("[elastic-launch]")
            ]  # Python 3.12 warns of forks.
            assert [one.startswith(line) for one in lines] == [True, True], lines

    asyncio.run(story())


def test_a_run_that_failed_does_not_complete_the_job_and_one_that_succeeded_does(stage: Stage) -> None:
    async def story() -> None:
        async with Torchruns(stage.etcd, stage.folder).open() as job:
            assert await shown(job, FAILED_RUN) == ["True True False", "False True True"]
            assert "completed" in ctl(job, "status").stdout

    asyncio.run(story())


def test_a_failed_run_fails_the_job_also_where_the_agent_calls_shutdown_before_the_error_is_raised(
    stage: Stage,
) -> None:
    """As torch 2.6 and 2.7 do."""

    async def story() -> None:
        async with Torchruns(stage.etcd, stage.folder).open() as job:
            assert await shown(job, OLDER_AGENT) == ["3 True"]
            assert "exit 3" in ctl(job, "status").stdout

    asyncio.run(story())


@pytest.mark.timeout(180)
def test_a_second_try_is_not_judged_by_the_error_of_the_first(stage: Stage) -> None:
    async def story() -> None:
        async with Torchruns(stage.etcd, stage.folder).open() as job:
            assert await shown(job, RAISED) == ["failed True", "the second ended with 0", "True False"]

    asyncio.run(story())


def test_a_handler_that_is_dropped_ends_its_thread_and_its_membership(stage: Stage) -> None:
    async def story() -> None:
        async with Torchruns(stage.etcd, stage.folder).open() as job:
            assert await shown(job, DROPPED) == ["0", "1"]
            assert job.nodes[0].lines == [], "nobody complains of a node that has left"

    asyncio.run(story())


def test_set_closed_raises_torchs_error_where_it_could_not_close(stage: Stage) -> None:
    async def story() -> None:
        async with Torchruns(stage.etcd, stage.folder).open() as job:
            said = await shown(job, NOT_CLOSED, endpoint="127.0.0.1:9")
            assert said[0].startswith("RendezvousUnreachable 4 no etcd within 1 s at 127.0.0.1:9 (")
            assert "()" not in said[0]

    asyncio.run(story())


def test_without_etcd_closing_ends_in_close_timeout_with_an_error_and_shutdown_says_that_nobody_knows(
    own_stage: Stage,
) -> None:
    async def story() -> None:
        async with Torchruns(own_stage.etcd, own_stage.folder).open() as job:
            gone = job.folder / "gone"
            caller = await started(job, AWAY, str(gone))
            await caller.shows("joined")
            job.etcd.kill()
            gone.touch()
            assert await caller.exits() == 0
            limit = "the job was not closed within 2 s (close_timeout in --rdzv-conf); it stays open"
            assert caller.shown == ["joined", f"RoundTimedOut {limit}", "False"]

    asyncio.run(story())
