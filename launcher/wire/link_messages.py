"""What two agents say to each other over a link, as values and lines (pure).

    listener                                     dialler
    elastic-launch 2 <job> <node> <nonce>   ──►            who listens here: for everybody that connects
                                            ◄──  Prove     who dials, its nonce, and that it knows the job's secret
    Proven                                  ──►            that the listener knows it too: the link is up
    Pong, Vouch, Bye                        ◄─►  Ping, Granted, Bye; the leader: WaitTold

Instead of `Prove` an operator's command says `InspectHello`, and goes on as `launcher.wire.inspect_messages` has it.

Both proofs are HMAC-SHA256 over the role, the job, both node ids and both nonces: a proof that was recorded, or sent
back to the one who made it, proves nothing. What is said afterwards is not signed: who can write into a TCP connection
of two agents can also close it, and that costs one needless restart at most.

Every message is one line of JSON of at most `LINE_MAX` bytes. `LinkError` says that a line is none; it ends the
connection, nothing else.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from typing import Annotated

import msgspec

from elastic._decode import UNREADABLE

PROTOCOL = "elastic-launch"
VERSION = 2
"""Of the listener's line. 1 had no nonce: who says it makes no links."""
NAME_MAX = 300
"""Characters of a job id or a node id."""
GRANT_MAX_S = 86_400.0
"""No vouch is longer than a day."""
WAIT_BYTES = 400
"""Of the sentence that says what is waited for; in JSON it may need twice as many."""
WAIT_CODE_MAX = 40
TIMES_MAX = 4
"""Times that such a sentence counts down."""
LEFT_MAX_S = 1e7

Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_.:%-]+$", max_length=NAME_MAX)]
Nonce = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{32}$")]
"""128 random bits as hexadecimal digits."""
Mac = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}$")]
Left = Annotated[float, msgspec.Meta(ge=0.0, le=LEFT_MAX_S)]
Number = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class LinkError(ValueError):
    """A line that no agent says. The connection it came over is closed; nobody has to do anything."""


class Greeting(msgspec.Struct, frozen=True):
    """Who listens at an address. Without a nonce it makes no links (now)."""

    job_id: Name
    node: Name
    nonce: Nonce | None = None


class Prove(msgspec.Struct, frozen=True, tag="prove"):
    """The dialler's first words."""

    node: Name
    nonce: Nonce
    mac: Mac


class Proven(msgspec.Struct, frozen=True, tag="proven"):
    """The listener's answer to a good `Prove`."""

    mac: Mac


class Ping(msgspec.Struct, frozen=True, tag="ping"):
    """The dialler asks whether the listener is alive. Answered by `Pong`."""

    n: Number


class Pong(msgspec.Struct, frozen=True, tag="pong"):
    """It is."""

    n: Number


class Vouch(msgspec.Struct, frozen=True, tag="vouch"):
    """The listener asks the dialler for the right to run generation `g`. Answered by `VouchGranted`."""

    n: Number
    g: Number


class VouchGranted(msgspec.Struct, frozen=True, tag="granted"):
    """So many seconds, counted from the sending of that `Vouch`; 0.0 is no."""

    n: Number
    g: Number
    seconds: Annotated[float, msgspec.Meta(ge=0.0, le=GRANT_MAX_S)]


class WaitTold(msgspec.Struct, frozen=True, tag="wait"):
    """The dialler, which leads, says what the listener waits for; nobody answers.

    `code` is the name of an `elastic.core.membership.decision.Reason`. In the place of each `COUNTED` of the text
    (`elastic.core.text`) comes one of the seconds that were `left` at the sending.
    """

    code: Annotated[str, msgspec.Meta(max_length=WAIT_CODE_MAX)]
    text: Annotated[str, msgspec.Meta(pattern=r"^[^\x00-\x1f\x7f-\x9f]*\Z", max_length=WAIT_BYTES)]
    left: Annotated[tuple[Left, ...], msgspec.Meta(max_length=TIMES_MAX)]


