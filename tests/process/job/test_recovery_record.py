"""Where the time of a recovery went: one line of one node, an event in its folder, and one in the store."""

from __future__ import annotations

import json
from signal import SIGTERM

from tests.support.agent_process import Node
from tests.support.job_harness import QUICK_TTL_S, Job, story
from tests.support.recovery_reports import adds_up, recoveries, told

TRAINS = """
import time
import torch
import elastic

here = elastic.init()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
state = elastic.State(model=model, optimizer=optimizer)
state.restore()
if here.rank == 0:
    print(f"world {here.world_size} from {state.step}", flush=True)
while True:
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    state.commit(memory_every=1)
    if here.rank == 0 and state.step % 20 == 0:
        print(f"world {here.world_size} step {state.step}", flush=True)
    time.sleep(0.01)
"""
"""Without an end: the story ends it."""

UNAWARE = """
import sys, time
import torch, torch.distributed as dist
if "launcher.nursery.torch_patch" not in sys.modules:
    from launcher.nursery import torch_patch
    torch_patch.install(lambda: None)
dist.init_process_group("gloo")
print(f"world {dist.get_world_size()}", flush=True)
while True:
    time.sleep(0.05)
    dist.all_reduce(torch.ones(1))
"""
"""It knows nothing of our library; the first lines stand for what a warm start does before any script."""


async def rank_0(nodes: list[Node], generation: int, size: int) -> Node:
    """The node that has rank 0 in a generation; each of `nodes` is told its place."""
    found = [await node.says(rf"generation {generation}: {size} nodes?, .*this is M_id (\d)") for node in nodes]
    return nodes[[one[1] for one in found].index("0")]


SERVES = """
import os, sys, time
from pathlib import Path
import elastic
from elastic.channel.client import channel_client
from elastic.channel.messages import Serving, clock

if os.environ["ELASTIC_ROLE"] == "server":
    channel_client(os.environ).send(Serving(clock()))
    time.sleep(1000)
first = not Path("again").exists()
Path("again").touch()
for step in range(1, 4):
    elastic.report(step)
    time.sleep(0.2)
if first:
    sys.exit("it fails once")
time.sleep(1000)
"""
"""A server and a worker without torch: they say what those of our library say."""


@story
async def test_a_killed_node_is_one_line_of_the_proposer_and_an_event_in_its_folder_and_the_store(job: Job) -> None:
    script = job.write("trains.py", TRAINS)
    nodes = [await job.node("--np", "3", ttl_s=QUICK_TTL_S, script=(str(script),)) for _ in range(3)]
    first = await rank_0(nodes, 1, 3)
    await first.shows("world 3 step 20")
    victim = next(node for node in nodes if node is not first)
    await victim.killed()
    nodes.remove(victim)
    found = await first.says(rf"{victim.id} was lost.*: back in ([\d.]+) s: ")
    names = adds_up(found.string, found[1])
    assert {"detect", "decide", "publish", "spawn", "script", "group", "restore", "step"} <= set(names), names
    other = next(node for node in nodes if node is not first)
    assert not [line for line in other.lines if "back in" in line], "once, on one node"
    (event,) = recoveries(first)
    assert (event["complete"], event["before"], event["why"]) in ((True, 1, "node lost"), (True, 1, "failure"))
    assert abs(sum(event["phases"].values()) - event["total_s"]) < 0.002
    assert not recoveries(other)
    first.signal(SIGTERM)
    assert await first.exits() == 143
    # What an agent has to write is written when it has left; the drain that ends the story may be told as well.
    (kept,) = (one for one in await told(job) if "was lost" in one.text)
    assert kept.text in found.string
    assert list(kept.phases) == list(event["phases"])


@story
async def test_a_newcomer_and_a_drain_are_counted_from_step_to_step(job: Job) -> None:
    script = job.write("trains.py", TRAINS)
    flags = ("--np", "1:2", "--scale-up-interval", "0")
    nodes = [await job.node(*flags, script=(str(script),))]
    await nodes[0].shows("world 1 step 20")
    nodes.append(await job.node(*flags, script=(str(script),)))
    found = await nodes[0].says(r"\S+ joins.*: ([\d.]+) s between steps: ")
    assert adds_up(found.string, found[1])[0] == "stop"
    (event,) = recoveries(nodes[0])
    assert event["last_step"] == event["restored_step"], "no step is lost"
    nodes[0].signal(SIGTERM)
    assert await nodes[0].exits() == 143
    found = await nodes[1].says(rf"{nodes[0].id} drains.*: ([\d.]+) s between steps: ")
    assert adds_up(found.string, found[1])[0] == "stop"


@story
async def test_a_script_without_the_library_is_followed_to_its_process_group(job: Job) -> None:
    script = job.write("unaware.py", UNAWARE)
    nodes = [await job.node("--np", "2", "--max-restarts", "9", ttl_s=QUICK_TTL_S, script=(str(script),)) for _ in "ab"]
    first = await rank_0(nodes, 1, 2)
    await first.shows("world 2")
    other = next(node for node in nodes if node is not first)
    await other.killed()
    found = await first.says(r": process group up again in ([\d.]+) s: ")
    assert adds_up(found.string, found[1])[-1] == "group"
    (event,) = recoveries(first)
    assert (event["complete"], event["last_step"]) == (True, None)


@story
async def test_a_first_start_is_a_detail_and_an_event(job: Job) -> None:
    script = job.write("trains.py", TRAINS)
    node = await job.node("--np", "1", "--verbose", script=(str(script),))
    found = await node.says(r": first step ([\d.]+) s after the command: join \d+ ms · rendezvous \d+")
    assert adds_up(found.string, found[1])[-1] == "step"
    (event,) = [one for one in map(json.loads, node.text("events.jsonl").splitlines()) if one["what"] == "start"]
    assert event["before"] is None


@story
async def test_seats_that_failed_and_start_again_are_told_by_the_node_that_has_them(job: Job) -> None:
    flags = ("--server-num", "1", "--worker-num", "1", "--no-preload", "--verbose")
    node = await job.node(*flags, script=(str(job.write("serves.py", SERVES)),))
    await node.says(r"first step [\d.]+ s after the command: join ")
    line = await node.says(r"failed and starts again.*: back in ([\d.]+) s: ")
    assert adds_up(line.string, line[1])[0] == "detect"
    assert {"stop", "decide", "publish", "spawn", "step"} <= set(adds_up(line.string, line[1]))
    (event,) = recoveries(node)
    assert (event["complete"], event["why"]) == (True, "failure")
