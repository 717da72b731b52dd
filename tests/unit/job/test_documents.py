"""The names of keys in the JSON that `elastic-ctl` writes; scripts read them."""

from __future__ import annotations

import json

import msgspec

from launcher.job.overview import JobOverview
from launcher.job.status import describe
from launcher.system.checks import warn
from tests.support.job_status import generation, view


def test_a_status_has_what_agents_report_and_who_could_not_be_asked() -> None:
    described = describe(view("a-1", newest=generation(1, "a-1"), go=1), "j1")
    overview = JobOverview(status=described, snapshots={}, unreachable={"a-1": "no answer"}, asked_at=0.0)
    document = json.loads(msgspec.json.encode(overview.as_json))
    assert (document["snapshots"], document["unreachable"]) == ({}, {"a-1": "no answer"})
    assert [node["node"] for node in document["nodes"]] == ["a-1"], "the nodes of the status have that key"


def test_a_check_of_the_doctor_has_a_hint() -> None:
    check = msgspec.to_builtins(warn("etcd", "it is slow", "raise --lease-ttl"))
    assert (check["text"], check["hint"]) == ("it is slow", "raise --lease-ttl")
