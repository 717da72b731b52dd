"""What two agents say to each other over a link, as values and lines (pure).

    listener                                     dialler
    elastic-launch 4 <job> <node> <nonce>   ──►                who listens here: for everybody that connects
                                            ◄──  LinkRequest   who dials, and its nonce
    Proof                                   ──►                that the listener knows the job's secret
                                            ◄──  Proof         that the dialler knows it, too
    Admitted                                ──►                the link is up
    Heartbeat, Pong, Vouch, Tried, Bye      ◄─►  Heartbeat, Ping, Granted, Try, Bye; the leader: WaitTold

Instead of `LinkRequest` an operator's command sends `InspectRequest`. After the proofs it goes on as
`launcher.wire.inspect_messages` says.

The proofs (`elastic.auth.handshake`) cover the purpose, the job, both node ids and both nonces. What is said afterwards
is not signed: who can write into a TCP connection of two agents can also close it, which costs one needless restart at
most.

Every message is one line of JSON of at most `LINE_MAX` bytes. `LinkError` says that a line is none; it ends the
connection, nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, TypeVar

import msgspec

from elastic._decode import UNREADABLE
from elastic.auth import handshake

PROTOCOL = "elastic-launch"
VERSION = 4
"""Of the listener's line. A listener that makes no links (yet) sends 1, which has no nonce."""
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
EVERY_MAX_S = 3600.0
"""No interval of heartbeats is longer."""
TRY_MAX_S = 600.0
"""The longest time for which a node tries to reach a silent one."""

Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_.:%-]+\Z", max_length=NAME_MAX)]
Nonce = Annotated[str, msgspec.Meta(pattern=rf"^{handshake.NONCE}\Z")]
Mac = Annotated[str, msgspec.Meta(pattern=rf"^{handshake.MAC}\Z")]
Left = Annotated[float, msgspec.Meta(ge=0.0, le=LEFT_MAX_S)]
T = TypeVar("T")
Number = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class LinkError(ValueError):
    """A line that no agent says. The connection it came over is closed; nobody has to do anything."""


class Greeting(msgspec.Struct, frozen=True):
    """Who listens at an address. Without a nonce it makes no links (now), or speaks another version."""

    job_id: Name
    node: Name
    nonce: Nonce | None = None
    other_version: bool = False


class LinkRequest(msgspec.Struct, frozen=True, tag="link"):
    """The dialler's first message."""

    node: Name
    nonce: Nonce


class Proof(msgspec.Struct, frozen=True, tag="proof"):
    """That this side knows the secret: first the listener's, then that of the other side."""

    mac: Mac


class Admitted(msgspec.Struct, frozen=True, tag="admitted"):
    """The listener has taken the dialler's proof: the link is up."""


class Ping(msgspec.Struct, frozen=True, tag="ping"):
    """The dialler asks whether the listener is alive. Answered by `Pong`."""

    n: Number


class Pong(msgspec.Struct, frozen=True, tag="pong"):
    """It is."""

    n: Number


class Heartbeat(msgspec.Struct, frozen=True, tag="beat"):
    """The dialler is alive, and sends another one in `every_s` seconds; the listener answers at once with the same.

    `unheard`: the dialler does not hear the listener any more. Such a heartbeat does not count: packets come through in
    one direction only.
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
    """Whether the listener has reached that node."""

    n: Number
    reached: bool


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


class InspectRequest(msgspec.Struct, frozen=True, tag="look"):
    """Opens a connection that makes no link: an operator asks for the state of this node (`inspect_messages`)."""

    nonce: Nonce


Request = LinkRequest | InspectRequest
LinkMessage = (
    LinkRequest | InspectRequest | Proof | Admitted | Heartbeat | Ping | Pong | Try | Tried | Vouch | VouchGranted |
    WaitTold | Bye
)  # fmt: skip

_MESSAGES: msgspec.json.Decoder[LinkMessage] = msgspec.json.Decoder(LinkMessage)


def encode(message: LinkMessage) -> bytes:
    """Write a message as one line."""
    return msgspec.json.encode(message) + b"\n"


def decode(line: bytes) -> LinkMessage:
    """Read a line, without its end. Raises `LinkError` for anything else than a message."""
    return read_line(_MESSAGES, line, "a message")


def read_line(decoder: msgspec.json.Decoder[T], line: bytes, what: str) -> T:
    """Read a line, without its end. `LinkError` says that it is not `what`."""
    try:
        return decoder.decode(line)
    except UNREADABLE as error:
        raise LinkError(f"not {what}: {error}") from error


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
    known = version in (1, VERSION)
    nonce = words[4] if version == VERSION else None
    fields = {"job_id": words[2], "node": words[3], "nonce": nonce, "other_version": not known}
    try:
        return msgspec.convert(fields, Greeting)
    except UNREADABLE as error:
        raise LinkError("something that is not elastic-launch answers there") from error


def proofs(secret: str, listener: Greeting, request: Request) -> handshake.Proofs:
    """The proofs that follow this greeting, which has a nonce, and this request."""
    assert listener.nonce is not None
    purpose, dialler = handshake.Purpose.OPERATOR, ""
    if isinstance(request, LinkRequest):
        purpose, dialler = handshake.Purpose.LINK, request.node
    names = (listener.job_id, dialler, listener.node)
    return handshake.proofs(secret.encode(), purpose, listener.nonce, request.nonce, *names)
