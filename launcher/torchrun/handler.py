"""torch's interface to a rendezvous, on our membership.

Torch's agent calls it from its main thread: `next_rendezvous` waits until a round has come together with this node in
it, `num_nodes_waiting` is asked all the time while workers run. Everything else happens in `launcher.torchrun.stay`.

What torch's interface does not tell: how workers ended. It is seen from what torch's agent does next
(`launcher.torchrun.rounds`), and at its end from the error that it ends with: `shutdown` is called in a `finally`, so
that the error which is on its way can be seen there. `ChildFailedError` says that no restart is left, and the job
fails; no error says that every worker has ended well; any other one says that this node leaves, and the job stays open.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import time
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as NotYet
from contextlib import suppress

from torch.distributed import Store  # type: ignore[attr-defined]  # It is of C++.
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousInfo, RendezvousParameters
from torch.distributed.elastic.rendezvous.api import RendezvousStoreInfo

from elastic import agentevents as ae
from elastic.agentfacts import Facts
from elastic.errors import ConfigError, ElasticError, ScriptMistake, StoreError
from elastic.keys import JobKeys
from elastic.model import Status, Verdict, WorkerExit
from elastic.store.base import Range
from launcher.endpoints import parse_endpoint
from launcher.exits import describe
from launcher.logs import TAIL_LINES, clean
from launcher.torchrun import BACKEND, endings, options, stores
from launcher.torchrun.backstage import Backstage
from launcher.torchrun.options import Settings
from launcher.torchrun.rounds import LOG, Rounds
from launcher.torchrun.stay import Left, Stay, WorkersAction
from launcher.torchrun.words import in_torchruns_words

LEAVE_LIMIT_S = 6.0
"""A node that leaves has said so within this time, or others find out by themselves."""
LOOK_EVERY_S = 0.5
"""How often a wait looks around although nothing was said."""
LEAVES = "torchrun ends"
NO_RESTART = "torchrun has no restart left on host {host} (--max-restarts)"
OWN_STORE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
"""Torch's variable: 1 has the workers make a store of their own, beside that of the agents."""


def create_handler(parameters: RendezvousParameters) -> RendezvousHandler:
    """What torchrun makes of its flags. A mistake is said in one line, and ends python with code 2."""
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
        text = in_torchruns_words(str(error))
        _write(f"torchrun: error: {text}")
        raise ScriptMistake(text) from None
    return EtcdRendezvous(settings)


