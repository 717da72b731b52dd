"""What clouds say of this machine, and what it means: requests and answers as values."""

from __future__ import annotations

import itertools
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from elastic.errors import ConfigError
from launcher.spot import aws
from launcher.spot import azure as azure_cloud
from launcher.spot import provider as spot_provider
from launcher.spot.aws import ACTION, REBALANCE
from launcher.spot.azure import AZURE_POLL_S, FIRST_S
from launcher.spot.endpoint import MetadataEndpoint, endpoint
from launcher.spot.gcp import HANGS_S, MAINTENANCE, PREEMPTION
from launcher.spot.protocol import (
    LEFT_MIN_S,
    PAUSE_MAX_S,
    POLL_S,
    TIMEOUT_S,
    InterruptionNotice,
    MetadataRequest,
    MetadataResponse,
    PollResult,
    Watch,
    polled,
)

(AWS,), (AZURE,) = aws.WATCHES, azure_cloud.WATCHES
NOW = 1_800_000_000.0
"""Fri, 15 Jan 2027 08:00:00 GMT."""
NOTHING = MetadataResponse(404)
AT_ONCE = PollResult(pause_s=0.0)
DATE = {"date": "Fri, 15 Jan 2027 08:00:00 GMT"}


class Over(BaseException):
    """There is no further answer."""


def heard(
    watch: Watch, *answers: MetadataResponse | None, now: float = NOW
) -> list[tuple[MetadataRequest, PollResult]]:
    """Each request and what came of it; an answer that is followed by the next request at once says nothing."""
    asked: list[MetadataRequest] = []
    results: list[PollResult] = []

    async def ask(request: MetadataRequest) -> MetadataResponse:
        results.extend([AT_ONCE] * (len(asked) - len(results)))
        if len(asked) == len(answers):
            raise Over
        asked.append(request)
        return replace(answers[len(asked) - 1] or MetadataResponse(), came_at=now)

    async def main() -> None:
        with suppress(Over):
            async for result in polled(watch, ask):
                results.append(result)  # noqa: PERF401  `ask` looks at those that came.

    with suppress(StopIteration):
        main().send(None)
    assert not any("is unexpected" in result.error for result in results)
    return [*zip(asked, results, strict=True)]


def last(watch: Watch, *answers: MetadataResponse | None, now: float = NOW) -> PollResult:
    return heard(watch, *answers, now=now)[-1][1]


def document(value: object, **headers: str) -> MetadataResponse:
    return MetadataResponse(200, {**DATE, **headers}, json.dumps(value).encode())


TOKEN = MetadataResponse(200, {}, b"AQAEABcdefg==")


# --- AWS ----------------------------------------------------------------------------------------------------------


def test_aws_is_asked_for_a_token_then_for_both_paths_with_it_and_then_left_alone_for_5_s() -> None:
    rounds = heard(AWS, TOKEN, NOTHING, NOTHING, NOTHING)
    assert [(ask.method, ask.path) for ask, _ in rounds] == [
        ("PUT", "/latest/api/token"),
        ("GET", ACTION),
        ("GET", REBALANCE),
        ("GET", ACTION),
    ]
    assert rounds[0][0].headers == {"X-aws-ec2-metadata-token-ttl-seconds": "21600"}
    assert {ask.headers["X-aws-ec2-metadata-token"] for ask, _ in rounds[1:]} == {"AQAEABcdefg=="}
    assert [found.pause_s for _, found in rounds] == [0.0, 0.0, POLL_S, 0.0]
    assert not any(found.notices or found.remarks or found.error for _, found in rounds)


@pytest.mark.parametrize(
    ("action", "words"),
    [
        ("terminate", "AWS reclaims this machine"),
        ("stop", "AWS stops this machine"),
        ("hibernate", "AWS hibernates this machine"),
        ("what comes later", "AWS reclaims this machine"),
    ],
)
def test_an_action_of_aws_is_a_notice_with_its_time(action: str, words: str) -> None:
    found = last(AWS, TOKEN, document({"action": action, "time": "2027-01-15T08:01:58Z"}))
    assert found.notices == (InterruptionNotice(words, NOW + 118, 118.0),)
    (notice,) = found.notices or ()
    assert notice.reason == f"{words} at 08:01:58Z"


