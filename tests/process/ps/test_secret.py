"""A parameter server and its workers prove to each other that they know the job's secret; nobody else gets anything."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped, unused-ignore]
import grpc.aio  # type: ignore[import-untyped, unused-ignore]
import pytest
import torch

from elastic.errors import MessageError, SecretMismatch
from elastic.train.ps import protocol, service
from elastic.train.ps.framing import frames
from tests.support.job_harness import Job, story
from tests.support.ps_job_harness import job
from tests.support.ps_server_harness import Bench, bench, message

OURS, OTHER = b"0123456789abcdef" * 2, b"another secret of the same length"


def request(made: Bench, mac: str, worker: int = 0) -> bytes:
    return b"".join(frames(made.hello(worker, mac=mac)))


def test_a_worker_that_knows_the_secret_trains_as_before() -> None:
    async def play() -> None:
        async with bench(secret=OURS) as made:
            link = await made.opened(0)
            assert await made.pushed(link) == [-1, -1]

    asyncio.run(play())


@pytest.mark.parametrize("secret", [OTHER, b""], ids=["another one", "none"])
def test_a_worker_with_another_secret_or_none_is_told_so_and_says_nothing_of_itself(secret: bytes) -> None:
    async def play() -> None:
        async with bench(secret=OURS) as made:
            with pytest.raises(
                SecretMismatch,
                match=r"server 0 at 127\.0\.0\.1:\d+ cannot prove .* ELASTIC_PS_SECRET for every process$",
            ):
                await made.link(0, secret=secret).open()
            assert not made.service.sessions.seen

    asyncio.run(play())


def test_a_client_that_cannot_prove_anything_opens_no_session_and_is_named_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def play() -> None:
        async with bench(secret=OURS) as made:
            heard: list[str] = []

            def record(mac: str) -> bytes:
                heard.append(mac)
                return request(made, mac)

            assert await made.hello_with(record) is grpc.StatusCode.OK
            await made.until(lambda: made.service.sessions.seen[0].state == "broken")
            made.service.sessions.seen.clear()
            refused = grpc.StatusCode.PERMISSION_DENIED
            assert await made.hello_with(lambda mac: request(made, heard[0])) is refused, "a recorded proof"
            assert await made.hello_with(lambda mac: request(made, mac), OTHER) is refused
            assert await made.hello_with(lambda mac: request(made, "0" * 64)) is refused
            assert not made.service.sessions.seen
            link = await made.opened(0)
            assert await made.pushed(link) == [-1, -1]

    asyncio.run(play())
    lines = [line for line in caplog.messages if "unauthenticated" in line]
    assert lines == ["rejected an unauthenticated client at 127.0.0.1"]


def test_a_session_is_no_use_to_another_connection() -> None:
    async def play() -> None:
        async with bench(secret=OURS) as made:
            link = await made.opened(0)
            one = torch.ones(2, dtype=torch.float64)
            attacks: tuple[tuple[str, *tuple[bytes, ...]], ...] = (
                ("Pull", *message(protocol.SessionMessage(session="0-s"))),
                ("Push", *message(made.push("0-s", 5), one)),
                ("Close", *message(protocol.SessionMessage(session="0-s"))),
                ("Register", b"\xff" * 100),
            )
            for method, *sent in attacks:
                assert await made.is_turned_away(method, *sent)
            assert await made.raw("Pull") == (grpc.StatusCode.FAILED_PRECONDITION, b"")
            assert await made.pushed(link) == [-1, -1]

    asyncio.run(play())


def test_a_client_that_does_not_finish_the_handshake_is_sent_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "PROOF_LIMIT_S", 0.05)

    async def play() -> None:
        async with bench(secret=OURS) as made, grpc.aio.insecure_channel(made.address) as channel:
            stream = channel.stream_stream(f"/{protocol.PACKAGE}/Session")()
            await stream.write(b"".join(frames(protocol.SessionChallenge(version=protocol.VERSION, nonce="0" * 32))))
            assert await stream.read()
            with pytest.raises(grpc.aio.AioRpcError, match="the handshake took too long"):
                await stream.read()

    asyncio.run(play())


def test_an_impostor_in_the_place_of_a_server_gets_no_proof_and_no_session() -> None:
    heard: list[bytes] = []

    async def impostor(stream: AsyncIterator[bytes], _: Any) -> AsyncIterator[bytes]:
        heard.append(await anext(stream))
        yield b"".join(frames(protocol.SessionProof(nonce="0" * 32, mac="0" * 64)))
        with contextlib.suppress(StopAsyncIteration):
            heard.append(await anext(stream))

    async def play() -> None:
        async with bench(secret=OURS) as made:
            server = grpc.aio.server()
            handler = grpc.stream_stream_rpc_method_handler(impostor)
            table = grpc.method_handlers_generic_handler(protocol.PACKAGE, {"Session": handler})
            server.add_generic_rpc_handlers((table,))
            port = server.add_insecure_port("127.0.0.1:0")
            await server.start()
            link = made.link(0)
            link.address = f"127.0.0.1:{port}"
            with pytest.raises(SecretMismatch):
                await link.open()
            await server.stop(1)
        assert len(heard) == 1
        assert b"0-s" not in heard[0]

    asyncio.run(play())


def test_a_server_that_sends_something_else_than_a_proof_is_refused() -> None:
    async def wrong(stream: AsyncIterator[bytes], _: Any) -> AsyncIterator[bytes]:
        await anext(stream)
        yield b"".join(frames(protocol.SessionNotice(life="x")))

    async def play() -> None:
        async with bench(secret=OURS) as made:
            server = grpc.aio.server()
            handler = grpc.stream_stream_rpc_method_handler(wrong)
            server.add_generic_rpc_handlers(
                (grpc.method_handlers_generic_handler(protocol.PACKAGE, {"Session": handler}),)
            )
            port = server.add_insecure_port("127.0.0.1:0")
            await server.start()
            link = made.link(0)
            link.address = f"127.0.0.1:{port}"
            with pytest.raises(MessageError):
                await link.open()
            await server.stop(1)

    asyncio.run(play())


# Real processes


def test_by_hand_a_process_without_the_secret_gets_nothing_and_the_others_train(tmp_path: Path) -> None:
    ours = {"ELASTIC_PS_SECRET": OURS.decode()}
    with job(tmp_path, servers=1) as made:
        server = made.server(0, **ours)
        workers = [made.worker(0, **ours), made.worker(1, **ours)]
        for worker in workers:
            worker.until("^ready$")
        stranger = made.worker(0)
        assert stranger.end() != 0
        assert any(
            "SecretMismatch" in line and "cannot prove that it belongs to this job" in line for line in stranger.said
        )
        assert workers[0].ask("step 20") == "-20 -20 -20 -20"
        for worker in workers:
            worker.ask("close")
        assert [process.end() for process in (*workers, server)] == [0, 0, 0]


def test_a_secret_that_is_too_short_is_refused_by_name(tmp_path: Path) -> None:
    with job(tmp_path, servers=1) as made:
        server = made.server(0, ELASTIC_PS_SECRET="secret")
        assert server.end() != 0
        assert any("ELASTIC_PS_SECRET is shorter than 32 characters" in line for line in server.said)


SCRIPT = """
import os, sys
import elastic, torch
from elastic.train import ps

