"""torchrun itself with `--rdzv-backend elastic-etcd`: real processes on a real etcd, killed and stopped in between."""

from __future__ import annotations

import asyncio
import errno
import io
import os
import signal
import sys
from collections.abc import Callable

import pytest
from torch.distributed.elastic.rendezvous import RendezvousParameters

from launcher.torchrun.handler import BACKEND, create_handler
from tests.support.job_harness import Stage
from tests.support.torchrun_harness import Torchruns, ctl, works

TRAIN = """
import os, pathlib
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
total = torch.ones(1)
dist.all_reduce(total)
mark = pathlib.Path("failed")
if rank == 1 and not mark.exists():
    mark.touch()
    raise RuntimeError("once")
dist.barrier()
print("agents' store:", os.environ["TORCHELASTIC_USE_AGENT_STORE"], flush=True)
print("sum", int(total.item()), "of", world, flush=True)
dist.destroy_process_group()
"""
UNEVEN = """
import os, sys, time
print("works", *(os.environ[name] for name in ("RANK", "WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT")), flush=True)
if os.environ["WORLD_SIZE"] == "2":
    sys.exit(5 if os.environ["RANK"] == "1" else 0)
"""

LATE = """
import time
from torch.distributed.run import main
from launcher.torchrun.handler import EtcdRendezvous

def never(*_):
    print("never comes", flush=True)
    time.sleep(600)

EtcdRendezvous._meet = never
main()
"""
"""A torchrun that has heard of its round, and does not come to it."""

CALLS = """
import sys
from torch.distributed.elastic.rendezvous import RendezvousClosedError, RendezvousParameters
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

def made(**conf):
    return get_rendezvous_handler(RendezvousParameters("elastic-etcd", sys.argv[1], sys.argv[2], 1, 1, **conf))

handler = made()
assert (handler.get_backend(), handler.get_run_id()) == ("elastic-etcd", sys.argv[2])
assert not handler.is_closed()
info = handler.next_rendezvous()
assert (info.rank, info.world_size, handler.num_nodes_waiting()) == (0, 1, 0)
info.store.set("key", "value")
first = info.bootstrap_store_info
again = handler.next_rendezvous()  # As after a failed worker.
assert again.bootstrap_store_info.master_port != first.master_port
assert not again.store.check(["key"])
handler.set_closed()
assert handler.is_closed()
assert handler.num_nodes_waiting() == 1
assert handler.shutdown()
late = made()
assert late.is_closed()
try:
    late.next_rendezvous()
except RendezvousClosedError as closed:
    print("closed", closed.code, flush=True)
assert late.shutdown()
anew = made(rerun="1")
assert anew.next_rendezvous().world_size == 1
assert anew.shutdown()
print("ran again", flush=True)
"""


@pytest.mark.timeout(180)  # Several nodes, one after the other.
def test_torchruns_meet_grow_survive_the_loss_of_rank_0_and_of_etcd_and_complete_without_one_that_left(
    own_stage: Stage,
) -> None:
    async def story() -> None:
        async with Torchruns(own_stage.etcd, own_stage.folder).open() as job:
            first = await job.start("1:3", conf="scale_up_interval=0")
            await first.says("generation 1: 1 node, world size 1, this is M_id 0 .rank 0.: 1 of 3 nodes is here")
            await job.start("1:3", conf="scale_up_interval=0")
            await job.start("1:3", conf="scale_up_interval=0")
            await job.told.until(lambda: all(works(node) for node in job.nodes), "all three work")
            await job.told.until(lambda: {works(node)[-1][1] for node in job.nodes} == {3}, "a world of 3")
            order = sorted(job.nodes, key=lambda node: works(node)[-1][0])
            assert order[0] is first

            stranger = await job.run(
                *("-m", "launcher", "--elastic-server", job.etcd.endpoint, "--job-id", job.job_id),
                *("--no-preload", str(job.folder / "worker.py")),
            )
            assert await stranger.exits() == 3
            await stranger.says(f"job {job.job_id} runs under torchrun, and this node under elastic-launch; use one of")

            order[0].signal(signal.SIGKILL)
            await order[1].says("was lost .its process is gone.")
            await job.world(order[1], order[2])
            assert [works(node)[-1][2] for node in order[1:]] == [0, 0], "a loss uses up none of torchrun's restarts"

            starts = [len(works(node)) for node in order[1:]]
            job.etcd.kill()
            for node in order[1:]:
                await node.says("etcd does not answer")
            await asyncio.to_thread(job.etcd.start)
            for node in order[1:]:
                await node.says("etcd answers again")
            assert [len(works(node)) for node in order[1:]] == starts, "training goes on"

            order[1].signal(signal.SIGTERM)
            await order[1].says("left; the job stays open")
            await order[1].exits()
            await job.world(order[2])

            job.end.write_text("0")
            assert await order[2].exits() == 0
            late = await job.start("1:3", conf="scale_up_interval=0")
            assert await late.exits() == 0
            await late.says(f"Job {job.job_id} completed")
            assert not any("Traceback" in line for line in late.lines)

    asyncio.run(story())


