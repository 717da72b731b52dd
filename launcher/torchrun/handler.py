"""torch's interface to a rendezvous, on our membership.

Torch's agent calls it from its main thread: `next_rendezvous` waits until a round with this node has formed, and
`num_nodes_waiting` is called all the time while workers run. Everything else happens in
`launcher.torchrun.membership` and `session`.

Torch's interface does not report how workers ended. That follows from what torch's agent does next
(`launcher.torchrun.rounds`). At its end, every worker has ended well if the agent has entered its exit barrier, which
is a key in the store of the round (`launcher.torchrun.stores`). Otherwise `shutdown`, which is called in a `finally`,
checks the error that is being raised: `ChildFailedError` means that no restart is left, and the job fails. In any other
case this node leaves, and the job stays open.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import weakref
from concurrent.futures import CancelledError
from concurrent.futures import TimeoutError as NotYet
from contextlib import suppress
from functools import partial

import msgspec
from torch.distributed import Store  # type: ignore[attr-defined]  # Defined in C++.
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousInfo, RendezvousParameters
from torch.distributed.elastic.rendezvous.api import RendezvousStoreInfo

from elastic.core.agent import actions
from elastic.core.failure_class import FailureClass
from elastic.core.keys import JobKeys
from elastic.core.kv import KeyRange
from elastic.core.model import FinalStatus, Verdict, WorkerExit
from elastic.errors import ConfigError, ElasticError, ScriptMistake, StoreError
from launcher.net.endpoints import parse_endpoint
from launcher.text.sanitize import TAIL_LINES, sanitize_line
from launcher.torchrun import errors, options, stores
from launcher.torchrun.flag_names import translate_message
from launcher.torchrun.loop_thread import FORKED
from launcher.torchrun.membership import LEAVE_LIMIT_S, Membership
from launcher.torchrun.options import RdzvSettings
from launcher.torchrun.rounds import LOG
from launcher.torchrun.session import SessionResult, TorchrunSession
from launcher.workers.exit_classification import describe
from launcher.workers.reports import worker_files

BACKEND = "elastic-etcd"
"""The value of `--rdzv-backend`."""
LEAVE_SHARE = 0.25
"""The part of close_timeout that is kept for leaving the job if its end is not agreed in time."""
CLOSE_MIN_S = 0.2
"""The part of close_timeout that is kept for the end of the thread."""
LOOK_EVERY_S = 0.5
"""How often a wait checks the state without a notification."""
STOPPED = (-signal.SIGTERM, -signal.SIGKILL)
"""Exit codes of workers that torch's agent stops after another one has failed."""
NO_RESTART = "torchrun has no restart left on host {host} (--max-restarts)"
AGENT_SHUTDOWN = "_shutdown"
"""The method with which torch's agent of 2.6 and 2.7 calls `shutdown` before torch raises the error of failed workers.

Torch calls it again, then with that error, as the only call of later releases.
"""
OWN_STORE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
"""Torch's variable: 1 makes the workers use a separate store, in addition to that of the agents."""


def create_handler(parameters: RendezvousParameters) -> RendezvousHandler:
    """Return the handler for torchrun's flags. A mistake is reported in one line, and ends Python with code 2."""
    try:
        settings = options.read(
            parameters.endpoint,
            parameters.run_id,
            (parameters.min_nodes, parameters.max_nodes),
            parameters.local_addr,
            parameters.config,
            os.environ,
        )
    except ConfigError as error:
        text = translate_message(str(error))
        _write(f"torchrun: error: {text}")
        raise ScriptMistake(text) from None
    return EtcdRendezvous(settings)