if elastic.env().role == "server":
    ps.Server().run()
else:
    worker = ps.Worker(torch.nn.Linear(1, 1), lr=0.1)
    print("server at", elastic.env().servers[0], flush=True)
    os.close(os.open(sys.argv[1], os.O_RDONLY))  # Waits for the stranger.
    worker.model(torch.ones(1)).backward()
    worker.step()
    worker.close()
    print("trained", flush=True)
"""


@story
async def test_under_the_launcher_every_job_has_a_secret_and_a_stranger_gets_nothing(job: Job) -> None:
    fifo = job.folder / "tried.fifo"
    os.mkfifo(fifo)
    script = (str(job.write("train.py", SCRIPT)), str(fifo))
    node = await job.node("--server-num", "1", "--worker-num", "1", "--no-preload", script=script, server=False)
    address = (await node.shows(r"^server at (\S+)$"))[1]
    async with bench() as stranger:
        stranger.address = address
        opened = await stranger.hello_with(lambda mac: request(stranger, mac), OTHER)
        assert opened is grpc.StatusCode.PERMISSION_DENIED
        assert await stranger.is_turned_away("Pull", *message(protocol.SessionMessage(session="0-s")))
    await asyncio.to_thread(lambda: os.close(os.open(fifo, os.O_WRONLY)))
    await node.shows("^trained$")
    assert await node.exits() == 0
    assert "rejected an unauthenticated client" in node.text("serverlog.0")
    assert "accepts every client" not in node.text("serverlog.0")
    for name in ("envlog.0", "envlog.server.0", "launcher.log"):
        assert "ELASTIC_PS_SECRET" not in node.text(name)
