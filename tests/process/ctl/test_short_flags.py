"""`elastic-ctl` with short flags on a real etcd: they do what the long flags do, and `list --watch` shows changes."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from elastic.core.keys import JobKeys
from elastic.core.kv import Put
from elastic.core.model import JobSpec, Member, Np
from elastic.core.view import Document, encode
from elastic.store.embedded import find_etcd
from elastic.store.etcd import EtcdStore
from launcher.history.events import EventKind, HistoryEvent, remember
from tests.support.etcd_servers import one_server

LIMIT_S = 30.0
NODE = "10.0.0.1-aaaa"
SPEC = JobSpec(np=Np(low=1, high=2, first=2), slots=1)
MEMBER = Member(host="10.0.0.1", slots=1, masters=(7000,), ports=(8000,))
EVENTS = tuple(
    HistoryEvent(at=1795168800.0 + g, node=NODE, what=EventKind.GENERATION, g=g, text=f"reason {g}") for g in (1, 2, 3)
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An etcd with job j1, which waits for a second node and has three events."""
    etcd = one_server(find_etcd(), tmp_path_factory.mktemp("etcd")).start()
    asyncio.run(add_job(etcd.endpoint, "j1", *EVENTS))
    yield etcd.endpoint
    etcd.kill()


async def add_job(endpoint: str, job_id: str, *events: HistoryEvent) -> None:
    store, keys = EtcdStore([endpoint]), JobKeys(job_id)
    first: dict[str, Document] = {keys.incarnation: job_id, keys.spec: SPEC, keys.member(NODE): MEMBER}
    await store.txn([], [Put(key, encode(document)) for key, document in first.items()])
    for event in events:
        await store.txn([], remember(keys, event, []))
    await store.close()


def answer(server: str, *words: str) -> str:
    environ = {**os.environ, "ELASTIC_ETCD": server}
    ran = subprocess.run(
        [sys.executable, "-m", "launcher.ctl", *words],
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=LIMIT_S,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    return ran.stdout


def test_json_by_its_short_flag_before_and_after_the_command(server: str) -> None:
    for words in (("status", "--job-id", "j1", "-o", "json"), ("-o", "json", "--job-id", "j1", "status")):
        assert json.loads(answer(server, *words))["job_id"] == "j1"


def test_the_newest_events_alone(server: str) -> None:
    lines = answer(server, "events", "--job-id", "j1", "-n", "2").splitlines()
    assert [line.rpartition(": ")[2] for line in lines] == ["reason 2", "reason 3"]
    assert answer(server, "events", "--job-id", "j1", "-n", "0") == ""


def test_the_version_names_the_etcd_that_answers(server: str) -> None:
    document = json.loads(answer(server, "version", "-o", "json"))
    assert list(document["etcd"]) == [server]


def test_a_list_is_shown_again_when_a_job_was_added(server: str) -> None:
    argv = [sys.executable, "-m", "launcher.ctl", "list", "-w", "200ms", "-o", "json", "--elastic-server", server]
    with subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as watcher:
        assert watcher.stdout is not None
        assert watcher.stderr is not None
        try:
            assert json.loads(watcher.stdout.readline())["job_id"] == "j1"
            asyncio.run(add_job(server, "j2"))
            assert json.loads(watcher.stdout.readline())["job_id"] == "j2"
            watcher.stdout.close()
            assert watcher.wait(LIMIT_S) == 141
        finally:
            watcher.kill()
        assert watcher.stderr.read() == ""


def test_a_watched_list_is_a_block_with_the_time(server: str) -> None:
    argv = [sys.executable, "-m", "launcher.ctl", "list", "-w", "--elastic-server", server]
    with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as watcher:
        assert watcher.stdout is not None
        try:
            assert watcher.stdout.readline().startswith("--- ")
            assert watcher.stdout.readline().split()[:2] == ["job", "state"]
            assert watcher.stdout.readline().split()[:2] == ["j1", "waiting"]
        finally:
            watcher.kill()
