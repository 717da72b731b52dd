"""What others do to a job: other jobs, other versions, the same command once more, strangers who write into etcd."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
from pathlib import Path
from signal import SIGTERM

import pytest

from elastic.core.keys import JobKeys
from elastic.core.kv import Delete, KeyRange, KeyValue, Operation, Put
from elastic.core.model import SCHEMA
from elastic.core.view_reader import decode
from elastic.errors import DocumentError
from elastic.store.etcd import EtcdStore
from launcher.agent.store_actions import DAMAGED_MAX
from tests.fuzz.mutate import mutate
from tests.support.agent_process import Node
from tests.support.job_harness import Job, story
from tests.support.package_copy import changed_copy

ROUNDS = int(os.environ.get("STRANGER_ROUNDS", "60"))
"""How often the stranger writes. `STRANGER_ROUNDS=2000 pytest tests/process/job/test_strangers.py` takes minutes."""
HUGE = b'"' + b"x" * 1_400_000 + b'"'


async def entries(store: EtcdStore, keys: JobKeys) -> dict[str, KeyValue]:
    """Every key of a job."""
    return {entry.key: entry for entry in (await store.list(KeyRange.prefix(keys.root))).entries}


def undisturbed(before: dict[str, KeyValue], after: dict[str, KeyValue]) -> bool:
    """Tell whether nothing was written but the history for people."""
    was, now = ({key: one.mod_revision for key, one in it.items() if "/events/" not in key} for it in (before, after))
    return was == now


def no_stack_trace(nodes: list[Node]) -> None:
    for node in nodes:
        text = "\n".join([*node.lines, *node.shown, node.text("launcher.log")])
        assert "Traceback" not in text
        assert "Error:" not in re.sub(r"\(.*?\)", "", text)


@story
async def test_a_job_that_ends_leaves_one_alone_whose_name_begins_alike(job: Job) -> None:
    other = f"{job.job_id}0"
    await job.node("--np", "1")
    beside = await job.node("--np", "1", "--job-id", other)
    (mine,) = await job.world(1, 1)
    (theirs,) = await job.world(1, 1, job_id=other)
    store = EtcdStore((job.etcd.endpoint,))
    try:
        before = await entries(store, JobKeys(other))
        job.nodes[0].signal(SIGTERM)
        assert await job.nodes[0].exits() == 143
        stopped = {"status": "failed", "reason": "stopped", "run": 1, "g": 1, "at": 0.0}
        await store.txn((), (Put(JobKeys(job.job_id).verdict, json.dumps(stopped).encode()),))
        assert mine.ended
        assert not theirs.ended
        assert undisturbed(before, await entries(store, JobKeys(other)))
    finally:
        await store.close()
    await theirs.exits(0)
    assert await beside.exits() == 0


@story
async def test_the_same_command_typed_twice_without_a_server_makes_two_jobs_with_logs_of_their_own(job: Job) -> None:
    first = await job.node("--np", "1", server=False)
    (one,) = await job.world(1, 1)
    other = f"{job.job_id}-again"  # Where none is named, each command invents one.
    second = await job.node("--np", "1", "--job-id", other, server=False, beside=first)
    await second.says(rf"another job \({job.job_id}\) writes its logs into .*/log; this job writes to .*/log/")
    await job.told.until(lambda: len(job.workers) == 2, "a second worker")
    two = job.workers[1]
    for worker, text in ((one, "first"), (two, "second")):
        await worker.obeys("print", text)
        await worker.exits(0)
    assert [await node.exits() for node in (first, second)] == [0, 0]
    assert first.text("workerlog.0").splitlines()[1:-1] == ["first"]
    assert first.text(f"{other}/workerlog.0").splitlines()[1:-1] == ["second"]


@story
async def test_the_same_command_typed_twice_with_a_server_makes_two_nodes_whose_logs_are_whole(job: Job) -> None:
    first = await job.node("--np", "2")
    second = await job.node("--np", "2", beside=first)
    world = await job.world(1, 2)
    assert {worker.node for worker in world} == {first.id, second.id}
    for worker in world:
        await worker.obeys("print", f"rank {worker.rank}")
    for worker in world:
        await worker.exits(0)
    assert [await node.exits() for node in (first, second)] == [0, 0]
    for rank in (0, 1):
        assert first.text(f"workerlog.{rank}").splitlines()[1:-1] == [f"rank {rank}"]
    assert first.text("launcher.log").count("joined the job as") == 2


def another_version(folder: Path, schema: int) -> dict[str, str]:
    """The environment in which elastic-launch is of another schema."""
    return changed_copy(folder, "elastic/core/model.py", f"SCHEMA = {SCHEMA}", f"SCHEMA = {schema}")


@pytest.mark.parametrize("schema", [SCHEMA - 1, SCHEMA + 1])
def test_a_launcher_of_another_schema_is_refused_with_both_versions_and_the_job_is_untouched(
    stage: object, schema: int
) -> None:
    async def told(job: Job) -> None:
        nodes = [await job.node("--np", "2") for _ in range(2)]
        world = await job.world(1, 2)
        store = EtcdStore((job.etcd.endpoint,))
        try:
            before = await entries(store, JobKeys(job.job_id))
            other = await job.node("--np", "2", environ=another_version(job.folder / "other", schema))
            assert await other.exits() == 3
            words = f"job {job.job_id} has schema {SCHEMA}, and this agent has schema {schema}; install the job's "
            assert [line for line in other.lines if words in line]
            assert undisturbed(before, await entries(store, JobKeys(job.job_id)))
        finally:
            await store.close()
        for worker in world:
            assert not worker.ended
            await worker.exits(0)
        assert [await node.exits() for node in nodes] == [0, 0]

    stage.play(told)  # type: ignore[attr-defined]


@story
async def test_a_node_is_rejected_by_a_job_of_another_schema_whose_documents_it_cannot_read(job: Job) -> None:
    """The job is one that a later version may have written: its spec has other fields, and other types."""
    keys = JobKeys(job.job_id)
    documents = {
        keys.spec: b'{"nodes":"2-4","schema":99,"run":{"number":1}}',
        keys.incarnation: b'{"id":"abc"}',
        keys.secret: b"\x01\x02",
        keys.member("a"): b'["h",1]',
        keys.generation: b"\x28\xb5\x2f\xfd",
        keys.go: b"{}",
        keys.outcome(1, "a"): b"ok",
        keys.verdict: b'"completed"',
        keys.saved: b'{"step":"7"}',
    }
    store = EtcdStore((job.etcd.endpoint,))
    try:
        await store.txn((), tuple(Put(key, value) for key, value in documents.items()))
        before = await entries(store, keys)
        node = await job.node("--np", "2")
        assert await node.exits() == 3
        assert await entries(store, keys) == before
    finally:
        await store.close()
    words = f"job {job.job_id} has schema 99, and this agent has schema {SCHEMA}; install the job's version of "
    assert len([line for line in node.lines if words in line]) == 1
    assert not [line for line in node.lines if "cannot be read" in line]
    no_stack_trace([node])


@story
async def test_a_launcher_of_another_version_with_the_same_schema_is_refused_with_both_versions(job: Job) -> None:
    node = await job.node("--np", "1")
    (worker,) = await job.world(1, 1)
    keys = JobKeys(job.job_id)
    store = EtcdStore((job.etcd.endpoint,))
    try:
        spec = json.loads((await entries(store, keys))[keys.spec].value)
        here = spec["versions"]["launcher"]
        spec["versions"]["launcher"] = "9.9.0"
        await store.txn((), (Put(keys.spec, json.dumps(spec).encode()),))
    finally:
        await store.close()
    other = await job.node("--np", "1")
    assert await other.exits() == 3
    words = rf"launcher is 9\.9\.0 in job {job.job_id}, {re.escape(here)} on this node; install the same"
    assert [line for line in other.lines if re.search(words, line)]
    assert not worker.ended
    await worker.exits(0)
    assert await node.exits() == 0


@story
async def test_a_member_whose_key_is_deleted_or_damaged_is_registered_again_and_its_workers_run_on(job: Job) -> None:
    node = await job.node("--np", "1")
    (worker,) = await job.world(1, 1)
    key = JobKeys(job.job_id).member(node.id)
    store = EtcdStore((job.etcd.endpoint,))
    try:
        for operation in (Delete(KeyRange.key(key)), Put(key, b"\xff{")):
            since = node.now
            await store.txn((), (operation,))
            await node.says("this node's key was deleted from etcd or has another lease", since=since)
            await node.says("registered again; the workers kept running", since=since)
    finally:
        await store.close()
    assert not worker.ended
    await worker.exits(0)
    assert await node.exits() == 0
    assert job.newest_generation() == 1


@story
async def test_of_many_documents_that_cannot_be_read_an_agent_names_the_first_few(job: Job) -> None:
    node = await job.node("--np", "1")
    (worker,) = await job.world(1, 1)
    keys = JobKeys(job.job_id)
    store = EtcdStore((job.etcd.endpoint,))
    try:
        for number in range(3 * DAMAGED_MAX):
            await store.txn((), (Put(keys.member(f"stranger-{number:04}"), b"{}"),))
        await node.says("more etcd keys cannot be parsed")
        since = node.now
        await store.txn((), (Delete(KeyRange.key(keys.member(node.id))),))  # It sees this after all of the documents.
        await node.says("registered again", since=since)
        await store.txn((), (Put(keys.verdict, b"{"),))  # The job stands on this one.
        await node.says(f"ignoring etcd key {keys.verdict}: cannot parse it", since=since)
        await store.txn((), (Delete(KeyRange.key(keys.verdict)),))
    finally:
        await store.close()
    assert len([line for line in node.lines if "ignoring etcd key" in line]) == DAMAGED_MAX + 1
    await worker.exits(0)
    assert await node.exits() == 0


class Stranger:
    """Writes into a job what nobody can read, and takes keys away."""

    def __init__(self, store: EtcdStore, keys: JobKeys, seed: int) -> None:
        self.store = store
        self.keys = keys
        self.chance = random.Random(seed)
        self.wrote = 0

    async def strikes(self, *, readable: bool) -> None:
        """One key of the job becomes something else, or is gone; with `readable` also what an agent obeys."""
        chance, keys = self.chance, self.keys
        found = await entries(self.store, keys)
        invented = [keys.member("stranger-0001"), keys.outcome(1, "stranger-0001"), keys.answer("0" * 16, "x")]
        invented += [
            keys.probe,
            keys.root + "unheard.of",
            keys.events + "zzz",
            keys.saved,
            keys.leader,
            keys.outcomes + "1/a",
        ]
        if not readable:  # A member whose key is gone counts as lost if a loaded machine does not answer in time.
            found = {key: entry for key, entry in found.items() if not key.startswith(keys.members)}
        key = chance.choice([*found, *found, *invented])
        old = found.get(key)
        values = [b"", b"\xff\xfe{", b"null", b"[" * 5000, HUGE, chance.randbytes(200)]
        seeds = [entry.value for entry in found.values()]
        if old is not None:
            values += [mutate(old.value, seeds, chance) for _ in range(6)]
        value = chance.choice(values)[: len(HUGE)]
        operation: Operation = Put(key, value, chance.choice([0, old.lease]) if old is not None else 0)
        if self._understood(key, value) and not readable:
            return
        bearable = (keys.members, keys.saved, keys.leader, keys.events)
        if chance.random() < 0.15 and (readable or key.startswith(bearable)):
            operation = Delete(KeyRange.key(key))
        await self.store.txn((), (operation,))
        self.wrote += 1
        if not readable:
            await asyncio.sleep(chance.choice([0.0, 0.0, 0.02, 0.1]))  # So long it stands there.
            await self._put_right(key, old)

    def _understood(self, key: str, value: bytes) -> bool:
        try:
            decode(self.keys, key, value)
        except DocumentError:
            return False
        return True

    async def _put_right(self, key: str, old: KeyValue | None) -> None:
        """As a person does it: what stood there is written again."""
        if old is None:
            await self.store.txn((), (Delete(KeyRange.key(key)),))
        else:
            await self.store.txn((), (Put(key, old.value),))


@pytest.mark.timeout(600 if ROUNDS > 100 else 120)
@story
async def test_what_nobody_can_read_under_any_key_stops_nothing_and_the_job_goes_on_when_it_is_put_right(
    job: Job,
) -> None:
    other = f"{job.job_id}0"
    beside = await job.node("--np", "1", "--job-id", other, "--checkpoint-dir", "own")
    nodes = [await job.node("--np", "2") for _ in range(2)]
    world = await job.world(1, 2)
    (theirs,) = await job.world(1, 1, job_id=other)
    store = EtcdStore((job.etcd.endpoint,))
    try:
        before = await entries(store, JobKeys(other))
        stranger = Stranger(store, JobKeys(job.job_id), seed=ROUNDS)
        for _ in range(ROUNDS):
            await stranger.strikes(readable=False)
        assert stranger.wrote > ROUNDS // 2
        assert not [worker.rank for worker in world if worker.ended], "what cannot be read stops no worker"
        await world[1].exits(1)
        again = await job.world(2, 2)
        assert undisturbed(before, await entries(store, JobKeys(other)))
    finally:
        await store.close()
    for worker in (*again, theirs):
        await worker.exits(0)
    assert [await node.exits() for node in (*nodes, beside)] == [0, 0, 0]
    no_stack_trace(job.nodes)


@pytest.mark.timeout(600 if ROUNDS > 100 else 120)
@story
async def test_whatever_a_stranger_writes_no_agent_crashes_and_another_job_is_not_disturbed(job: Job) -> None:
    other = f"{job.job_id}0"
    beside = await job.node("--np", "1", "--job-id", other)
    (theirs,) = await job.world(1, 1, job_id=other)
    nodes = [await job.node("--np", "2", "--scale-up-interval", "0") for _ in range(2)]
    await job.world(1, 2)
    store = EtcdStore((job.etcd.endpoint,))
    try:
        before = await entries(store, JobKeys(other))
        stranger = Stranger(store, JobKeys(job.job_id), seed=ROUNDS + 1)
        for count in range(ROUNDS):
            await stranger.strikes(readable=True)
            if not count % 10:
                await asyncio.sleep(0.05)
        assert undisturbed(before, await entries(store, JobKeys(other)))
    finally:
        await store.close()
    assert not theirs.ended
    for node in nodes:
        if not node.ended:
            node.signal(SIGTERM)
    assert {await node.exits() for node in nodes} <= {0, 1, 3, 4, 143}
    no_stack_trace(nodes)
    await theirs.exits(0)
    assert await beside.exits() == 0
