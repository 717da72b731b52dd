"""`elastic-ctl scale` of a Job and of a JobSet, as a process, on the API server of the other tests."""

from __future__ import annotations

import argparse
import asyncio
import functools
import os
import ssl
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from elastic.errors import ConfigError
from launcher.ctl import cli, pods
from tests.support.fake_jobset import JobSetCluster
from tests.support.fake_kubernetes import NAME, NAMESPACE, Cluster
from tests.support.tls_authority import authority

LIMIT_S = 60.0


def story(test: Callable[[], Coroutine[None, None, None]]) -> Callable[[], None]:
    @functools.wraps(test)
    def run() -> None:
        asyncio.run(test())

    return run


async def scaled(*words: str, server: str = "", namespace: str = NAMESPACE) -> tuple[int, str]:
    """Its exit code, and the one line that it writes. `server` is reached without a token, as through kubectl proxy."""
    place = ("--api-server", server, "--namespace", namespace) if server else ()
    environ = {name: text for name, text in os.environ.items() if not name.startswith(("ELASTIC", "KUBERNETES"))}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "launcher.ctl", "scale", *words, *place),
        env=environ,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    async with asyncio.timeout(LIMIT_S):
        out, _ = await process.communicate()
    (line,) = out.decode().splitlines()
    assert process.returncode is not None
    return process.returncode, line


def open_to_all(cluster: Cluster) -> Cluster:
    """As kubectl proxy: it adds the credentials of its user."""
    cluster.tokens.add("")
    return cluster


@story
async def test_a_job_gets_the_number_of_pods_and_the_autoscaler_is_told_to_keep_it() -> None:
    cluster = open_to_all(Cluster(size=2, machines=9))
    cluster.disturb = 1
    async with cluster.serve() as server:
        code, line = await scaled("--k8s-job", NAME, "--np", "4", server=server)
        assert (code, line) == (
            0,
            "Job train: from 2 to 4 pods; the annotation elastic-launch/nodes is 4, which the autoscaler keeps",
        )
        assert (cluster.job["spec"]["completions"], cluster.job["spec"]["parallelism"]) == (4, 4)
        assert cluster.job["metadata"]["annotations"] == {"elastic-launch/nodes": "4"}
        code, line = await scaled("--k8s-job", NAME, "--np", "4:4", server=server)
        assert (code, line.partition(";")[0]) == (0, "Job train: stays at 4 pods")


@story
async def test_a_jobset_gets_the_number_of_pods_in_its_replicated_job() -> None:
    cluster = JobSetCluster(size=2, machines=9)
    open_to_all(cluster)
    async with cluster.serve() as server:
        code, line = await scaled("--jobset", NAME, "--np", "3", server=server)
        assert (code, line.partition(";")[0]) == (0, "JobSet train: from 2 to 3 pods")
        assert (cluster.size, cluster.job["spec"]["parallelism"]) == (3, 3)
        assert cluster.jobset["metadata"]["annotations"] == {"elastic-launch/nodes": "3"}
        assert (await scaled("--jobset", NAME, "--np", "1", server=server))[0] == 0
        assert cluster.taken == [(1, "Running"), (2, "Running")]

        cluster.gate = False
        code, line = await scaled("--jobset", NAME, "--np", "2", server=server)
        assert (code, "turn on its feature gate ElasticJobSet" in line) == (3, True)
        cluster.gate = True
        await cluster.end()
        code, line = await scaled("--jobset", NAME, "--np", "2", server=server)
        assert (code, line) == (
            1,
            "elastic-ctl: error: JobSet train has ended; its number of pods cannot be changed",
        )


@story
async def test_what_is_wrong_in_the_command_line_is_one_line_and_exit_code_2() -> None:
    cluster = JobSetCluster(size=2, machines=9)
    open_to_all(cluster)
    async with cluster.serve() as server:
        for words, said in (
            (("--jobset", NAME, "--np", "1:4"), "--np 1:4: a Job or JobSet has one number of pods"),
            (("--jobset", NAME, "--np", "3+"), "--np 3+: a Job or JobSet has one number of pods"),
            (("--jobset", NAME, "--np", "0"), "a job has at least 1 node"),
            (("--jobset", NAME, "--k8s-job", NAME, "--np", "2"), "not allowed with argument"),
            (("--np", "2"), "no Kubernetes object named; add --k8s-job NAME or --jobset NAME"),
        ):
            code, line = await scaled(*words, server=server)
            assert (code, said in line) == (2, True), line
        cluster.rules[1]["resourceNames"] = ["train-workers-0"]
        code, line = await scaled("--jobset", NAME, "--replicated-job", "workers", "--np", "2", server=server)
        assert (code, line) == (
            2,
            "elastic-ctl: error: JobSet train: it has no replicated Job workers; it has node; name another one with "
            "--replicated-job",
        )
    assert cluster.patches == []
    for words, said in (
        (("--k8s-job", NAME, "--np", "2"), "not running in a Kubernetes pod; run `kubectl proxy`"),
        (("--k8s-job", NAME, "--np", "2", "--api-server", "127.0.0.1:1"), "'127.0.0.1:1' is not an http://"),
        (("--np", "2"), "no etcd given; add --elastic-server"),
    ):
        code, line = await scaled(*words)
        assert (code, said in line) == (2, True), line


@story
async def test_an_object_that_is_not_there_and_a_server_that_refuses_or_is_away_are_one_line_each() -> None:
    cluster = Cluster(size=2, machines=9)
    async with cluster.serve() as server:
        code, line = await scaled("--k8s-job", NAME, "--np", "3", server=server)
        assert (code, line) == (3, "elastic-ctl: error: the API server answers 401: Unauthorized")
        open_to_all(cluster).job = {}
        code, line = await scaled("--k8s-job", NAME, "--np", "3", server=server)
        assert (code, line) == (1, f"elastic-ctl: error: there is no Job train in the namespace {NAMESPACE}")
    code, line = await scaled("--k8s-job", NAME, "--np", "3", server=server)
    assert (code, f"cannot reach the API server at {server}: " in line) == (4, True)


def asked(*words: str) -> argparse.Namespace:
    return cli.parser().parse_args(["scale", *words])


def strict_context(cafile: Path) -> ssl.SSLContext:
    """As `ssl.create_default_context` of Python 3.13, in every Python."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cafile)
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    return context


def test_in_a_pod_the_service_account_names_the_server_the_namespace_and_the_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = authority(tmp_path)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(own.path("here.pem"), own.path("here-key.pem"))
    account = tmp_path / "account"
    account.mkdir()
    (account / "ca.crt").write_text(Path(own.path("ca.pem")).read_text())
    (account / "namespace").write_text(NAMESPACE)
    monkeypatch.setattr(pods, "ACCOUNT", account)
    monkeypatch.setattr(ssl, "create_default_context", strict_context)  # The authority lacks what that demands.

    async def run() -> None:
        cluster = JobSetCluster(size=2, machines=9)
        async with cluster.serve(tls) as server:
            environ = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(urlsplit(server).port)}
            with pytest.raises(ConfigError, match="this pod has no token of a service account"):
                await pods.resize(asked("--jobset", NAME, "--np", "3"), environ)
            (account / "token").write_text("first\n")
            line = await pods.resize(asked("--jobset", NAME, "--np", "3"), environ)
            assert line.partition(";")[0] == "JobSet train: from 2 to 3 pods"
            assert cluster.size == 3

    asyncio.run(run())
