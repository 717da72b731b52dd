"""`elastic-ctl wait` and `status --exit-code` on a real etcd: scripts branch on the exit code."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from elastic.core.keys import JobKeys
from elastic.core.model import ChangeReason, FinalStatus, Generation, GenerationMember, Go, JobSpec, Member, Np, Verdict
from elastic.core.view import Document
from elastic.store.embedded import find_etcd
from tests.support.etcd_documents import put_documents
from tests.support.etcd_servers import free_ports, one_server

LIMIT_S = 30.0
NODE = "10.0.0.1-aaaa"
MEMBER = Member(host="10.0.0.1", slots=1, masters=(7000,), ports=(8000,))
SPEC = JobSpec(np=Np(low=1, high=2, first=1), slots=1)
GENERATION = Generation(
    g=1,
    run=1,
    leader="t",
    why=ChangeReason.FIRST,
    reason="1 of 1 nodes are here",
    members=(GenerationMember(NODE, "10.0.0.1", (7000,), (8000,)),),
    slots=1,
)
GO = Go(g=1, master="10.0.0.1:7000", budget=GENERATION.budget)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    etcd = one_server(find_etcd(), tmp_path_factory.mktemp("etcd")).start()
    yield etcd.endpoint
    etcd.kill()


def waiting_job(keys: JobKeys) -> dict[str, Document]:
    return {keys.incarnation: keys.job_id, keys.spec: SPEC, keys.member(NODE): MEMBER}


def running(keys: JobKeys) -> dict[str, Document]:
    return {keys.generation: GENERATION, keys.go: GO}


def ended(keys: JobKeys, status: FinalStatus) -> dict[str, Document]:
    return {keys.verdict: Verdict(status=status, reason="so it is", run=1, g=1, at=0.0)}


def start(server: str, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "launcher.ctl", *words],
        env={**os.environ, "ELASTIC_ETCD": server},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ran(server: str, *words: str) -> tuple[int, str, str]:
    with start(server, *words) as process:
        out, err = process.communicate(timeout=LIMIT_S)
    return process.returncode, out, err


def test_a_wait_ends_when_the_job_that_was_not_there_runs(server: str) -> None:
    keys = JobKeys("w1")
    with start(server, "wait", "--for", "running", "--job-id", "w1") as waits:
        put_documents(server, waiting_job(keys))
        put_documents(server, running(keys))
        out, err = waits.communicate(timeout=LIMIT_S)
    assert (waits.returncode, out, err) == (0, "Job w1 runs: generation 1, 1 node, world size 1\n", "")


def test_a_wait_for_more_nodes_or_the_end_is_over_after_its_timeout(server: str) -> None:
    keys = JobKeys("w2")
    put_documents(server, waiting_job(keys) | running(keys))
    for wanted in ("nodes=2", "completed"):
        assert ran(server, "wait", "--for", wanted, "--job-id", "w2", "--timeout", "200ms") == (
            8,
            "",
            f"elastic-ctl: job w2 did not reach {wanted} within 0.2s; its state is: running\n",
        )
    code, _, err = ran(server, "wait", "--for", "running", "--job-id", "w3", "--timeout", "0.2")
    assert (code, err) == (8, "elastic-ctl: job w3 did not reach running within 0.2s; it does not exist\n")


@pytest.mark.parametrize(
    ("status", "how", "code"),
    [
        (FinalStatus.COMPLETED, "has completed", 0),
        (FinalStatus.FAILED, "has failed", 5),
        (FinalStatus.STOPPED, "was stopped", 7),
    ],
)
def test_a_wait_for_the_end_tells_how_the_job_has_ended_and_so_does_its_status(
    server: str, status: FinalStatus, how: str, code: int
) -> None:
    keys = JobKeys(f"w-{status}")
    put_documents(server, waiting_job(keys) | running(keys))
    with start(server, "wait", "--for", "completed", "--job-id", keys.job_id) as waits:
        assert ran(server, "status", "--job-id", keys.job_id, "--exit-code")[0] == 0
        put_documents(server, ended(keys, status))
        out, err = waits.communicate(timeout=LIMIT_S)
    assert (waits.returncode, out, err) == (code, f"Job {keys.job_id} {how}: so it is\n", "")
    assert ran(server, "status", "--job-id", keys.job_id, "--exit-code")[0] == code
    assert ran(server, "status", "--job-id", keys.job_id, "--exit-code", "--watch")[0] == code
    assert ran(server, "status", "--job-id", keys.job_id)[0] == 0


def test_the_status_of_a_job_that_forms_or_is_not_there_has_its_own_exit_code(server: str) -> None:
    put_documents(server, waiting_job(JobKeys("w4")))
    assert ran(server, "status", "--job-id", "w4", "--exit-code")[0] == 6
    assert ran(server, "status", "--job-id", "w5", "--exit-code")[0] == 1


def test_an_etcd_that_does_not_answer_at_the_start_is_an_error() -> None:
    (port,) = free_ports(1)
    code, _, err = ran(f"127.0.0.1:{port}", "wait", "--for", "running", "--job-id", "w1")
    assert code == 4
    assert "does not answer" in err
