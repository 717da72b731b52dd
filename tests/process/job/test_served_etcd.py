"""An etcd that elastic-launch serves: where it listens, and who is let in."""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import shlex
import signal
import socket
import stat
import sys
from pathlib import Path

import psutil
import pytest

from elastic.auth.handshake import MAC, NONCE
from elastic.core.kv import KeyRange, Put
from elastic.errors import StoreDenied, StoreUnavailable
from elastic.store.auth_proxy import protocol
from elastic.store.embedded import EmbeddedEtcd
from elastic.store.etcd import EtcdOptions, EtcdStore
from launcher.config.store_access import SECRET
from launcher.local.auth_proxy import UNAUTHENTICATED_MAX, AuthProxy
from tests.support.etcd_servers import free_ports
from tests.support.host_lists import FIRST, SECOND, static
from tests.support.job_harness import Job, story
from tests.support.listening_sockets import tcp_listeners, unix_listeners

OURS = secrets.token_hex(16)
HERE = "127.0.0.1"


INTRUDER = """
import re, socket
for name in re.findall("@(elastic-passage-[0-9a-f]+)", open("/proc/net/unix").read()):
    with socket.socket(socket.AF_UNIX) as end:
        end.settimeout(10)
        end.connect("\\0" + name)
        try:
            end.sendall(b"PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0)))
            answer = end.recv(9)
        except (BrokenPipeError, ConnectionResetError):
            answer = b""
    print(name, len(answer))
"""
"""Speaks HTTP/2 at every way to etcd that processes of this machine have open."""


class Served:
    """A hidden etcd with a porter before it."""

    def __init__(self) -> None:
        self.etcd = EmbeddedEtcd(hidden=True)
        self._porter = AuthProxy(OURS, lambda: self.etcd.socket)

    async def __aenter__(self) -> Served:
        await self.etcd.start()
        self.endpoint = f"{HERE}:{await self._porter.open([HERE], 0)}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._porter.close()
        await self.etcd.stop()

    def store(self, secret: str) -> EtcdStore:
        return EtcdStore([self.endpoint], options=EtcdOptions(secret=secret, request_limit_s=10.0))

    async def answer(self, *lines: bytes) -> bytes:
        """All that a stranger hears who says these lines after the porter's first."""
        host, port = self.endpoint.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        await reader.readline()
        writer.writelines(lines)
        try:
            return await reader.read()
        except ConnectionResetError:
            return b""
        finally:
            writer.close()


def test_who_has_the_secret_does_everything_and_nobody_else_does_anything() -> None:
    async def run() -> None:
        async with Served() as served:
            store = served.store(OURS)
            await store.txn((), [Put("/elastic/j/a", b"1")])
            assert len((await store.list(KeyRange.prefix("/elastic/"))).entries) == 1
            lease = await store.grant(30)
            assert (await store.refresh(lease.id)).ttl_s == 30
            assert [one.endpoint for one in await store.statuses()] == [served.endpoint]
            await store.close()
            for secret, said in (
                ("another one", "this node has another secret"),
                ("", "requires the job's"),
            ):
                stranger = served.store(secret)
                with pytest.raises(StoreDenied, match=said):
                    await stranger.list(KeyRange.prefix("/elastic/"))
                await stranger.close()

    asyncio.run(run())


