"""What a real agent answers monitors, while nodes die, strangers knock, and etcd stands still."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from signal import SIGTERM

import aiohttp
import pytest

from launcher.metrics.server import CONNECTIONS_MAX, MetricsServer, text_reply
from launcher.net.endpoints import join_host_port
from tests.support.agent_process import Node
from tests.support.awaited_events import LIMIT_S
from tests.support.etcd_servers import free_ports
from tests.support.job_harness import QUICK_TTL_S, Job, story, story_with_its_own_etcd
from tests.support.prometheus_page import OPENMETRICS, samples

REPORTS = """
import os, time
import elastic

done = os.path.join(os.environ["ELASTIC_CHECKPOINT_DIR"], "step")
os.makedirs(os.path.dirname(done), exist_ok=True)
step = int(open(done).read()) if os.path.exists(done) else 0
while True:
    step += 1
    elastic.report(step, loss=1 / step)
    if step % 10 == 0 and os.environ["RANK"] == "0":
        open(done + ".new", "w").write(str(step))
        os.replace(done + ".new", done)
    time.sleep(0.01)
"""
"""Without an end, and without torch: steps that go on where a world before them had saved."""

Page = dict[str, float]


class Scraper:
    """Asks one node."""

    def __init__(self, job: Job, port: int) -> None:
        self._job = job
        self._port = port

    async def get(self, path: str, *, method: str = "GET", accept: str = "") -> tuple[int, str]:
        async with (
            aiohttp.ClientSession(headers={"Accept": accept}) as session,
            session.request(method, f"http://127.0.0.1:{self._port}{path}") as answer,
        ):
            return answer.status, await answer.text()

    async def page(self, accept: str = "") -> Page:
        status, text = await self.get("/metrics", accept=accept)
        assert status == 200, text
        return samples(text, job_id=self._job.job_id)

    async def until(self, look: Callable[[Page], bool]) -> tuple[Page, int]:
        """Ask again and again, and at once, until the page is as it should be; and how often that was."""
        page, times = Page(), 0
        try:
            async with asyncio.timeout(LIMIT_S):
                while True:
                    page, times = await self.page(), times + 1
                    if look(page):
                        return page, times
        except TimeoutError:
            raise AssertionError(f"it never was so: {page}") from None

    async def says(self, path: str, status: int, words: str) -> None:
        """Ask until this is the answer."""
        found = (0, "")
        try:
            async with asyncio.timeout(LIMIT_S):
                while found[0] != status or words not in found[1]:
                    found = await self.get(path)
        except TimeoutError:
            raise AssertionError(f"{path} says {found}") from None


async def started(job: Job, count: int, *flags: str) -> tuple[list[Node], list[Scraper]]:
    """Nodes that report steps, each with a port for monitors."""
    script, ports = job.write("reports.py", REPORTS), free_ports(count)
    nodes = [
        await job.node(*flags, "--metrics-port", str(port), ttl_s=QUICK_TTL_S, script=(str(script),)) for port in ports
    ]
    for node in nodes:
        await node.says("metrics: http")
    return nodes, [Scraper(job, port) for port in ports]


@story
async def test_after_a_kill_the_counters_of_a_node_that_is_left_say_what_happened(job: Job) -> None:
    nodes, scrapers = await started(job, 2, "--np", "2")
    at_work = [await one.until(lambda page: page.get("elastic_launch_steps_total", 0) > 20) for one in scrapers]
    # The one that is left did not make the proposal of the first start, if that is possible: it counts for itself.
    kept = 0 if at_work[0][0]["elastic_launch_m_id"] else 1
    before, _ = at_work[kept]
    assert before["elastic_launch_members"] == before["elastic_launch_world_size"] == 2
    assert before["elastic_launch_state{running}"] == before["elastic_launch_workers{training}"] == 1
    assert before["elastic_launch_restarts_total{node lost}"] == before["elastic_launch_recovery_seconds_count"] == 0
    assert await scrapers[kept].get("/readyz") == (200, "1 worker runs in generation 1\n")
    await nodes[1 - kept].killed()
    after, asked = await scrapers[kept].until(lambda page: page["elastic_launch_recovery_seconds_count"] > 0)
    assert asked > 1, "it answered while it recovered"
    restarts = {name: count for name, count in after.items() if "restarts_total" in name and count}
    assert restarts in ({"elastic_launch_restarts_total{node lost}": 1}, {"elastic_launch_restarts_total{failure}": 1})
    assert after["elastic_launch_generation"] == 2
    assert after["elastic_launch_members"] == 1
    assert after["elastic_launch_m_id"] == 0
    assert after["elastic_launch_np_max"] == 2
    phases = {name: count for name, count in after.items() if "phase_seconds_count" in name and count}
    assert "elastic_launch_recovery_phase_seconds_count{step}" in phases
    sums = sum(length for name, length in after.items() if "phase_seconds_sum" in name)
    total = after["elastic_launch_recovery_seconds_sum"]
    assert abs(sums - total) < 1e-6
    page, _ = await scrapers[kept].until(lambda page: page["elastic_launch_steps_total"] > 100)
    lost = page["elastic_launch_clock_seconds_total"] - page["elastic_launch_productive_seconds_total"]
    assert lost > total
    assert 0 < page["elastic_launch_goodput_ratio"] < 1
    assert page.keys() == (await scrapers[kept].page(OPENMETRICS)).keys()
    assert await scrapers[kept].get("/healthz") == (200, "the agent and its fork server run\n")
    nodes[kept].signal(SIGTERM)
    assert await nodes[kept].exits() == 143


@story
async def test_strangers_and_monitors_that_do_not_behave_disturb_nothing(job: Job) -> None:
    (port,) = free_ports(1)
    node, scraper = await job.node("--np", "2:2", "--metrics-port", str(port)), Scraper(job, port)
    await node.says(rf"metrics: http://127\.0\.0\.1:{port}/metrics")
    await scraper.says("/readyz", 503, "1 of 2 nodes is here; waiting for 1 more\n")
    assert (await scraper.get("/healthz"))[0] == 200
    assert (await scraper.get("/metrics/"))[0] == (await scraper.get("/"))[0] == 404
    assert [(await scraper.get("/metrics", method=method))[0] for method in ("POST", "PUT", "DELETE")] == [405] * 3
    assert await scraper.get("/healthz", method="HEAD") == (200, "")
    for said in (
        b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03" * 40,
        b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\n" + b"".join(b"x-%d: y\r\n" % number for number in range(1000)) + b"\r\n",
        b"GET /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n" + b"z" * 50_000,
        b"GET /../../etc/passwd HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\r\n" * 5000,
    ):
        await _say(port, said)
    silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(CONNECTIONS_MAX + 4)]
    for _, writer in silent[::2]:
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: x")
    for _ in range(CONNECTIONS_MAX):
        assert (await scraper.get("/healthz"))[0] == 200, "who has not asked keeps no probe out"
    with suppress(ConnectionError):
        assert await silent[0][0].read() == b"", "the oldest one made room"
    for _, writer in silent:
        writer.close()
    await _hung_up([writer for _, writer in silent])
    other_node = await job.node("--np", "2:2")
    for worker in await job.world(1, 2):
        await worker.exits(0)
    assert [await node.exits(), await other_node.exits()] == [0, 0]
    assert not [line for line in node.lines if "cannot be made" in line or "Traceback" in line]


async def _say(port: int, said: bytes) -> None:
    """Send something, and wait for the end of the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    with suppress(ConnectionError):
        writer.write(said)
        writer.write_eof()
        await reader.read()
    writer.close()
    await _hung_up([writer])


