"""Real nodes whose machine is taken back, as metadata servers that behave like those of three clouds announce it."""

from __future__ import annotations

import asyncio
import contextlib
import re
from signal import SIGTERM

import aiohttp
import pytest
from aiohttp import web

from launcher.spot.aws import ACTION
from launcher.spot.endpoint import endpoint
from launcher.spot.http import BODY_MAX, fetch
from launcher.spot.protocol import MetadataRequest
from tests.bench import steplog
from tests.support.agent_process import Node
from tests.support.etcd_servers import free_ports
from tests.support.job_harness import Job, story
from tests.support.metadata_servers import Aws, Azure, Google, Metadata

NEVER_S = 3600.0


def on(cloud: str, server: Metadata) -> dict[str, str]:
    """The environment of a node on a machine of this cloud."""
    return {"ELASTIC_SPOT": cloud, "ELASTIC_SPOT_ENDPOINT": server.endpoint}


async def rank_0(nodes: list[Node]) -> Node:
    """The node of rank 0 in the first generation."""
    for node in nodes:
        if (await node.says(r"generation 1: 2 nodes, world size 2, this is M_id (\d)"))[1] == "0":
            return node
    raise AssertionError("nobody has rank 0")


@story
async def test_a_node_that_is_taken_back_saves_with_the_others_and_leaves_and_no_finished_step_is_lost(
    job: Job,
) -> None:
    log = job.folder / "steps.log"
    async with Google().serve() as google:
        assert isinstance(google, Google)
        words = ("-m", "elastic.examples.digits", "--steps", "150", "--step_time", "0.02", "--checkpoint_every", "1000")
        script = (*words, "--print_every", "10", "--step_log", str(log))
        flags = ("--np", "2", "--preload", "sklearn.datasets")
        stays = await job.node(*flags, script=script)
        goes = await job.node(*flags, script=script, environ=on("gcp", google))
        await (await rank_0([stays, goes])).shows("^step 20 ")
        google.says("preempted", "TRUE")
        reason = r"Google Cloud reclaims this machine at \d\d:\d\d:\d\dZ"
        await goes.says(rf"{reason}, in \d+ s: this node drains; its workers have \d+ s$")
        assert await goes.exits() == 4
        await goes.says(rf"left \({reason}\); the job stays open$")
        await stays.says(rf"generation 2: 1 node, world size 1, .*: {goes.id} drains: {reason}$")
        assert await stays.exits() == 0
    lines = steplog.read(log)
    steps = {g: [line.step for line in lines if line.generation == g and line.rank == 0] for g in (1, 2)}
    assert min(steps[2]) == max(steps[1]) + 1
    assert {line.world for line in lines if line.generation == 2} == {1}


@story
async def test_all_nodes_of_a_machine_that_google_takes_back_drain_and_exit_with_4(job: Job) -> None:
    async with Google().serve() as google:
        assert isinstance(google, Google)
        nodes = [await job.node("--np", "2", environ=on("gcp", google)) for _ in range(2)]
        await job.world(1, 2)
        google.says("maintenance-event", "MIGRATE_ON_HOST_MAINTENANCE")
        for node in nodes:
            await node.says(r"Google Cloud moves this machine .* training continues$")
        google.says("maintenance-event", "NONE")
        await google.heard("maintenance-event", 2)
        told = [len(node.lines) for node in nodes]
        google.says("maintenance-event", "MIGRATE_ON_HOST_MAINTENANCE")
        for node, since in zip(nodes, told, strict=True):
            await node.says(r"Google Cloud moves this machine .* training continues$", since=since)
            assert sum("Google Cloud moves this machine" in one for one in node.lines) == 2
        google.says("preempted", "TRUE")
        for node in nodes:
            await node.says(r"Google Cloud reclaims this machine at \S+Z, in 30 s: this node drains")
            assert await node.exits() == 4


