"""A process raises its priority where it may and nobody has chosen one; what it starts has the usual one."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from launcher.doctor.machine import may_raise_priority
from launcher.system.priority import RAISED_NICE

pytestmark = pytest.mark.skipif(os.getpriority(os.PRIO_PROCESS, 0) != 0, reason="the tests do not run at nice 0")
allowed = pytest.mark.skipif(not may_raise_priority(), reason="the tests may not raise a priority (root may)")

MAY_NOT = 77
SCRIPT = f"""
import json, os, resource, sys, threading
from launcher.system.priority import raise_priority

NOBODY, MAY_NOT = 65534, {MAY_NOT}

def become_nobody(nice_limit):
    try:
        resource.setrlimit(resource.RLIMIT_NICE, (nice_limit, nice_limit))
    except ValueError:
        sys.exit(MAY_NOT)
    if os.getuid() == 0:
        os.setuid(NOBODY)

def refuse(*_):
    raise PermissionError

exec(sys.argv[1])
raised = raise_priority()
policy, nice = os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0)
below = []
thread = threading.Thread(target=lambda: below.append(os.getpriority(os.PRIO_PROCESS, 0)))
thread.start()
thread.join()
child = os.fork()
if child == 0:
    os._exit(os.getpriority(os.PRIO_PROCESS, 0))
below.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print(json.dumps([raised, nice, policy, below]))
"""


def tried(before: str) -> tuple[bool, int, int, list[int]]:
    """After these statements: whether it raised itself, its nice value and policy, nice values of what it starts."""
    # Python 3.12 and later warn of a fork beside a thread, which is what is tried here.
    ran = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", SCRIPT, before],
        capture_output=True,
        text=True,
        check=False,
    )
    if ran.returncode == MAY_NOT:
        pytest.skip("this user may not raise RLIMIT_NICE")
    assert (ran.returncode, ran.stderr) == (0, "")
    raised, nice, policy, below = json.loads(ran.stdout)
    return raised, nice, policy, below


@pytest.mark.parametrize(
    "right", [pytest.param("", marks=allowed, id="ours"), pytest.param("become_nobody(30)", id="ulimit -e 30")]
)
def test_who_may_is_raised_and_its_threads_and_children_are_not(right: str) -> None:
    assert tried(right) == (True, RAISED_NICE, os.SCHED_OTHER | os.SCHED_RESET_ON_FORK, [0, 0])


def test_who_may_not_is_left_as_it_is() -> None:
    assert tried("become_nobody(0)") == (False, 0, os.SCHED_OTHER, [0, 0])


@allowed
def test_where_children_would_inherit_the_priority_it_is_not_raised() -> None:
    assert tried("os.sched_setscheduler = refuse") == (False, 0, os.SCHED_OTHER, [0, 0])


def test_a_priority_that_the_user_has_chosen_stays_and_is_inherited() -> None:
    assert tried("os.nice(5)") == (False, 5, os.SCHED_OTHER, [5, 5])


def test_a_policy_that_the_user_has_chosen_stays() -> None:
    batch = "os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))"
    assert tried(batch) == (False, 0, os.SCHED_BATCH, [0, 0])


@allowed
def test_raising_it_twice_changes_nothing() -> None:
    once, twice = tried(""), tried("raise_priority()")
    assert twice == (False, *once[1:])
