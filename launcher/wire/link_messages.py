"""The messages of two agents over a link, as values and lines (pure).

    listener                                     dialler
    elastic-launch 4 <job> <node> <nonce>   ──►                the greeting for every client
                                            ◄──  LinkRequest   the dialler's node and nonce
    Proof                                   ──►                that the listener knows the job's secret
                                            ◄──  Proof         that the dialler knows it too
    Admitted                                ──►                the link is up
    Heartbeat, Pong, Vouch, Tried, Bye      ◄─►  Heartbeat, Ping, Granted, Try, Bye; the leader: WaitTold

A status client sends `InspectRequest` instead of `LinkRequest`. After the proofs, `launcher.wire.inspect_messages`
applies.

The proofs (`elastic.auth.handshake`) cover the purpose, the job, both node IDs and both nonces. Later messages are not
signed: an attacker that can write into a TCP connection of two agents can also close it, which costs at most one
unnecessary restart.

Every message is one line of JSON of at most `LINE_MAX` bytes. Any other line raises `LinkError`, which only closes the
connection.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, TypeVar

import msgspec

from elastic._decode import UNREADABLE
from elastic.auth import handshake

PROTOCOL = "elastic-launch"
VERSION = 4
"""The version in the listener's greeting. A listener that accepts no links (yet) sends 1, which has no nonce."""
NAME_MAX = 300
"""Maximum characters of a job ID or a node ID."""
GRANT_MAX_S = 86_400.0
"""Maximum duration of a vouch: a day."""
WAIT_BYTES = 400
"""Maximum bytes of the sentence about a wait; JSON may need twice as many."""
WAIT_CODE_MAX = 40
TIMES_MAX = 4
"""Maximum number of times that such a sentence counts down."""
LEFT_MAX_S = 1e7
EVERY_MAX_S = 3600.0
"""Maximum interval of heartbeats."""
TRY_MAX_S = 600.0
"""The longest time for which a node tries to reach a silent one."""

Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_.:%-]+\Z", max_length=NAME_MAX)]
Nonce = Annotated[str, msgspec.Meta(pattern=rf"^{handshake.NONCE}\Z")]
Mac = Annotated[str, msgspec.Meta(pattern=rf"^{handshake.MAC}\Z")]
Left = Annotated[float, msgspec.Meta(ge=0.0, le=LEFT_MAX_S)]
T = TypeVar("T")
Number = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class LinkError(ValueError):
    """A line that is not a valid message. Its connection is closed; no other action is needed."""


class Greeting(msgspec.Struct, frozen=True):
    """The job and node that listen at an address. Without a nonce it accepts no links now, or runs another version."""

    job_id: Name
    node: Name
    nonce: Nonce | None = None
    other_version: bool = False


class LinkRequest(msgspec.Struct, frozen=True, tag="link"):
    """The dialler's first message."""

    node: Name
    nonce: Nonce


class Proof(msgspec.Struct, frozen=True, tag="proof"):
    """Proves that a side knows the secret: first the listener, then the other side."""

    mac: Mac


class Admitted(msgspec.Struct, frozen=True, tag="admitted"):
    """The listener has accepted the dialler's proof: the link is up."""


class Ping(msgspec.Struct, frozen=True, tag="ping"):
    """The dialler asks whether the listener is alive. Answered by `Pong`."""

    n: Number


class Pong(msgspec.Struct, frozen=True, tag="pong"):
    """The answer to `Ping`."""

    n: Number


class Heartbeat(msgspec.Struct, frozen=True, tag="heartbeat"):
    """The dialler is alive, and sends another one in `every_s` seconds; the listener answers at once with the same.

    `unheard`: the dialler no longer receives anything from the listener. Such a heartbeat does not count: the network
    works in one direction only.
    """

    every_s: Annotated[float, msgspec.Meta(gt=0.0, le=EVERY_MAX_S)]
    unheard: bool = False


class Try(msgspec.Struct, frozen=True, tag="try"):
    """The dialler asks the listener to dial a silent node, within `limit_s` seconds. Answered by `Tried`."""

    n: Number
    node: Name
    host: Name
    port: Annotated[int, msgspec.Meta(ge=1, le=65_535)]
    limit_s: Annotated[float, msgspec.Meta(gt=0.0, le=TRY_MAX_S)]


class Tried(msgspec.Struct, frozen=True, tag="tried"):
    """Reports whether the listener could connect to that node."""

    n: Number
    reached: bool


class Vouch(msgspec.Struct, frozen=True, tag="vouch"):
    """The listener asks the dialler to extend its lease for generation `g`. Answered by `VouchGranted`."""

    n: Number
    g: Number


