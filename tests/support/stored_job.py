"""A store in memory that has some jobs."""

from __future__ import annotations

import time
from typing import Any

from elastic.core.keys import JobKeys
from elastic.core.kv import KeyRange, Put
from elastic.core.model import ChangeReason, FinalStatus, Generation, GenerationMember, Go, JobSpec, Member, Np, Verdict
from elastic.core.view import Document, encode
from elastic.store.memory import MemoryStore
from elastic.store.memory_core import MemoryCore
from launcher.history.events import EventKind, HistoryEvent, remember
from launcher.job.named_job import NamedJob

SPEC = JobSpec(np=Np(low=1, high=2, first=2), slots=1)
MEMBER = Member(host="h", slots=1, masters=(7000,), ports=(8000,))
PLACES = (GenerationMember("a", "h", (7000,), (8000,)), GenerationMember("b", "h", (7000,), (8000,)))
WORLD = Generation(g=3, run=1, leader="t", why=ChangeReason.NODE_LOST, reason="c was lost", members=PLACES, slots=1)
GO = Go(g=3, master="h:7000", budget=WORLD.budget)
VERDICT = Verdict(status=FinalStatus.FAILED, reason="no restart is left", run=1, g=3, at=5.0)


class Stored:
    """A store with some jobs."""

    def __init__(self) -> None:
        self.core = MemoryCore()
        self.store = MemoryStore(self.core, time.monotonic)

    def put(self, job_id: str, *names: str, nodes: tuple[str, ...] = ()) -> NamedJob:
        """A job that has these documents, and registered nodes."""
        keys = JobKeys(job_id, "/p")
        all_documents: dict[str, Document] = {
            "incarnation": f"of {job_id}",
            "spec": SPEC,
            "generation": WORLD,
            "go": GO,
            "verdict": VERDICT,
        }
        self.core.txn((), [Put(keys.root + name, encode(all_documents[name])) for name in names])
        for node in nodes:
            self.core.txn((), (Put(keys.member(node), encode(MEMBER)),))
        return NamedJob(job_id, keys, self.store, ("h:1",))

    def event(self, job_id: str, at: float) -> None:
        self.core.txn((), remember(JobKeys(job_id, "/p"), HistoryEvent(at=at, node="a", what=EventKind.GO, g=3), []))

    def left(self) -> list[str]:
        return [entry.key for entry in self.core.list(KeyRange.prefix("/")).entries]


async def awaited_code(work: Any) -> int:
    code: int = await work
    return code