@story
async def test_azure_takes_back_one_of_two_machines_and_a_node_that_comes_to_it_then_does_not_join(job: Job) -> None:
    async with Azure("trainer_3").serve() as azure:
        assert isinstance(azure, Azure)
        stays = await job.node("--np", "2")
        goes = await job.node("--np", "2", environ=on("azure", azure))
        await job.world(1, 2)
        azure.plans("Preempt", "trainer_4")
        azure.plans("Freeze", "trainer_3")
        await goes.says(r"Azure pauses this machine .* training continues$")
        azure.plans("Preempt", "trainer_3", "trainer_4")
        reason = r"Azure reclaims this machine at \S+Z"
        await goes.says(rf"{reason}, in \d+ s: this node drains")
        assert await goes.exits() == 4
        await stays.says(rf"{goes.id} drains: {reason}")
        (worker,) = await job.world(2, 1)
        later = await job.node("--np", "2", environ=on("azure", azure))
        await later.says(rf"{reason}: this node does not join and waits; the job stays open$")
        later.signal(SIGTERM)
        assert await later.exits() == 143
        assert not any("joined the job" in line for line in later.lines)
        await worker.exits(0)
        assert await stays.exits() == 0


@story
async def test_a_node_of_a_machine_with_a_notice_waits_and_joins_when_the_notice_is_withdrawn(job: Job) -> None:
    async with Azure("trainer_3").serve() as azure:
        assert isinstance(azure, Azure)
        azure.plans("Redeploy", "trainer_3", left_s=600.0)
        (port,) = free_ports(1)
        node = await job.node("--np", "1", "--metrics-port", str(port), environ=on("azure", azure))
        await node.says(r"Azure moves this machine to other hardware at \S+Z: this node does not join and waits")
        async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}/readyz") as answer:
            assert answer.status == 503
            words = await answer.text()
            assert re.fullmatch(r"Azure moves this machine to other hardware at \S+Z: this node does not join\n", words)
        assert not any("joined the job" in line for line in node.lines)
        azure.events.clear()
        await node.says(r"the notice was withdrawn: this node joins$")
        (worker,) = await job.world(1, 1)
        await worker.exits(0)
        assert await node.exits() == 0
        assert sum("does not join" in line for line in node.lines) == 1


@story
async def test_an_event_of_azure_days_ahead_is_a_line_and_the_node_drains_when_it_is_near(job: Job) -> None:
    async with Azure("trainer_3").serve() as azure:
        assert isinstance(azure, Azure)
        azure.plans("Redeploy", "trainer_3", left_s=300_000.0)
        node = await job.node("--np", "1", environ=on("azure", azure))
        words = "Azure moves this machine to other hardware at"
        await node.says(rf"{words} \d{{4}}-\d\d-\d\d \S+Z: this node drains 10 minutes before")
        await job.world(1, 1)
        azure.events.clear()
        azure.plans("Redeploy", "trainer_3", left_s=500.0)
        await node.says(rf"{words} \S+Z, in \d+ s: this node drains")
        assert await node.exits() == 4


@story
async def test_workers_that_still_save_are_ended_before_the_machine_goes_and_the_others_do_not_wait(job: Job) -> None:
    limits = (
        "--np",
        "2",
        "--save-timeout",
        str(NEVER_S),
        "--stop-timeout",
        str(NEVER_S),
        "--failure-stop-timeout",
        "0.2",
    )
    async with Aws().serve() as aws:
        assert isinstance(aws, Aws)
        stays = await job.node(*limits)
        goes = await job.node(*limits, environ=on("aws", aws))
        old = await job.world(1, 2)
        for worker in old:
            await worker.obeys("ignore", SIGTERM)
            for kind in ("listening", "committed"):
                await worker.obeys("say", {"type": kind})
        aws.tokens.clear()  # They have expired.
        aws.takes(5)
        await goes.says(r"deadline reached \(AWS reclaims this machine at \S+\): killing this node's workers$")
        assert await goes.exits() == 4
        assert [worker.ended for worker in old if worker.node == goes.id] == [True]
        await stays.says(rf"{goes.id} had to end its workers before all had saved")
        (worker,) = await job.newest_world(1)
        await worker.exits(0)
        assert await stays.exits() == 0


