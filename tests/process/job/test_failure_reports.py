"""What people read when workers fail: on every node the sentence, the first cause, and where its log is."""

from __future__ import annotations

import json
import re
from signal import SIGKILL, SIGTERM

from elastic.core.keys import JobKeys
from elastic.store.etcd import EtcdStore
from launcher.job.history import read_history
from tests.support.failure_texts import SIGNAL_INFO, TRACEBACK, abort
from tests.support.job_harness import QUICK_TTL_S, Job, story, story_with_its_own_etcd

LOST_PEER = (
    "RuntimeError: [third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:43655. "
    "This is typically caused by a remote worker crashing."
)


@story
async def test_every_node_prints_the_sentence_the_log_and_its_host_also_when_a_restart_follows(job: Job) -> None:
    nodes = [await job.node("--np", "2", "--nproc-per-node", "2") for _ in range(2)]
    world = await job.world(1, 4)
    failing = job.node_of(world[2])
    await world[2].obeys("complain", "ValueError: no data")
    await world[2].exits(3)
    for worker in await job.world(2, 4):
        await worker.exits(0)
    assert [await node.exits() for node in nodes] == [0, 0]
    for node in nodes:
        place = node.lines.index(abort(4, "2"))
        assert node.lines[place + 1 : place + 5] == [
            f"Root cause: rank 2 on host 127.0.0.1 (node {failing.id}): exit 3.",
            f"Its log is {failing.folder}/log/workerlog.2 on host 127.0.0.1.",
            "The last lines of rank 2's log:",
            "    ValueError: no data",
        ]
        assert node.lines.count(abort(4, "2")) == 1
        assert f"{node.id} {abort(4, '2')}\n" in node.text("launcher.log")


@story
async def test_a_failure_is_told_while_a_worker_elsewhere_still_takes_its_grace_and_not_again_with_the_go(
    job: Job,
) -> None:
    nodes = [await job.node("--np", "2", "--stop-timeout", "600", "--failure-stop-timeout", "600") for _ in range(2)]
    stubborn, failing = await job.world(1, 2)
    await stubborn.obeys("ignore", SIGTERM)
    await failing.exits(1)
    for node in nodes:
        await node.says(re.escape(abort(2, "1")))
        await node.says(r"Root cause: rank 1 ")
    assert not stubborn.ended
    await stubborn.exits(0)
    for worker in await job.world(2, 2):
        await worker.exits(0)
    for node in nodes:
        assert await node.exits() == 0
        await node.says(r"restart 1 of 3; the job continues")
        assert node.lines.count(abort(2, "1")) == 1


@story_with_its_own_etcd
async def test_a_failure_is_told_also_when_etcd_does_not_answer(job: Job) -> None:
    node = await job.node("--np", "1", "--nproc-per-node", "2")
    _, failing = await job.world(1, 2)
    job.etcd.freeze()
    await failing.exits(1)
    await node.says(re.escape(abort(2, "1")))
    job.etcd.thaw()
    for worker in await job.newest_world(2):
        await worker.exits(0)
    assert await node.exits() == 0
    assert node.lines.count(abort(2, "1")) == 1


@story
async def test_the_verdict_does_not_tell_again_what_was_told_early(job: Job) -> None:
    node = await job.node("--np", "1", "--nproc-per-node", "2", "--max-restarts", "0", "--failure-stop-timeout", "15")
    stubborn, failing = await job.world(1, 2)
    await stubborn.obeys("ignore", SIGTERM)
    await failing.exits(1)
    await node.says(re.escape(abort(2, "1")))
    await stubborn.exits(0)
    assert await node.exits() == 1
    assert node.lines.count(abort(2, "1")) == 1
    await node.says("the job has failed: no restart is left")


@story
async def test_both_ranks_that_fail_by_themselves_are_named_with_their_logs(job: Job) -> None:
    """The second had raised before the first was gone; a large process takes a while to end."""
    nodes = [await job.node("--np", "2", "--nproc-per-node", "2") for _ in range(2)]
    world = await job.world(1, 4)
    await world[3].obeys("complain", TRACEBACK)
    await world[0].obeys("complain", TRACEBACK)
    await world[0].exits(1)
    for node in nodes:
        await node.says(re.escape(abort(4, "0,3")))
        await node.says(
            r"On host 127\.0\.0\.1: rank 3: raised OSError, and was stopped while it exited, "
            r"log /.*/log/workerlog\.3\.$"
        )


@story
async def test_the_first_cause_is_named_although_its_echo_was_recorded_first(job: Job) -> None:
    nodes = [await job.node("--np", "3", "--verbose") for _ in range(3)]
    world = await job.world(1, 3)
    first = job.node_of(world[1])
    await world[1].obeys("complain", TRACEBACK)
    await world[0].obeys("complain", LOST_PEER)
    await world[0].exits(1)
    for node in nodes:
        await node.says(re.escape(abort(3, "1")))
        await node.says(rf"Root cause: rank 1 on host 127\.0\.0\.1 \(node {first.id}\): raised OSError")
        await node.says(rf"Its log is {first.folder}/log/workerlog\.1 on host 127\.0\.0\.1\.")
        await node.says(r"^    OSError: \[Errno 5\] Input/output error$")
    await job.world(2, 3)
    why = "because rank=[1] failed on host 127.0.0.1, see workerlog.1 ===="
    for rank, line in ((0, f"==== ended {why}"), (2, f"==== stopped {why}")):
        assert line in job.node_of(world[rank]).text(f"workerlog.{rank}").splitlines()
    assert why not in first.text("workerlog.1")


