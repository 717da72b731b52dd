"""The single etcd servers of deploy/, run with both versions of etcd: where they listen."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
import yaml

from elastic.store.embedded import guarded
from tests.support.deploy_files import environment_file, systemd_unit
from tests.support.etcd_servers import binary_of, free_ports, wait_until_answers
from tests.support.kustomize import ROOT

CLOUD = ROOT / "deploy" / "cloud" / "etcd.yaml"


@pytest.fixture(params=["3.4", "3.5"])
def binary(request: pytest.FixtureRequest) -> str:
    path = binary_of(request.param)
    if path is None:
        pytest.skip(f"there is no etcd {request.param} here")
    return path


@contextmanager
def listening(command: list[str], environ: dict[str, str], folder: Path, port: int) -> Iterator[set[tuple[str, int]]]:
    """Run an etcd in a folder; the TCP addresses that it listens on once it answers at its client port."""
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            guarded(command), cwd=folder, env={"PATH": os.environ["PATH"], **environ}, stdout=log, stderr=log
        )
    try:
        wait_until_answers([f"127.0.0.1:{port}"])
        found = psutil.Process(process.pid).net_connections("tcp")
        yield {(each.laddr.ip, each.laddr.port) for each in found if each.status == psutil.CONN_LISTEN}
    finally:
        process.kill()
        process.wait()


def test_the_etcd_of_the_systemd_unit_has_no_port_but_that_of_its_clients(binary: str, tmp_path: Path) -> None:
    service, (port,) = systemd_unit("etcd.service"), free_ports(1)
    environ = dict.fromkeys(environment_file("etcd.env"), f"http://127.0.0.1:{port}")
    assert environ.keys() == {"ETCD_LISTEN_CLIENT_URLS", "ETCD_ADVERTISE_CLIENT_URLS"}
    assert service["WorkingDirectory"] == f"/var/lib/{service['StateDirectory']}"
    assert service["DynamicUser"] == "yes"  # systemd keeps this folder where only the unit's user can enter.
    command = service["ExecStart"].replace("${STATE_DIRECTORY}", str(tmp_path)).split()
    assert command[0] == "etcd"
    with listening([binary, *command[1:]], environ, tmp_path, port) as addresses:
        assert addresses == {("127.0.0.1", port)}
        assert [path.name for path in tmp_path.iterdir() if path.is_socket()] == ["peer:0"]


def test_the_etcd_of_a_cloud_is_reached_by_other_machines_at_its_client_port_alone(binary: str, tmp_path: Path) -> None:
    (written,) = yaml.safe_load(CLOUD.read_text())["write_files"]
    port, peer = free_ports(2)
    text = written["content"].replace("2379", str(port)).replace("2380", str(peer))
    environ = dict(line.split("=", 1) for line in text.splitlines() if not line.startswith("#"))
    with listening([binary, f"--data-dir={tmp_path / 'data'}"], environ, tmp_path, port) as addresses:
        assert {(ip in ("127.0.0.1", "::1"), number) for ip, number in addresses} == {(False, port), (True, peer)}
