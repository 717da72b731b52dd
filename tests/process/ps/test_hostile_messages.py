"""A live server under messages that nobody of ours would send: it refuses them, says so, and serves on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import grpc  # type: ignore[import-untyped, unused-ignore]
import grpc.aio  # type: ignore[import-untyped, unused-ignore]
import msgspec
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from elastic.train.ps import framing, protocol
from elastic.train.ps.connection import ServerConnection
from tests.support.ps_server_harness import Bench, bench, framed, shape

REFUSED = {
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.ALREADY_EXISTS,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.PERMISSION_DENIED,
}
METHODS = ("Register", "Push", "Pull", "Rows")

anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=8)
    | st.binary(max_size=8)
    | st.sampled_from(["0-s", "0-", "1-s", "async", "sync", "float64", "int64", 2**62, 2**31 - 1]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
shapes = st.lists(
    st.tuples(st.sampled_from([*framing.DTYPES, "x"]), st.lists(st.integers(0, 4) | st.integers(0, 2**40), max_size=3)),
    max_size=3,
)


class Target:
    """A server with one honest worker, in a loop that runs when it is asked."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._context = bench(trainers=1)
        self.bench: Bench = self.run(self._context.__aenter__())
        self.link: ServerConnection = self.run(self.bench.opened(0))
        self.number = 0

    def run(self, work: Any) -> Any:
        return self.loop.run_until_complete(asyncio.wait_for(work, 60))

    def close(self) -> None:
        self.run(self._context.__aexit__(None, None, None))
        self.loop.close()

    def works(self) -> None:
        """The honest worker pushes once, and exactly that is applied."""
        _, before = self.run(self.link.call("Pull", protocol.SessionMessage(session="0-s")))
        self.number = self.bench.service.sessions.seen[0].applied + 1
        after = self.run(self.bench.pushed(self.link, self.number))
        # A valid push of the attacker, who knows the session, may have changed the values before.
        assert (
            torch.equal(torch.tensor(after, dtype=torch.float64), before[0] - 1) or not torch.isfinite(before[0]).all()
        )

    def model(self, method: str) -> framing.MessageHeader:
        """A good message of that method."""
        headers = {
            "Register": self.bench.register("0-s", given=(0,), shapes=(shape("float64", 2),)),
            "Push": self.bench.push("0-s", self.number),
            "Pull": protocol.SessionMessage(session="0-s"),
            "Rows": protocol.RowsRequest(session="0-s", table=0),
        }
        return headers[method]


@pytest.fixture(scope="module")
def target() -> Iterator[Target]:
    made = Target()
    yield made
    made.close()


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_message_with_any_field_changed_is_refused_or_is_a_message(
    target: Target, caplog: pytest.LogCaptureFixture, data: st.DataObject
) -> None:
    method = data.draw(st.sampled_from(METHODS))
    header: dict[str, Any] = msgspec.to_builtins(target.model(method))
    for field in data.draw(st.lists(st.sampled_from([*header, "more"]), max_size=2)):
        header[field] = data.draw(shapes if field == "shapes" else anything)
    body = data.draw(st.binary(max_size=64))
    code, _ = target.run(target.bench.raw(method, framed(header, body)))
    assert code in {*REFUSED, grpc.StatusCode.OK}
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
    target.works()


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(method=st.sampled_from([*METHODS, "Close"]), frames=st.lists(st.binary(max_size=64), max_size=4))
def test_noise_is_refused(target: Target, caplog: pytest.LogCaptureFixture, method: str, frames: list[bytes]) -> None:
    code, back = target.run(target.bench.raw(method, *frames))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert back == b""
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
    target.works()


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_hello_that_is_wrong_opens_no_session(
    target: Target, caplog: pytest.LogCaptureFixture, data: st.DataObject
) -> None:
    header: dict[str, Any] = msgspec.to_builtins(target.bench.hello(1))
    del header["mac"]
    for field in data.draw(st.lists(st.sampled_from([*header, "mac", "more"]), min_size=1, max_size=2)):
        header[field] = data.draw(st.just([["float32", [1]]]) if field == "shapes" else anything)

    changed = dict(header)
    code = target.run(target.bench.hello_with(lambda mac: framed({"mac": mac} | changed)))
    if code is not grpc.StatusCode.OK:
        assert code in REFUSED
    else:
        assert all(session.session.startswith(f"{w}-") for w, session in target.bench.service.sessions.seen.items())
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
    target.works()
