"""The agent: joins the core (`elastic.agentstate`) to the store, the session, the nursery, signals and people.

It reads an event, calls the core, and performs the actions in their order. There is no policy here.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from elastic import agentevents as ae
from elastic import roster
from elastic.agentstate import AgentCore
from elastic.channel import Saved
from elastic.errors import ElasticError, OutcomeUnknown, StoreDenied, StoreError, StoreUnavailable
from elastic.keys import JobKeys, ViewReader
from elastic.membership import Reason
from elastic.model import Cause, Status, Verdict
from elastic.proposals import Transaction, registered_before
from elastic.store import session
from elastic.store.base import Range, Store
from elastic.store.mirror import Mirror
from launcher import addresses, events, loading, locks, logs, offer, openfiles, report, serving, shortage
from launcher.arrivals import Arrivals
from launcher.config import Config
from launcher.connecting import Connecting, Interrupted, boottime, resolve
from launcher.console import Console
from launcher.events import EventLog
from launcher.failures import FailureReports
from launcher.hello import Hello
from launcher.history import History
from launcher.introduction import introduce
from launcher.linking import Linking
from launcher.logdisk import CLOSE_LIMIT_S, HURRY_LIMIT_S, LogDisk
from launcher.logorders import Append, path_bytes
from launcher.logs import Level, Narrator
from launcher.neighbours import Neighbours
from launcher.node import NodeWorkers
from launcher.outputs import Outputs
from launcher.probing import Prober
from launcher.roles import static_hosts
from launcher.saved import SavedSteps
from launcher.signals import Signals
from launcher.splits import SplitWatch
from launcher.talk import Heard
from launcher.timeline import TimelineTeller
from launcher.waiting import WaitingLines

CLOSING_LIMIT_S = 1.0
"""Giving back the lease takes at most this long; otherwise it ends by itself."""
REVOKE_AGAIN_S = 0.5
"""Before a store that did not answer is asked again to end a lease."""
REFUSED_PAUSE_S = 1.0
"""Before a store that refuses this node is asked for the same again."""
PROOF_EVERY_S = 1.0
"""How often this machine is asked whether nodes that vanished without a word were its own and are dead."""
PROOF_FIRST_S = 0.02
"""The second time it is asked after this pause, and then after twice the one before: they are usually about to be."""


def run(config: Config, disk: LogDisk, outputs: Outputs) -> int:
    """Run one node until the job, or this node's part in it, has ended; the exit code. Its logs go to `disk`."""
    return asyncio.run(_run(config, disk, outputs))


async def _run(config: Config, disk: LogDisk, outputs: Outputs) -> int:
    """Do the work; the second signal ends it at once, wherever it is."""
    signals = Signals()
    consoles = outputs.console(1), outputs.console(2)
    work = asyncio.create_task(_work(config, disk, consoles, signals), name="agent")
    forced = asyncio.create_task(signals.second.wait(), name="second signal")
    await asyncio.wait({work, forced}, return_when=asyncio.FIRST_COMPLETED)
    forced.cancel()
    if not work.done():
        work.cancel()
        with suppress(asyncio.CancelledError, ElasticError):
            await work
        outputs.hurry()
        return 128 + signals.first.result()
    return work.result()


async def _work(config: Config, disk: LogDisk, consoles: tuple[Console, Console], signals: Signals) -> int:
    console = consoles[1]
    level = Level.VERBOSE if config.verbose else Level.QUIET if config.quiet else Level.NORMAL
    connecting = Connecting(config, signals, Narrator("-", console, level=level))
    try:
        host = await connecting.until(resolve, config)
        node = f"{host}-{secrets.token_hex(2)}"
        narrator = connecting.narrator = Narrator(node, console, level=level)
        narrator.keep(_appending(disk, logs.STORY))
        disk.open(lambda text, quietly: (narrator.detail if quietly else narrator.warn)(text))
        try:
            introduce(narrator, config, host, os.environ, (disk.warning,))
            agent = Agent(config, node, host, narrator, consoles, signals, disk)
            try:
                return await agent.run(connecting)
            finally:
                await agent.close()
        except (ElasticError, Interrupted) as error:
            narrator.note(str(error))  # Why it ends is in its log, too.
            raise
        finally:
            narrator.close()
            limit_s = HURRY_LIMIT_S if signals.second.is_set() else CLOSE_LIMIT_S
            if lost := await disk.close(limit_s):
                narrator.warn(lost)
    except Interrupted as interrupted:
        connecting.narrator.say(str(interrupted))
        return interrupted.exit_code
    finally:
        for console in consoles:
            console.close()


