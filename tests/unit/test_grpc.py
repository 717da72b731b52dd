"""The import of gRPC: what it leaves in the environment, and what a fork does afterwards."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
VARIABLES = ("GRPC_VERBOSITY", "GRPC_ENABLE_FORK_SUPPORT")

SHOW = f"import os; print([os.environ.get(name) for name in {VARIABLES}])"
FORK = """
import asyncio, os, threading
from elastic._grpc import grpc

ready = threading.Event()

async def serve():
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    await grpc.aio.insecure_channel(f"127.0.0.1:{port}").channel_ready()
    ready.set()
    await server.wait_for_termination()

threading.Thread(target=asyncio.run, args=(serve(),), daemon=True).start()
ready.wait()
ended = set()
for _ in range(20):  # Handlers that are there speak only while a thread of gRPC is at work.
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    ended.add(os.waitpid(pid, 0)[1])
print(*ended, flush=True)
os._exit(0)
"""


def ran(code: str, **variables: str) -> tuple[str, str]:
    """What a fresh python writes to stdout and stderr."""
    environ = {name: text for name, text in os.environ.items() if name not in VARIABLES} | variables
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        cwd=ROOT,
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=True,
        text=True,
    )
    return done.stdout.strip(), done.stderr


@pytest.mark.parametrize("module", ["elastic._grpc", "elastic.store.etcd", "elastic.train.ps"])
def test_children_get_no_variables_of_ours(module: str) -> None:
    assert ran(f"import {module}; {SHOW}")[0] == "[None, None]"


def test_values_that_the_user_has_set_stay() -> None:
    assert ran(f"import elastic._grpc; {SHOW}", GRPC_VERBOSITY="ERROR")[0] == "['ERROR', None]"


def test_a_process_forks_without_the_handlers_of_grpc() -> None:
    assert ran(FORK) == ("0", "")
    said = ran(FORK, GRPC_VERBOSITY="INFO")[1]
    assert "fork" not in said
    assert "skipping fork() handlers" in ran(FORK, GRPC_VERBOSITY="INFO", GRPC_ENABLE_FORK_SUPPORT="1")[1]