class EtcdRendezvous(RendezvousHandler):
    """One node's way through the rounds of a job.

    A handler that is dropped without `shutdown` leaves the job and ends its thread; so does the end of the process,
    since torch does not call `shutdown` when a signal ends its agent.
    """

    def __init__(self, settings: RdzvSettings) -> None:
        """`settings` are those of torchrun's flags. The first call that needs etcd connects."""
        self._settings = settings
        self._node = Membership(settings)
        self._left: SessionResult | None = None
        self._server: Store | None = None
        """Torch's store of this round, if this node hosts it: it listens for as long as this reference exists."""
        self._succeeded = False
        """Whether torch's agent has entered the exit barrier of this round."""
        self._handled = id(sys.exc_info()[1])
        """The exception that the caller was handling when it created this handler, as when it retries after one."""
        self._abandon = weakref.finalize(self, self._node.abandon)

    def get_backend(self) -> str:
        """Return the name of this backend for `--rdzv-backend`."""
        return BACKEND

    def get_run_id(self) -> str:
        """Return the job ID."""
        return self._settings.config.job_id

    @property
    def use_agent_store(self) -> bool:
        """Return whether workers meet in the store that `next_rendezvous` returns."""
        return os.environ.get(OWN_STORE, "0") != "1"

    def next_rendezvous(self) -> RendezvousInfo:
        """Wait for the next round with this node in it. The call implies that no worker of this node runs.

        Raises the errors of `launcher.torchrun.errors`. A node that gives up leaves the job, which stays open.
        """
        self._check_process()
        while True:
            with self._node.changed:
                gone = self._node.rounds.rejoin()
            self._server = None  # A process that still uses the store of the previous round is of an old world.
            self._succeeded = False
            stay = self._node.join()
            stay.put(*gone)
            round_ = self._wait(stay)
            if (info := self._meet(round_)) is not None:
                return info

    def is_closed(self) -> bool:
        """Return whether the job has ended, as far as this node knows; if it has not joined, it queries etcd."""
        self._check_process()
        if (stay := self._node.current()) is not None:
            return stay.verdict is not None
        if self._left is not None and self._left.verdict is not None:
            return True
        try:
            return self._node.backstage.begin(partial(_has_ended, self._settings)).result()
        except StoreError as error:
            raise errors.RendezvousUnreachable(_write_error(error), error.exit_code) from error

    def set_closed(self) -> None:
        """End the job for all nodes: writes the final status "completed".

        Raises an error of `launcher.torchrun.errors`, all of which are torch's `RendezvousError`, if there is no final
        status afterwards.
        """
        self._check_process()
        stay = self._node.join()
        until = time.monotonic() + self._settings.close_timeout_s
        while stay.verdict is None and not stay.end.done():
            if time.monotonic() >= until:
                limit = f"within {self._settings.close_timeout_s:g} s (close_timeout in --rdzv-conf)"
                raise errors.RoundTimedOut(_write_error(f"the job was not closed {limit}; it stays open"))
            stay.ask_to_conclude()
            with self._node.changed:
                self._node.changed.wait(min(LOOK_EVERY_S, max(until - time.monotonic(), 0.0)))
        if stay.verdict is None:
            error = self._ended(stay)
            if not isinstance(error, errors.JobClosed):
                raise error

    def num_nodes_waiting(self) -> int:
        """Return how many nodes wait for another round. 1 also if a member failed or leaves, or is this node."""
        with self._node.changed:
            if self._node.rounds.taken is not None and self._node.current() is None:
                return 1  # Whatever the reason: this node's lease no longer allows it to run workers.
            return self._node.rounds.waiting()

    def shutdown(self) -> bool:
        """End torch's agent; return True if the job has also ended, or continues without this node in order.

        Returns within close_timeout. In a process that was forked from that of the handler it does nothing.
        """
        if self._node.backstage.forked:
            return True
        error = sys.exc_info()[1]
        if error is None and not self._succeeded and sys._getframe(1).f_code.co_name == AGENT_SHUTDOWN:
            return True
        limit_s = self._settings.close_timeout_s
        until = time.monotonic() + limit_s
        agree_s, leave_s = close_limits(limit_s)
        failed = error if isinstance(error, ChildFailedError) and id(error) != self._handled else None
        stay = self._node.current()
        try:
            if stay is None:
                return True
            if self._node.rounds.taken is None or not (self._succeeded or failed):
                return self._node.leave(min(LEAVE_LIMIT_S, agree_s + leave_s))
            with self._node.changed:
                if self._succeeded or failed is None:
                    finished = self._node.rounds.finish()
                else:
                    finished = self._node.rounds.fail(_failures(failed, stay.host))
            # A node that has failed for good is needed until the leader has judged that.
            stay.put(*finished, over=self._succeeded)
            try:
                stay.end.result(agree_s)
            except NotYet:
                stay.agent_log.warning(
                    f"the end of the job was not agreed within {limit_s:g} s (close_timeout in --rdzv-conf); leaving"
                )
                self._node.leave(leave_s)
                return False
            except (ElasticError, CancelledError):
                return False
            return True
        finally:
            self._server = None
            self._node.backstage.close(max(until - time.monotonic(), CLOSE_MIN_S))
            self._abandon.detach()

    # --- the way to a round ---------------------------------------------------------------------------------------

    def _check_process(self) -> None:
        """Raise `NodeRejected` in a process in which gRPC does not work."""
        if self._node.backstage.forked:
            raise errors.NodeRejected(_write_error(FORKED), 2)

    def _wait(self, stay: TorchrunSession) -> actions.StartWorkers:
        """Wait until a round has started with this node in it."""
        limit_s = self._settings.join_timeout_s
        until = time.monotonic() + limit_s
        with self._node.changed:
            while True:
                if stay.end.done():
                    break
                if (round_ := self._node.rounds.take()) is not None:
                    return round_
                now = time.monotonic()
                if stay.spare:
                    until = now + limit_s  # A generation runs; a spare does not time out.
                elif now >= until:
                    break
                self._node.changed.wait(min(until - now, LOOK_EVERY_S))
        if stay.end.done():
            raise self._ended(stay)
        self._node.leave()
        raise errors.RoundTimedOut(
            _write_error(f"no round formed within {limit_s:g} s (join_timeout in --rdzv-conf); the job stays open")
        )

    def _meet(self, round_: actions.StartWorkers) -> RendezvousInfo | None:
        """Rendezvous with all other nodes in the store of the round; return None if the round ends before that."""
        host, port = parse_endpoint(round_.go.master)
        me, size = round_.generation.members[round_.m_id].host, len(round_.generation.members)
        bootstrap = RendezvousStoreInfo(host, port)
        reached = threading.Event()
        limit_s = self._settings.join_timeout_s
        own_s = min(limit_s, stores.SERVE_S) if round_.m_id == 0 else limit_s
        began = time.monotonic()
        met = False

        def goes_on() -> bool:
            with self._node.changed:
                in_time = met or time.monotonic() < began + (limit_s if reached.is_set() else own_s)
                return self._node.rounds.taken is round_ and self._goes_on() and in_time

        def ended(text: str) -> None:
            if met:
                _write_error(text)

        def succeeded() -> None:
            self._succeeded = self._succeeded or self._node.rounds.taken is round_

        if round_.m_id == 0:
            try:
                self._server = stores.serve(port, goes_on)
            except RuntimeError as error:
                self._node.leave()
                text = f"cannot listen at port {port} ({error}); another process uses it"
                raise errors.RendezvousUnreachable(_write_error(text), 4) from error
            except errors.RoundOver:
                pass  # `goes_on` also returns that.
            if self._server is not None and not self.use_agent_store:
                bootstrap = RendezvousStoreInfo.build(0, self._server, me)  # Before the other nodes connect to it.
        store = stores.meet((host, port), round_.m_id, size, goes_on, ended, succeeded, reached=reached)
        if store is None and self._goes_on():
            self._node.leave()
            if round_.m_id == 0 and not reached.is_set():
                text = f"this node could not connect to its own store of the round at {round_.go.master} in {own_s:g} s"
                raise errors.RendezvousUnreachable(_write_error(f"{text}; is --local-addr an address of this host?"), 4)
            raise _not_met(round_.go.master, limit_s, reached=reached.is_set())
        if store is None:
            return None
        if round_.m_id > 0 and not self.use_agent_store:
            try:
                bootstrap = RendezvousStoreInfo.build(round_.m_id, store, me)
            except errors.RoundOver:
                return None
        met = True
        return RendezvousInfo(store, round_.m_id, size, bootstrap)

    def _goes_on(self) -> bool:
        with self._node.changed:
            return not self._node.rounds.stops and self._node.current() is not None

    def _ended(self, stay: TorchrunSession) -> BaseException:
        """Return why there is no further round."""
        self._node.forget()
        try:
            left = self._left = stay.end.result()
        except StoreError as error:
            return errors.RendezvousUnreachable(_write_error(error), error.exit_code)
        except ElasticError as error:
            return errors.NodeRejected(_write_error(error), error.exit_code)
        if left.verdict is not None:
            return errors.JobClosed(_ended_words(left.verdict, self.get_run_id()), left.code)
        return errors.NodeRejected(left.refusal or "this node has left the job", left.code)


