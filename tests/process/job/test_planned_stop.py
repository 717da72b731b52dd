"""A planned stop: workers that listen are asked to save and to exit; what follows when they do not, or cannot."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from signal import SIGKILL, SIGSTOP, SIGTERM

from tests.support.job_harness import QUICK_TTL_S, Job, story
from tests.support.worker_messages import listens

GROWING = ("--np", "1:3", "--scale-up-interval", "0")


@story
async def test_a_planned_growth_asks_workers_that_listen_and_they_leave_without_a_signal(job: Job) -> None:
    first = await job.node(*GROWING, "--nproc-per-node", "2")
    old = await job.world(1, 2)
    for worker in old:
        await worker.obeys("ignore", SIGTERM)
        await listens(worker)
        worker.order("leave", 143)
    second = await job.node(*GROWING, "--nproc-per-node", "2")
    world = await job.world(2, 4)
    assert [worker.node for worker in world] == [first.id, first.id, second.id, second.id]
    assert {worker.env["TORCHELASTIC_RESTART_COUNT"] for worker in world} == {"0"}
    for rank in range(2):
        log = first.text(f"workerlog.{rank}").partition("gen 2")[0]
        assert f"==== asked to save and to exit for a planned change: {second.id} joins ====" in log
        assert f"asked: for a planned change: {second.id} joins" in log
        assert f"==== rank {rank} gen 1 ended: saved and exited as requested ====" in log
        assert "SignalInfo" not in log
    for worker in world:
        await worker.exits(0)
    assert [await node.exits() for node in job.nodes] == [0, 0]


@story
async def test_by_default_workers_that_listen_are_asked_for_each_newcomer_and_others_once_a_minute(job: Job) -> None:
    nodes = [await job.node("--np", "1:4", "--verbose")]
    for size in (1, 2):
        for worker in await job.world(size, size):
            await listens(worker)
            worker.order("leave", 143)
        nodes.append(await job.node("--np", "1:4"))
    await job.world(3, 3)
    await job.node("--np", "1:4")
    await nodes[0].says(r"leader: .* joins in \d+ s \(--scale-up-interval 60\)$")
    assert sum("--scale-up-interval" in line for line in nodes[0].lines) == 1


@story
async def test_a_drain_asks_the_workers_of_every_node(job: Job) -> None:
    nodes = [await job.node("--np", "2") for _ in range(2)]
    old = await job.world(1, 2)
    for worker in old:
        await worker.obeys("ignore", SIGTERM)
        await listens(worker)
        worker.order("leave", 143)
    leaving = job.node_of(old[0])
    leaving.signal(SIGTERM)
    assert await leaving.exits() == 143
    (worker,) = await job.world(2, 1)
    assert worker.node == old[1].node
    for node in nodes:
        assert "SignalInfo" not in node.text(f"workerlog.{[one.node for one in old].index(node.id)}")


@story
async def test_a_worker_that_ignores_the_word_gets_sigterm_after_the_limit_and_then_sigkill(job: Job) -> None:
    first = await job.node(*GROWING, "--save-timeout", "0.5", "--stop-timeout", "0.4", "--failure-stop-timeout", "0.4")
    (deaf,) = await job.world(1, 1)
    await deaf.obeys("ignore", SIGTERM)
    await listens(deaf)
    await job.node(*GROWING)
    await first.says(r"rank 0 did not exit within 0\.5 s \(--save-timeout\) after the request: SIGTERM$")
    await job.world(2, 2)
    log = first.text("workerlog.0")
    asked, signalled = log.index("asked to save and to exit"), log.index("[SignalInfo: *** SIGTERM")
    assert asked < signalled < log.index("gen 1 ended: stopped by the launcher (SIGKILL)")


@story
async def test_a_worker_that_has_committed_nothing_has_its_grace_only(job: Job) -> None:
    first = await job.node(*GROWING, "--save-timeout", "1000", "--stop-timeout", "0.4", "--failure-stop-timeout", "0.4")
    (deaf,) = await job.world(1, 1)
    await listens(deaf, committed=False)
    await job.node(*GROWING)
    await first.says(r"rank 0 did not exit within 0\.4 s \(--stop-timeout\) after the request: SIGTERM$")
    await job.world(2, 2)


@story
async def test_a_worker_that_does_not_listen_is_signalled_while_another_still_saves(job: Job) -> None:
    first = await job.node(*GROWING, "--nproc-per-node", "2", "--stop-timeout", "0.4", "--failure-stop-timeout", "0.4")
    saving, plain = await job.world(1, 2)
    await listens(saving)
    await plain.obeys("ignore", SIGTERM)
    await job.node(*GROWING, "--nproc-per-node", "2")
    await plain.ends()
    assert not saving.ended
    saving.order("leave", 143)
    await job.world(2, 4)
    assert "SignalInfo" not in first.text("workerlog.0").partition("gen 2")[0]
    assert "[SignalInfo" in first.text("workerlog.1")


@story
async def test_a_loss_while_workers_save_ends_the_planned_stop(job: Job) -> None:
    for _ in range(2):
        await job.node("--np", "2:3", "--scale-up-interval", "0", "--failure-stop-timeout", "0.4", ttl_s=QUICK_TTL_S)
    saving, lost = await job.world(1, 2)
    await saving.obeys("ignore", SIGTERM)
    await listens(saving)
    await listens(lost)
    await job.node("--np", "2:3", ttl_s=QUICK_TTL_S)
    stays = job.node_of(saving)
    await stays.says("joins: stopping this node's workers")
    await job.node_of(lost).killed()
    await saving.ends()
    await job.newest_world(2)
    log = stays.text("workerlog.0")
    assert log.index("asked to save and to exit") < log.index("[SignalInfo")


@story
async def test_a_worker_that_fails_while_the_others_save_is_the_failure_and_ends_the_planned_stop(job: Job) -> None:
    for _ in range(2):
        await job.node("--np", "2:3", "--scale-up-interval", "0", "--failure-stop-timeout", "0.4")
    saving, failing = await job.world(1, 2)
    await saving.obeys("ignore", SIGTERM)
    for worker in (saving, failing):
        await listens(worker)
    failing.order("leave", 9)
    await job.node("--np", "2:3")
    await saving.ends()
    world = await job.newest_world(3)
    assert {worker.env["TORCHELASTIC_RESTART_COUNT"] for worker in world} == {"1"}
    await job.node_of(failing).says(r"Root cause: rank 1 .*: exit 9\.")


@story
async def test_a_worker_that_said_that_it_saved_counts_as_stopped_whatever_its_exit_code(job: Job) -> None:
    first = await job.node(*GROWING)
    (worker,) = await job.world(1, 1)
    await listens(worker)
    await worker.obeys("say", {"type": "left", "step": 7})
    worker.order("leave", 1)
    await job.node(*GROWING)
    world = await job.world(2, 2)
    assert {worker.env["TORCHELASTIC_RESTART_COUNT"] for worker in world} == {"0"}
    assert "gen 1 ended: saved and exited as requested, exit 1 ====" in first.text("workerlog.0")


@story
async def test_a_drain_that_nobody_hears_asks_the_workers_by_the_word_too(job: Job) -> None:
    """The proposer is frozen, so that nobody reacts."""
    for _ in range(2):
        await job.node("--np", "2")
    first, second = await job.world(1, 2)
    await second.obeys("ignore", SIGTERM)
    await listens(second)
    second.order("leave", 143)
    job.node_of(first).signal(SIGSTOP)
    leaving = job.node_of(second)
    leaving.signal(SIGTERM)
    await leaving.says("the leader did not acknowledge the drain: stopping this node's workers")
    assert await leaving.exits() == 143
    log = leaving.text("workerlog.1")
    assert "==== asked to save and to exit for a planned change: this node drains ====" in log
    assert "SignalInfo" not in log


@story
async def test_a_script_without_our_library_is_signalled_as_ever(job: Job) -> None:
    first = await job.node(*GROWING)
    await job.world(1, 1)
    await job.node(*GROWING)
    await job.world(2, 2)
    log = first.text("workerlog.0")
    assert "[SignalInfo: *** SIGTERM" in log
    assert "asked to save" not in log


@story
async def test_a_temporary_folder_with_a_path_too_long_for_a_socket_costs_the_channel_and_not_the_job(job: Job) -> None:
    long = job.folder / ("x" * 100)
    long.mkdir()
    node = await job.node("--np", "1", environ={"TMPDIR": str(long)})
    await node.says(
        "planned restarts, progress and in-memory checkpoints of the elastic library are off: "
        ".* set TMPDIR to a shorter"
    )
    (worker,) = await job.world(1, 1)
    assert "ELASTIC_CHANNEL" not in worker.env
    await worker.exits(0)
    assert await node.exits() == 0


@story
async def test_what_a_worker_has_to_say_to_people_is_said_once(job: Job) -> None:
    node = await job.node("--np", "1", "--quiet")
    (worker,) = await job.world(1, 1)
    for text, warn in (("the folder is not shared", True), ("the folder is not shared", True), ("all is well", False)):
        await worker.obeys("say", {"type": "note", "text": text, "warn": warn})
    await worker.exits(0)
    assert await node.exits() == 0
    assert sum("the folder is not shared" in line for line in node.lines) == 1
    assert not any("all is well" in line for line in node.lines)
    assert "all is well" in node.text("launcher.log")


@story
async def test_memory_outlives_the_workers_and_is_gone_after_everything_was_killed(job: Job) -> None:
    node = await job.node("--np", "1", "--nproc-per-node", "1")
    (worker,) = await job.world(1, 1)
    await worker.obeys("keep", ["state", 1 << 20, "step 7"])
    await worker.exits(3)
    (worker,) = await job.world(2, 1)
    await worker.obeys("keep", ["state", 0, "step 8"])
    await node.shows("^kept: step 7$")
    (segment,) = segments_of(node.process.pid)
    assert node.process.pid in holders(segment)
    nursery = node.nursery()
    for pid in (node.process.pid, nursery, worker.pid):
        with contextlib.suppress(ProcessLookupError):  # It died with the one before.
            os.kill(pid, SIGKILL)
    await node.leaves_nothing()
    assert not holders(segment)


def segments_of(pid: int) -> set[tuple[int, int]]:
    """The pieces of our memory that a process has open, as the kernel numbers them."""
    found = set()
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            if "memfd:elastic-segment" in os.readlink(fd):
                found.add((fd.stat().st_dev, fd.stat().st_ino))
    return found


def holders(segment: tuple[int, int]) -> set[int]:
    """Every process that has this memory open or mapped: without one the kernel has freed it."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            maps = [line.split() for line in (process / "maps").read_text().splitlines()]
            mapped = any(len(one) > 5 and int(one[4]) == segment[1] and "elastic-segment" in one[5] for one in maps)
            if mapped or segment in segments_of(int(process.name)):
                found.add(int(process.name))
    return found
