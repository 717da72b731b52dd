"""Probes other nodes while workers wait, as `launcher.health.partition_detector` decides.

A probe connects to the listener of an agent, at the address that workers also use. It succeeds as soon as the kernel
there accepts the connection: the agent may be busy or suspended.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Sequence

from elastic._net import connected_socket, resolved
from elastic.channel.messages import (
    GroupFormed,
    JoiningGroup,
    PreparationOver,
    Preparing,
    Progress,
    RestoreDone,
    WorkerHello,
    WorkerMessage,
)
from elastic.core.keys import JobKeys
from elastic.core.model import Generation, Member
from elastic.core.partition import nodes_to_probe
from elastic.store.protocol import Store
from launcher.health.partition_detector import FORMS, PartitionDetector
from launcher.net.acceptor import OUT_OF
from launcher.peers.reachability import read_member
from launcher.workers.exit_classification import GiveUp
from launcher.workers.failure_causes import UNFORMED
from launcher.workers.reports.states import TrackedProcess
from launcher.workers.reports.worker_channel import WorkerChannel

CONNECT_LIMIT_S = 2.0
"""Time limit of a connection, and of a name lookup."""

Tell = Callable[[int, tuple[str, ...], Sequence[int]], None]
"""Takes the generation, the unreachable nodes, and the local ranks of workers that have waited for them too long."""


class PartitionWatch:
    """Watches the workers of one node, one generation after the other."""

    def __init__(
        self,
        talk: WorkerChannel,
        store: Store,
        keys: JobKeys,
        node: str,
        limit_s: float,
        *,
        linked: Callable[[], Collection[str]],
        tell: Tell,
        give_up: GiveUp,
    ) -> None:
        """Take `limit_s` as in `PartitionDetector`; `linked` returns the nodes that are linked in either direction.

        `tell` is called when the set of unreachable nodes changes, and when workers have waited too long; `give_up`,
        when workers have met and their process group is overdue.
        """
        self._store = store
        self._keys = keys
        self._node = node
        self._limit_s = limit_s
        self._linked = linked
        self._tell = tell
        self._give_up = give_up
        self._worker_channel = talk
        self._clock = PartitionDetector(0.0)
        self._known: set[str] = set()
        self._met: set[str] = set()
        self._g = 0
        self._names: tuple[str, ...] = ()
        self._members: dict[str, Member] = {}
        self._told: tuple[str, ...] = ()
        self._changed = asyncio.Event()

    def begin(self, generation: Generation) -> None:
        """Watch the workers of this generation."""
        # Workers of a parameter-server job connect to servers, and wait for those.
        names = [member.node for member in generation.members] if generation.one_world else []
        self._names = nodes_to_probe(names, self._node)
        self._g, self._members, self._told = generation.g, {}, ()
        self._known.intersection_update(self._names)
        self._met.intersection_update(self._names)
        self._know_linked()
        self._clock = PartitionDetector(self._limit_s if self._names else 0.0, self._names, self._known, self._met)
        self._changed.set()

    def end(self) -> None:
        """Stop watching: the workers have exited, or are being stopped. Earlier reports stay valid."""
        self._clock, self._told = PartitionDetector(0.0), ()
        self._changed.set()

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            look_at = self._clock.look_at
            self._changed.clear()
            try:
                async with asyncio.timeout(None if look_at is None else max(look_at - time.monotonic(), 0.0)):
                    await self._changed.wait()
            except TimeoutError:
                await self._check_partition()

    def on_message(self, heard: TrackedProcess, message: WorkerMessage) -> None:
        """Record a message of a worker."""
        clock, local, now = self._clock, heard.local_rank, time.monotonic()
        before = clock.look_at
        match message:
            case WorkerHello():  # A new program of a worker's shell script does not wait yet.
                clock.gone(local, now)
            case JoiningGroup(met=True):
                clock.met(local, now)
            case JoiningGroup():
                clock.waits(local, now, prepares=message.prepares)
            case GroupFormed():
                self._know_linked()
                clock.formed(local, now)
            case RestoreDone():
                clock.restored(local, now)
            case Progress():
                clock.steps(local, now)
            case Preparing():
                clock.preparing(local)
            case PreparationOver():
                clock.ready(local, now)
        if (at := clock.look_at) != before and (at is None or before is None or at < before):
            self._changed.set()
        if self._told and clock is self._clock and not clock.unreached:
            self._say(())

    def _know_linked(self) -> None:
        self._known.update(name for name in self._linked() if name in self._names)

    async def _check_partition(self) -> None:
        self._worker_channel.catch_up()  # Read the messages that arrived while this process was suspended.
        clock = self._clock
        for local, heard in self._worker_channel.workers.items():
            if heard.connection is None:  # It sends no more reports, so it cannot be timed either.
                clock.gone(local, time.monotonic())
        if clock.look_at is None or time.monotonic() < clock.look_at:
            return
        if late := clock.unformed(time.monotonic()):
            self.end()
            self._give_up(self._g, UNFORMED, {local: {"limit_s": FORMS * self._limit_s} for local in late})
            return
        self._know_linked()
        await self._learn()
        if clock is not self._clock:
            return  # The workers are being stopped, or another generation runs.
        tried = {name: member for name, member in self._members.items() if member.link}
        reached = dict(zip(tried, await asyncio.gather(*map(self._reached, tried.values())), strict=True))
        self._worker_channel.catch_up()
        if clock is not self._clock:
            return
        now = time.monotonic()
        clock.looked([name for name in tried if reached[name]], [name for name in tried if reached[name] is False], now)
        late = clock.given_up(now)
        if late or clock.unreached != self._told:
            self._say(clock.unreached, late)

    async def _reached(self, member: Member) -> bool | None:
        """Return whether this member's agent accepts a connection; None if this node could not try.

        An unknown name, a resolver that does not answer, or a lack of descriptors says nothing about the network.
        """
        try:
            async with asyncio.timeout(CONNECT_LIMIT_S):
                addresses = await resolved(member.host)
        except (OSError, UnicodeError):
            return None
        for address in addresses:
            try:
                async with asyncio.timeout(CONNECT_LIMIT_S / len(addresses)):
                    (await connected_socket(address, member.link)).close()
            except OSError as error:
                if error.errno in OUT_OF:
                    return None
            else:
                return True
        return False

    def _say(self, nodes: tuple[str, ...], late: Sequence[int] = ()) -> None:
        self._told = nodes
        self._tell(self._g, nodes, late)

    async def _learn(self) -> None:
        """Read the addresses that are not known yet. Missing and damaged records are reported elsewhere."""
        members = self._members  # Those of this generation, even if another one begins meanwhile.
        unknown = [name for name in self._names if name not in members]
        read = (read_member(self._store, self._keys, name) for name in unknown)
        found = zip(unknown, await asyncio.gather(*read), strict=True)
        members |= {name: member for name, member in found if member is not None}