def test_the_time_that_is_left_is_by_the_clock_of_the_server_and_not_by_that_of_a_machine_that_is_wrong() -> None:
    answer = document({"action": "terminate", "time": "2027-01-15T08:01:58Z"})
    (notice,) = last(AWS, TOKEN, answer, now=NOW + 7_200).notices or ()
    assert notice.left_s == 118.0


def test_without_a_date_the_clock_of_this_machine_counts() -> None:
    answer = MetadataResponse(200, {}, b'{"action": "stop", "time": "2027-01-15T08:01:00Z"}')
    (notice,) = last(AWS, TOKEN, answer, now=NOW + 20).notices or ()
    assert notice.left_s == 40.0


@pytest.mark.parametrize("time", ["2027-01-15T07:00:00Z", "2027-01-15T08:00:03Z", "soon"])
def test_a_time_that_is_over_or_cannot_be_read_leaves_10_s_all_the_same(time: str) -> None:
    (notice,) = last(AWS, TOKEN, document({"action": "terminate", "time": time})).notices or ()
    assert notice.left_s == LEFT_MIN_S


def test_a_rebalance_recommendation_is_a_remark() -> None:
    found = last(AWS, TOKEN, NOTHING, document({"noticeTime": "2027-01-15T07:59:00Z"})).remarks
    text = "AWS says since 07:59:00Z that it may reclaim this machine (rebalance recommendation); training continues"
    assert found == (text,)


def test_a_token_that_has_expired_is_replaced_at_once() -> None:
    rounds = heard(AWS, TOKEN, NOTHING, NOTHING, MetadataResponse(401), TOKEN, NOTHING)
    assert [ask.method for ask, _ in rounds] == ["PUT", "GET", "GET", "GET", "PUT", "GET"]
    assert rounds[3][1] == PollResult(pause_s=0.0)


def test_a_server_that_takes_no_token_that_it_gave_is_asked_ever_less_often() -> None:
    answers = [TOKEN, MetadataResponse(401)] * 8
    pauses = [found.pause_s for ask, found in heard(AWS, *answers) if ask.method == "GET"]
    assert pauses == [5.0, 10.0, 20.0, 40.0, 60.0, 60.0, 60.0, 60.0]


@pytest.mark.parametrize(
    "refusal",
    [
        None,
        MetadataResponse(403),
        MetadataResponse(404),
        MetadataResponse(200, {}, b"two words"),
        MetadataResponse(200),
    ],
)
def test_where_no_token_can_be_had_aws_is_asked_without_one(refusal: MetadataResponse | None) -> None:
    rounds = heard(AWS, refusal, document({"action": "stop", "time": "2027-01-15T08:01:00Z"}))
    assert rounds[1][0] == MetadataRequest(ACTION)
    assert rounds[1][1].notices


# --- Google -------------------------------------------------------------------------------------------------------


def google(text: str, etag: str = "1f2e") -> MetadataResponse:
    return MetadataResponse(200, {"metadata-flavor": "Google", "etag": etag}, text.encode())


def test_google_is_asked_once_for_what_there_is_and_then_waited_for_with_the_etag() -> None:
    rounds = heard(PREEMPTION, google("FALSE"), google("FALSE", "2a"), google("TRUE"))
    base = "/computeMetadata/v1/instance/preempted"
    assert [ask.path for ask, _ in rounds] == [
        base,
        f"{base}?wait_for_change=true&timeout_sec=60&last_etag=1f2e",
        f"{base}?wait_for_change=true&timeout_sec=60&last_etag=2a",
    ]
    assert [ask.timeout_s > HANGS_S for ask, _ in rounds] == [False, True, True]
    assert {ask.headers["Metadata-Flavor"] for ask, _ in rounds} == {"Google"}
    assert rounds[2][1].notices == (InterruptionNotice("Google Cloud reclaims this machine", NOW + 30, 30.0),)


