from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastic.store.embedded import find_etcd
from tests.support.etcd_servers import Server, one_server
from tests.support.job_harness import Stage

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # In the background or under nohup, as a CI may be: what is
    signal.signal(signal.SIGINT, signal.default_int_handler)  # started here would inherit it.
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(scope="session")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One etcd for every story that does nothing to it; each has a job of its own there."""
    server = one_server(find_etcd(), tmp_path_factory.mktemp("etcd")).start()
    yield server
    server.kill()


@pytest.fixture
def stage(etcd: Server, tmp_path: Path) -> Stage:
    return Stage(etcd, tmp_path)


@pytest.fixture
def own_stage(tmp_path: Path) -> Iterator[Stage]:
    """An etcd that the story may freeze, kill and start again."""
    server = one_server(find_etcd(), tmp_path / "etcd").start()
    yield Stage(server, tmp_path)
    server.thaw_and_kill()