def _appending(disk: LogDisk, name: str) -> Callable[[bytes], object]:
    """Appends lines to a file of the log folder."""
    path = path_bytes(disk.path / name)
    return lambda line: disk.put(Append(path, line), name)


def _first(group: BaseExceptionGroup[ElasticError]) -> ElasticError:
    """The first error of a group, however deep."""
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error


class _Finished(Exception):
    """The core has said `Exit`."""


class Agent:
    """One node in one job."""

    def __init__(
        self,
        config: Config,
        node: str,
        host: str,
        narrator: Narrator,
        consoles: tuple[Console, Console],
        signals: Signals,
        disk: LogDisk,
    ) -> None:
        self._config = config
        self._node = node
        self._host = host
        self._narrator = narrator
        self._signals = signals
        # Several nodes of one machine that have loopback addresses of their own can each hold the control port there.
        self._listening = host if addresses.only_here(host, static_hosts(config)) else ""
        self._keys = JobKeys(config.job_id, config.key_prefix)
        self._events = Arrivals(boottime)
        self._workers = NodeWorkers(config, node, host, narrator, consoles, self._events.put_nowait, disk)
        self._event_log = EventLog(_appending(disk, events.FILE), config.job_id, node)
        self._store: Store | None = None
        self._hello: Hello | None = None
        self._reader = ViewReader(self._keys)
        self._scope = (False, "")
        self._session: asyncio.Task[None] | None = None
        self._lease: int | None = None
        self._wake: asyncio.TimerHandle | None = None
        self._exit_code: int | None = None
        self._proofs_at = 0.0
        self._proofs_pause_s = PROOF_FIRST_S
        self._started: ae.StartWorkers | None = None
        self._damaged: set[str] = set()
        self._let_in = False
        """Whether the store has ever taken a transaction of this node."""
        self._troubled: set[str] = set()

    async def run(self, connecting: Connecting) -> int:
        """Join, take part, leave; the exit code."""
        self._say_cards()
        await self._workers.start()
        openfiles.raise_own()
        with loading.kept():  # Only now: the nursery stands, and grpc brings threads.
            import elastic.store.etcd  # noqa: F401

        store = self._store = self._config.way.open()
        connecting.last_error = lambda: store.last_error
        await connecting.until(self._ask, store)
        with offer.hold_ports(self._config, self._host, self._listening) as held:
            self._hello = await Hello.listen(self._listening, self._config.job_id, self._node, held.link)
            self._prober = Prober(store, self._keys, self._node, self._narrator)
            self._neighbours = Neighbours(store, self._keys, self._node, self._narrator)
            self._core = AgentCore(offer.facts(self._config, self._node, self._host, held, boottime()))
            self._linking = Linking(
                self._hello, self._config.job_id, self._core.facts, self._events.put_nowait, self._narrator
            )
            self._say_versions()
            self._mirror = Mirror(
                store, on_change=self._mirrored, on_trouble=lambda error: self._trouble("view", error)
            )
            self._lines = WaitingLines(self._core, store, self._keys, self._narrator, boottime)
            self._failures = FailureReports(
                self._core, store, self._keys, self._narrator, self._tell_early, self._told_cause
            )
            self._history = History(store, self._keys, self._node, self._narrator)
            self._timeline = TimelineTeller(
                self._node,
                self._workers.talk,
                self._narrator,
                self._event_log,
                self._history,
                boottime,
                seats=self._config.run_mode != "collective",
                begin=lambda coroutine: self._group.create_task(coroutine),
            )
            self._workers.watch = self._timeline.worker
            self._saved = SavedSteps(store, self._keys, self._host, self._narrator)
            self._workers.talk.on_saved = self._committed
            self._splits = SplitWatch(
                self._workers.talk,
                store,
                self._keys,
                self._node,
                self._config.reach_timeout_s,
                linked=self._linking.linked,
                tell=self._unreached,
                unformed=self._workers.unformed,
            )
            try:
                async with asyncio.TaskGroup() as self._group:
                    await self._live()
            except* _Finished:
                pass
            except* ElasticError as failed:
                raise _first(failed) from failed
            except* (OSError, RuntimeError) as failed:
                if (lack := shortage.of(failed)) is None:
                    raise
                raise lack from failed
            finally:
                self._linking.close()
                self._workers.stop(0.0, "because the agent ends")
                await self._give_back_lease()
        assert self._exit_code is not None
        return self._exit_code

    async def close(self) -> None:
        """Kill what runs, and let go of the store."""
        await self._workers.close()
        if self._hello is not None:
            await self._hello.close()
        if self._store is not None:
            await self._store.close()

    async def _ask(self, store: Store) -> str:
        listing = await store.list(Range.key(self._keys.spec))
        if self._config.served_by and not listing.entries:
            # Otherwise a node with another list could be the first, and the one that serves would be refused.
            raise StoreUnavailable(serving.not_there(self._config.served_by, self._config.job_id))
        return ""

    def _say_cards(self) -> None:
        cards = self._config.cards[: self._config.slots]
        if cards and (self._config.shown_cards or "CUDA_VISIBLE_DEVICES" in os.environ):
            self._narrator.say(f"cards of this node, in the order of the local ranks: {', '.join(cards)}")

    def _say_versions(self) -> None:
        versions = self._core.facts.me.member.versions
        self._narrator.detail(f"on this node: {', '.join(f'{name} {text}' for name, text in versions.items())}")

    async def _live(self) -> None:
        """Read events until the core ends the agent."""
        for coroutine in (
            self._mirror.run(),
            self._workers.tend(),
            self._lines.run(),
            self._splits.run(),
            self._hear_signal(),
            self._history.run(),
            self._saved.run(),
        ):
            self._group.create_task(coroutine)
        self._perform(ae.Follow(complete=False))
        self._plan_wake()
        while True:
            event = await self._events.get()
            if isinstance(event, ae.Gone):
                self._splits.end()
                self._saved.hurry()
            actions = self._core.handle(event, boottime())
            self._timeline.observe(self._core.facts, event, actions, self._events.arrived_at)
            for row in self._core.taken:
                self._narrator.detail(row)
            for action in actions:
                self._perform(action)
            self._lines.after_event()
            self._failures.after_event()
            self._event_log.observe(self._core.facts, event, actions, self._core.taken)
            if self._exit_code is not None:
                await self._timeline.close(CLOSING_LIMIT_S)
                await asyncio.gather(self._history.settle(CLOSING_LIMIT_S), self._saved.settle(CLOSING_LIMIT_S))
                raise _Finished
            self._plan_wake()
            self._look_for_proof()

    async def _hear_signal(self) -> None:
        number = await asyncio.shield(self._signals.first)
        self._narrator.say(f"{number.name}: leaving in order; once more ends at once")
        self._events.put_nowait(ae.Drain(int(number), number.name))

    def _plan_wake(self) -> None:
        if self._wake is not None:
            self._wake.cancel()
        at = self._core.wake_at
        if at is not None:
            loop = asyncio.get_running_loop()
            self._wake = loop.call_later(max(at - boottime(), 0.0), self._events.put_nowait, ae.Tick())

    def _look_for_proof(self) -> None:
        """If nodes vanished without a word, see whether they were on this machine and nothing is left of them."""
        facts = self._core.facts
        generation = facts.generation
        if facts.decision is None or generation is None or boottime() < self._proofs_at:
            return
        nodes = roster.vanished(facts.view, generation)
        if facts.decision.code is Reason.UNPROVEN and generation.before is not None:
            nodes += [node for node in generation.before.nodes if node not in nodes]
        if not nodes:
            self._proofs_pause_s = PROOF_FIRST_S
            return
        pause_s = self._proofs_pause_s
        self._proofs_at, self._proofs_pause_s = boottime() + pause_s, min(2 * pause_s, PROOF_EVERY_S)
        asyncio.get_running_loop().call_later(pause_s, self._events.put_nowait, ae.Tick())
        for node in nodes:
            vanished = node not in facts.view.members and node not in facts.memory.dead
            if vanished and locks.proven_dead(locks.lock_path(self._config.job_id, node)):
                self._narrator.say(f"{node} was on this machine, and nothing is left of it")
                self._events.put_nowait(ae.ProvenDead(node))

    # --- what the store tells -------------------------------------------------------------------------------------

    def _mirrored(self, mirror: Mirror) -> None:
        if mirror.listed:
            complete, follows = self._scope
            view = self._reader.read(mirror.entries, mirror.revision, complete=complete, follows=follows or None)
            self._linking.learn(view)
            self._events.put_nowait(ae.ViewChanged(view, mirror.listings))
            facts = self._core.facts
            if self._prober.asked(mirror.entries, facts.registered, facts.lease):
                self._group.create_task(self._prober.answer())
            for key in view.damaged:
                if key not in self._damaged:
                    self._damaged.add(key)
                    self._narrator.warn(f"{key} in etcd cannot be read and is not used; mend or delete it")

    def _trouble(self, whose: str, error: StoreError | None) -> None:
        """Say once that etcd is away, and once that it is back: the lease or the view notices it first."""
        before = bool(self._troubled)
        (self._troubled.discard if error is None else self._troubled.add)(whose)
        if error is not None and not before:
            what = "refuses this node" if isinstance(error, StoreDenied) else "does not answer"
            self._narrator.say(f"etcd {what} ({error}); what runs goes on as long as it may")
        elif before and not self._troubled:
            self._narrator.say("etcd answers again")

    def _bear(self, error: StoreDenied) -> None:
        """Take a no for an outage: a right, a password or room comes back. At the start it is the end."""
        if not self._let_in:
            raise error
        self._trouble("right", error)

    def _session_event(self, lease: int, event: session.SessionEvent) -> None:
        match event:
            case session.Refreshed():
                self._trouble("lease", None)
                self._events.put_nowait(ae.Refreshed(lease, event.ttl_s, event.sent_at, event.key_revision))
            case session.Lost():
                self._trouble("lease", None)
                self._narrator.say(f"this node's lease is lost: {event.reason}")
                self._events.put_nowait(ae.SessionLost(lease, event.reason))
            case session.Silent():
                self._trouble("lease", event.error)

    # --- what the core asks for -----------------------------------------------------------------------------------

    def _perform(self, action: ae.Action) -> None:
        match action:
            case ae.Send():
                self._group.create_task(self._send(action.transaction))
            case ae.Follow():
                self._scope = (action.complete, action.node or "")
                nodes = (self._node,) if action.node is None else (self._node, action.node)
                ranges = self._keys.everything if action.complete else self._keys.followed(*nodes)
                self._mirror.follow(ranges, action.known)
            case ae.Relist():
                self._mirror.refresh_soon()
            case ae.FindOlder():
                self._group.create_task(self._find_older(action.before_revision))
            case ae.OpenSession():
                self._group.create_task(self._open_session(action.ttl_s))
            case ae.CloseSession():
                self._lease = action.lease
            case ae.WatchLinks() | ae.AskLinks() | ae.AskVouch():
                self._linking.perform(action)
            case ae.Revoke():
                self._group.create_task(self._revoke(action.lease))
            case ae.StartWorkers():
                self._started = action
                self._workers.begin(action, self._core.facts.run_until, self._told_saved())
                self._splits.begin(action.generation)
                self._group.create_task(self._neighbours.look(action.generation))
            case ae.TellRoster():
                self._workers.tell_roster(action.generation)
            case ae.StopWorkers():
                if not action.planned:  # To leave in order the workers need each other once more.
                    self._splits.end()
                self._workers.stop(action.grace_s, action.why, planned=action.planned)
            case ae.RunUntil():
                self._workers.run_until(action.t)
            case ae.Say():
                narrator = self._narrator
                (narrator.warn if action.warn else narrator.detail if action.detail else narrator.say)(action.text)
            case ae.ReportFailure():
                self._report_failure(action.cause, action.note)
            case ae.ReportVerdict():
                self._report_verdict(action.verdict, late=action.late)
            case ae.Exit():
                self._exit_code = action.code

    def _unreached(self, g: int, nodes: tuple[str, ...], late: Sequence[int]) -> None:
        """Workers wait, and these nodes are not reached from here; those in `late` have waited for too long."""
        self._events.put_nowait(ae.Unreached(g, nodes, self._workers.unreached(g, late, nodes) if late else ()))

    def _committed(self, heard: Heard, said: Saved) -> None:
        """A worker says that a checkpoint is complete."""
        if (started := self._started) is not None:
            run, g = started.generation.run, started.generation.g
            self._saved.committed(said.step, said.folder, run=run, g=g, incarnation=started.incarnation)

    def _told_saved(self) -> str:
        """The job's newest committed checkpoint, for the workers of a generation."""
        stored = self._core.facts.view.saved
        return self._saved.told(stored.value if stored is not None else None)

    async def _send(self, transaction: Transaction) -> None:
        assert self._store is not None
        try:
            result = await self._store.txn(transaction.compares, transaction.then, transaction.otherwise)
        except StoreDenied as error:
            self._bear(error)
            self._narrator.detail(f"{transaction.kind}: {error}")
            await asyncio.sleep(REFUSED_PAUSE_S)
            self._events.put_nowait(ae.Answered(transaction, None))
        except (OutcomeUnknown, StoreUnavailable) as error:
            self._narrator.detail(f"{transaction.kind}: {error}")
            self._events.put_nowait(ae.Answered(transaction, None))
        except StoreError as error:  # The lease that it names is gone; the session will say so, too.
            self._narrator.detail(f"{transaction.kind}: {error}")
            self._events.put_nowait(ae.Answered(transaction, False, self._store.revision_seen))
        else:
            self._let_in = True
            self._trouble("right", None)
            self._narrator.detail(f"{transaction.kind}: {'done' if result.done else 'something has changed'}")
            older = registered_before(self._keys, transaction, result)
            self._events.put_nowait(ae.Answered(transaction, result.done, result.revision, older))
            if result.done:
                self._history.add(transaction)

    async def _find_older(self, before: int) -> None:
        assert self._store is not None
        members = Range.prefix(self._keys.members)
        try:
            listing = await self._store.list(members, keys_only=True, limit=1, created_before=before, newest_first=True)
        except StoreError as error:
            if isinstance(error, StoreDenied):
                self._bear(error)
            self._events.put_nowait(ae.Older(before, None, failed=True))
            return
        found = listing.entries[0] if listing.entries else None
        node = found.key.removeprefix(self._keys.members) if found is not None else None
        self._events.put_nowait(ae.Older(before, node, found.create_revision if found is not None else 0))

    async def _open_session(self, ttl_s: float) -> None:
        assert self._store is not None
        if self._session is not None:
            self._session.cancel()
        sent_at = boottime()
        try:
            lease = await self._store.grant(ttl_s)
        except StoreError as error:
            if isinstance(error, StoreDenied):
                self._bear(error)
            self._narrator.detail(f"no lease: {error}")
            self._events.put_nowait(ae.GrantFailed())
            return
        self._narrator.detail(f"lease {lease.id:x} of {lease.ttl_s:g} s")
        self._lease = lease.id
        self._events.put_nowait(ae.Granted(lease.id, lease.ttl_s, sent_at))
        kept = session.Session(
            self._store,
            lease,
            self._keys.member(self._node),
            clock=boottime,
            on_event=lambda event: self._session_event(lease.id, event),
            # A seat is given away as soon as the right to it has ended: there is no gate that waits for anybody's word.
            read_every=session.READ_EVERY if self._config.run_mode == "collective" else 0.0,
        )
        self._session = self._group.create_task(kept.run())

    async def _revoke(self, lease: int) -> None:
        """End a lease. A store that does not answer is asked again: while a dead node's key stands its gate waits."""
        assert self._store is not None
        while True:
            try:
                return await self._store.revoke(lease)
            except (OutcomeUnknown, StoreUnavailable, StoreDenied) as error:
                self._narrator.detail(f"a lease could not be ended yet ({error})")
            except StoreError as error:
                self._narrator.detail(f"a lease could not be ended ({error}); it ends by itself")
                return None
            await asyncio.sleep(REVOKE_AGAIN_S)

    async def _give_back_lease(self) -> None:
        """Leave at once instead of after the lease's time, if the store answers quickly."""
        if self._lease is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(CLOSING_LIMIT_S):
                    await self._revoke(self._lease)

    # --- what people read -----------------------------------------------------------------------------------------

    def _report_failure(self, cause: Cause, note: str) -> None:
        self._failures.judged(cause)
        self._narrator.say(f"{note}; the job goes on" if note else "the job goes on")

    def _tell_early(self, g: int) -> None:
        self._group.create_task(self._failures.tell_early(g))

    def _told_cause(self, cause: Cause) -> None:
        self._workers.name_first_cause(cause)
        self._event_log.failure(cause)

    def _report_verdict(self, verdict: Verdict, *, late: bool) -> None:
        if late:
            self._narrator.report(report.ended_lines(verdict, self._config.job_id, time.time()))
            return
        if verdict.status is Status.COMPLETED:
            self._narrator.say(f"the job has completed: {verdict.reason}")
            return
        if verdict.cause is not None:
            self._failures.judged(verdict.cause)
        self._narrator.warn(f"the job has failed: {verdict.reason}")
