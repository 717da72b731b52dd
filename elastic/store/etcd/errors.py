"""The meaning of an error of etcd or gRPC: whether the request was carried out, and whether to repeat it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable
from enum import Enum, auto
from typing import Any

import grpc  # type: ignore[import-untyped, unused-ignore]
import grpc.aio  # type: ignore[import-untyped, unused-ignore]

from elastic.errors import Compacted, StoreDenied, StoreError, StoreUnavailable, TooLarge, WatchLost


class ErrorMeaning(Enum):
    """The kinds of errors."""

    UNSENT = auto()
    """The request was certainly not carried out; another server may succeed."""
    LOST = auto()
    """There was no answer. A write may have been carried out."""
    STALE_TOKEN = auto()
    """The request was not carried out: the client must authenticate again."""
    REFUSED = auto()
    """The request was not carried out, and repeating it has the same result."""


_UNSENT = (
    # `hasleader` in the metadata makes a server without a leader refuse the request at once.
    "etcdserver: no leader",
    "etcdserver: too many requests",
    "failed to connect to all addresses",
    "DNS resolution failed",
    "name resolution",
    "Failed to pick",
)
_STALE_TOKEN = ("invalid auth token", "user name is empty", "revision of auth store is old")
NO_USERS = "authentication is not enabled"
_DENIED = ("permission denied", "PermissionDenied", "authentication failed", "database space exceeded")
_UNANSWERED = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.ABORTED,
    }
)
_DENIALS = frozenset(
    {
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.UNIMPLEMENTED,
    }
)


_NOT_CONNECTED = re.compile(
    r"failed to connect to all addresses; last error: [A-Z_]+: (?:\S+: )?(?:Failed to connect to remote host: )?(.+)",
    re.DOTALL,
)
_NOT_RESOLVED = re.compile(r"errors resolving .*address lookup failed for \S+: (.+?)\]*", re.DOTALL)


class AnswerLate(StoreUnavailable):
    """The timeout of one attempt: the server is silent, or needs long for the answer."""


class LeaseNotFound(StoreError):
    """The store has no such lease."""


def details(error: Any) -> str:
    """The text of a grpc error."""
    return str(error.details() or error.code().name)


def readable_part(text: str) -> str:
    """Return the part of a gRPC error's text that is useful to people, without the address."""
    found = _NOT_CONNECTED.fullmatch(text) or _NOT_RESOLVED.fullmatch(text)
    return found[1] if found else text


def meaning(error: Any) -> ErrorMeaning:
    """Classify a `grpc.aio.AioRpcError`."""
    text = details(error)
    if any(part in text for part in _STALE_TOKEN):
        return ErrorMeaning.STALE_TOKEN
    if any(part in text for part in _UNSENT):
        return ErrorMeaning.UNSENT
    if any(part in text for part in _DENIED):
        return ErrorMeaning.REFUSED
    return ErrorMeaning.LOST if error.code() in _UNANSWERED else ErrorMeaning.REFUSED


def refusal(error: Any, server: object, user: str = "") -> StoreError:
    """Return the error to raise for a refused request of `user`."""
    said = details(error).removeprefix("etcdserver: ")
    text = f"etcd at {server}: {said}"
    if "database space exceeded" in text:
        return StoreDenied(f"{text}; fix: compact and defragment it, then `etcdctl alarm disarm`")
    if "larger than max" in said:
        return TooLarge(text)
    if "required revision has been compacted" in said:
        return Compacted(0)
    if error.code() is grpc.StatusCode.UNIMPLEMENTED:
        return StoreDenied(f"{text}; is this an etcd of version 3.4 or later?")
    if "lease not found" in said:
        return LeaseNotFound(text)
    hint = _hint(said, user)
    denied = error.code() in _DENIALS or any(part in text for part in (*_DENIED, *_STALE_TOKEN))
    return StoreDenied(f"{text}{hint}") if denied else StoreError(text)


def _hint(said: str, user: str) -> str:
    """Return what to do about a refusal that concerns users, "" for others."""
    if "user name is empty" in said:
        return ": it requires a user; add --etcd-user NAME and --etcd-password-file FILE, or the job's secret"
    if "authentication failed" in said:
        return f"; see whether the user {user} exists there, and whether this is the user's password"
    if "permission denied" in said:
        return (
            f"; {f'the user {user}' if user else 'this certificate'} needs a role with readwrite on the job's keys: "
            "etcdctl role grant-permission ROLE --prefix=true readwrite /elastic/ (docs/guides/security.md)"
        )
    return ""


def unanswered(error: Any, server: object) -> StoreUnavailable:
    """Return the error to raise for a request without an answer."""
    late = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    return (AnswerLate if late else StoreUnavailable)(
        f"etcd at {server} does not answer: {readable_part(details(error))}"
    )


def watch_end(response: Any, server: object) -> StoreError:
    """Return the error to raise after etcd has cancelled a watch."""
    if response.compact_revision:
        return Compacted(response.compact_revision)
    reason = response.cancel_reason or "no reason given"
    text = f"etcd at {server} ended the watch: {reason}"
    return StoreDenied(text) if any(part in reason for part in _DENIED) else WatchLost(text)


async def answer_of(call: Awaitable[Any]) -> Any:
    """Await a call. Raises `CancelledError` only if this task is cancelled, and an error if the channel was closed."""
    try:
        return await call
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise channel_closed_error() from None


def channel_closed_error() -> Any:
    """Return the error of a call whose channel was closed."""
    return _error(grpc.StatusCode.UNAVAILABLE, "the connection was given up")


def deadline_error() -> Any:
    """Return the error of a call that was not answered in time."""
    return _error(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")


def _error(code: Any, text: str) -> Any:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), text)
