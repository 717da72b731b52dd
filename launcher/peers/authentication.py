"""The client side of the handshake with an agent's listener, on a stream."""

from __future__ import annotations

import asyncio

from elastic.auth import handshake
from launcher.net.lines import LINE_MAX
from launcher.wire.link_messages import LinkError, Proof, Request, decode, encode, proofs, read_greeting


async def authenticate_listener(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, job_id: str, node: str, secret: str, request: Request
) -> handshake.Proofs:
    """Verify that the listener is this node of the job; return the proofs. The caller still has to send its own.

    Raises `LinkError` if it is another node or cannot prove its identity, `OSError` if the connection breaks.
    """
    greeting = read_greeting((await read_line(reader)).removesuffix(b"\n")[:LINE_MAX])
    if (greeting.job_id, greeting.node) != (job_id, node):
        raise LinkError(f"another node answers there ({greeting.node} of job {greeting.job_id})")
    if greeting.nonce is None:
        other, unlearned = "it runs another version", "it has not read the job's secret yet; try again"
        raise LinkError(other if greeting.other_version else unlearned)
    expected = proofs(secret, greeting, request)
    writer.write(encode(request))
    line = await read_line(reader)
    if not line:
        raise LinkError("it rejects this job's secret; it may run an older version")
    answer = decode(line.removesuffix(b"\n"))
    if not isinstance(answer, Proof) or not handshake.is_proof(answer.mac, expected.server):
        raise LinkError("the process that answers there does not know the job's secret")
    return expected


async def read_line(reader: asyncio.StreamReader) -> bytes:
    """Read the next line; b"" at the end. Raises `LinkError` if it is too long."""
    try:
        return await reader.readline()
    except ValueError as error:
        raise LinkError("a line is too long") from error