def test_who_is_not_google_is_not_believed() -> None:
    found = last(PREEMPTION, MetadataResponse(200, {}, b"TRUE"))
    assert (found.notices, found.error) == (None, "it is not from Google")


def test_an_etag_that_does_not_belong_into_an_address_is_not_sent_back() -> None:
    rounds = heard(PREEMPTION, google("FALSE", "1 HTTP/1.1\r\nX: y"), google("FALSE", "a&b"), google("FALSE"))
    assert {ask.path for ask, _ in rounds} == {"/computeMetadata/v1/instance/preempted"}


def test_live_migration_is_a_remark_and_a_stop_for_maintenance_a_notice_of_60_s() -> None:
    assert last(MAINTENANCE, google("NONE")).notices == ()
    assert len(last(MAINTENANCE, google("MIGRATE_ON_HOST_MAINTENANCE")).remarks) == 1
    rounds = heard(MAINTENANCE, google("TERMINATE_ON_HOST_MAINTENANCE"), MetadataResponse(404), google("NONE"))
    assert [ask.path.rpartition("/")[2] for ask, _ in rounds] == (
        ["maintenance-event", "upcoming-maintenance?alt=json", "maintenance-event"]
    )
    assert [found.pause_s for _, found in rounds] == [0.0, POLL_S, 1.0]
    assert [found.notices for _, found in rounds] == [
        None,
        (InterruptionNotice("Google Cloud stops this machine for maintenance", NOW + 60, 60.0),),
        (),
    ]


def planned(at: str, name: str = "window_start_time") -> MetadataResponse:
    return MetadataResponse(
        200, {**DATE, "metadata-flavor": "Google"}, json.dumps({name: at, "can_reschedule": True}).encode()
    )


@pytest.mark.parametrize("name", ["window_start_time", "windowStartTime"])
def test_a_stop_for_maintenance_in_an_hour_is_a_remark_with_its_date_and_a_notice_when_it_is_near(name: str) -> None:
    stops = google("TERMINATE_ON_HOST_MAINTENANCE")
    in_an_hour, soon = planned("2027-01-15T09:00:00Z", name), planned("2027-01-15T08:10:00Z", name)
    _, (_, far), _, (_, near) = heard(MAINTENANCE, stops, in_an_hour, stops, soon)
    text = "Google Cloud stops this machine for maintenance at 2027-01-15 09:00:00Z: this node drains 10 minutes before"
    assert far == PollResult((), (f"{text}, unless that changes",))
    assert near.notices == (InterruptionNotice("Google Cloud stops this machine for maintenance", NOW + 600, 600.0),)


@pytest.mark.parametrize(
    "answer",
    [
        None,
        MetadataResponse(503),
        MetadataResponse(200, {}, b"{}"),
        google("NONE"),
        planned("soon"),
        planned("2027-01-15T08:00:00Z"),
    ],
)
def test_a_stop_for_maintenance_of_which_nobody_says_when_or_that_is_due_leaves_60_s(
    answer: MetadataResponse | None,
) -> None:
    (stop,) = last(MAINTENANCE, google("TERMINATE_ON_HOST_MAINTENANCE"), answer).notices or ()
    assert stop.left_s == 60.0


# --- Azure --------------------------------------------------------------------------------------------------------


def event(kind: str, *names: str, at: str = "Fri, 15 Jan 2027 08:00:30 GMT") -> dict[str, Any]:
    return {"EventId": "f", "EventType": kind, "Resources": list(names), "NotBefore": at, "EventStatus": "Scheduled"}


def azure(*events: dict[str, Any]) -> PollResult:
    return last(AZURE, MetadataResponse(200, {}, b"trainer_3"), document({"DocumentIncarnation": 2, "Events": events}))


