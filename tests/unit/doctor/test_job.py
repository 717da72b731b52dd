"""What the doctor says of etcd and of a job."""

from __future__ import annotations

import asyncio
import time
from typing import Never

from elastic.core.keys import JobKeys
from elastic.core.kv import EndpointStatus
from elastic.errors import StoreDenied
from elastic.store.memory import MemoryStore
from elastic.store.memory_core import MemoryCore
from launcher.doctor.etcd import latency_check, server_checks
from launcher.doctor.job import job_checks, reach_check, standing_checks, versions_check
from launcher.system.checks import Check, CheckLevel
from launcher.wire.probe_messages import ProbeAnswer, UnreachedMember
from tests.support.job_transcript import Job

# etcd


def test_a_slow_etcd_is_told_and_a_quick_one_is_fine() -> None:
    assert latency_check([0.3, 0.002, 0.001]).text == "answers in 2.0 ms (the slowest of 3 in 300.0 ms)"
    assert latency_check([0.3, 0.002, 0.001]).level is CheckLevel.OK
    assert latency_check([0.3, 0.2, 0.1]).level is CheckLevel.WARN


def test_servers_that_do_not_answer_are_named() -> None:
    (check,) = server_checks([EndpointStatus("a:1", "3.5.23", 7, True)], ["a:1", "b:2"])
    assert check.level is CheckLevel.WARN
    assert check.text == "1 of 2 answer (a:1: 3.5.23, leader), not b:2"


def test_an_etcd_that_is_too_old_fails_and_one_with_known_losses_warns() -> None:
    found = {
        version: server_checks([EndpointStatus("a:1", version, 7, True)], ["a:1"])[0].level
        for version in ("3.3.27", "3.4.23", "3.5.1", "3.5.23", "3.6.4", "3.6.5", "3.7.0", "3.5.0-alpha")
    }
    assert found == {
        "3.3.27": CheckLevel.FAIL,
        "3.4.23": CheckLevel.OK,
        "3.5.1": CheckLevel.WARN,
        "3.5.23": CheckLevel.OK,
        "3.6.4": CheckLevel.WARN,
        "3.6.5": CheckLevel.OK,
        "3.7.0": CheckLevel.OK,
        "3.5.0-alpha": CheckLevel.WARN,
    }


# versions


def test_members_with_the_same_versions_are_fine() -> None:
    same = {"torch": "2.13.0", "script": "aa"}
    check = versions_check({"a": same, "b": same})
    assert (check.level, check.text) == (CheckLevel.OK, "the same on every node (torch 2.13.0, script aa)")


def test_a_version_that_differs_is_named_with_every_value_and_who_has_it() -> None:
    check = versions_check({"a": {"torch": "2.13.0"}, "b": {"torch": "2.12.0"}, "c": {"torch": "2.13.0"}})
    assert (check.level, check.text) == (CheckLevel.FAIL, "torch differs between nodes")
    assert check.details == ("torch: 2.12.0 on b; 2.13.0 on a, c",)
    assert check.hint == "install the same torch on every node"


def test_another_script_or_patch_level_warns_and_a_worse_difference_of_the_same_name_counts_more() -> None:
    assert versions_check({"a": {"script": "x"}, "b": {"script": "y"}}).level is CheckLevel.WARN
    members = {"a": {"torch": "2.12.0"}, "b": {"torch": "2.13.0"}, "c": {"torch": "2.13.1"}, "d": {}}
    assert versions_check(members).level is CheckLevel.FAIL
    assert versions_check({"a": {"torch": "2.12.0"}, "b": {}, "c": {"torch": "2.13.0"}}).level is CheckLevel.FAIL


def test_of_many_members_four_are_named_for_each_value() -> None:
    members = {f"n{number}": {"torch": "2.13.0"} for number in range(9)} | {"z": {"torch": "2.6.0"}}
    (detail,) = versions_check(members).details
    assert detail == "torch: 2.13.0 on n0, n1, n2, n3 and 5 more; 2.6.0 on z"


# reachability


