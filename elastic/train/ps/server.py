"""A parameter server process: it listens, replies, writes snapshots, and exits with its workers."""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from elastic import environment
from elastic._grpc import grpc
from elastic.channel.messages import RestoreDone, Serving, clock
from elastic.environment import ProcessEnvironment
from elastic.errors import CheckpointError, ConfigError
from elastic.script.error_report import reporting_config_errors
from elastic.train.ps.cluster import SECRET, secret, servers, tell_agent, workers
from elastic.train.ps.parameters import ParameterStore
from elastic.train.ps.service import ParameterService
from elastic.train.ps.snapshot import Snapshots

LOST_AFTER_S = 10.0
SNAPSHOT_EVERY_S = 5.0
SNAPSHOT_SHARE = 10
"""A snapshot that took t seconds is followed by at least 10 t without one, so a large state leaves time to train."""
GOODBYE_S = 1.0
"""The time for the last replies at the end."""

OPTIONS: tuple[tuple[str, int], ...] = (
    # Two servers on one port must be an error. By default Linux would distribute the connections between them.
    ("grpc.so_reuseport", 0),
    # These detect a failed host or a suspended worker within 10 s. The last option is needed too: gRPC pings to measure
    # the bandwidth, waits 60 s for the reply, and sends no other ping meanwhile (measured).
    ("grpc.keepalive_time_ms", 5_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.ping_timeout_ms", 5_000),
    # Workers send keepalive pings too, which are not abuse.
    ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
    ("grpc.http2.max_ping_strikes", 0),
)

ENDING = (signal.SIGTERM, signal.SIGINT)

log = logging.getLogger("elastic.train.ps")


class Server:
    """Stores a part of the parameters and tables, and applies the gradients of the workers to them.

    Create every server of a job with the same arguments; `run` serves until the workers have finished.

    Attributes:
        env: The place of this process in the job.
    """

    def __init__(
        self,
        *,
        env: ProcessEnvironment | None = None,
        load_from: str | os.PathLike[str] | None = None,
        names: Sequence[str] | None = None,
        lost_after_s: float = LOST_AFTER_S,
        snapshot_every_s: float = SNAPSHOT_EVERY_S,
        snapshots: str | os.PathLike[str] | None = None,
        listen: str | None = None,
    ) -> None:
        """Read the environment and `load_from`. `run` listens.

        Args:
            env: The place of this process in the job; by default that of the environment (`elastic.env()`).
            load_from: A file that `Worker.save` or `torch.save(model.state_dict(), path)` wrote. Training starts from
                its values instead of those of worker 0. A snapshot has priority.
            names: The parameters and tables to load from `load_from`; by default all tensors.
            lost_after_s: The time in seconds for a worker to reconnect after its connection breaks. After that it has
                failed, and synchronous steps no longer wait for it.
            snapshot_every_s: The time in seconds from a change to the next snapshot. Snapshots of a large state are
                less frequent, so that they take at most a tenth of the time.
            snapshots: The directory of the snapshots of all servers; by default `ps` in the checkpoint directory of the
                job (ELASTIC_CHECKPOINT_DIR). Without either there are no snapshots.
            listen: The host:port to listen on; by default the address of this server for the workers.

        Raises:
            ConfigError: The environment, `load_from` or `names` is wrong. The message names the problem.
        """
        with reporting_config_errors():
            self.env = env or environment.read(os.environ)
            known = secret(os.environ)
        if self.env.role != "server":
            raise ConfigError(f"this process is a {self.env.role}, not a server; check elastic.env().role")
        if names is not None and load_from is None:
            raise ConfigError("names= selects the parameters of a file; pass the file with load_from=")
        index, count = self.env.index, len(servers(self.env))
        self._service = ParameterService(
            ParameterStore(index, count, load(load_from, names) if load_from is not None else {}),
            index=index,
            servers=count,
            trainers=lambda: workers(self.env),
            job=self.env.job_id,
            replaced=bool(self.env.roster_file),
            lost_after_s=lost_after_s,
            secret=known,
        )
        if snapshots is None and self.env.checkpoint_dir:
            snapshots = Path(self.env.checkpoint_dir) / "ps"
        self._snapshots = Snapshots(Path(snapshots), index, count) if snapshots is not None else None
        self._snapshot_every_s = snapshot_every_s
        self._writer = ThreadPoolExecutor(1, "snapshots")
        """Writes snapshots one at a time, including the last one after a cancelled task."""
        self._listen = listen or self.env.current
        if not known and not _is_loopback(self._listen):
            log.warning(
                "server %d accepts every client that connects to its port; set the same random %s for every process",
                index,
                SECRET,
            )

    def run(self) -> None:
        """Load the newest snapshot, if there is one, and serve until every worker has closed or failed.

        On SIGTERM the server writes a snapshot and exits with code 143. elastic-launch replaces failed workers, so
        there the server waits until every worker has closed. Call it once, from the main thread.

        Raises:
            ConfigError: The port is in use, or the host is not this machine.
            CheckpointError: There are snapshots, but none can be read.
            SystemExit: After SIGTERM (code 143) and SIGINT (code 130).
        """
        logger = logging.getLogger("elastic")
        if not logger.hasHandlers():
            # Show the messages of the server even if the script has not configured logging.
            logger.addHandler(logging.StreamHandler(sys.stderr))
            logger.setLevel(logging.INFO)
        if signum := asyncio.run(self._serve()):
            raise SystemExit(128 + signum)

    async def _serve(self) -> int:
        """Serve, and return the signal that ended it, or 0."""
        tell_agent(RestoreDone(self._restore(), clock()))
        loop = asyncio.get_running_loop()
        signals: list[int] = []

        def end(signum: int) -> None:
            """Finish on the first signal. A second one ends the process immediately."""
            signals.append(signum)
            self._service.finished.set()
            for each in ENDING:
                loop.remove_signal_handler(each)

        if threading.current_thread() is threading.main_thread():
            for signum in ENDING:
                loop.add_signal_handler(signum, end, signum)
        server = await self._listening()
        tell_agent(Serving(clock()))
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._service.report_missing_workers())]
            if self._snapshots is not None:
                tasks.append(group.create_task(self._keep(self._snapshots)))
            await self._service.finished.wait()
            # Send no acknowledgements before the last snapshot is written.
            await server.stop(0 if signals else GOODBYE_S)
            for task in tasks:
                task.cancel()
        if self._snapshots is not None and self._service.changed.is_set():
            await self._write(self._snapshots)
        why = signal.Signals(signals[0]).name if signals else "every worker has closed or failed"
        log.info("server %d exits: %s", self.env.index, why)
        return signals[0] if signals else 0

    async def _listening(self) -> grpc.aio.Server:
        server = grpc.aio.server(options=OPTIONS)
        server.add_generic_rpc_handlers((self._service.handlers(),))
        try:
            server.add_insecure_port(self._listen)
        except RuntimeError as error:
            raise ConfigError(
                f"server {self.env.index} cannot listen on {self._listen}: the port is in use, or the host is not this "
                "machine; free the port, or use another address"
            ) from error
        await server.start()
        log.info(
            "server %d of %d listens on %s for %d workers",
            self.env.index,
            len(servers(self.env)),
            self._listen,
            workers(self.env),
        )
        return server

    async def _keep(self, snapshots: Snapshots) -> None:
        """Write snapshots after changes."""
        while True:
            await self._service.changed.wait()
            await asyncio.sleep(self._snapshot_every_s)
            started = time.monotonic()
            await self._write(snapshots)
            await asyncio.sleep(SNAPSHOT_SHARE * (time.monotonic() - started))

    async def _write(self, snapshots: Snapshots) -> None:
        """Write a snapshot. On an error, such as a full disk, log it and retry later: training continues."""
        self._service.changed.clear()
        state = self._service.state()
        try:
            await asyncio.get_running_loop().run_in_executor(self._writer, snapshots.write, state)
        except asyncio.CancelledError:
            self._service.changed.set()  # It may not be written; the last snapshot follows.
            raise
        except CheckpointError as error:
            log.error("could not write a snapshot: %s", error)
            self._service.changed.set()

    def _restore(self) -> int:
        """Restore the newest snapshot, and return its step, -1 without one."""
        restored = self._snapshots.load() if self._snapshots is not None else None
        if restored is None:
            return -1
        state, written_at = restored
        self._service.holdings.load(state["holdings"])
        self._service.restored(state["workers"], state["step"])
        log.warning(
            "server %d restored its snapshot, which is %.1f s old (step %d)",
            self.env.index,
            max(0.0, time.time() - written_at),
            state["step"],
        )
        return int(state["step"])


def _is_loopback(address: str) -> bool:
    host = address.rpartition(":")[0].strip("[]")
    return host in ("localhost", "::1") or host.startswith("127.")


def load(path: str | os.PathLike[str], names: Sequence[str] | None = None) -> dict[str, torch.Tensor]:
    """Read parameters from a plain file of tensors by name. Raises `ConfigError` for a wrong file or name."""
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except (OSError, RuntimeError, pickle.UnpicklingError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not a file of tensors by torch.save"
        raise ConfigError(f"load_from={os.fspath(path)!r} cannot be read: {reason}") from error
    if not isinstance(loaded, dict):
        raise ConfigError(f"load_from={os.fspath(path)!r} is not a dict of tensors; save model.state_dict()")
    tensors = {name: value for name, value in loaded.items() if isinstance(value, torch.Tensor)}
    if names is None:
        return tensors
    if unknown := [name for name in names if name not in tensors]:
        raise ConfigError(
            f"load_from={os.fspath(path)!r} has no {', '.join(unknown)}; it has {', '.join(list(tensors)[:20])}"
        )
    return {name: tensors[name] for name in names}