def test_azure_is_asked_for_the_name_of_the_machine_and_then_for_its_events() -> None:
    none = document({"DocumentIncarnation": 1, "Events": []})
    rounds = heard(AZURE, MetadataResponse(200, {}, b"trainer_3"), none, none)
    assert [ask.path.partition("?")[0] for ask, _ in rounds] == [
        "/metadata/instance/compute/name",
        "/metadata/scheduledevents",
        "/metadata/scheduledevents",
    ]
    assert [ask.timeout_s for ask, _ in rounds] == [TIMEOUT_S, FIRST_S, TIMEOUT_S]
    assert {ask.headers["Metadata"] for ask, _ in rounds} == {"true"}
    assert [found.pause_s for _, found in rounds] == [0.0, AZURE_POLL_S, AZURE_POLL_S]


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("Preempt", "Azure reclaims this machine"),
        ("Terminate", "Azure deletes this machine"),
        ("Reboot", "Azure restarts this machine"),
        ("Redeploy", "Azure moves this machine to other hardware"),
    ],
)
def test_an_event_of_azure_for_this_machine_is_a_notice(kind: str, words: str) -> None:
    assert azure(event(kind, "TRAINER_3", "trainer_4")).notices == (InterruptionNotice(words, NOW + 30, 30.0),)


def test_an_event_for_another_machine_is_none_for_this_one() -> None:
    assert azure(event("Preempt", "trainer_4"), event("Preempt"), event("Freeze", "trainer_30")).notices == ()


@pytest.mark.parametrize(
    "other",
    [
        {**event("Terminate", "trainer_4"), "NotBefore": None},
        {**event("Terminate"), "Resources": None},
        {**event("Terminate"), "Resources": [None, 3]},
        {**event("Terminate"), "EventType": None},
        {**event("Terminate"), "NotBefore": 3},
        {},
        None,
        [],
    ],
)
def test_an_event_of_another_shape_hides_none_beside_it(other: Any) -> None:
    found = azure(other, event("Preempt", "trainer_3"), other).notices
    assert found == (InterruptionNotice("Azure reclaims this machine", NOW + 30, 30.0),)


@pytest.mark.parametrize("value", [None, "soon"])
def test_an_event_for_this_machine_without_a_time_leaves_10_s(value: str | None) -> None:
    (notice,) = azure({**event("Preempt", "trainer_3"), "NotBefore": value}).notices or ()
    assert notice.left_s == LEFT_MIN_S


@pytest.mark.parametrize(
    ("at", "shown"),
    [
        ("Mon, 18 Jan 2027 08:00:30 GMT", "2027-01-18 08:00:30Z"),
        ("Fri, 15 Jan 2027 08:10:01 GMT", "2027-01-15 08:10:01Z"),
    ],
)
def test_an_event_that_is_days_or_more_than_10_minutes_away_is_a_remark_with_its_date(at: str, shown: str) -> None:
    found = azure(event("Redeploy", "trainer_3", at=at))
    text = (
        f"Azure moves this machine to other hardware at {shown}: "
        "this node drains 10 minutes before, unless that changes"
    )
    assert found == PollResult((), (text,), AZURE_POLL_S)


def test_an_event_is_a_notice_as_soon_as_it_is_10_minutes_away() -> None:
    assert azure(event("Redeploy", "trainer_3", at="Fri, 15 Jan 2027 08:10:00 GMT")).notices == (
        InterruptionNotice("Azure moves this machine to other hardware", NOW + 600, 600.0),
    )


def test_an_action_of_aws_that_is_far_away_is_a_remark_and_no_notice_stands() -> None:
    found = last(AWS, TOKEN, document({"action": "stop", "time": "2027-01-15T09:00:00Z"}))
    text = "AWS stops this machine at 2027-01-15 09:00:00Z: this node drains 10 minutes before, unless that changes"
    assert (found.notices, found.remarks) == ((), (text,))


def test_an_event_that_has_begun_leaves_10_s() -> None:
    assert azure(event("Preempt", "trainer_3", at="")).notices == (
        InterruptionNotice("Azure reclaims this machine", NOW, LEFT_MIN_S),
    )


def test_a_freeze_is_a_remark() -> None:
    text = "Azure pauses this machine for a few seconds at 08:00:30Z (Freeze); training continues"
    assert azure(event("Freeze", "trainer_3")).remarks == (text,)


