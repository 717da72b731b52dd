"""A crowd in several processes, one for each core: each has its part of the agents, and whoever measures commands them.

A `Part` can also be used alone, in the process that measures.
"""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, NamedTuple, Self

from elastic.core.agent import events as agent_events
from tests.bench.crowd import LIMIT_S, Crowd, Links, raise_limits

CLOSE_LIMIT_S = 10.0
"""A process that has nothing to do ends at once."""
LEADER = 0
"""The number of the agent that leads a crowd with links."""
POLL_S = 0.05


class Met(NamedTuple):
    """When the last of a part had the bytes of the generation, and the processor time of its process since `meet`."""

    at: float
    cpu_s: float


class Ran(NamedTuple):
    """When the workers of all ran, of which generation, the bytes of that, and what it cost each agent to apply it."""

    at: float
    generation: int
    document_bytes: int
    apply_s: list[float]


class Idled(NamedTuple):
    """A part in which nothing was to happen: the CPU of its process, of a core, and what was noted of silence.

    `failure` is what went wrong with an agent, "" if nothing did: one that is evicted loses its lease.
    """

    leads: bool
    cpu_percent: float
    silences: Counter[str]
    generation: int
    failure: str


class Victim(NamedTuple):
    """An agent that was killed."""

    node: str
    host: str


class Part:
    """Some of the agents of a job, and what they are told to do, one thing after the other."""

    def __init__(
        self, endpoint: str, job: str, count: int, slots: int, numbers: Sequence[int], links: Links | None = None
    ) -> None:
        """Make the agents with these numbers of a job of `count`."""
        self.crowd = Crowd(endpoint, job, count, slots, numbers, links)

    async def connect(self) -> float:
        """Connect them, so that only registering is left; when that was done."""
        self.crowd.expect("ready", "bytes", "run")
        for agent in self.crowd.agents:
            agent.start()
        connected = await self.crowd.wait("ready")
        gc.collect()
        gc.freeze()  # What a thousand agents hold is not looked through again and again while they are measured.
        return connected

    async def lead(self) -> None:
        """Register and lead, where this part has the one agent that registers first."""
        if self.crowd.agents[0].number == LEADER:
            self.crowd.begin.set()
            async with asyncio.timeout(LIMIT_S):
                while not self.crowd.agents[0].leads:  # noqa: ASYNC110
                    await asyncio.sleep(POLL_S)

    async def meet(self) -> Met:
        """Register, until each has the bytes of the generation."""
        cpu_s = time.process_time()
        self.crowd.begin.set()
        at = await self.crowd.wait("bytes")
        return Met(at, time.process_time() - cpu_s)

    async def kill(self, number: int) -> Victim:
        """End an agent as a killed process ends."""
        victim = next(agent for agent in self.crowd.agents if agent.number == number)
        await victim.stop()
        self.crowd.agents.remove(victim)
        return Victim(victim.node, victim.core.facts.me.member.host)

    async def expect(self) -> None:
        """From now on the next generation is awaited."""
        self.crowd.expect("bytes", "run")

    async def leader(self) -> int | None:
        """The number of the agent that leads, None if it is not of this part."""
        return next((agent.number for agent in self.crowd.agents if agent.leads), None)

    async def prove(self, victim: Victim) -> None:
        """Show every agent that has a link to a process that it is gone: the leader, or all if the process led."""
        self.crowd.sent.clear()
        for agent in tuple(self.crowd.agents):
            if (created := agent.links_to(victim.node)) is not None:
                agent.feed(agent_events.ProcessProvenDead(victim.node, created, victim.host))

    async def sent(self) -> Counter[tuple[str, bool]]:
        """How many transactions of each kind were carried out, and refused, since the last `prove`."""
        return self.crowd.sent

    async def heard(self) -> float:
        """When the last had the bytes of the next generation."""
        return await self.crowd.wait("bytes")

    async def run(self) -> Ran:
        """Let every agent read and apply what it has, until its workers run and it follows whom it is to follow."""
        agents = self.crowd.agents
        for agent in tuple(agents):
            agent.apply()
            await asyncio.sleep(0)  # The streams of the others go on meanwhile.
        at = await self.crowd.wait("run")
        async with asyncio.timeout(LIMIT_S):
            for agent in agents:
                await agent.pictured.wait()
        costs = [agent.apply_s for agent in agents if agent.apply_s]
        generation = max((agent.runs for agent in agents), default=0)
        return Ran(at, generation, max((agent.document_bytes for agent in agents), default=0), costs)

    async def linked(self) -> None:
        """Wait until the leader, if it is of this part, has a link to every other agent."""
        leader = next((agent for agent in self.crowd.agents if agent.leads), None)
        async with asyncio.timeout(LIMIT_S):
            while leader is not None and len(leader.core.facts.links.up) < self.crowd.count - 1:  # noqa: ASYNC110
                await asyncio.sleep(POLL_S)

    async def idle(self, seconds: float) -> Idled:
        """Let so much time pass."""
        self.crowd.silences.clear()
        began_s, cpu_s = time.monotonic(), time.process_time()
        await asyncio.sleep(seconds)
        percent = 100 * (time.process_time() - cpu_s) / (time.monotonic() - began_s)
        generation = max(agent.runs for agent in self.crowd.agents)
        leads = any(agent.leads for agent in self.crowd.agents)
        return Idled(leads, percent, self.crowd.silences, generation, self.crowd.failure)

    async def close(self) -> None:
        """End all of them."""
        gc.unfreeze()
        await self.crowd.stop()


