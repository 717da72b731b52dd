"""`elastic-ctl stop` on a terminal asks first; what is typed decides."""

from __future__ import annotations

import asyncio
import os
import pty
import subprocess
import sys
from collections.abc import Iterator

import pytest

from elastic.core.keys import JobKeys
from elastic.core.kv import Delete, KeyRange
from elastic.core.model import JobSpec, Member, Np
from elastic.core.view import Document
from elastic.store.embedded import find_etcd
from elastic.store.etcd import EtcdStore
from tests.support.etcd_documents import put_documents
from tests.support.etcd_servers import one_server

LIMIT_S = 30.0
NODE = "10.0.0.1-aaaa"
KEYS = JobKeys("j1")
DOCUMENTS: dict[str, Document] = {
    KEYS.incarnation: "one",
    KEYS.spec: JobSpec(np=Np(low=1, high=2, first=1), slots=1),
    KEYS.member(NODE): Member(host="10.0.0.1", slots=1, masters=(7000,), ports=(8000,)),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An etcd with job j1, which has one node."""
    etcd = one_server(find_etcd(), tmp_path_factory.mktemp("etcd")).start()
    put_documents(etcd.endpoint, DOCUMENTS)
    yield etcd.endpoint
    etcd.kill()


def was_stopped(server: str) -> bool:
    async def look() -> bool:
        store = EtcdStore([server])
        try:
            return bool((await store.list(KeyRange.key(KEYS.halt))).entries)
        finally:
            await store.close()

    return asyncio.run(look())


def on_a_terminal(server: str, typed: str, *flags: str) -> tuple[int, str]:
    """`elastic-ctl stop` on a terminal of its own, on which this is typed: its exit code, and what it wrote."""
    controller, terminal = pty.openpty()
    argv = [sys.executable, "-m", "launcher.ctl", "stop", "--no-wait", "--elastic-server", server, "--job-id", "j1"]
    with subprocess.Popen([*argv, *flags], stdin=terminal, stdout=terminal, stderr=terminal) as process:
        os.close(terminal)
        os.write(controller, typed.encode())
        written = b""
        try:
            while piece := os.read(controller, 1 << 16):
                written += piece
        except OSError:  # The command has closed the terminal.
            pass
        code = process.wait(LIMIT_S)
    os.close(controller)
    return code, written.decode()


def test_a_job_is_stopped_on_a_terminal_only_after_a_yes(server: str) -> None:
    code, written = on_a_terminal(server, "n\n")
    assert code == 1
    assert "Stop job j1 for good? The workers on 1 node will save and exit. [y/N]" in written
    assert "job j1 continues" in written
    assert not was_stopped(server)
    code, written = on_a_terminal(server, "y\n", "--now")
    assert code == 0
    assert "The workers on 1 node will be stopped without saving. [y/N]" in written


def test_yes_skips_the_question(server: str) -> None:
    asyncio.run(delete_verdict(server))
    code, written = on_a_terminal(server, "", "-y")
    assert (code, "[y/N]" in written) == (0, False)
    assert was_stopped(server)


async def delete_verdict(server: str) -> None:
    store = EtcdStore([server])
    await store.txn([], [Delete(KeyRange.key(KEYS.verdict))])
    await store.close()
