"""Where the time of a recovery went: one line of one node, an event in its folder, and one in the store."""

from __future__ import annotations

import json
import re
from signal import SIGTERM
from typing import Any

from elastic.history import Event
from elastic.keys import JobKeys
from elastic.store.etcd import EtcdStore
from launcher import history
from tests.process.jobs import QUICK_TTL_S, Job, story
from tests.process.nodes import Node

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
if "launcher.groupwatch" not in sys.modules:
    from launcher import groupwatch
    groupwatch.install()
dist.init_process_group("gloo")
print(f"world {dist.get_world_size()}", flush=True)
while True:
    time.sleep(0.05)
    dist.all_reduce(torch.ones(1))
"""
"""It knows nothing of our library; the first lines stand for what a warm start does before any script."""

NUMBER = r"(\w+) (\d+)(?: ms)?"


def recoveries(node: Node) -> list[dict[str, Any]]:
    """The recoveries in the events of a node's folder."""
    return [event for event in map(json.loads, node.text("events.jsonl").splitlines()) if event["what"] == "recovery"]


async def told(job: Job) -> list[Event]:
    """The recoveries in the store."""
    store = EtcdStore([job.etcd.endpoint])
    try:
        events = await history.read(store, JobKeys(job.job_id, "/elastic"))
    finally:
        await store.close()
    return [event for event in events if event.what == "recovery"]


async def rank_0(nodes: list[Node], generation: int, size: int) -> Node:
    """The node that has rank 0 in a generation; each of `nodes` is told its place."""
    found = [await node.says(rf"generation {generation}: {size} nodes?, .*this is M_id (\d)") for node in nodes]
    return nodes[[one[1] for one in found].index("0")]


def adds_up(line: str, total: str) -> list[str]:
    """The names of the phases of a line; they make up its total, within rounding."""
    phases = re.findall(NUMBER, line.rpartition(": ")[2].partition(";")[0])
    assert abs(sum(int(length) for _, length in phases) - float(total) * 1000) <= 5 + len(phases)
    return [name for name, _ in phases]


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
    assert {"notice", "decide", "publish", "spawn", "group", "restore", "step"} <= set(names), names
    other = next(node for node in nodes if node is not first)
    assert not [line for line in other.lines if "back in" in line], "once, on one node"
    (event,) = recoveries(first)
    assert (event["complete"], event["before"], event["why"]) in ((True, 1, "loss"), (True, 1, "failure"))
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
    flags = ("--np", "1:2", "--grow_every", "0")
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
    nodes = [await job.node("--np", "2", "--max_restarts", "9", ttl_s=QUICK_TTL_S, script=(str(script),)) for _ in "ab"]
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
    found = await node.says(r": first step ([\d.]+) s after the command: join \d+ ms · meet \d+")
    assert adds_up(found.string, found[1])[-1] == "step"
    (event,) = [one for one in map(json.loads, node.text("events.jsonl").splitlines()) if one["what"] == "start"]
    assert event["before"] is None
