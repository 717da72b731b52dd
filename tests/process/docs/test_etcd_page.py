"""The servers of docs/guides/etcd.md start and answer as they stand there, and a full one is compacted as it says."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from elastic.store.embedded import find_etcd
from tests.support.doc_commands import ROOT, Command, commands
from tests.support.etcd_servers import free_ports, wait_until_answers

PAGE: Final = "docs/guides/etcd.md"
BINARIES: Final = Path(find_etcd()).parent


def of_page(program: str) -> list[Command]:
    """The commands of the page that call a program, TLS left out: tests/store/test_etcd_security.py has it."""
    lines = commands(PAGE, (ROOT / PAGE).read_text())
    return [line for line in lines if line.parts[0][:1] == (program,) and "https://" not in line.text]


def moved(text: str, folder: Path, ports: dict[str, int]) -> list[str]:
    """The words of a command with addresses of this machine, free ports, and a data folder of the test."""
    text = re.sub(r"10\.0\.0\.(\d):(\d+)", lambda found: f"127.0.0.1:{ports[found[1] + found[2]]}", text)
    text = text.replace("/var/lib/etcd", str(folder))
    return text.split()


@contextmanager
def running(words: list[str], folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    with (folder / "etcd.log").open("wb") as log:
        server = subprocess.Popen([str(BINARIES / words[0]), *words[1:]], cwd=folder, stdout=log, stderr=log)
    try:
        yield server
    finally:
        server.kill()
        server.wait()


def single(folder: Path, port: int) -> list[str]:
    (command,) = (line for line in of_page("etcd") if "--initial-cluster" not in line.text)
    peers = ["--listen-peer-urls", "unix://peer:0"]  # The default port may be in use on this machine.
    return [*moved(command.text.replace("0.0.0.0:2379", f"127.0.0.1:{port}"), folder, {"52379": port}), *peers]


def test_one_server_answers(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    with running(single(tmp_path, port), tmp_path):
        wait_until_answers([f"127.0.0.1:{port}"])
        (asking,) = of_page("curl")
        words = moved(asking.text, tmp_path, {"52379": port})
        health = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert '"health":"true"' in health


def test_three_servers_answer_and_two_of_them_are_enough(tmp_path: Path) -> None:
    (command,) = (line for line in of_page("etcd") if "--initial-cluster" in line.text)
    numbers = free_ports(6)
    ports = {f"{host}{port}": numbers.pop() for host in "567" for port in ("2379", "2380")}
    clients = [f"127.0.0.1:{ports[f'{host}2379']}" for host in "567"]
    with ExitStack() as stack:
        servers = []
        for member, host in enumerate("567"):
            text = command.text.replace("--name etcd-0", f"--name etcd-{member}")
            for option in ("--advertise-client-urls", "--listen-peer-urls", "--initial-advertise-peer-urls"):
                text = text.replace(f"{option} http://10.0.0.5", f"{option} http://10.0.0.{host}")
            text = text.replace("0.0.0.0:2379", f"127.0.0.1:{ports[host + '2379']}")
            (tmp_path / host).mkdir()
            servers.append(stack.enter_context(running(moved(text, tmp_path / host / "data", ports), tmp_path / host)))
        wait_until_answers(clients)
        servers[0].kill()
        wait_until_answers(clients[1:])


def test_what_the_page_says_about_a_full_server_compacts_it(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    typed = [line.text for line in commands(PAGE, (ROOT / PAGE).read_text()) if "etcdctl" in line.text.lower()]
    environ = {**os.environ, "PATH": f"{BINARIES}:{os.environ['PATH']}", "ETCDCTL_API": "3"}
    with running(single(tmp_path, port), tmp_path):
        wait_until_answers([f"127.0.0.1:{port}"])
        script = "\n".join(["set -e", *typed]).replace("10.0.0.5:2379", f"127.0.0.1:{port}")
        writes = f"for n in 1 2 3; do etcdctl --endpoints 127.0.0.1:{port} put key $n; done\n"
        done = subprocess.run(["bash", "-c", writes + script], env=environ, capture_output=True, text=True, check=True)
    assert re.search(r"^compacted revision \d+$", done.stdout, re.MULTILINE), done.stdout
    assert "Finished defragmenting" in done.stdout + done.stderr
