"""elastic-k8s-autoscaler as a process, on an API server that refuses what the real one refuses."""

from __future__ import annotations

import ssl
from pathlib import Path

import aiohttp

from launcher.k8s.autoscaler import PROG
from tests.support.autoscaler_process import scaler, story
from tests.support.fake_kubernetes import MERGE_PATCH, NAME, NAMESPACE, Cluster
from tests.support.tls_authority import authority


@story
async def test_a_job_grows_to_the_machines_that_come_and_no_running_pod_is_ever_taken(tmp_path: Path) -> None:
    cluster = Cluster(size=2, machines=3)
    async with cluster.serve() as server, scaler(tmp_path, server, "--np", "2:5") as autoscaler:
        assert await autoscaler.says("from 2") == "Job train: from 2 to 5 pods: all 2 pods running"
        assert await autoscaler.says("from 5") == "Job train: from 5 to 3 pods: 2 pods found no machine in 0.3 s"
        assert cluster.taken[:2] == [(3, "Pending"), (4, "Pending")]
        await cluster.change(machines=5)
        await cluster.until(size=5, running=5)
        assert {phase for _, phase in cluster.taken} == {"Pending"}
        assert all(patch["completions"] == patch["parallelism"] for patch in cluster.patches)

        cluster.job["metadata"]["annotations"]["elastic-launch/nodes"] = "2"
        await cluster.change()
        await cluster.until(size=2, running=2)
        assert await autoscaler.says("annotation") == (
            "Job train: from 5 to 2 pods: the annotation elastic-launch/nodes is 2"
        )
        assert cluster.taken[-3:] == [(2, "Running"), (3, "Running"), (4, "Running")]


@story
async def test_a_job_whose_first_node_was_drained_is_not_completed_when_all_machines_are_taken(tmp_path: Path) -> None:
    cluster = Cluster(size=3, machines=3)
    async with cluster.serve() as server, scaler(tmp_path, server, "--np", "1:3") as autoscaler:
        await autoscaler.says("all 3 pods running")
        await cluster.finish(0)
        await autoscaler.says("2 of 3 pods running, the others ended")
        await cluster.take_all()
        assert await autoscaler.says("from 3") == "Job train: from 3 to 2 pods: 1 pod found no machine in 0.3 s"
        await cluster.change(machines=1)
        await cluster.until(size=2, running=1)
        await autoscaler.says("from 2 to 3")
        await cluster.finish(1)
        await cluster.take_all()
        assert await autoscaler.says("ended$") == "Job train: from 3 to 2 pods: the others have ended"


@story
async def test_a_job_grows_also_when_the_pod_of_a_drained_node_has_been_deleted(tmp_path: Path) -> None:
    cluster = Cluster(size=2, machines=2)
    async with cluster.serve() as server:
        await cluster.finish(0)
        await cluster.clear_away(0)
        async with scaler(tmp_path, server, "--np", "1:4") as autoscaler:
            line = await autoscaler.says("from 2")
            assert line == "Job train: from 2 to 4 pods: 1 of 2 pods running, the others ended"


@story
async def test_the_server_has_to_show_a_certificate_of_the_cluster_s_authority(tmp_path: Path) -> None:
    own = authority(tmp_path)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(own.path("here.pem"), own.path("here-key.pem"))
    cluster = Cluster(size=1, machines=2)
    async with cluster.serve(tls) as server:
        async with scaler(tmp_path, server, "--np", "1:2", "--ca-file", own.path("other.pem")) as autoscaler:
            assert "certificate verify failed" in await autoscaler.says("cannot query")
        assert cluster.patches == []
        async with scaler(tmp_path, server, "--np", "1:2", "--ca-file", own.path("ca.pem")):
            await cluster.until(size=2, running=2)