class Bye(msgspec.Struct, frozen=True, tag="bye"):
    """This end closes in order: it is no sign of a death."""


class InspectHello(msgspec.Struct, frozen=True, tag="look"):
    """Opens a connection that makes no link: an operator asks for the state of this node (`inspect_messages`)."""

    nonce: Nonce
    mac: Mac


LinkMessage = Prove | Proven | Ping | Pong | Vouch | VouchGranted | WaitTold | Bye | InspectHello

_ENCODER = msgspec.json.Encoder()
_MESSAGES = msgspec.json.Decoder(LinkMessage)


def encode(message: LinkMessage) -> bytes:
    """Write a message as one line."""
    return _ENCODER.encode(message) + b"\n"


def decode(line: bytes) -> LinkMessage:
    """Read a line, without its end. Raises `LinkError` for anything else than a message."""
    try:
        message: LinkMessage = _MESSAGES.decode(line)
    except UNREADABLE as error:
        raise LinkError(f"not a message: {error}") from error
    return message


def wait_told(code: str, text: str, left: Iterable[float]) -> WaitTold:
    """The message for a sentence of any length; one that is too long ends with "…"."""
    data = "".join(one if one.isprintable() else " " for one in text).encode()
    if len(data) > WAIT_BYTES:
        data = data[: WAIT_BYTES - 3].decode(errors="ignore").encode() + "…".encode()
    times = [round(min(max(seconds, 0.0), LEFT_MAX_S), 2) for seconds in left]
    return WaitTold(code, data.decode(), tuple(times[:TIMES_MAX]))


def greeting_line(greeting: Greeting) -> bytes:
    """Write the listener's first line."""
    words = [PROTOCOL, "1", greeting.job_id, greeting.node]
    if greeting.nonce is not None:
        words = [PROTOCOL, str(VERSION), greeting.job_id, greeting.node, greeting.nonce]
    return " ".join(words).encode() + b"\n"


def read_greeting(line: bytes) -> Greeting:
    """Read the listener's first line, without its end; of a later version at least who it is.

    Raises `LinkError` for anything else.
    """
    words = line.decode(errors="replace").split(" ")
    version = int(words[1]) if len(words) > 3 and words[1].isascii() and words[1].isdigit() else 0
    fits = len(words) == 4 if version == 1 else len(words) == 5 if version == VERSION else len(words) > 4
    if words[0] != PROTOCOL or version < 1 or not fits:
        raise LinkError("something that is not elastic-launch answers there")
    fields = {"job_id": words[2], "node": words[3], "nonce": words[4] if version == VERSION else None}
    try:
        return msgspec.convert(fields, Greeting)
    except UNREADABLE as error:
        raise LinkError("something that is not elastic-launch answers there") from error


def prove(secret: str, listener: Greeting, dialler: str, nonce: str) -> Prove:
    """What `dialler`, with its fresh `nonce`, answers to this greeting, which has one."""
    return Prove(dialler, nonce, mac(secret, "dialler", listener, dialler, nonce))


def proves(secret: str, listener: Greeting, said: Prove) -> bool:
    """Tell whether the dialler that said this, to this greeting of ours, knows the secret."""
    return hmac.compare_digest(mac(secret, "dialler", listener, said.node, said.nonce), said.mac)


def proven(secret: str, listener: Greeting, said: Prove) -> Proven:
    """What the listener answers to a good `Prove`."""
    return Proven(mac(secret, "listener", listener, said.node, said.nonce))


def answers(secret: str, listener: Greeting, said: Prove, answer: Proven) -> bool:
    """Tell whether the listener that answered our `Prove` so knows the secret."""
    return hmac.compare_digest(proven(secret, listener, said).mac, answer.mac)


def mac(secret: str, role: str, listener: Greeting, dialler: str, nonce: str) -> str:
    """The proof of somebody in this role who knows the secret, for one greeting and one nonce."""
    words = _ENCODER.encode([role, listener.job_id, dialler, listener.node, nonce, listener.nonce])
    return hmac.new(secret.encode(), words, hashlib.sha256).hexdigest()