class EtcdRendezvous(RendezvousHandler):
    """One node's way through the rounds of a job."""

    def __init__(self, settings: Settings) -> None:
        """Nothing is connected before the first call that needs it."""
        self._settings = settings
        self._changed = threading.Condition()
        self._rounds = Rounds()
        self._backstage = Backstage()
        self._stay: Stay | None = None
        self._end: Future[Left] | None = None
        self._left: Left | None = None
        self._server: Store | None = None
        """Torch's store of this round, if it is here: it listens for as long as it is kept."""
        atexit.register(self._leave_at_exit)

    def get_backend(self) -> str:
        """The name that `--rdzv-backend` has for this."""
        return BACKEND

    def get_run_id(self) -> str:
        """The job id."""
        return self._settings.config.job_id

    @property
    def use_agent_store(self) -> bool:
        """Tell whether workers meet in the store that `next_rendezvous` gives."""
        return os.environ.get(OWN_STORE, "0") != "1"

    def next_rendezvous(self) -> RendezvousInfo:
        """Wait for the next round with this node in it. That it is called says that no worker of this node runs.

        Raises the errors of `launcher.torchrun.endings`. A node that gives up leaves the job, which stays open.
        """
        with self._changed:
            gone = self._rounds.come_back()
        self._server = None  # Whoever still uses the store of the round before is of an old world.
        stay = self._join()
        stay.put(*gone)
        while True:
            round_ = self._wait()
            if (info := self._meet(round_)) is not None:
                return info
            with self._changed:
                gone = self._rounds.come_back()
            self._server = None
            stay.put(*gone)

    def is_closed(self) -> bool:
        """Tell whether the job has ended, as far as this node knows; etcd is asked if it has not joined."""
        if self._stay is not None and (self._end is None or not self._end.done()):
            return self._stay.verdict is not None
        if self._left is not None and self._left.verdict is not None:
            return True
        try:
            return self._backstage.begin(self._look).result()
        except StoreError as error:
            raise endings.NotReached(_said(error), error.exit_code) from error

    def set_closed(self) -> None:
        """End the job for everybody: a verdict is written, which says that it has completed."""
        stay = self._join()
        until = time.monotonic() + self._settings.close_timeout_s
        while stay.verdict is None and self._end is not None and not self._end.done():
            if time.monotonic() >= until:
                raise endings.TimedOut(_said(f"the job was not closed within {self._settings.close_timeout_s:g} s"))
            stay.ask_to_conclude()
            with self._changed:
                self._changed.wait(LOOK_EVERY_S)

    def num_nodes_waiting(self) -> int:
        """How many nodes wait for another round. 1 also where a member was lost, has failed, leaves, or is this one."""
        with self._changed:
            if self._rounds.taken is not None and self._end is not None and self._end.done():
                return 1  # Whatever ended it: this node has no right to run workers any more.
            return self._rounds.waiting()

    def shutdown(self) -> bool:
        """Torch's agent ends; True if the job has ended, too, or goes on without this node in order."""
        error = sys.exc_info()[1]
        stay, end = self._stay, self._end
        try:
            if stay is None or end is None or end.done():
                return True
            failed = error if isinstance(error, ChildFailedError) else None
            if self._rounds.taken is None or (error is not None and failed is None):
                return self._leave()
            with self._changed:
                finished = self._rounds.fail(_failures(failed, stay.host)) if failed else self._rounds.finish()
            # Who has failed for good is needed until that has been judged.
            stay.put(*finished, over=failed is None)
            try:
                end.result(self._settings.close_timeout_s)
            except NotYet:
                stay.narrator.warn(
                    f"the end of the job was not agreed within {self._settings.close_timeout_s:g} s (close_timeout in "
                    "--rdzv-conf); leaving"
                )
                self._leave()
                return False
            except (ElasticError, CancelledError):
                return False
            return True
        finally:
            self._server = None
            self._backstage.close()
            atexit.unregister(self._leave_at_exit)

    # --- the way to a round ---------------------------------------------------------------------------------------

    def _join(self) -> Stay:
        """This node's stay; a new one where there is none."""
        if self._stay is None:
            made: Future[Stay] = Future()

            async def live() -> Left:
                stay = Stay(self._settings, self._told, self._look_around)
                made.set_result(stay)
                return await stay.run()

            self._end = self._backstage.begin(live)
            self._end.add_done_callback(lambda _: self._look_around())
            self._stay = made.result()
        return self._stay

    def _wait(self) -> ae.StartWorkers:
        """Wait until a round has started with this node in it."""
        assert self._stay is not None
        assert self._end is not None
        limit_s = self._settings.join_timeout_s
        until = time.monotonic() + limit_s
        with self._changed:
            while True:
                if self._end.done():
                    break
                if (round_ := self._rounds.take()) is not None:
                    return round_
                now = time.monotonic()
                if self._stay.spare:
                    until = now + limit_s  # A world runs; whoever waits beside it is not late.
                elif now >= until:
                    break
                self._changed.wait(min(until - now, LOOK_EVERY_S))
        if self._end.done():
            raise self._ended(self._end)
        self._leave()
        raise endings.TimedOut(
            _said(f"no round came together in {limit_s:g} s (join_timeout in --rdzv-conf); the job stays open")
        )

    def _meet(self, round_: ae.StartWorkers) -> RendezvousInfo | None:
        """Meet all the others in the store of the round; None if it is over before that."""
        host, port = parse_endpoint(round_.go.master)
        me, size = round_.generation.members[round_.m_id].host, len(round_.generation.members)
        bootstrap = RendezvousStoreInfo(host, port)
        meeting = stores.Meeting(host, port, round_.m_id, size)
        limit_s = self._settings.join_timeout_s
        own_s = min(limit_s, stores.SERVE_S) if round_.m_id == 0 else limit_s
        began = time.monotonic()
        met = False

        def goes_on() -> bool:
            with self._changed:
                in_time = met or time.monotonic() < began + (limit_s if meeting.reached else own_s)
                return self._rounds.taken is round_ and self._goes_on() and in_time

        def ended(text: str) -> None:
            if met:
                _said(text)

        if round_.m_id == 0:
            try:
                self._server = stores.serve(port, goes_on)
            except RuntimeError as error:
                self._leave()
                text = f"cannot listen at port {port} ({error}); somebody else has it"
                raise endings.NotReached(_said(text), 4) from error
            except endings.Over:
                pass  # So says `goes_on`, too.
            if self._server is not None and not self.use_agent_store:
                bootstrap = RendezvousStoreInfo.build(0, self._server, me)  # Before the others look for it.
        store = meeting.meet(goes_on, ended)
        if store is None and self._goes_on():
            self._leave()
            if round_.m_id == 0 and not meeting.reached:
                text = f"this node does not reach {round_.go.master} itself, where the round meets, in {own_s:g} s"
                raise endings.NotReached(_said(f"{text}; is --local-addr an address of this machine?"), 4)
            raise _not_met(round_.go.master, limit_s, reached=meeting.reached)
        if store is None:
            return None
        if round_.m_id > 0 and not self.use_agent_store:
            try:
                bootstrap = RendezvousStoreInfo.build(round_.m_id, store, me)
            except endings.Over:
                return None
        met = True
        return RendezvousInfo(store, round_.m_id, size, bootstrap)

    def _goes_on(self) -> bool:
        with self._changed:
            return not self._rounds.stops and self._end is not None and not self._end.done()

    def _ended(self, end: Future[Left]) -> BaseException:
        """Why there is no further round."""
        self._stay = self._end = None
        try:
            left = self._left = end.result()
        except StoreError as error:
            return endings.NotReached(_said(error), error.exit_code)
        except ElasticError as error:
            return endings.NotTaken(_said(error), error.exit_code)
        if left.verdict is not None:
            return endings.Closed(_ended_words(left.verdict, self.get_run_id()), left.code)
        return endings.NotTaken(left.refusal or "this node has left the job", left.code)

    def _leave(self) -> bool:
        """Leave the job, which stays open; tell whether the others know."""
        stay, end = self._stay, self._end
        if stay is None or end is None:
            return True
        with self._changed:
            gone = self._rounds.leave()
        stay.leave(signal.SIGTERM, LEAVES, gone)
        try:
            end.result(LEAVE_LIMIT_S)
        except (ElasticError, CancelledError, NotYet):
            return False
        finally:
            self._stay = self._end = None
        return True

    def _leave_at_exit(self) -> None:
        """Torch does not call `shutdown` where a signal ends its agent; workers are gone by now."""
        self._leave()
        self._server = None
        self._backstage.close()

    # --- in the loop's thread -------------------------------------------------------------------------------------

    def _told(self, action: WorkersAction, facts: Facts) -> None:
        """The core starts or stops workers."""
        with self._changed:
            if isinstance(action, ae.StartWorkers):
                self._rounds.start(action)
                events: list[ae.Event] = []
            else:
                events = self._rounds.stop(action, facts.generation)
            self._changed.notify_all()
        if events and self._stay is not None:
            self._stay.put(*events)

    def _look_around(self) -> None:
        with self._changed:
            self._changed.notify_all()

    async def _look(self) -> bool:
        """Ask etcd whether the job has ended."""
        config = self._settings.config
        store = config.way.open()
        try:
            return bool((await store.list(Range.key(JobKeys(config.job_id, config.key_prefix).verdict))).entries)
        finally:
            await store.close()


