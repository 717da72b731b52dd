"""What 1,000 links cost the agent that watches: `python -m tests.bench.links [MEMBERS]`.

The members are all in one other process, so that the CPU and the memory are those of the watcher alone; the times to
an answer are mostly those of that one process, which has the work of a thousand. It prints the CPU time of
dialling and proving, the memory, the CPU time of ten idle seconds, and how long a question to all takes.
"""

from __future__ import annotations

import asyncio
import resource
import sys
import time
from dataclasses import dataclass, field

import psutil

from elastic.core.agent.actions import LinkTarget
from launcher.peers.links import PeerLinks
from launcher.peers.listener import PeerListener

SECRET = "secret"
IDLE_S = 10.0
ROUNDS = 7


@dataclass
class Told:
    """What the links of the watcher said last."""

    up: frozenset[str] = frozenset()
    answered: frozenset[str] = frozenset()
    proofs: int = 0
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def links(self, node: str) -> PeerLinks:
        """The links of this node, which tell it here."""
        return PeerLinks(
            "j1",
            node,
            on_change=lambda nodes: self._set("up", nodes),
            on_proof=lambda *proof: self._set("proofs", self.proofs + 1),
            on_answered=lambda number, nodes: self._set("answered", nodes),
            grants=lambda node, g: 0.0,
            on_vouched=lambda node, g, asked_at, seconds: None,
            on_dialled=lambda nodes: None,
            complain=print,
        )

    def _set(self, name: str, value: object) -> None:
        setattr(self, name, value)
        self.news.set()

    async def next(self) -> None:
        """Wait for the next news."""
        await self.news.wait()
        self.news.clear()


async def members(count: int) -> None:
    """Listen as so many nodes, say the ports, and live until stdin ends."""
    ports = []
    for number in range(count):
        links = Told().links(f"n-{number}")
        hello = PeerListener("127.0.0.1", "j1", f"n-{number}")
        hello.hand_to(links.accept)
        links.secret(SECRET)
        ports.append(hello.port)
    print(*ports, flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


def rss_mb() -> float:
    """The memory of this process."""
    return float(psutil.Process().memory_info().rss) / 1e6


async def watch(count: int) -> None:
    """Watch the members of another process, and print what it costs."""
    pipe = asyncio.subprocess.PIPE
    words = [sys.executable, "-m", "tests.bench.links", "members", str(count)]
    process = await asyncio.create_subprocess_exec(*words, stdin=pipe, stdout=pipe, limit=1 << 20)
    assert process.stdout is not None
    ports = [int(port) for port in (await process.stdout.readline()).split()]
    told = Told()
    links = told.links("w-1")
    links.secret(SECRET)
    targets = {f"n-{number}": LinkTarget("127.0.0.1", port, number + 1) for number, port in enumerate(ports)}
    memory, cpu, began = rss_mb(), time.process_time(), time.monotonic()
    links.watch(targets)
    while len(told.up) < count:
        await told.next()
    print(
        f"{count} links dialled and proven: {time.process_time() - cpu:.3f} s of CPU, {time.monotonic() - began:.2f} s"
    )
    print(f"memory: {(rss_mb() - memory) * 1e3 / count:.1f} kB for each link, {rss_mb():.0f} MB in all")
    cpu = time.process_time()
    for _ in range(100):
        links.watch(dict(targets))
    print(f"watch() of the same again: {(time.process_time() - cpu) * 10:.3f} ms")
    cpu = time.process_time()
    await asyncio.sleep(IDLE_S)
    print(f"{IDLE_S:g} s idle: {(time.process_time() - cpu) * 1e3:.2f} ms of CPU")
    for number in range(ROUNDS):
        cpu, began = time.process_time(), time.monotonic()
        links.ask(number)
        await told.next()
        print(
            f"a question to all: {len(told.answered)} answered in {(time.monotonic() - began) * 1e3:.0f} ms, "
            f"{(time.process_time() - cpu) * 1e3:.0f} ms of CPU"
        )
    cpu, began = time.process_time(), time.monotonic()
    process.kill()
    while told.proofs < count:
        await told.next()
    print(f"all killed: {told.proofs} proofs after {(time.monotonic() - began) * 1e3:.0f} ms, ", end="")
    print(f"{time.process_time() - cpu:.3f} s of CPU")
    await process.communicate()
    links.close()


if __name__ == "__main__":
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    arguments = sys.argv[1:]
    asyncio.run(members(int(arguments[1])) if arguments[:1] == ["members"] else watch(int((arguments or ["1000"])[0])))
