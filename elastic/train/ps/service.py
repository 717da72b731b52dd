"""The handlers of one server. All run in one event loop, and none awaits while it changes state."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any
from urllib.parse import unquote

import torch

from elastic._grpc import grpc
from elastic.auth.handshake import Purpose, is_proof, new_nonce, proofs
from elastic.errors import MessageError, ModelMismatch, ParameterServerError, SecretMismatch, SessionReplaced
from elastic.train.ps import protocol
from elastic.train.ps.barrier import GradientBarrier
from elastic.train.ps.framing import DTYPES, frames, read_single
from elastic.train.ps.handlers import STATUS, HandlerAnswer, grpc_handler
from elastic.train.ps.parameters import ParameterStore, PushedGradients, average, check_tensors
from elastic.train.ps.sessions import REPLACED, SessionState, UnknownSession, WorkerSessions

PROOF_LIMIT_S = 5.0
"""The time for a client to prove that it knows the secret."""
COMPLAINTS_MAX = 32
"""The largest number of unauthenticated addresses that are logged."""
NOTICE_EVERY_S = 10.0
"""The interval of notices about missing workers."""
ROWS_BYTES_MAX = 1024**3
"""The largest reply with rows, in bytes: the request with their IDs is small."""

log = logging.getLogger("elastic.train.ps")


class ParameterService:
    """The state of one server, and the handlers that change it."""

    def __init__(
        self,
        holdings: ParameterStore,
        *,
        index: int,
        servers: int,
        trainers: Callable[[], int],
        job: str = "",
        replaced: bool = False,
        lost_after_s: float,
        secret: bytes = b"",
    ) -> None:
        """Start with the state in `holdings`.

        `trainers` returns the number of workers. `replaced`: the launcher replaces failed workers. With a `secret`, the
        server rejects calls on a connection that has not proven that it knows the secret.
        """
        self.holdings = holdings
        self.sessions = WorkerSessions(lost_after_s)
        self.barrier: GradientBarrier[PushedGradients] = GradientBarrier(trainers())
        self.finished = asyncio.Event()
        self.changed = asyncio.Event()
        """Set when the state of a snapshot has changed."""
        self.life = secrets.token_hex(8)
        self._index = index
        self._servers = servers
        self._trainers = trainers
        self._job = job
        self._replaced = replaced
        self._secret = secret
        self._admitted: set[str] = set()
        """The connections whose session is open, as gRPC names them."""
        self._complained: set[str] = set()
        self._notices: dict[int, asyncio.Queue[protocol.SessionNotice | None]] = {}
        """The notices for each worker. None: a newer connection replaces this one."""
        self._moved = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None

    def handlers(self) -> grpc.GenericRpcHandler:
        """Return the handlers for gRPC."""
        known = self._is_admitted
        answers = {
            "Register": grpc_handler(protocol.RegisterRequest, self._register, known, self._check_register),
            "Push": grpc_handler(protocol.PushRequest, self._push, known, self._check_push),
            "Pull": grpc_handler(protocol.SessionMessage, self._pull, known),
            "Rows": grpc_handler(protocol.RowsRequest, self._rows, known, self._check_rows),
            "Close": grpc_handler(protocol.SessionMessage, self._close, known),
        }
        table = {name: grpc.stream_stream_rpc_method_handler(handler) for name, handler in answers.items()}
        table["Session"] = grpc.stream_stream_rpc_method_handler(self._session)
        return grpc.method_handlers_generic_handler(protocol.PACKAGE, table)

    def waits_for(self) -> str:
        """Return which workers the server waits for; "" if none."""
        registered = self.sessions.registered()
        if self.holdings.missing() and registered:
            return f"worker 0 and its first values ({self._known(0)})"
        if self.holdings.mode is not protocol.UpdateMode.SYNC:
            return ""
        if registered and (absent := self.barrier.absent()):
            trainers = self.barrier.trainers
            never = [str(worker) for worker in range(trainers) if worker not in self.sessions.seen]
            who = f"worker {', '.join(never)}" if len(never) == absent else f"{absent} of {trainers} workers"
            return f"{who} to join before the first step"
        if missing := self.barrier.missing():
            return f"step {self.barrier.step} of " + ", ".join(f"worker {w} ({self._known(w)})" for w in missing[:8])
        return ""

    async def report_missing_workers(self) -> None:
        """Log missing workers every `NOTICE_EVERY_S`, here and on the workers, if they were missing before."""
        before = ""
        while True:
            await asyncio.sleep(NOTICE_EVERY_S)
            if self.waits_for():
                # The launcher may have reduced the number of workers.
                self.barrier.trainers = self._trainers()
                self._change()
            text = self.waits_for()
            if text and text == before:
                log.info("server %d is waiting for %s", self._index, text)
                for queue in self._notices.values():
                    queue.put_nowait(
                        protocol.SessionNotice(text=f"parameter server {self._index} is waiting for {text}")
                    )
            before = text

    def restored(self, sessions: Sequence[tuple[int, str, int, str]], step: int) -> None:
        """Resume from a snapshot: workers that were live then have `lost_after_s` to reconnect.

        If none was live, that job had ended, and this is a new job with its values.
        """
        resumed = any(SessionState(state).live for _, _, _, state in sessions)
        self.barrier = GradientBarrier(self.barrier.trainers, step=step, opened=resumed)
        for worker, session, applied, state in sessions if resumed else ():
            self.sessions.restore(worker, session, applied, SessionState(state), self._now())
            if SessionState(state).live:
                self.barrier.add_worker(worker)
        self._arm()

    def state(self) -> dict[str, Any]:
        """Return the state for a snapshot."""
        seen = self.sessions.seen.items()
        workers = [(worker, session.session, session.applied, str(session.state)) for worker, session in seen]
        return {"holdings": self.holdings.state(), "workers": workers, "step": self.barrier.step}

    # The session.

    async def _session(self, _: AsyncIterator[bytes], context: Any) -> None:
        peer = context.peer()
        try:
            async with asyncio.timeout(PROOF_LIMIT_S):
                hello = await self._authenticated(context)
            worker = hello.worker
            back = worker in self.sessions.seen
            known = back and self.sessions.seen[worker].session == hello.session
            self.sessions.open(worker, hello.session, self._now())
        except TimeoutError:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "the handshake took too long")
        except ParameterServerError as error:
            await context.abort(STATUS[type(error)], str(error))
        self._admitted.add(peer)
        if not known:
            self.barrier.remove_worker(worker)
            log.info("worker %d has connected%s", worker, " again, as a new process" if back else "")
        if older := self._notices.get(worker):
            older.put_nowait(None)
        queue = self._notices[worker] = asyncio.Queue()
        queue.put_nowait(protocol.SessionNotice(life=self.life))
        self._change()
        try:
            while (notice := await queue.get()) is not None:
                for frame in frames(notice):
                    await context.write(frame)
            if self.sessions.seen[worker].session != hello.session:
                await context.abort(STATUS[SessionReplaced], REPLACED.format(worker))
        finally:
            self._admitted.discard(peer)
            if self._notices.get(worker) is queue:  # There is no newer connection.
                del self._notices[worker]
                if self.sessions.disconnected(worker, self._now()):
                    log.info("the connection of worker %d broke", worker)
                    self._change()

    async def _authenticated(self, context: Any) -> protocol.SessionRequest:
        """Prove that this server knows the secret, and return the request of a worker that proves the same."""
        challenge = read_single(protocol.SessionChallenge, await context.read())
        if challenge.version != protocol.VERSION:
            raise ModelMismatch(
                f"this server uses version {protocol.VERSION} of the protocol, but the worker {challenge.version}"
            )
        nonce = new_nonce()
        expected = proofs(self._secret, Purpose.PARAMETERS, nonce, challenge.nonce)
        for frame in frames(protocol.SessionProof(nonce=nonce, mac=expected.server)):
            await context.write(frame)
        hello = read_single(protocol.SessionRequest, await context.read())
        if not is_proof(hello.mac, expected.client):
            self._complain(context.peer())
            raise SecretMismatch("this server accepts only workers that know its ELASTIC_PS_SECRET")
        if hello.job != self._job:
            raise ModelMismatch(f"this server belongs to job {self._job!r}, but the worker to {hello.job!r}")
        if (hello.server, hello.servers) != (self._index, self._servers):
            raise ModelMismatch(
                f"this is server {self._index} of {self._servers}, but the worker expects server {hello.server} "
                f"of {hello.servers}: list the same servers, in the same order, on every process"
            )
        if not hello.session.startswith(f"{hello.worker}-"):
            raise MessageError("the session does not start with the index of the worker")
        return hello

    async def _close(self, asked: protocol.SessionMessage, _: Sequence[torch.Tensor]) -> HandlerAnswer:
        worker = self.sessions.close(asked.session, self._now())
        self.barrier.remove_worker(worker)
        log.info("worker %d has closed", worker)
        self.changed.set()
        self._change()
        return protocol.ValuesReply(step=self.barrier.step), ()

    # The model.

    async def _register(self, asked: protocol.RegisterRequest, values: Sequence[torch.Tensor]) -> HandlerAnswer:
        worker = self.sessions.check(asked.session)
        self.holdings.register(asked)
        self.sessions.seen[worker].registered = True
        if asked.given:
            self.holdings.fill(asked.given, values)
            self.changed.set()
        self._change()
        while wanted := self.holdings.missing():
            if self.sessions.initializer(self.barrier.trainers) == worker:
                return protocol.RegisterReply(wanted=wanted), ()
            await self._moved.wait()
            self.sessions.check(asked.session)
        step = self.barrier.add_worker(worker)
        self._change()
        return protocol.RegisterReply(step=step), ()

    async def _push(self, pushed: protocol.PushRequest, tensors: Sequence[torch.Tensor]) -> HandlerAnswer:
        worker = self._at_work(pushed.session)
        gradients = self.holdings.gradients(pushed, tensors)
        if self.holdings.mode is protocol.UpdateMode.ASYNC:
            seen = self.sessions.seen[worker]
            if pushed.number > seen.applied:
                self.holdings.apply(gradients)
                seen.applied = pushed.number
                self.changed.set()
        else:
            self.barrier.add_gradients(worker, pushed.step, gradients)
            self._change()
            while self.barrier.step <= pushed.step:
                await self._moved.wait()
                self.sessions.check(pushed.session)
        return protocol.ValuesReply(step=self.barrier.step), self.holdings.values() if pushed.pull else ()

    async def _pull(self, asked: protocol.SessionMessage, _: Sequence[torch.Tensor]) -> HandlerAnswer:
        self._at_work(asked.session)
        return protocol.ValuesReply(step=self.barrier.step), self.holdings.values()

    async def _rows(self, asked: protocol.RowsRequest, tensors: Sequence[torch.Tensor]) -> HandlerAnswer:
        self._at_work(asked.session)
        table = self.holdings.table(asked.table)
        table.check(tensors[0])
        return protocol.ValuesReply(step=self.barrier.step), (table.rows(tensors[0]),)

    # Admission.

    def _is_admitted(self, peer: str) -> bool:
        admitted = not self._secret or peer in self._admitted
        if not admitted:
            self._complain(peer)
        return admitted

    def _complain(self, peer: str) -> None:
        """Name each address once."""
        host = unquote(peer).partition(":")[2].rpartition(":")[0]
        if host not in self._complained and len(self._complained) < COMPLAINTS_MAX:
            self._complained.add(host)
            log.warning("rejected an unauthenticated client at %s", host)

    # Checks before the tensors of a message are read.

    def _check_register(self, asked: protocol.RegisterRequest) -> None:
        self.sessions.check(asked.session)
        check_tensors(asked.pieces, asked.given, asked.shapes)

    def _check_push(self, pushed: protocol.PushRequest) -> None:
        self._at_work(pushed.session)
        self.holdings.check_push(pushed)

    def _check_rows(self, asked: protocol.RowsRequest) -> None:
        self._at_work(asked.session)
        if len(asked.shapes) != 1 or asked.shapes[0].dtype != "int64" or len(asked.shapes[0].sizes) != 1:
            raise MessageError("a request for rows needs one list of int64 ids")
        spec, count = self.holdings.table(asked.table).spec, asked.shapes[0].numbers
        width = spec.width * DTYPES[spec.dtype].itemsize
        if count * max(width, 8) > ROWS_BYTES_MAX:
            raise MessageError(f"{count} rows of {width} bytes are more than {ROWS_BYTES_MAX}; request fewer at once")

    # After every change.

    def _change(self) -> None:
        """Apply complete steps, wake waiting calls, and check whether the job has ended."""
        while given := self.barrier.take():
            self.holdings.apply(average(given))
            self.changed.set()
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()
        self._arm()

    def _arm(self) -> None:
        """Finish if no further worker will join, or set the timer for the next worker that times out."""
        if self._timer is not None:
            self._timer.cancel()
        over_at = self.sessions.over_at(self.barrier.trainers, replaced=self._replaced)
        if over_at is not None and over_at <= self._now():
            if (absent := self.barrier.trainers - len(self.sessions.seen)) > 0:
                log.warning("%d of %d workers never joined; the others have ended", absent, self.barrier.trainers)
            self.finished.set()
            return
        at = self.sessions.next_lapse() if over_at is None else over_at
        if at is not None:
            self._timer = asyncio.get_running_loop().call_at(at, self._lapse)

    def _lapse(self) -> None:
        for worker in self.sessions.lapse(self._now()):
            log.warning("worker %d has failed; steps no longer wait for it", worker)
            self.barrier.remove_worker(worker)
            self.changed.set()
        self._change()

    def _at_work(self, session: str) -> int:
        """Return the worker of a session, which must have registered the model."""
        worker = self.sessions.check(session)
        if not self.sessions.seen[worker].registered:
            raise UnknownSession(session)
        if self.holdings.missing():
            raise MessageError("the parameters have no values yet")
        return worker

    def _known(self, worker: int) -> str:
        seen = self.sessions.seen.get(worker)
        if seen is None:
            return "never joined"
        age = f"{self._now() - seen.since:.0f} s"
        words = {SessionState.HERE: "connected", SessionState.BROKEN: f"connection broke {age} ago"}
        return words.get(seen.state, f"{seen.state} {age} ago")

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()
