"""Somebody outside a job who can read its keys in etcd, and says to its agents to be a node."""

from __future__ import annotations

import asyncio
import contextlib

from elastic.auth.handshake import new_nonce
from elastic.core.keys import JobKeys
from elastic.core.view import StoreView
from elastic.core.view_reader import ViewReader
from elastic.store.etcd import EtcdStore
from launcher.wire import link_messages
from launcher.wire.link_messages import Admitted, LinkMessage, LinkRequest, Proof, Vouch, VouchGranted
from tests.support.agent_process import Node
from tests.support.job_harness import Job


async def read_everything(job: Job) -> StoreView:
    """What a reader of the job's prefix knows, the secret of the links included."""
    keys = JobKeys(job.job_id)
    store = EtcdStore([job.etcd.endpoint])
    try:
        listings = [await store.list(span) for span in keys.everything]
    finally:
        await store.close()
    entries = {entry.key: entry for listing in listings for entry in listing.entries}
    return ViewReader(keys).read(entries, listings[0].revision, complete=True)


class Ghost:
    """A node that does not exist, with a link to the agent of `node`."""

    def __init__(
        self, view: StoreView, node: Node, name: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ):
        self.granted = 0
        self._view = view
        self._node = node
        self._name = name
        self._reader = reader
        self._writer = writer

    @classmethod
    async def linked(cls, view: StoreView, node: Node, name: str = "10.9.8.7-ghosts") -> Ghost:
        """Connect to the agent, prove to know the secret, and be taken.

        As a node does, it dials again if it was too slow: an agent waits two seconds for a proof.
        """
        while True:
            with contextlib.suppress(ConnectionResetError, asyncio.IncompleteReadError):
                return await cls._dialled(view, node, name)

    @classmethod
    async def _dialled(cls, view: StoreView, node: Node, name: str) -> Ghost:
        member = view.members[node.id].value
        ghost = cls(view, node, name, *await asyncio.open_connection("127.0.0.1", member.link))
        try:
            await ghost._authenticate()
        except BaseException:
            ghost.hang_up()
            raise
        return ghost

    async def _authenticate(self) -> None:
        greeting = link_messages.read_greeting(await self._line())
        assert self._view.secret is not None
        request = LinkRequest(self._name, new_nonce())
        proofs = link_messages.proofs(self._view.secret.value, greeting, request)
        self._say(request)
        assert link_messages.decode(await self._line()) == Proof(proofs.server)
        self._say(Proof(proofs.client))
        assert link_messages.decode(await self._line()) == Admitted()

    async def is_closed(self) -> None:
        """Wait until the agent closes the link; until then, grant a day whenever it asks for the right to run."""
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                message = link_messages.decode(await self._line())
                if isinstance(message, Vouch):
                    self._say(VouchGranted(message.n, message.g, link_messages.GRANT_MAX_S))
                    self.granted += 1
        self.hang_up()

    def hang_up(self) -> None:
        """Close the connection."""
        self._writer.transport.abort()

    async def _line(self) -> bytes:
        return (await self._reader.readuntil(b"\n")).removesuffix(b"\n")

    def _say(self, message: LinkMessage) -> None:
        self._writer.write(link_messages.encode(message))