@story
async def test_a_rebalance_recommendation_is_a_line_and_training_goes_on(job: Job) -> None:
    async with Aws().serve() as aws:
        assert isinstance(aws, Aws)
        aws.rebalance = {"noticeTime": "2027-01-15T07:59:00Z"}
        aws.refuses_tokens, aws.needs_tokens = True, False
        node = await job.node("--np", "1", environ=on("aws", aws))
        await node.says(r"AWS says since 07:59:00Z that it may reclaim this machine .* training continues$")
        (worker,) = await job.world(1, 1)
        await worker.exits(0)
        assert await node.exits() == 0


async def _huge(request: web.Request) -> web.StreamResponse:
    return web.Response(body=b"[" * (BODY_MAX * 20))


async def _elsewhere(request: web.Request) -> web.StreamResponse:
    return web.Response(status=302, headers={"Location": f"{request.url.origin()}/elsewhere"})


async def _garbage(request: web.Request) -> web.StreamResponse:
    return web.Response(body=b'{"action": "\xff\x00', headers={"Date": "\u20ac 32 Foo"})


async def _no_text(request: web.Request) -> web.StreamResponse:
    return web.Response(body=b'{"action": "\xff", "time": "soon"}')


async def _nested(request: web.Request) -> web.StreamResponse:
    return web.Response(body=b'{"a":' + b"[" * 60_000)


async def _fails(request: web.Request) -> web.StreamResponse:
    return web.Response(status=503)


HOSTILE = (_huge, _garbage, _no_text, _nested, _elsewhere, _fails)


async def _hangs(request: web.Request) -> web.StreamResponse:
    await asyncio.sleep(NEVER_S)
    raise AssertionError


@story
async def test_a_metadata_server_that_is_hostile_or_away_changes_nothing(job: Job) -> None:
    """One job with a node for a server of each kind; explicit `--spot` says once that no notice can be seen."""
    async with contextlib.AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(Aws().serve()) for _ in HOSTILE]
        for server, kind in zip(servers, HOSTILE, strict=True):
            server.replacement = kind
        nodes = [await job.node("--np", str(len(HOSTILE)), environ=on("aws", server)) for server in servers]
        for server, node in zip(servers, nodes, strict=True):
            where = server.endpoint.removeprefix("http://")
            await node.says(rf"cannot read preemption notices from {where} \(.*\); retrying; training continues$")
            assert f"GET {ACTION}" in server.asked
            assert not any("elsewhere" in one for one in server.asked)
        for worker in await job.world(1, len(HOSTILE)):
            await worker.exits(0)
        assert {await node.exits() for node in nodes} == {0}


@pytest.mark.parametrize("kind", HOSTILE)
def test_whatever_a_server_answers_is_an_answer_or_a_bad_one(
    kind: object,
) -> None:
    async def main() -> None:
        async with Aws().serve() as server:
            server.replacement = kind  # type: ignore[assignment]
            where = endpoint("aws", {"ELASTIC_SPOT_ENDPOINT": server.endpoint})
            try:
                answer = await fetch(where, MetadataRequest("/latest/meta-data/spot/instance-action"))
            except ConnectionError:
                return
            assert len(answer.body) <= BODY_MAX
            assert len(server.asked) == 1

    asyncio.run(main())


@pytest.mark.parametrize(
    "said", [b"", b"\x16\x03\x01", b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000, b"HTTP/1.1 200 OK\r\n"]
)
def test_a_server_that_does_not_speak_http_gives_a_bad_answer(said: bytes) -> None:
    async def main() -> None:
        async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(said)
            writer.close()

        async with await asyncio.start_server(speak, "127.0.0.1") as server:
            port = server.sockets[0].getsockname()[1]
            with pytest.raises(OSError):
                await fetch(endpoint("gcp", {"GCE_METADATA_HOST": f"127.0.0.1:{port}"}), MetadataRequest("/"))

    asyncio.run(main())


def test_a_server_that_says_nothing_is_left_when_the_time_is_over() -> None:
    async def main() -> None:
        async with Azure().serve() as server:
            server.replacement = _hangs
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await fetch(endpoint("azure", {"ELASTIC_SPOT_ENDPOINT": server.endpoint}), MetadataRequest("/"))

    asyncio.run(main())
