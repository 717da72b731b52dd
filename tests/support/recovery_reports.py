"""What agents told of recoveries: in their lines, in the events of their folders, and in the store."""

from __future__ import annotations

import json
import re
from typing import Any

from elastic.core.keys import JobKeys
from elastic.store.etcd import EtcdStore
from launcher.history.events import HistoryEvent
from launcher.job import history
from tests.support.agent_process import Node
from tests.support.job_harness import Job

NUMBER = r"(\w+) (\d+)(?: ms)?"


def recoveries(node: Node) -> list[dict[str, Any]]:
    """The recoveries in the events of a node's folder."""
    return [event for event in map(json.loads, node.text("events.jsonl").splitlines()) if event["what"] == "recovery"]


async def told(job: Job, what: str = "recovery") -> list[HistoryEvent]:
    """The recoveries in the store, or other events."""
    store = EtcdStore([job.etcd.endpoint])
    try:
        events = await history.read_history(store, JobKeys(job.job_id, "/elastic"))
    finally:
        await store.close()
    return [event for event in events if event.what == what]


def adds_up(line: str, total: str) -> list[str]:
    """The names of the phases of a line; they make up its total, within rounding."""
    phases = re.findall(NUMBER, line.rpartition(": ")[2].partition(";")[0])
    assert abs(sum(int(length) for _, length in phases) - float(total) * 1000) <= 5 + len(phases)
    return [name for name, _ in phases]
