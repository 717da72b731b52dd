"""etcd processes that a test starts, freezes, kills and starts again."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import shlex
import shutil
import signal
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path

from elastic.core.kv import KeyRange
from elastic.store.embedded import find_etcd, guarded
from elastic.store.etcd import EtcdOptions, EtcdStore
from elastic.store.etcd_releases import SAFE
from elastic.store.tls import NONE, Certificates
from tests.support.reserved_ports import following

ETCD_34 = "/usr/bin/etcd"
SAFE_RELEASE = f"3.6.{SAFE[3, 6]}"


def binary_of(version: str) -> str | None:
    """The binary of a version by its first two numbers ("3.4"), None if this machine does not have it."""
    path = {"3.4": ETCD_34, "3.5": find_etcd()}[version]
    if not os.access(path, os.X_OK):
        return None
    shown = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout
    return path if f"etcd Version: {version}." in shown else None


def posing(folder: Path, version: str, binary: str) -> Path:
    """The command `etcd` in a folder of its own: it says that it is this release, and runs as `binary`."""
    command = folder / f"etcd-{version}" / "etcd"
    command.parent.mkdir()
    shown = f'if [ "$*" = --version ]; then echo "etcd Version: {version}"; exit; fi'
    command.write_text(f'#!/bin/sh\n{shown}\nexec {shlex.quote(binary)} "$@"\n')
    command.chmod(0o755)
    return command


@functools.cache
def without_fsync(binary: str) -> tuple[str, ...]:
    """The flag that spares a slow disk its waits, where this etcd has it: what a SIGKILL leaves is there without."""
    shown = subprocess.run([binary, "--help"], capture_output=True, text=True, check=True)
    return ("--unsafe-no-fsync",) if "--unsafe-no-fsync" in shown.stdout + shown.stderr else ()


def free_ports(count: int) -> list[int]:
    """Ports that stay free until they are used, and while a server that had one is away (`reserved_ports`)."""
    found: list[int] = []
    with contextlib.ExitStack() as held:
        while len(found) < count:
            port = following()
            with contextlib.suppress(OSError):
                held.enter_context(socket.socket()).bind(("", port))
                found.append(port)
    return found


class Server:
    """One etcd server. Its data and ports stay the same when it is started again."""

    def __init__(self, binary: str, folder: Path, name: str, port: int, peer: int, cluster: str, *flags: str) -> None:
        scheme = "https" if any(flag.startswith("--cert-file=") for flag in flags) else "http"
        client_url, peer_url = f"{scheme}://127.0.0.1:{port}", f"http://127.0.0.1:{peer}"
        self.endpoint = f"127.0.0.1:{port}"
        self.folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._command = [
            binary,
            f"--name={name}",
            f"--data-dir={folder / 'data'}",
            f"--listen-client-urls={client_url}",
            f"--advertise-client-urls={client_url}",
            f"--listen-peer-urls={peer_url}",
            f"--initial-advertise-peer-urls={peer_url}",
            f"--initial-cluster={cluster}",
            "--logger=zap",
            "--log-level=warn",
            "--log-outputs=stderr",
            *without_fsync(binary),
            *flags,
        ]

    def start(self, certificates: Certificates = NONE, *, wait: bool = True) -> Server:
        """`certificates` are those of a client, to see whether it answers."""
        assert self._process is None
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                guarded(self._command), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        if wait:
            wait_until_answers([self.endpoint], certificates)
        return self

    def freeze(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOWAIT)  # All its threads stand still from here on.

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def thaw_and_kill(self) -> None:
        if self._process is not None:
            self.thaw()
            self.kill()

    def lose_data(self) -> None:
        assert self._process is None
        shutil.rmtree(self.folder / "data")


def wait_until_answers(endpoints: Sequence[str], certificates: Certificates = NONE, limit_s: float = 20.0) -> None:
    async def ask() -> None:
        store = EtcdStore(endpoints, options=EtcdOptions(certificates=certificates, request_limit_s=limit_s))
        await store.list(KeyRange.key("\0"))
        await store.close()

    asyncio.run(ask())


def one_server(binary: str, folder: Path, *flags: str) -> Server:
    """A server alone; with a `--cert-file` among the flags it speaks TLS."""
    port, peer = free_ports(2)
    return Server(binary, folder, "one", port, peer, f"one=http://127.0.0.1:{peer}", *flags)


def cluster_of_three(binary: str, folder: Path) -> list[Server]:
    ports = free_ports(6)
    names = ("a", "b", "c")
    cluster = ",".join(f"{name}=http://127.0.0.1:{peer}" for name, peer in zip(names, ports[3:], strict=True))
    return [
        Server(binary, folder / name, name, port, peer, cluster)
        for name, port, peer in zip(names, ports[:3], ports[3:], strict=True)
    ]