async def _hung_up(writers: list[asyncio.StreamWriter]) -> None:
    await asyncio.gather(*(writer.wait_closed() for writer in writers), return_exceptions=True)


@story
async def test_a_port_that_somebody_else_has_is_one_line_and_the_node_goes_on(job: Job) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        node = await job.node("--np", "1", "--metrics-port", f"127.0.0.1:{port}")
        (worker,) = await job.world(1, 1)
        await worker.exits(0)
        assert await node.exits() == 0
    said = [line for line in node.lines if "metrics" in line]
    assert len(said) == 1
    assert "(Address already in use): this node continues without metrics" in said[0]


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_any_address_of_ipv6_is_any_of_ipv4_too(host: str) -> None:
    if not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")

    async def main() -> None:
        server = MetricsServer(lambda path, accept: text_reply(200, path), print)
        _, port = server.listen("::", 0)
        async with aiohttp.ClientSession() as session, session.get(f"http://{join_host_port(host, port)}/x") as answer:
            assert await answer.text() == "/x\n"
        await server.close()

    asyncio.run(main())


@story
async def test_a_malformed_port_ends_the_command_with_2(job: Job) -> None:
    node = await job.node("--metrics-port", "localhost")
    assert await node.exits() == 2
    assert len(node.lines) == 1


@story_with_its_own_etcd
async def test_while_etcd_stands_still_a_node_says_for_how_long_and_what_right_is_left(job: Job) -> None:
    (port,) = free_ports(1)
    node, scraper = await job.node("--metrics-port", str(port)), Scraper(job, port)
    (worker,) = await job.world(1, 1)
    before, _ = await scraper.until(lambda page: page["elastic_launch_state{running}"] == 1)
    assert before["elastic_launch_lease_renewal_failures_total"] == 0
    job.etcd.freeze()
    page, _ = await scraper.until(lambda page: page["elastic_launch_lease_renewal_failures_total"] > 0)
    assert page["elastic_launch_etcd_silence_seconds"] > 0
    assert page["elastic_launch_lease_remaining_seconds"] < before["elastic_launch_lease_ttl_seconds"]
    assert page["elastic_launch_lease_remaining_max_seconds"] > 100
    assert (await scraper.get("/healthz"))[0] == (await scraper.get("/readyz"))[0] == 200
    job.etcd.thaw()
    await worker.exits(0)
    assert await node.exits() == 0