def test_a_stranger_gets_a_greeting_and_no_byte_of_etcd() -> None:
    async def run() -> None:
        async with Served() as served:
            for lines in ((b"\n",), (b"x" * 100_000,), (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",), (b"GET /\n",)):
                assert await served.answer(*lines) in (protocol.NO, b"")
            nonce = protocol.word_line("1" * 32)
            wrong = protocol.store_proofs(b"another key", "0" * 32, "1" * 32).client
            for line in (protocol.word_line(wrong), b"\n", nonce):
                proof, _, rest = (await served.answer(nonce, line)).partition(b"\n")
                assert protocol.read_word(proof + b"\n", MAC)
                assert rest == protocol.NO
            store = served.store(OURS)
            await store.list(KeyRange.prefix("/elastic/"))  # It still answers.
            await store.close()

    asyncio.run(run())


def test_the_way_outlives_a_connection_that_is_made_anew_and_an_etcd_that_is_started_again() -> None:
    async def run() -> None:
        async with Served() as served:
            store = served.store(OURS)
            await store.txn((), [Put("/elastic/j/a", b"1")])
            await store._servers.rotation.current.disconnect()
            assert (await store.list(KeyRange.prefix("/elastic/"))).entries
            assert served.etcd.pid is not None
            os.kill(served.etcd.pid, signal.SIGKILL)
            await served.etcd.ended()
            await served.etcd.start()
            assert not (await store.list(KeyRange.prefix("/elastic/"))).entries, "it is empty"
            await store.close()

    asyncio.run(run())


def test_another_process_of_this_user_gets_no_byte_of_etcd_by_the_way_of_this_one() -> None:
    async def run() -> None:
        async with Served() as served:
            store = served.store(OURS)
            await store.list(KeyRange.prefix("/elastic/"))
            passage = store._servers.rotation.current.passage
            assert passage is not None
            name = passage.open().removeprefix("unix-abstract:")
            command = (sys.executable, "-I", "-c", INTRUDER)
            intruder = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
            said, _ = await intruder.communicate()
            assert f"{name} 0\n" in said.decode()
            await store.txn((), [Put("/elastic/j/a", b"1")])
            await store.close()

    asyncio.run(run())


def test_an_impostor_in_the_place_of_the_proxy_gets_no_proof() -> None:
    heard: list[bytes] = []

    async def impostor(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(protocol.proxy_greeting("5" * 32, "0" * 32))
        heard.append(await reader.readline())
        writer.write(protocol.word_line("f" * 64))
        heard.append(await reader.readline())
        writer.close()

    async def run() -> None:
        server = await asyncio.start_server(impostor, HERE, 0)
        host, port = server.sockets[0].getsockname()
        store = EtcdStore([f"{host}:{port}"], options=EtcdOptions(secret=OURS, request_limit_s=10.0))
        with pytest.raises(StoreDenied, match="this node has another secret"):
            await store.list(KeyRange.prefix("/elastic/"))
        await store.close()
        server.close()
        assert protocol.read_word(heard[0], NONCE)
        assert heard[1] == b""

    asyncio.run(run())


def test_a_proxy_of_another_version_is_told_from_an_etcd_without_one() -> None:
    async def older(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"elastic-entrance 1 " + b"0" * 32 + b"\n")
        await reader.read()
        writer.close()

    async def run() -> None:
        server = await asyncio.start_server(older, HERE, 0)
        host, port = server.sockets[0].getsockname()
        store = EtcdStore([f"{host}:{port}"], options=EtcdOptions(secret=OURS, request_limit_s=10.0))
        with pytest.raises(StoreDenied, match="another version of elastic-launch"):
            await store.list(KeyRange.prefix("/elastic/"))
        await store.close()
        server.close()

    asyncio.run(run())


def test_a_crowd_of_strangers_that_say_nothing_is_turned_away() -> None:
    async def run() -> None:
        async with Served() as served:
            host, port = served.endpoint.split(":")
            crowd = [await asyncio.open_connection(host, int(port)) for _ in range(UNAUTHENTICATED_MAX)]
            for reader, _ in crowd:
                assert await reader.readline()
            reader, writer = await asyncio.open_connection(host, int(port))
            assert await reader.read() == b"", "there is no room for one more"
            for _, each in [*crowd, (reader, writer)]:
                each.close()
            store = served.store(OURS)
            await store.list(KeyRange.prefix("/elastic/"))
            await store.close()

    asyncio.run(run())


def test_a_hidden_etcd_has_no_port_and_a_folder_of_its_users() -> None:
    async def run() -> None:
        async with EmbeddedEtcd(hidden=True) as etcd:
            assert etcd.pid is not None
            assert etcd.folder is not None
            assert not tcp_listeners(etcd.pid)
            assert {Path(path).parent for path in unix_listeners(etcd.pid)} == {etcd.folder}
            for folder in (etcd.folder, etcd.folder / "data"):
                assert stat.S_IMODE(folder.stat().st_mode) == 0o700
            store = EtcdStore([etcd.endpoint])
            await store.list(KeyRange.prefix("/elastic/"))
            await store.close()

    asyncio.run(run())


def test_an_etcd_without_a_porter_is_told_from_one_with() -> None:
    async def run() -> None:
        async with EmbeddedEtcd() as etcd:
            assert etcd.pid is not None
            assert f"{HERE}:{tcp_listeners(etcd.pid)[0][1]}" == etcd.endpoint
            assert len(tcp_listeners(etcd.pid)) == 1, "none for other servers of a cluster"
            store = EtcdStore([etcd.endpoint], options=EtcdOptions(secret=OURS, request_limit_s=20.0))
            with pytest.raises(StoreDenied, match="it does not ask for the job's secret"):
                await store.list(KeyRange.prefix("/elastic/"))
            await store.close()
            (port,) = free_ports(1)
            nobody = EtcdStore([f"{HERE}:{port}"], options=EtcdOptions(secret=OURS, request_limit_s=0.2))
            with pytest.raises(StoreUnavailable, match=f"etcd at {HERE}:{port} does not answer: Connection refused"):
                await nobody.list(KeyRange.prefix("/elastic/"))
            await nobody.close()

    asyncio.run(run())


def test_a_porter_that_stands_still_is_no_refusal() -> None:
    ended = asyncio.Queue[None]()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()
        await writer.wait_closed()
        ended.put_nowait(None)

    async def hasty(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async def run() -> None:
        for serve, said in ((silent, "does not answer"), (hasty, "it closes the connection")):
            server = await asyncio.start_server(serve, HERE, 0)
            host, port = server.sockets[0].getsockname()
            store = EtcdStore([f"{host}:{port}"], options=EtcdOptions(secret=OURS, request_limit_s=0.5))
            with pytest.raises(StoreUnavailable, match=said):
                await store.list(KeyRange.prefix("/elastic/"))
            await store.close()
            if serve is silent:
                await ended.get()
            server.close()

    asyncio.run(run())


def test_settings_of_another_etcd_in_the_environment_are_not_for_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ETCD_NAME", "somebody")
    monkeypatch.setenv("ETCD_LISTEN_CLIENT_URLS", "http://0.0.0.0:1")
    monkeypatch.setenv(SECRET, OURS)

    async def run() -> None:
        async with EmbeddedEtcd() as etcd:
            assert b"ETCD_" not in environment_of(etcd.pid)
            assert OURS.encode() not in environment_of(etcd.pid)

    asyncio.run(run())


@story
async def test_a_job_that_is_served_prints_the_line_that_starts_a_node_elsewhere(job: Job) -> None:
    (port,) = free_ports(1)
    server = f"{HERE}:{port}"
    first = await job.node("--serve", server, "--np", "2", "--print-secret", server=False)
    await first.says(r"to add a node, run on another host:$")
    line = (await first.says(rf"^{SECRET}=\S+ elastic-launch .*"))[0]
    asked = (await first.says(rf"^{SECRET}=\S+ elastic-ctl .*"))[0]
    assert shlex.split(asked)[1:] == ["elastic-ctl", "status", "--elastic-server", server, "--job-id", job.job_id]
    await first.says("1 of 2 nodes is here")
    words = shlex.split(line)
    name, _, secret = words[0].partition("=")
    assert (name, words[1:4]) == (SECRET, ["elastic-launch", "--elastic-server", server])
    assert len(secret) == 32
    stranger = EtcdStore([server], options=EtcdOptions(request_limit_s=20.0))
    with pytest.raises(StoreDenied):
        await stranger.list(KeyRange.prefix("/elastic/"))
    await stranger.close()
    second = await job.node(*words[2:-1], environ={SECRET: secret})
    for worker in await job.world(1, 2):
        assert not any(name.startswith("ELASTIC_JOB_SECRET") for name in worker.env)
        await worker.exits(0)
    assert [await node.exits() for node in (first, second)] == [0, 0]
    assert [sum(secret in one for one in node.lines) for node in (first, second)] == [2, 0]
    assert not any(secret in file.read_text() for file in job.folder.glob("*/log/*"))


@story
async def test_a_job_that_is_served_at_every_address_is_joined_at_the_one_that_host_names(job: Job) -> None:
    (port,) = free_ports(1)
    flags = ("--serve", f"0.0.0.0:{port}", "--host", "127.0.0.2", "--print-secret")
    first = await job.node(*flags, server=False)
    line = (await first.says(rf"^{SECRET}=\S+ elastic-launch .*"))[0]
    words = shlex.split(line)
    assert words[2:4] == ["--elastic-server", f"127.0.0.2:{port}"]
    (etcd,) = [one for one in psutil.Process(first.process.pid).children() if one.name() == "etcd"]
    assert tcp_listeners(first.process.pid) == [("0.0.0.0", port)]
    assert not tcp_listeners(etcd.pid)
    await job.world(1, 1)
    second = await job.node(*words[2:-1], environ={SECRET: words[0].partition("=")[2]})
    for worker in await job.world(2, 2):
        await worker.exits(0)
    assert [await node.exits() for node in (first, second)] == [0, 0]


@story
async def test_a_list_of_hosts_with_a_secret_is_closed_to_hosts_that_do_not_have_it(job: Job) -> None:
    (port,) = free_ports(1)
    closed = ("--job-secret-file", secret_file(job, "secret", OURS))
    elsewhere = ("--job-secret-file", secret_file(job, "other", "a secret of another job"))
    first = await static(job, FIRST, port, *closed)
    await first.says("1 of 2 nodes is here")
    for flags, said in (
        ((), "requires the job's secret"),
        (elsewhere, "this node has another secret"),
    ):
        stranger = await static(job, SECOND, port, *flags)
        assert await stranger.exits() == 3
        (line,) = stranger.lines
        assert said in line
        assert OURS not in line
    second = await static(job, SECOND, port, *closed)
    for worker in await job.world(1, 2):
        await worker.exits(0)
    assert [await node.exits() for node in (first, second)] == [0, 0]
    assert not any("warning" in line for line in first.lines)


def secret_file(job: Job, name: str, secret: str) -> str:
    """A file that only its user can read."""
    file = job.write(name, f"{secret}\n")
    file.chmod(0o600)
    return str(file)


def environment_of(process: int | None) -> bytes:
    return Path(f"/proc/{process}/environ").read_bytes()


@story
async def test_a_list_of_hosts_without_a_secret_says_that_it_is_open_where_others_reach_it(job: Job) -> None:
    own = [
        address.address
        for name, addresses in psutil.net_if_addrs().items()
        for address in addresses
        if address.family is socket.AF_INET and not address.address.startswith("127.")
    ]
    if not own:
        pytest.skip("this machine has no address that others reach")
    (port,) = free_ports(1)
    ips = f"{own[0]},z.invalid"
    node = await static(job, own[0], port, "--np", "1", ips=ips)
    told = await node.says(r"warning: etcd at (\S+) has no authentication: .*ELASTIC_JOB_SECRET")
    assert re.fullmatch(rf"{own[0]}:{port}", told[1])
    (worker,) = await job.world(1, 1)
    await worker.exits(0)
    assert await node.exits() == 0
