"""The dialler's part of the handshake with an agent's listener, on a stream."""

from __future__ import annotations

import asyncio

from elastic.auth import handshake
from launcher.net.lines import LINE_MAX
from launcher.wire.link_messages import LinkError, Proof, Request, decode, encode, proofs, read_greeting


async def authenticate_listener(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, job_id: str, node: str, secret: str, request: Request
) -> handshake.Proofs:
    """Have the listener prove that it is that node of the job. The caller's own proof has not been sent then.

    Raises `LinkError` if it is another node, or proves nothing; `OSError` if the connection breaks.
    """
    greeting = read_greeting((await read_line(reader)).removesuffix(b"\n")[:LINE_MAX])
    if (greeting.job_id, greeting.node) != (job_id, node):
        raise LinkError(f"another node answers there ({greeting.node} of job {greeting.job_id})")
    if greeting.nonce is None:
        other, unlearned = "it is of another version", "it has not learned the job's secret yet; try again"
        raise LinkError(other if greeting.other_version else unlearned)
    expected = proofs(secret, greeting, request)
    writer.write(encode(request))
    line = await read_line(reader)
    if not line:
        raise LinkError("it shows nothing to this job's secret; is it of an older version?")
    answer = decode(line.removesuffix(b"\n"))
    if not isinstance(answer, Proof) or not handshake.is_proof(answer.mac, expected.server):
        raise LinkError("the process that answers there cannot prove to be it")
    return expected


async def read_line(reader: asyncio.StreamReader) -> bytes:
    """The next line; b"" at the end. Raises `LinkError` for one that is too long."""
    try:
        return await reader.readline()
    except ValueError as error:
        raise LinkError("a line is too long") from error