@pytest.mark.parametrize("body", [b'{"action": "\xff", "time": "x"}', b'{"a":' + b"[" * 60_000])
def test_what_is_no_text_or_nested_without_end_is_an_error(body: bytes) -> None:
    assert last(AWS, TOKEN, MetadataResponse(200, {}, body)).error == "its answer cannot be parsed"
    bad = MetadataResponse(200, {}, body.replace(b"action", b"Events"))
    assert last(AZURE, MetadataResponse(200, {}, b"trainer_3"), bad).error == "its answer cannot be parsed"


def test_only_an_answer_about_notices_says_that_none_stands() -> None:
    action = document({"action": "stop", "time": "2027-01-15T08:01:00Z"})
    assert [one.notices == () for _, one in heard(AWS, TOKEN, NOTHING, NOTHING, action, NOTHING, NOTHING, None)] == (
        [False, True, False, False, False, True, False]
    )
    assert [one.notices == () for _, one in heard(PREEMPTION, google("FALSE"), google("TRUE"), None)] == [
        True,
        False,
        False,
    ]
    assert last(MAINTENANCE, google("MIGRATE_ON_HOST_MAINTENANCE")).notices == ()
    assert azure(event("Freeze", "trainer_3"), event("Preempt", "trainer_4")).notices == ()
    assert azure(event("Freeze", "trainer_3"), event("Preempt", "trainer_3")).notices


# --- whatever comes -----------------------------------------------------------------------------------------------

WATCHES = (AWS, PREEMPTION, MAINTENANCE, AZURE)


@pytest.mark.parametrize("watch", WATCHES)
@pytest.mark.parametrize(
    "answer",
    [None, MetadataResponse(500), MetadataResponse(302, {"location": "http://elsewhere/"}), MetadataResponse(429)],
)
def test_a_server_that_is_away_is_asked_ever_less_often_and_for_ever(
    watch: Watch, answer: MetadataResponse | None
) -> None:
    rounds = heard(watch, *[answer] * 30)
    pauses = [found.pause_s for _, found in rounds if found.error]
    assert pauses == sorted(pauses)
    assert 0 < pauses[0] <= pauses[-1] <= PAUSE_MAX_S
    assert not any(found.notices or found.remarks for _, found in rounds)


texts = st.sampled_from(
    [
        b'{"action": "stop", "time": "9999-12-31T23:59:59Z"}',
        b'{"action": "stop", "time": "0001-01-01T00:00:00Z"}',
        b'{"action": [], "time": 1}',
        b'{"noticeTime": "x"}',
        b'{"Events": [{"EventType": "Preempt", "Resources": ["a"], "NotBefore": "x"}]}',
        b'{"Events": 3}',
        b"TRUE",
        b"a",
        b"[" * 5000,
        b'{"action": "\xff", "time": "\xff"}',
        b'{"noticeTime": "\xff"}',
        b'{"a": ' + b"[" * 60_000,
        b'{"Events": [{"EventType": "\xff", "Resources": ["a"]}]}',
        b'{"Events": [{"EventType": "Preempt", "Resources": ["a"], "x": ' + b"[" * 60_000,
        b"TERMINATE_ON_HOST_MAINTENANCE",
    ]
)
answers = st.none() | st.builds(
    MetadataResponse,
    st.sampled_from([200, 200, 200, 401, 404, 500]) | st.integers(100, 999),
    st.dictionaries(
        st.sampled_from(["date", "etag", "metadata-flavor"]),
        st.sampled_from(["Google", "a", "\r\n", "é", "Fri, 32 Jan 2027 08:00:00 GMT"]),
    ),
    texts | st.binary(max_size=40),
)


AT_ONCE_MAX = 6
"""Requests without a pause after them. AWS: a token and the first path, both again after a 401, then the second path
and another token after its 401; whatever comes next, a pause follows."""


@pytest.mark.parametrize("watch", WATCHES)
@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(answers, max_size=2 * AT_ONCE_MAX))
def test_no_answer_breaks_a_watch_or_makes_it_ask_without_end(
    watch: Watch, came: list[MetadataResponse | None]
) -> None:
    rounds = heard(watch, *came)
    runs = [len([*run]) for at_once, run in itertools.groupby(found.pause_s == 0 for _, found in rounds) if at_once]
    assert max(runs, default=0) <= AT_ONCE_MAX
    for ask, found in rounds:
        assert ask.path.isprintable()
        assert all(value.isprintable() for value in ask.headers.values())
        assert all(one.left_s >= LEFT_MIN_S and one.reason for one in found.notices or ())


