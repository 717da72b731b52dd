from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.etcd_servers import Server, binary_of, one_server
from tests.support.store_bench import Bench, EtcdBench, MemoryBench


def _server(version: str, folder: Path) -> Iterator[Server]:
    binary = binary_of(version)
    if binary is None:
        pytest.skip(f"there is no etcd {version} on this machine")
    server = one_server(binary, folder).start()
    yield server
    server.kill()


@pytest.fixture(scope="session")
def etcd_34(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    yield from _server("3.4", tmp_path_factory.mktemp("etcd34"))


@pytest.fixture(scope="session")
def etcd_35(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    yield from _server("3.5", tmp_path_factory.mktemp("etcd35"))


@pytest.fixture(params=["memory", "etcd_34", "etcd_35"])
def bench(request: pytest.FixtureRequest) -> Bench:
    if request.param == "memory":
        return MemoryBench()
    server: Server = request.getfixturevalue(request.param)
    return EtcdBench(server.endpoint)