@pytest.mark.timeout(120)
def test_a_node_that_is_lost_between_the_go_and_its_ranks_ends_no_other_torchrun(stage: Stage) -> None:
    async def story() -> None:
        async with Torchruns(stage.etcd, stage.folder).open() as job:
            (job.folder / "late.py").write_text(LATE)
            nodes = [await job.start("2:3", conf="last_call_timeout=15") for _ in range(2)]
            lost = await job.start("2:3", conf="last_call_timeout=15", program=str(job.folder / "late.py"))
            await lost.shows("never comes")
            lost.signal(signal.SIGKILL)
            await job.told.until(lambda: all(works(node) for node in nodes), "the others work")
            assert sorted(works(node) for node in nodes) == [[(0, 2, 0)], [(1, 2, 0)]]
            job.end.write_text("0")
            assert [await node.exits() for node in nodes] == [0, 0]
            assert not any("Traceback" in line for node in nodes for line in node.lines)

    asyncio.run(story())


@pytest.mark.timeout(120)
def test_an_operator_takes_torchruns_in_and_out_of_the_world(stage: Stage) -> None:
    async def story() -> None:
        async with Torchruns(stage.etcd, stage.folder).open() as job:
            first = await job.start("1:1", conf="scale_up_interval=0")
            await job.world(first)
            second = await job.start("1:1", conf="scale_up_interval=0")
            await second.says("spare: ")
            assert await scaled(job, "1:2") == "--np 1 becomes 1:2; 1 node runs: 1 waiting node will join"
            await job.world(first, second)
            await scaled(job, "1")
            await job.world(first)
            job.end.write_text("0")
            assert await first.exits() == 0

    asyncio.run(story())


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("disabled", "shared"), [("0", "True"), ("1", "False")])
def test_workers_train_over_the_store_of_a_round_or_their_own_and_a_failure_restarts_all_of_them(
    stage: Stage, disabled: str, shared: str
) -> None:
    async def story() -> None:
        async with Torchruns(stage.etcd, stage.folder).open() as job:
            script = job.folder / "train.py"
            script.write_text(TRAIN)
            environ = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": disabled}
            nodes = [await job.start("2", str(script), environ=environ) for _ in range(2)]
            assert [await node.exits() for node in nodes] == [0, 0]
            assert [node.shown[-2] for node in nodes] == [f"agents' store: {shared}"] * 2
            assert [node.shown[-1] for node in nodes] == ["sum 2 of 2", "sum 2 of 2"]
            ended = "a worker ended: torchrun's own output says how; stopping this node's workers"
            assert any(ended in line for node in nodes for line in node.lines), "which worker, the plugin cannot know"
            await nodes[0].says("the job has completed: every worker of generation 2 ended with exit code 0")

    asyncio.run(story())


@pytest.mark.timeout(120)
def test_a_node_that_ended_well_is_not_waited_for_when_another_ones_worker_starts_again(stage: Stage) -> None:
    async def story() -> None:
        async with Torchruns(stage.etcd, stage.folder).open() as job:
            script = job.folder / "uneven.py"
            script.write_text(UNEVEN)
            nodes = [await job.start("1:2", str(script), conf="last_call_timeout=15") for _ in range(2)]
            assert [await node.exits() for node in nodes] == [0, 0]
            assert sorted(works(node) for node in nodes) == [[(0, 2, 0)], [(1, 2, 0), (0, 1, 1)]]

    asyncio.run(story())