def test_members_that_reach_each_other_are_one_line() -> None:
    check = reach_check(["a", "b"], {"a": ProbeAnswer(1), "b": ProbeAnswer(1)})
    assert (check.level, check.text) == (CheckLevel.OK, "every node can connect to every other (2 nodes)")
    assert reach_check(["a"], {"a": ProbeAnswer(0)}).text == "the job has one node"


def test_a_way_that_is_closed_is_named_with_the_reason_and_the_way_back() -> None:
    answers = {"a": ProbeAnswer(1, (UnreachedMember("b", "no answer"),)), "b": ProbeAnswer(2), "c": ProbeAnswer(2)}
    check = reach_check(["a", "b", "c"], answers)
    assert (check.level, check.text) == (CheckLevel.FAIL, "1 connection is blocked between 3 nodes")
    assert check.details == ("a cannot connect to b: no answer (the other direction works)",)


def test_two_members_that_cannot_reach_each_other_are_two_lines() -> None:
    answers = {
        "a": ProbeAnswer(0, (UnreachedMember("b", "refused"),)),
        "b": ProbeAnswer(0, (UnreachedMember("a", "no way"),)),
    }
    check = reach_check(["a", "b"], answers)
    assert check.text == "2 connections are blocked between 2 nodes"
    assert check.details == (
        "a cannot connect to b: refused (the other direction is blocked, too)",
        "b cannot connect to a: no way (the other direction is blocked, too)",
    )


def test_a_member_that_does_not_answer_is_named_and_is_the_likely_cause_of_what_others_say() -> None:
    check = reach_check(["a", "b"], {"a": ProbeAnswer(1)})
    assert check.level is CheckLevel.WARN
    assert check.details == ("no reply from b: its agent is suspended or has just started",)
    check = reach_check(["a", "b"], {"a": ProbeAnswer(0, (UnreachedMember("b", "no answer"),))})
    assert check.level is CheckLevel.FAIL
    assert check.details[0] == "a cannot connect to b: no answer (it did not reply to the doctor, either)"
    assert check.hint == "check whether the agents that did not reply are suspended"


def test_ways_that_nobody_had_time_for_are_counted() -> None:
    check = reach_check(["a", "b"], {"a": ProbeAnswer(1), "b": ProbeAnswer(0, (), 1)})
    assert check.level is CheckLevel.WARN
    assert check.details == ("1 connection was not tried for lack of time",)


# how the job stands


def test_a_job_that_waits_says_for_how_many_and_for_whom() -> None:
    job = Job("3:3", ips=("host-a", "host-b", "host-c"))
    job.join("a")
    stands, missing = standing_checks(job.view, "j1")
    assert stands.text == "j1: 1 node is registered; 1 of 3 nodes is here; waiting for host-b, host-c"
    assert (missing.level, missing.text) == (CheckLevel.WARN, "1 of 3 nodes is here; waiting for host-b, host-c")
    assert (missing.details, missing.hint) == ((), "start elastic-launch on more nodes")


def test_a_job_that_is_complete_misses_nobody() -> None:
    job = Job("2")
    job.join("a b")
    _, missing = standing_checks(job.view, "j1")
    assert (missing.level, missing.text) == (CheckLevel.OK, "none")


def test_nodes_that_do_not_count_are_counted_and_listed_while_the_job_runs() -> None:
    job = Job("2")
    job.join("a b c d")
    job.drain("c d")
    _, missing = standing_checks(job.view, "j1")
    assert (missing.level, missing.text) == (CheckLevel.WARN, "2 nodes are not available")
    assert [line.partition(" ")[0] for line in missing.details] == ["c", "d"]


def test_an_etcd_that_denies_access_is_the_last_check() -> None:
    class Denied(MemoryStore):
        async def list(self, *args: object, **kwargs: object) -> Never:
            raise StoreDenied("permission denied")

    async def checks() -> list[Check]:
        return [check async for check in job_checks(Denied(MemoryCore(), time.monotonic), JobKeys("j1"))]

    (check,) = asyncio.run(checks())
    assert (check.level, check.text) == (CheckLevel.FAIL, "etcd denied access (permission denied)")


def test_a_job_without_a_node_says_that_nobody_works_on_it() -> None:
    (stands,) = standing_checks(Job("2").view, "j1")
    assert "No node is registered" in stands.text