async def _has_ended(settings: RdzvSettings) -> bool:
    """Query etcd whether the job has ended."""
    config = settings.config
    store = config.store_access.open()
    try:
        return bool((await store.list(KeyRange.key(JobKeys(config.job_id, config.key_prefix).verdict))).entries)
    finally:
        await store.close()


def close_limits(limit_s: float) -> tuple[float, float]:
    """Split a limit: seconds to agree on the end of the job, and to leave after that, less `CLOSE_MIN_S`."""
    leave_s = min(LEAVE_LIMIT_S, LEAVE_SHARE * limit_s)
    return limit_s - CLOSE_MIN_S - leave_s, leave_s


def _failures(error: ChildFailedError, host: str) -> list[WorkerExit]:
    """Return the failed workers that torch's agent knows, the root cause first, without those that it stopped."""
    why = NO_RESTART.format(host=host)
    first, _ = error.get_first_failure()
    return [
        WorkerExit(
            rank=rank,
            code=failure.exitcode or 1,
            words=describe(failure.exitcode),
            log=LOG,
            tail=_tail(failure),
            failure=FailureClass.UNRECOVERABLE,
            why=why,
        )
        for rank, failure in sorted(error.failures.items(), key=lambda item: (item[0] != first, item[0]))
        if rank == first or failure.exitcode not in STOPPED
    ]