@pytest.mark.timeout(120)
def test_a_node_alone_gives_up_in_one_line_and_one_without_a_restart_left_fails_the_job(stage: Stage) -> None:
    async def story() -> None:
        async with Torchruns(stage.etcd, stage.folder).open() as job:
            job.end.write_text("7")
            alone = await job.start("2", conf="join_timeout=1", job_id=f"{job.job_id}-alone", forked=False)
            failing = await job.start("1", restarts=0)
            wrong = await job.start("1", conf="is_host=1", forked=False)
            assert await alone.exits() == 4
            assert alone.lines[-1] == (
                "[elastic-launch] no round formed within 1 s (join_timeout in --rdzv-conf); the job stays open"
            )
            assert await wrong.exits() == 2
            assert wrong.lines == [
                "torchrun: error: --rdzv-conf is_host: --rdzv-backend elastic-etcd has no such option; etcd is the "
                "host; leave it out"
            ]
            assert await failing.exits() == 1
            shown = status(job)
            assert "torchrun has no restart left on host 127.0.0.1 (--max-restarts)" in shown
            assert "Root cause: rank 0 on host 127.0.0.1" in shown
            assert "exit 7" in shown

    asyncio.run(story())


@pytest.mark.timeout(120)
def test_operators_are_told_in_one_line_that_torchrun_has_the_workers_and_their_logs(stage: Stage) -> None:
    async def story() -> None:
        async with Torchruns(stage.etcd, stage.folder).open() as job:
            node = await job.start("1")
            await job.world(node)
            shown = await asyncio.to_thread(status, job)
            assert "running" in shown
            assert "cannot query" not in shown
            whose = (
                "torchrun runs the workers of this job and has their logs: "
                "see its output on each node, or its --log-dir"
            )
            for words in (("logs", "0"), ("logs", "0", "--follow"), ("stacks", "0")):
                ran = await asyncio.to_thread(ctl, job, *words)
                assert (ran.returncode, ran.stdout, ran.stderr) == (1, "", f"elastic-ctl: error: {whose}\n")
            job.end.write_text("0")
            assert await node.exits() == 0
            ran = await asyncio.to_thread(ctl, job, "logs", "0")
            assert ran.stdout == f"the job has completed, and its agents have ended; {whose}\n"

    asyncio.run(story())


@pytest.mark.timeout(120)
def test_a_node_that_does_not_reach_its_own_address_says_so_in_one_line_and_leaves(stage: Stage) -> None:
    async def story() -> None:
        async with Torchruns(stage.etcd, stage.folder).open() as job:
            node = await job.start("1", conf="join_timeout=1", local_addr="192.0.2.1", forked=False)
            assert await node.exits() == 4
            assert node.lines[-1].startswith(
                "[elastic-launch] this node could not connect to its own store of the round at 192.0.2.1:"
            )
            assert node.lines[-1].endswith("in 1 s; is --local-addr an address of this host?")
            assert all(line.startswith("[elastic-launch") for line in node.lines)

    asyncio.run(story())


@pytest.mark.timeout(120)
def test_the_handler_keeps_torchs_interface_over_rounds_a_close_and_a_run_after_it(stage: Stage) -> None:
    async def story() -> None:
        async with Torchruns(stage.etcd, stage.folder).open() as job:
            (job.folder / "calls.py").write_text(CALLS)
            caller = await job.run("-W", "error", str(job.folder / "calls.py"), job.etcd.endpoint, job.job_id)
            assert await caller.exits() == 0
            assert caller.shown == ["closed 0", "ran again"]

    asyncio.run(story())


class _Full(io.StringIO):
    """As a disk without room is."""

    def write(self, text: str) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _closed() -> io.StringIO:
    file = io.StringIO()
    file.close()
    return file


@pytest.mark.parametrize("stderr", [_Full, _closed, lambda: None])
def test_a_mistake_has_exit_code_2_also_where_it_cannot_be_said(
    monkeypatch: pytest.MonkeyPatch, stderr: Callable[[], io.StringIO | None]
) -> None:
    monkeypatch.setattr(sys, "stderr", stderr())
    with pytest.raises(SystemExit) as ended:
        create_handler(RendezvousParameters(BACKEND, "127.0.0.1:2379", "j1", 1, 1, is_host=1))
    assert ended.value.code == 2


def status(job: Torchruns) -> str:
    """What `elastic-ctl status` shows of the job."""
    ran = ctl(job, "status")
    assert ran.returncode == 0
    return ran.stdout


async def scaled(job: Torchruns, np: str) -> str:
    """Give the job another np; what follows, in words."""
    ran = await asyncio.to_thread(ctl, job, "scale", "--np", np)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip().removeprefix(f"{job.job_id}: ")