class Parts:
    """So many processes. Every command goes to all at once."""

    def __init__(self, count: int) -> None:
        """Start them; they serve one crowd after the other."""
        context = multiprocessing.get_context("spawn")
        self._pipes: list[Connection[Any, Any]] = []
        self._processes = []
        for _ in range(count):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs,), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(CLOSE_LIMIT_S)
            process.terminate()  # It waits for something that does not come.
            process.join()

    async def make(self, endpoint: str, job: str, count: int, slots: int) -> None:
        """A crowd, dealt out to the processes."""
        await self._all("make", lambda at: (endpoint, job, count, slots, range(at, count, len(self._pipes))))

    async def make_linked(self, endpoint: str, job: str, count: int, links: Links) -> None:
        """A crowd with links, of which the first process has the agent that will lead, and no other."""
        others = len(self._pipes) - 1

        def numbers(at: int) -> Sequence[int]:
            return range(at, count, others) if at else [LEADER]

        await self._all("make", lambda at: (endpoint, job, count, 1, numbers(at), links))

    async def all(self, command: str, *args: Any) -> list[Any]:
        """Have every part do this; their answers."""
        return await self._all(command, lambda _: args)

    async def kill(self, number: int) -> Victim:
        """See `Part.kill`."""
        pipe = self._pipes[number % len(self._pipes)]
        return await _asked(pipe, ("kill", number))  # type: ignore[no-any-return]

    async def _all(self, command: str, args: Callable[[int], tuple[Any, ...]]) -> list[Any]:
        """Every answer is awaited before the first error is raised: a pipe has one reader at a time."""
        asked = (_asked(pipe, (command, *args(at))) for at, pipe in enumerate(self._pipes))
        found = await asyncio.gather(*asked, return_exceptions=True)
        for one in found:
            if isinstance(one, BaseException):
                raise one
        return found


async def _asked(pipe: Connection[Any, Any], command: tuple[Any, ...]) -> Any:
    pipe.send(command)
    found = await asyncio.to_thread(pipe.recv)
    if isinstance(found, BaseException):
        raise found
    return found


def _serve(pipe: Connection[Any, Any]) -> None:
    """Do what comes over the pipe until it is closed, in one event loop: grpc's queue belongs to the first there is."""
    raise_limits()
    asyncio.run(_commands(pipe))


async def _commands(pipe: Connection[Any, Any]) -> None:
    part: Part | None = None
    while True:
        try:
            command, *args = await asyncio.to_thread(pipe.recv)
        except EOFError:
            return
        try:
            if command == "make":
                part, answer = Part(*args), None
            else:
                answer = await getattr(part, command)(*args)
        except Exception as error:  # noqa: BLE001  # It is raised in the process that measures.
            answer = RuntimeError(f"{command} in process {os.getpid()}: {error!r}")
        pipe.send(answer)
