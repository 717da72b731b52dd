"""An agent that can be looked at, without the rest of it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from elastic.core.model import Member
from launcher.agent.inspect_server import InspectServer
from launcher.job.inspect_client import InspectClient
from launcher.logs.recent_starts import RecentStarts
from launcher.peers.links import PeerLinks
from launcher.peers.listener import PeerListener
from launcher.wire.inspect_messages import InspectRefusal, StacksQuestion, StackText
from tests.scripts.link_peer import JOB
from tests.support.inspect_documents import snapshot
from tests.support.link_harness import SECRET
from tests.support.start_logs import start

NODE = "n-1"


class Looked:
    """An agent that can be looked at: its listener, links and window, and one worker's log."""

    def __init__(self, agent: PeerListener) -> None:
        self.agent = agent
        self.complaints: list[str] = []
        self.logs = RecentStarts()
        self.asked: list[StacksQuestion] = []
        self.sign = "x"
        self.window = InspectServer(lambda: snapshot(1), self.logs, self.stacks, self.complaints.append)
        self.links = PeerLinks(
            JOB,
            NODE,
            on_change=lambda nodes: None,
            on_proof=lambda node, revision, host, at: None,
            on_answered=lambda number, nodes: None,
            grants=lambda node, g: 0.0,
            on_vouched=lambda node, g, asked_at, seconds: None,
            on_dialled=lambda nodes: None,
            complain=self.complaints.append,
            on_look=self.window.take,
        )
        self.links.secret(SECRET)
        agent.hand_to(self.links.accept)
        self.log = start(self.logs)

    async def stacks(self, asked: StacksQuestion) -> StackText | InspectRefusal:
        self.asked.append(asked)
        if asked.index == 99:
            raise KeyError("a mistake of ours")
        return StackText(self.sign * (asked.index * 1000), "somehow")

    def asking(self, secret: str = SECRET, node: str = NODE) -> contextlib.AbstractAsyncContextManager[InspectClient]:
        return InspectClient.connect(JOB, secret, node, self.member())

    def member(self, port: int = 0) -> Member:
        return Member(host="127.0.0.1", slots=1, masters=(7000,), ports=(8000,), link=port or self.agent.port)


@contextlib.asynccontextmanager
async def looked() -> AsyncIterator[Looked]:
    agent = PeerListener("127.0.0.1", JOB, NODE)
    made = Looked(agent)
    try:
        yield made
    finally:
        made.links.close()
        await made.window.close()
        agent.close()