@story
async def test_whatever_the_server_refuses_is_one_line_and_mends_itself(tmp_path: Path) -> None:
    cluster = Cluster(size=1, machines=9)
    cluster.tokens, cluster.broken = {"second"}, True
    async with cluster.serve() as server, scaler(tmp_path, server, "--np", "1:2") as autoscaler:
        assert (await autoscaler.says("500")).endswith("answers 500: etcdserver: request timed out; retrying")
        cluster.broken = False
        assert (await autoscaler.says("401")).endswith("the API server answers 401: Unauthorized; retrying")
        autoscaler.token.write_text("second")  # As Kubernetes does when the old one runs out.
        cluster.rules[0]["verbs"].remove("patch")
        assert 'answers 403: jobs.batch "train" is forbidden' in await autoscaler.says("403")
        cluster.rules[0]["verbs"].append("patch")
        cluster.disturb, cluster.forgets = 1, True
        await cluster.until(size=2, running=2)
        cluster.job, kept = {}, cluster.job
        assert await autoscaler.says("not exist") == "Job train: does not exist; waiting for it"
        cluster.job = kept
        cluster.renew(1)
        await cluster.until(size=2, running=2)


@story
async def test_an_answer_that_cannot_be_read_is_one_line_and_ends_nothing(tmp_path: Path) -> None:
    cluster = Cluster(size=1, machines=9)
    cluster.nonsense = b'{"x":' + b"[" * 100_000
    async with cluster.serve() as server, scaler(tmp_path, server, "--np", "1:2") as autoscaler:
        for nonsense in (cluster.nonsense, b'{"metadata": {"uid": "\xff\xfe"}, "spec": {}}', b"\x00"):
            cluster.nonsense = nonsense
            assert (await autoscaler.says("cannot query")).endswith("; retrying")
        cluster.nonsense = b""
        await cluster.until(size=2, running=2)


@story
async def test_the_server_of_these_tests_refuses_what_kubernetes_refuses(tmp_path: Path) -> None:
    cluster = Cluster(size=2, machines=9)
    async with cluster.serve() as server, aiohttp.ClientSession(headers={"Authorization": "Bearer first"}) as session:
        url = f"{server}/apis/batch/v1/namespaces/{NAMESPACE}/jobs/{NAME}"

        async def patch(spec: dict[str, int], kind: str = MERGE_PATCH) -> tuple[int, str]:
            async with session.patch(url, json={"spec": spec}, headers={"Content-Type": kind}) as answer:
                return answer.status, (await answer.json()).get("message", "")

        code, said = await patch({"completions": 3})
        assert (code, said) == (
            422,
            'Job.batch "train" is invalid: spec.completions: Invalid value: 3: can only be modified in tandem with '
            "spec.parallelism",
        )
        assert await patch({"parallelism": 1}) == (200, "")  # Alone it may be changed; some pods then run later.
        assert (await patch({"completions": 3, "parallelism": 3}, "application/json"))[0] == 415
        assert await patch({"completions": 3, "parallelism": 3}) == (200, "")
        async with session.delete(url) as answer:
            assert answer.status in (403, 405)


@story
async def test_a_wrong_command_line_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    async with scaler(tmp_path, "http://127.0.0.1:1", "--np", "3:1") as autoscaler:
        line = await autoscaler.says("error")
        assert line == f"{PROG}: error: argument --np: '3:1': the range is MIN:MAX; use 1:3"
        assert await autoscaler.process.wait() == 2
    async with scaler(tmp_path, "http://127.0.0.1:1", "--np", "3+") as autoscaler:
        assert "'3+' has no maximum, and the pods are created in advance; use 1:3" in await autoscaler.says("error")
        assert await autoscaler.process.wait() == 2


@story
async def test_the_job_or_the_jobset_is_named_and_not_both(tmp_path: Path) -> None:
    async with scaler(tmp_path, "http://127.0.0.1:1", "--np", "1:3", "--jobset", "train") as autoscaler:
        assert await autoscaler.says("error") == f"{PROG}: error: argument --jobset: not allowed with argument --job"
        assert await autoscaler.process.wait() == 2
