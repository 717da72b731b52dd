"""The password of an etcd user is not sent to another machine without TLS, unless the user allows it."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from launcher.config.flags import STORE_FLAGS
from launcher.ctl import cli
from tests.support.etcd_users import add_users
from tests.support.job_harness import Stage
from tests.support.tcp_recorder import wire

PASSWORD = "job-secret"
ALLOWED = "--allow-plaintext-password"
REFUSED = "the password of --etcd-user job would cross the network in the clear to {}; use TLS"
LIMIT_S = 60.0


async def ran(folder: Path, *argv: str) -> tuple[int, str]:
    """The exit code and stderr of a command that has the user's password in its environment."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith(("ELASTIC_", "PADDLE_"))}
    own = {"ELASTIC_ETCD_PASSWORD": PASSWORD, "ELASTIC_NO_PRELOAD": "1", "ELASTIC_SPOT": "none"}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", *argv),
        cwd=folder,
        env={**kept, **own, "CUDA_VISIBLE_DEVICES": ""},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(LIMIT_S):
            _, said = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode is not None
    return process.returncode, said.decode()


def launch(server: str, *flags: str) -> tuple[str, ...]:
    named = ("--elastic-server", server, "--job-id", "j", "--etcd-user", "job", "--connect-timeout", "1")
    return "-m", "launcher", *named, *flags, "--np", "1", "--quiet", "train.py"


def operate(command: str, server: str, *flags: str) -> tuple[str, ...]:
    job = () if command == "list" else ("--job-id", "j")
    return "-m", "launcher.ctl", command, "--elastic-server", server, *job, "--etcd-user", "job", *flags


def torchrun(server: str, *conf: str) -> tuple[str, ...]:
    settings = ("etcd_user=job", "connect_timeout=1", "last_call_timeout=0", *conf)
    flags = ("--rdzv-backend", "elastic-etcd", "--rdzv-endpoint", server, "--rdzv-id", "t", "--nnodes", "1")
    return "-m", "torch.distributed.run", *flags, "--rdzv-conf", ",".join(settings), "train.py"


@pytest.fixture
def script(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("print('trains')\n")
    return tmp_path


@pytest.mark.parametrize("local_nodes", [(), ("--local-nodes", "2")])
def test_elastic_launch_sends_no_password_in_the_clear_to_another_machine(
    script: Path, local_nodes: tuple[str, ...]
) -> None:
    async def story() -> None:
        async with wire() as other:
            code, said = await ran(script, *launch(other.endpoint, *local_nodes))
            assert other.connections == 0
            assert (code, said.count("\n")) == (2, 1)
            assert REFUSED.format(other.endpoint) in said
            assert said.rstrip().endswith(f"or accept the risk with {ALLOWED}")

    asyncio.run(story())


@pytest.mark.parametrize("command", ["status", "list", "doctor"])
def test_elastic_ctl_sends_no_password_in_the_clear_to_another_machine(script: Path, command: str) -> None:
    async def story() -> None:
        async with wire() as other:
            code, said = await ran(script, *operate(command, other.endpoint))
            assert other.connections == 0
            assert (code, said.count("\n")) == (2, 1)
            assert REFUSED.format(other.endpoint) in said

    asyncio.run(story())


def test_the_plugin_sends_no_password_in_the_clear_to_another_machine(script: Path) -> None:
    async def story() -> None:
        async with wire() as other:
            code, said = await ran(script, *torchrun(other.endpoint))
            assert other.connections == 0
            assert code == 2
            (line,) = [line for line in said.splitlines() if "in the clear" in line]
            assert line.startswith("torchrun: error: the password of etcd_user in --rdzv-conf job")
            assert line.endswith("or accept the risk with allow_plaintext_password=1 in --rdzv-conf")

    asyncio.run(story())


def test_every_subcommand_that_opens_a_store_has_the_flags_of_the_way_in() -> None:
    assert all(set(STORE_FLAGS) <= set(command.flags) for command in cli.TABLE.commands if command.flags)


@pytest.mark.timeout(120)
def test_with_the_flag_all_three_send_it_and_do_their_work(own_stage: Stage) -> None:
    async def story() -> None:
        await add_users(own_stage.etcd.endpoint)
        folder = own_stage.folder
        (folder / "train.py").write_text("print('trains')\n")
        for command in (
            launch("{}", "--allow-plaintext-password"),
            launch("{}", ALLOWED, "--local-nodes", "1", "--rerun"),
            operate("list", "{}", ALLOWED),
            torchrun("{}", "allow_plaintext_password=1"),
        ):
            async with wire(own_stage.etcd.endpoint) as other:
                code, said = await ran(folder, *(word.replace("{}", other.endpoint) for word in command))
                assert code == 0, said
                assert PASSWORD.encode() in other.sent

    asyncio.run(story())
