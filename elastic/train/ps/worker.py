"""The worker of a parameter-server job: trains a model whose parameters are on the servers."""

from __future__ import annotations

import asyncio
import atexit
import functools
import logging
import os
import secrets
import sys
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from elastic import environment
from elastic._disk.replace import replacing
from elastic.channel.messages import RestoreDone, Serving, clock
from elastic.environment import ProcessEnvironment
from elastic.errors import ConfigError
from elastic.script.error_report import reporting_config_errors
from elastic.train.checkpoint import atomic_files, replicated_part
from elastic.train.ps import protocol
from elastic.train.ps.cluster import secret, servers, tell_agent
from elastic.train.ps.connection import ServerConnection
from elastic.train.ps.dense import DenseParameters
from elastic.train.ps.embedding import Embedding
from elastic.train.ps.framing import NAMES, TensorShape
from elastic.train.ps.loop_thread import LoopThread

PATIENCE_S = 120.0
HETER_FROM = 1 << 20
"""The index of the first heterogeneous worker among the sessions of a server."""
SAVE_ROWS_BYTES = 64 * 1024 * 1024
"""Bytes of a table that `save` fetches at once."""

log = logging.getLogger("elastic.train.ps")


class Worker:
    """Trains a model whose parameters are on the servers: pushes gradients and pulls values.

    ::

        worker = ps.Worker(model, lr=0.01)      # registers the parameters, and pulls the values of the servers
        for batch in batches:
            loss_of(model, batch).backward()
            worker.step()                       # pushes the gradients, and pulls the new values
        worker.save("model.pt")
        worker.close()

    All workers build the same model. Training starts from the values of worker 0, or from the file of the servers
    (`load_from`).

    Use a worker from the thread that created it. Two workers of one process must not share parameters. A `with` block
    closes the worker at its end, or abandons it if the block raises.

    Every method that calls the servers waits for an unavailable server, and raises

    - `ServerLost` if a server has been unavailable for `patience_s`,
    - `SessionReplaced` if another process has connected with the index of this worker,
    - `ModelMismatch` if the servers have another model or another optimizer,
    - `MessageError` if a server rejects a message, or its reply does not match the request.

    Attributes:
        lr: The learning rate; a change takes effect with the next push.
        model: The model, whose dense parameters have the values of the last pull.
        env: The place of this process in the job.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        *,
        lr: float,
        mode: str = "async",
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        env: ProcessEnvironment | None = None,
        patience_s: float = PATIENCE_S,
    ) -> None:
        """Connect to all servers, register the model, and pull.

        Waits for the servers, and for the initial values of worker 0.

        Args:
            model: The model. Its parameters, and the tables of its `ps.Embedding` modules, are trained. Parameters may
                have any real dtype; those without `requires_grad` are shared but not trained.
            lr: The learning rate, 0 or more.
            mode: "async": the servers apply the gradients of each worker immediately. "sync": they wait for those of
                all live workers, and apply their weighted average.
            momentum: As in `torch.optim.SGD`, from 0 to less than 1. Rows of a table have momentum only in steps in
                which they have a gradient.
            weight_decay: As in `torch.optim.SGD`, 0 or more. It does not apply to tables.
            env: The place of this process in the job; by default that of the environment (`elastic.env()`).
            patience_s: The timeout of a call to an unavailable server, in seconds.

        Raises:
            ConfigError: The environment or an argument is wrong, or a parameter has an unsupported dtype.
            SecretMismatch: A server and this process have different values of ELASTIC_PS_SECRET.
        """
        with reporting_config_errors():
            self.env = env or environment.read(os.environ)
            known = secret(os.environ)
        if self.env.role == "server":
            raise ConfigError("this process is a server, not a worker; check elastic.env().role")
        if mode not in list(protocol.UpdateMode):
            raise ConfigError(f"mode is {mode!r}; write 'sync' or 'async'")
        if lr < 0 or not 0 <= momentum < 1 or weight_decay < 0:
            raise ConfigError("lr and weight_decay must be 0 or more, and momentum from 0 to less than 1")
        addresses = servers(self.env)
        self.lr = lr
        self.model = model
        self._number = 0
        self._step = 0
        self._pid = os.getpid()
        self._tables = {
            f"{name}.weight" if name else "weight": module
            for name, module in model.named_modules()
            if isinstance(module, Embedding)
        }
        self._dense = DenseParameters(model, len(addresses))
        index = self.env.index + (HETER_FROM if self.env.role == "heter" else 0)
        self._session = f"{index}-{secrets.token_hex(8)}"
        self._links = [
            ServerConnection(
                protocol.SessionRequest(
                    job=self.env.job_id,
                    server=server,
                    servers=len(addresses),
                    worker=index,
                    session=self._session,
                ),
                protocol.RegisterRequest(
                    session=self._session,
                    mode=protocol.UpdateMode(mode),
                    sgd=protocol.SGD(momentum=momentum, weight_decay=weight_decay),
                    pieces=tuple(self._dense.specs[server]),
                    tables=tuple(module.spec(name) for name, module in self._tables.items()),
                ),
                functools.partial(self._dense.values, server),
                address=address,
                roster_file=self.env.roster_file,
                patience_s=patience_s,
                secret=known,
            )
            for server, address in enumerate(addresses)
        ]
        self._lives: list[str] = []
        """The IDs of the server processes whose values the model has."""
        self._background: LoopThread | None = LoopThread("parameter servers")
        try:
            self._together(link.open() for link in self._links)
            self._step = max(link.step for link in self._links)
            for table, module in enumerate(self._tables.values()):
                module.fetch = functools.partial(self._fetch, table, module)
            self.pull()
        except BaseException:
            self.abandon()
            raise
        tell_agent(RestoreDone(self._step, clock()))
        atexit.register(self._at_exit)

    def pull(self) -> None:
        """Copy the values of all dense parameters to the model. Rows of tables are fetched when they are used."""
        lives = self._server_lives()
        answers = self._together(
            link.call(
                "Pull",
                protocol.SessionMessage(session=self._session),
                expected=self._dense.shapes(server),
            )
            for server, link in enumerate(self._links)
        )
        self._dense.take([values for _, values in answers])
        self._lives = lives

    def push(self, weight: float = 1.0) -> None:
        """Send the gradients of the model to the servers, and clear them. In sync mode, wait for the other workers.

        The servers apply each push once, even if it is repeated after a broken connection.

        Args:
            weight: The weight of this worker in the average of a synchronous step, more than 0: for example the number
                of samples in its batch. A missing gradient counts as zero. Not used in async mode.

        Raises:
            ValueError: The weight is not more than 0.
        """
        self._push(weight, pull=self._server_lives() != self._lives)

    def step(self, weight: float = 1.0) -> None:
        """Push the gradients and pull the new values, with one request to each server.

        Args:
            weight: As for `push`.

        Raises:
            ValueError: The weight is not more than 0.
        """
        self._push(weight, pull=True)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Pull, and write the whole model to one file, as `torch.save(model.state_dict(), path)` does.

        Each table is written in full, under the name of its module with ".weight", and must fit into the memory of this
        process. Buffers are those of this worker. One worker is enough. The write is atomic.

        Args:
            path: The file; an existing file is replaced. Its directory must exist.

        Raises:
            CheckpointError: The disk is full or read-only, or the directory does not exist; the message has a fix.
        """
        self.pull()
        values = self.model.state_dict()
        state = {name: value.cpu() if isinstance(value, torch.Tensor) else value for name, value in values.items()}
        for index, (name, module) in enumerate(self._tables.items()):
            state[name] = self._whole(index, module)
        target = Path(path)
        with atomic_files.as_checkpoint_error("saving the model", target.parent), replacing(target) as new:
            replicated_part.save_file(new, state)

    def close(self) -> None:
        """Notify every server that this worker has finished, and disconnect. A second call does nothing.

        Servers exit when every worker has finished. A process that exits without an uncaught exception closes its
        worker automatically.
        """
        self._end(ServerConnection.close)

    def abandon(self) -> None:
        """Disconnect without notifying the servers: they treat this worker as failed, and another may replace it."""
        self._end(ServerConnection.abandon)

    def __enter__(self) -> Worker:
        """Close at the end of a `with` block."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close, or abandon if the block has raised."""
        self._end(ServerConnection.close if error is None else ServerConnection.abandon)

    # Pushing and pulling.

    def _server_lives(self) -> list[str]:
        return [link.life for link in self._links]

    def _push(self, weight: float, *, pull: bool) -> None:
        if not weight > 0:
            raise ValueError(f"weight is {weight}; it must be more than 0")
        self._number += 1
        tables = [module.gathered() for module in self._tables.values()]
        lives = self._server_lives()
        answers = self._together(
            link.call(
                "Push",
                *self._gradients(server, tables, weight, pull),
                expected=self._dense.shapes(server) if pull else (),
            )
            for server, link in enumerate(self._links)
        )
        self._dense.clear()
        self._step = max([self._step, *(answer.step for answer, _ in answers)])
        if pull:
            self._dense.take([values for _, values in answers])
            self._lives = lives
        if self._number == 1:
            tell_agent(Serving(clock()))

    def _gradients(
        self, server: int, tables: Sequence[tuple[torch.Tensor, torch.Tensor]], weight: float, pull: bool
    ) -> tuple[protocol.PushRequest, list[torch.Tensor]]:
        pieces, dense = self._dense.gradients(server)
        touched, sparse = [], []
        for index, (ids, rows) in enumerate(tables):
            mask = ids % len(self._links) == server
            if bool(mask.any()):
                touched.append(index)
                sparse += [ids[mask], rows[mask]]
        push = protocol.PushRequest(
            session=self._session,
            number=self._number,
            step=self._step,
            lr=float(self.lr),
            weight=float(weight),
            pieces=tuple(pieces),
            tables=tuple(touched),
            pull=pull,
        )
        return push, dense + sparse

    def _fetch(self, table: int, module: Embedding, ids: torch.Tensor) -> torch.Tensor:
        """Rows of a table, in the order of the ids."""
        rows = torch.empty((len(ids), module.dim), dtype=module.dtype)
        owners = ids % len(self._links)
        asked = [(link, owners == server) for server, link in enumerate(self._links)]
        asked = [(link, mask) for link, mask in asked if bool(mask.any())]
        answers = self._together(
            link.call(
                "Rows",
                protocol.RowsRequest(session=self._session, table=table),
                (ids[mask],),
                (TensorShape(NAMES[module.dtype], (int(mask.sum()), module.dim)),),
            )
            for link, mask in asked
        )
        for (_, mask), (_, values) in zip(asked, answers, strict=True):
            rows[mask] = values[0]
        return rows

    def _whole(self, table: int, module: Embedding) -> torch.Tensor:
        whole = torch.empty((module.num, module.dim), dtype=module.dtype)
        count = max(1, SAVE_ROWS_BYTES // (module.dim * whole.itemsize))
        for ids in torch.split(torch.arange(module.num), count):
            whole[ids] = self._fetch(table, module, ids)
        return whole

    # The thread.

    def _together(self, works: Any) -> list[Any]:
        """Call all servers at once, and wait for all of them. The first error cancels the others."""
        if self._background is None:
            raise ConfigError("this ps.Worker is closed")

        async def together() -> list[Any]:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(work) for work in works]
            return [task.result() for task in tasks]

        try:
            return self._background.run(together())
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None

    def _end(self, way: Callable[[ServerConnection], Coroutine[Any, Any, None]]) -> None:
        if self._background is None or os.getpid() != self._pid:
            return
        atexit.unregister(self._at_exit)
        for module in self._tables.values():
            module.fetch = None
        try:
            self._together(way(link) for link in self._links)
        finally:
            self._background.stop()
            self._background = None

    def _at_exit(self) -> None:
        self.__exit__(None, getattr(sys, "last_value", None), None)  # An uncaught exception.
