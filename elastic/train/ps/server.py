"""The process that holds parameters: it listens, answers, keeps snapshots, and ends with its workers."""

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
"""A snapshot that took t seconds is followed by 10 t without one, so that a large state leaves time to train."""
GOODBYE_S = 1.0
"""At the end the last answers have this long to go out."""

OPTIONS: tuple[tuple[str, int], ...] = (
    # Two servers on one port must be an error. By default Linux would share out the connections between them.
    ("grpc.so_reuseport", 0),
    # A worker's machine that is gone, or a worker that is frozen, shows within 10 s. The last one is needed besides:
    # to measure the bandwidth gRPC pings on its own, waits 60 s for that, and asks nothing else meanwhile (tried).
    ("grpc.keepalive_time_ms", 5_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.ping_timeout_ms", 5_000),
    # Workers ask for signs of life as well; that is no abuse.
    ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
    ("grpc.http2.max_ping_strikes", 0),
)

ENDING = (signal.SIGTERM, signal.SIGINT)

log = logging.getLogger("elastic.train.ps")


class Server:
    """Holds a part of the parameters and tables, and applies the workers' gradients to them.

    Every server of a job is made with the same arguments; `run` serves until the workers have finished.

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
        """Read the environment and `load_from`. Nothing listens yet.

        Args:
            env: The place of this process; by default what the environment says (`elastic.env()`).
            load_from: A file that `Worker.save` or `torch.save(model.state_dict(), path)` wrote. Training starts from
                its values instead of those of worker 0. A snapshot counts more.
            names: The parameters and tables to take from `load_from`; by default all that are tensors.
            lost_after_s: How many seconds a worker has to come back after its connection broke. Then it is lost, and
                synchronous steps no longer wait for it.
            snapshot_every_s: How many seconds after a change the next snapshot is written. A large state is written
                less often, so that at most a tenth of the time goes into it.
            snapshots: The folder of the snapshots of all servers; by default `ps` in the job's checkpoint folder
                (ELASTIC_CHECKPOINT_DIR). Without either there are no snapshots.
            listen: The host:port to listen on; by default the one by which the workers know this server.

        Raises:
            ConfigError: The environment, `load_from` or `names` is wrong; the text says what is.
        """
        with reporting_config_errors():
            self.env = env or environment.read(os.environ)
            known = secret(os.environ)
        if self.env.role != "server":
            raise ConfigError(f"this process is a {self.env.role} and no server; ask elastic.env().role")
        if names is not None and load_from is None:
            raise ConfigError("names= says which parameters to load; say the file with load_from=")
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
        """Writes one snapshot after the other, also the last one after another whose task was cancelled."""
        self._listen = listen or self.env.current
        if not known and not _is_loopback(self._listen):
            log.warning(
                "server %d lets in every client that reaches its port; give every process the same random %s",
                index,
                SECRET,
            )

    def run(self) -> None:
        """Load the newest snapshot, if there is one, and serve until every worker has closed or is lost.

        At SIGTERM the server writes a snapshot, and the process ends with 143. Under elastic-launch lost workers are
        replaced, so the server waits until every worker has closed. Call it from the main thread, once.

        Raises:
            ConfigError: The port is taken, or the host is not this machine.
            CheckpointError: The snapshots are there and cannot be read.
            SystemExit: After SIGTERM (143) and SIGINT (130).
        """
        logger = logging.getLogger("elastic")
        if not logger.hasHandlers():
            # A script that has set up no logging still shows what its server does.
            logger.addHandler(logging.StreamHandler(sys.stderr))
            logger.setLevel(logging.INFO)
        if signum := asyncio.run(self._serve()):
            raise SystemExit(128 + signum)

    async def _serve(self) -> int:
        """Serve; the signal that was the end, or 0."""
        tell_agent(RestoreDone(self._restore(), clock()))
        loop = asyncio.get_running_loop()
        signals: list[int] = []

        def end(signum: int) -> None:
            """Take the first signal as a wish to end. A second one is not waited with."""
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
            # Nothing is acknowledged any more before the last snapshot is written.
            await server.stop(0 if signals else GOODBYE_S)
            for task in tasks:
                task.cancel()
        if self._snapshots is not None and self._service.changed.is_set():
            await self._write(self._snapshots)
        why = signal.Signals(signals[0]).name if signals else "every worker has closed or is lost"
        log.info("server %d ends: %s", self.env.index, why)
        return signals[0] if signals else 0

    async def _listening(self) -> grpc.aio.Server:
        server = grpc.aio.server(options=OPTIONS)
        server.add_generic_rpc_handlers((self._service.handlers(),))
        try:
            server.add_insecure_port(self._listen)
        except RuntimeError as error:
            raise ConfigError(
                f"server {self.env.index} cannot listen on {self._listen}: its port is taken, or its host is not this "
                "machine; free it, or name another one"
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
        """Write snapshots whenever something changed."""
        while True:
            await self._service.changed.wait()
            await asyncio.sleep(self._snapshot_every_s)
            started = time.monotonic()
            await self._write(snapshots)
            await asyncio.sleep(SNAPSHOT_SHARE * (time.monotonic() - started))

    async def _write(self, snapshots: Snapshots) -> None:
        """Write a snapshot. A full disk is said, and tried again: training goes on."""
        self._service.changed.clear()
        state = self._service.state()
        try:
            await asyncio.get_running_loop().run_in_executor(self._writer, snapshots.write, state)
        except asyncio.CancelledError:
            self._service.changed.set()  # Whether it is written is not known here: the last snapshot follows it.
            raise
        except CheckpointError as error:
            log.error("no snapshot: %s", error)
            self._service.changed.set()

    def _restore(self) -> int:
        """Take over the newest snapshot; its step, -1 without one."""
        restored = self._snapshots.load() if self._snapshots is not None else None
        if restored is None:
            return -1
        state, written_at = restored
        self._service.holdings.load(state["holdings"])
        self._service.restored(state["workers"], state["step"])
        log.warning(
            "server %d is back from its snapshot; its state is %.1f s old (step %d)",
            self.env.index,
            max(0.0, time.time() - written_at),
            state["step"],
        )
        return int(state["step"])


def _is_loopback(address: str) -> bool:
    host = address.rpartition(":")[0].strip("[]")
    return host in ("localhost", "::1") or host.startswith("127.")


def load(path: str | os.PathLike[str], names: Sequence[str] | None = None) -> dict[str, torch.Tensor]:
    """Read parameters from a plain file of tensors by name. `ConfigError` says what is wrong with file or names."""
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except (OSError, RuntimeError, pickle.UnpicklingError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no file of torch.save with tensors only"
        raise ConfigError(f"load_from={os.fspath(path)!r} cannot be read: {reason}") from error
    if not isinstance(loaded, dict):
        raise ConfigError(f"load_from={os.fspath(path)!r} has no tensors by name; save model.state_dict()")
    tensors = {name: value for name, value in loaded.items() if isinstance(value, torch.Tensor)}
    if names is None:
        return tensors
    if unknown := [name for name in names if name not in tensors]:
        raise ConfigError(
            f"load_from={os.fspath(path)!r} has no {', '.join(unknown)}; it has {', '.join(list(tensors)[:20])}"
        )
    return {name: tensors[name] for name in names}