def _failures(error: ChildFailedError, host: str) -> list[WorkerExit]:
    """What torch's agent knows of the workers that failed."""
    hopeless = NO_RESTART.format(host=host)
    return [
        WorkerExit(
            rank=rank,
            code=failure.exitcode or 1,
            words=describe(failure.exitcode),
            log=LOG,
            tail=tuple(clean(line) for line in str(failure.message).splitlines()[-TAIL_LINES:]),
            hopeless=hopeless,
        )
        for rank, failure in sorted(error.failures.items())
    ]


def _ended_words(verdict: Verdict, job_id: str) -> str:
    how = "has completed" if verdict.status is Status.COMPLETED else f"has ended ({verdict.status})"
    return in_torchruns_words(f"job {job_id} {how}: {verdict.reason}")


def _not_met(where: str, limit_s: float, *, reached: bool) -> BaseException:
    mend = "is that port open between the nodes, and --local-addr of that node right?"
    if reached:
        text = f"not all nodes came to {where}, where the round meets, in {limit_s:g} s; {mend}"
        return endings.TimedOut(_said(text))
    return endings.NotReached(_said(f"{where}, where the round meets, cannot be reached in {limit_s:g} s; {mend}"), 4)


def _said(what: object) -> str:
    """Write an error to stderr, for people; the text."""
    text = in_torchruns_words(str(what))
    _write(f"[elastic-launch] {text}")
    return text


def _write(line: str) -> None:
    """Write to stderr. One that is full, closed or not there at all (None) changes no exit code."""
    with suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()