# --- where --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "provider"),
    [
        ({"sys_vendor": "Amazon EC2", "product_name": "g5.xlarge"}, "aws"),
        ({"sys_vendor": "Xen", "bios_version": "4.11.amazon"}, "aws"),
        ({"hypervisor": "ec2e1916-9099-7caf-fd21-012345abcdef"}, "aws"),
        ({"sys_vendor": "Google", "product_name": "Google Compute Engine"}, "gcp"),
        ({"sys_vendor": "Microsoft Corporation", "chassis_asset_tag": spot_provider.AZURE_TAG}, "azure"),
        ({"sys_vendor": "Microsoft Corporation", "product_name": "Virtual Machine"}, "none"),
        ({"sys_vendor": "LENOVO", "product_name": "20XW"}, "none"),
        ({}, "none"),
    ],
)
def test_the_firmware_tells_whose_machine_this_is(said: dict[str, str], provider: str) -> None:
    assert spot_provider.provider(said) == provider


def test_a_machine_that_says_nothing_is_no_cloud_s(tmp_path: Path) -> None:
    assert spot_provider.detect_provider(tmp_path, tmp_path / "uuid") == "none"


def test_the_files_of_the_firmware_are_read_as_they_are_written(tmp_path: Path) -> None:
    (tmp_path / "sys_vendor").write_bytes(b"Microsoft Corporation\n")
    assert spot_provider.detect_provider(tmp_path, tmp_path / "uuid") == "none"
    (tmp_path / "chassis_asset_tag").write_bytes(spot_provider.AZURE_TAG.encode() + b"\n")
    assert spot_provider.detect_provider(tmp_path, tmp_path / "uuid") == "azure"
    (tmp_path / "chassis_asset_tag").write_bytes(b"\xff" * 5000)
    (tmp_path / "uuid").write_bytes(b"ec2e1916-9099-7caf-fd21-012345abcdef\n")
    assert spot_provider.detect_provider(tmp_path, tmp_path / "uuid") == "aws"


def test_all_three_have_one_address_and_a_variable_names_another() -> None:
    assert {endpoint(provider, {}) for provider in ("aws", "gcp", "azure")} == {MetadataEndpoint("169.254.169.254", 80)}
    assert endpoint("azure", {"ELASTIC_SPOT_ENDPOINT": "http://127.0.0.1:8080/"}) == MetadataEndpoint("127.0.0.1", 8080)
    assert endpoint("aws", {"AWS_EC2_METADATA_SERVICE_ENDPOINT": "http://[fd00:ec2::254]"}).host == "fd00:ec2::254"
    assert endpoint("gcp", {"GCE_METADATA_HOST": "metadata.google.internal:80"}).host == "metadata.google.internal"
    assert endpoint("azure", {"GCE_METADATA_HOST": "other"}).host == "169.254.169.254"


@pytest.mark.parametrize(
    "text",
    [
        "https://a",
        "http://",
        "http://a:99999",
        "http://a:b",
        "ftp://a",
        "http://[",
        "http://a b",
        "http://a..b",
        f"{'a' * 64}.b",
        "http://.a",
    ],
)
def test_a_variable_that_names_no_server_is_one_line(text: str) -> None:
    with pytest.raises(
        ConfigError, match=r"^ELASTIC_SPOT_ENDPOINT=.* is not the URL of a metadata server; write http://HOST\[:PORT\]"
    ):
        endpoint("aws", {"ELASTIC_SPOT_ENDPOINT": text})
    for provider, name in (("aws", "AWS_EC2_METADATA_SERVICE_ENDPOINT"), ("gcp", "GCE_METADATA_HOST")):
        with pytest.raises(ConfigError, match=rf"^{name}=.* is not the URL of a metadata server"):
            endpoint(provider, {name: text})