def _tail(failure: ProcessFailure) -> tuple[str, ...]:
    """Return the end of what the worker recorded in torch's error file, or else of torch's text about its exit."""
    if isinstance(failure.message, dict):
        return worker_files.parse_traceback_lines(msgspec.json.encode(failure.error_file_data))[-TAIL_LINES:]
    return tuple(sanitize_line(line) for line in str(failure.message).splitlines()[-TAIL_LINES:])


def _ended_words(verdict: Verdict, job_id: str) -> str:
    how = "has completed" if verdict.status is FinalStatus.COMPLETED else f"has ended ({verdict.status})"
    return translate_message(f"job {job_id} {how}: {verdict.reason}")


def _not_met(where: str, limit_s: float, *, reached: bool) -> BaseException:
    hint = "is that port open between the nodes, and --local-addr of that node right?"
    if reached:
        text = f"not all nodes joined the round's store at {where} within {limit_s:g} s; {hint}"
        return errors.RoundTimedOut(_write_error(text))
    return errors.RendezvousUnreachable(
        _write_error(f"could not connect to the round's store at {where} within {limit_s:g} s; {hint}"), 4
    )


def _write_error(what: object) -> str:
    """Write an error to stderr, for users; return the text."""
    text = translate_message(str(what))
    _write(f"[elastic-launch] {text}")
    return text


def _write(line: str) -> None:
    """Write to stderr. One that is full, closed or missing (None) changes no exit code."""
    with suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()