@story
async def test_an_echo_alone_is_not_called_the_cause_while_others_have_not_spoken(job: Job) -> None:
    nodes = [await job.node("--np", "2", "--failure-stop-timeout", "15") for _ in range(2)]
    echo, stubborn = await job.world(1, 2)
    await stubborn.obeys("ignore", SIGTERM)
    await echo.obeys("complain", LOST_PEER)
    await echo.exits(1)
    for node in nodes:
        await node.says(
            r"rank=\[0\] lost a peer on host 127\.0\.0\.1, see workerlog\.0; the root cause is not known yet, "
            rf"waiting for {stubborn.node}"
        )
        assert not any("ABORT" in line for line in node.lines)


@story
async def test_workers_stopped_because_another_failed_say_so_and_where_to_look(job: Job) -> None:
    for _ in range(2):
        await job.node("--np", "2", "--nproc-per-node", "2")
    world = await job.world(1, 4)
    await world[2].exits(1)
    await job.world(2, 4)
    for worker in (world[0], world[1], world[3]):
        node = job.node_of(worker)
        lines = node.text(f"workerlog.{worker.rank}").splitlines()
        (place,) = (number for number, line in enumerate(lines) if SIGNAL_INFO.fullmatch(line))
        sender, pid, by = SIGNAL_INFO.findall(lines[place])[0]
        assert (int(sender, 16), int(pid)) == (int(by), worker.pid)
        assert lines[place + 1 : place + 3] == [
            "==== stopped because rank=[2] failed on host 127.0.0.1, see workerlog.2 ====",
            f"==== rank {worker.rank} gen 1 ended: stopped by the launcher (SIGTERM) ====",
        ]
    assert "SignalInfo" not in job.node_of(world[2]).text("workerlog.2")


@story
async def test_workers_stopped_by_a_planned_change_or_a_loss_read_other_words(job: Job) -> None:
    for _ in range(3):
        await job.node("--np", "3", ttl_s=QUICK_TTL_S)
    world = await job.world(1, 3)
    draining = job.node_of(world[2])
    draining.signal(SIGTERM)
    world = await job.world(2, 2)
    lost = job.node_of(world[1])
    kept = job.node_of(world[0])
    await lost.killed()
    await job.world(3, 1)
    stops = re.findall(r"^==== stopped .*$", kept.text("workerlog.0"), re.MULTILINE)
    assert stops == [
        f"==== stopped for a planned change: {draining.id} drains: SIGTERM ====",
        f"==== stopped because {lost.id} was lost (its process is gone) ====",
    ]


@story
async def test_a_loss_is_no_failure_to_report(job: Job) -> None:
    """The echo of it is: it says that the cause is not known, and then it is."""
    for _ in range(2):
        await job.node("--np", "2", ttl_s=QUICK_TTL_S)
    echo, gone = await job.world(1, 2)
    stays = job.node_of(echo)
    await echo.obeys("complain", LOST_PEER)
    lost = job.node_of(gone)
    lost.signal(SIGKILL)
    await echo.exits(1)
    await job.newest_world(1)
    assert not any("ABORT" in line for line in stays.lines)


@story
async def test_events_are_kept_for_programs_in_the_folder_and_for_people_in_the_store(job: Job) -> None:
    node = await job.node("--np", "1")
    (worker,) = await job.world(1, 1)
    await worker.exits(7)
    (worker,) = await job.world(2, 1)
    await worker.exits(0)
    assert await node.exits() == 0
    events = [json.loads(line) for line in node.text("events.jsonl").splitlines()]
    assert {(event["job"], event["node"]) for event in events} == {(job.job_id, node.id)}
    told = [(event["what"], event["generation"]) for event in events if event["what"] not in ("start", "recovery")]
    place = told.index(("failure", 1))
    assert told.index(("worker ended", 1)) < place < told.index(("go", 2)), "at once, or with the generation after it"
    assert told[:place] + told[place + 1 :] == [
        ("joined", None),
        ("generation", 1),
        ("go", 1),
        ("worker ended", 1),
        ("stopped", 1),
        ("generation", 2),
        ("go", 2),
        ("worker ended", 2),
        ("verdict", 2),
        ("left", 2),
    ]
    (failure,) = (event for event in events if event["what"] == "failure")
    assert (failure["ranks"], failure["words"], failure["host"]) == ([0], "exit 7", "127.0.0.1")
    store = EtcdStore((job.etcd.endpoint,))
    kept = await read_history(store, JobKeys(job.job_id))
    await store.close()
    kept = [event for event in kept if event.what not in ("start", "recovery")]  # See test_job_timeline.
    assert [(event.what, event.g, event.node) for event in kept] == [
        ("generation", 1, node.id),
        ("go", 1, node.id),
        ("generation", 2, node.id),
        ("go", 2, node.id),
        ("verdict", 2, node.id),
    ]
    assert kept[3].text == ("rank=[0] failed on host 127.0.0.1, see workerlog.0; restart 1 of 3; 1 restart used")
