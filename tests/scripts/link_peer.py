"""A process that can be watched: `python -m tests.scripts.link_peer HOST PORT NODE SECRET [ORDER ...]`.

It prints its port, then what its links tell. Orders come as words of the command line, or else as lines: `watch NODE
HOST PORT`, `beat SECONDS` sends heartbeats at this interval to that node, `vouch G` asks those that watch it, `deaf`
closes its listener and `shut` its connections, and it lives on; `freeze` closes the connections and stops itself;
`bye` leaves in order. With orders in the command line it stays.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from elastic.core.agent.actions import LinkTarget
from launcher.peers.links import PeerLinks
from launcher.peers.listener import PeerListener

JOB = "j1"


def say(*words: object) -> None:
    print(*words, flush=True)


async def main(host: str, port: int, node: str, secret: str, *orders: str) -> None:
    links = PeerLinks(
        JOB,
        node,
        on_change=lambda nodes: say("up", *sorted(nodes)),
        on_proof=lambda *proof: say("proof", *proof),
        on_answered=lambda number, nodes: say("answered", number, *sorted(nodes)),
        grants=lambda node, g: 0.0,
        on_vouched=lambda node, g, asked_at, seconds: say("vouched", g, asked_at + seconds),
        on_dialled=lambda nodes: None,
        complain=lambda text: say("complaint", text),
    )
    hello = PeerListener(host, JOB, node, port)
    hello.hand_to(links.accept)
    links.secret(secret)
    say("port", hello.port)
    for line in orders:
        await obey(links, hello, line.split())
    reader = asyncio.StreamReader()
    if not orders:
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while words := (await reader.readline()).decode().split():
        await obey(links, hello, words)
        if words == ["bye"]:
            break
    links.close()
    hello.close()


async def obey(links: PeerLinks, hello: PeerListener, words: list[str]) -> None:
    """Do what an order says."""
    match words:
        case ["watch", node, host, port]:
            links.watch({node: LinkTarget(host, int(port), 1)})
        case ["beat", every_s]:
            links.heartbeats.set(float(every_s), 0.0)
        case ["vouch", g]:
            links.ask_vouch(int(g))
        case ["shut"]:
            links.close_inbound(links.watchers)
            say("shut")
        case ["freeze"]:
            links.close_inbound(links.watchers)
            os.kill(os.getpid(), signal.SIGSTOP)
        case ["deaf"]:
            hello.close()
            say("deaf")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:]))