class VouchGranted(msgspec.Struct, frozen=True, tag="granted"):
    """The granted seconds, counted from the sending of the `Vouch`; 0.0: refused."""

    n: Number
    g: Number
    seconds: Annotated[float, msgspec.Meta(ge=0.0, le=GRANT_MAX_S)]


class WaitTold(msgspec.Struct, frozen=True, tag="wait"):
    """The dialler, as the leader, sends what the listener waits for; there is no answer.

    `code` is the name of an `elastic.core.membership.decision.Reason`. Each `COUNTED` in the text
    (`elastic.core.text`) stands for one of the times that were `left`, in seconds, when the message was sent.
    """

    code: Annotated[str, msgspec.Meta(max_length=WAIT_CODE_MAX)]
    text: Annotated[str, msgspec.Meta(pattern=r"^[^\x00-\x1f\x7f-\x9f]*\Z", max_length=WAIT_BYTES)]
    left: Annotated[tuple[Left, ...], msgspec.Meta(max_length=TIMES_MAX)]


class Bye(msgspec.Struct, frozen=True, tag="bye"):
    """A goodbye: this side closes the link on purpose, which is no proof of a death."""


class InspectRequest(msgspec.Struct, frozen=True, tag="inspect"):
    """Opens a connection of a status client, which makes no link (`inspect_messages`)."""

    nonce: Nonce


Request = LinkRequest | InspectRequest
LinkMessage = (
    LinkRequest | InspectRequest | Proof | Admitted | Heartbeat | Ping | Pong | Try | Tried | Vouch | VouchGranted |
    WaitTold | Bye
)  # fmt: skip

_MESSAGES: msgspec.json.Decoder[LinkMessage] = msgspec.json.Decoder(LinkMessage)


def encode(message: LinkMessage) -> bytes:
    """Encode a message as one line."""
    return msgspec.json.encode(message) + b"\n"


def decode(line: bytes) -> LinkMessage:
    """Decode a line, without its line end. Raises `LinkError` if it is not a message."""
    return read_line(_MESSAGES, line, "a message")


def read_line(decoder: msgspec.json.Decoder[T], line: bytes, what: str) -> T:
    """Decode a line, without its line end. Raises `LinkError` if it is not `what`."""
    try:
        return decoder.decode(line)
    except UNREADABLE as error:
        raise LinkError(f"not {what}: {error}") from error


def wait_told(code: str, text: str, left: Iterable[float]) -> WaitTold:
    """Build the message for a sentence; one that is too long is truncated and ends with "…"."""
    data = "".join(one if one.isprintable() else " " for one in text).encode()
    if len(data) > WAIT_BYTES:
        data = data[: WAIT_BYTES - 3].decode(errors="ignore").encode() + "…".encode()
    times = [round(min(max(seconds, 0.0), LEFT_MAX_S), 2) for seconds in left]
    return WaitTold(code, data.decode(), tuple(times[:TIMES_MAX]))


def greeting_line(greeting: Greeting) -> bytes:
    """Encode the listener's first line."""
    words = [PROTOCOL, "1", greeting.job_id, greeting.node]
    if greeting.nonce is not None:
        words = [PROTOCOL, str(VERSION), greeting.job_id, greeting.node, greeting.nonce]
    return " ".join(words).encode() + b"\n"


def read_greeting(line: bytes) -> Greeting:
    """Decode the listener's first line, without its line end; of a later version at least its job and node.

    Raises `LinkError` for anything else.
    """
    words = line.decode(errors="replace").split(" ")
    version = int(words[1]) if len(words) > 3 and words[1].isascii() and words[1].isdigit() else 0
    fits = len(words) == 4 if version == 1 else len(words) == 5 if version == VERSION else len(words) > 4
    if words[0] != PROTOCOL or version < 1 or not fits:
        raise LinkError("the process that answers there is not elastic-launch")
    known = version in (1, VERSION)
    nonce = words[4] if version == VERSION else None
    fields = {"job_id": words[2], "node": words[3], "nonce": nonce, "other_version": not known}
    try:
        return msgspec.convert(fields, Greeting)
    except UNREADABLE as error:
        raise LinkError("the process that answers there is not elastic-launch") from error


def proofs(secret: str, listener: Greeting, request: Request) -> handshake.Proofs:
    """Compute the proofs for this greeting, which has a nonce, and this request."""
    assert listener.nonce is not None
    purpose, dialler = handshake.Purpose.OPERATOR, ""
    if isinstance(request, LinkRequest):
        purpose, dialler = handshake.Purpose.LINK, request.node
    names = (listener.job_id, dialler, listener.node)
    return handshake.proofs(secret.encode(), purpose, listener.nonce, request.nonce, *names)
