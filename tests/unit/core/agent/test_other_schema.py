"""What an agent does about a job whose spec is of another schema: it does not join, or keeps to what it knew."""

from __future__ import annotations

import pytest

from elastic.core.agent.actions import LogLine, StartWorkers, StopWorkers
from elastic.core.agent.state import Phase
from elastic.core.decide import RESTORE
from elastic.core.kv import Put
from elastic.core.membership.decision import Reason
from elastic.core.model import SCHEMA
from elastic.core.view import encode
from tests.support.agent_harness import LEASE_TTL_S, Bench, joining, running
from tests.support.strategies import KEYS

OTHER = b'{"schema":99,"nodes":"1-4"}'


def overwritten(bench: Bench, spec: bytes) -> None:
    """Somebody writes a spec over that of the job."""
    bench.shelf.core.txn((), (Put(KEYS.spec, spec),))
    bench.look()


def test_a_new_node_is_rejected_before_it_registers() -> None:
    bench = joining()
    others = (Put(KEYS.incarnation, b"\xff"), Put(KEYS.generation, b"\x00"), Put(KEYS.verdict, b"{}"))
    bench.shelf.core.txn((), (Put(KEYS.spec, OTHER), *others, Put(KEYS.member("a"), b"[]")))
    before = bench.shelf.contents
    bench.offline = False
    bench.at(1.0)
    bench.look()
    assert bench.exit_code == 3
    assert bench.lines == [
        f"job j1 has schema 99, and this agent has schema {SCHEMA}; install the job's version of elastic-launch here, "
        "or stop the job and delete it (elastic-ctl forget)"
    ]
    assert bench.shelf.contents == before


def test_a_running_node_keeps_to_what_it_knew_until_the_spec_is_restored() -> None:
    bench = running()
    known = bench.facts.view
    overwritten(bench, OTHER)
    for _ in range(8):
        bench.at(bench.now + LEASE_TTL_S / 4)
        bench.refreshed()
    assert bench.phase is Phase.RUNNING
    assert (bench.facts.view.generation, bench.facts.view.members) == (known.generation, known.members)
    overwritten(bench, encode(bench.spec))
    assert bench.facts.view.schema is None
    assert (bench.phase, bench.starts, bench.stops) == (Phase.RUNNING, [1], [])


@pytest.mark.parametrize("restored", [False, True])
def test_the_leader_proposes_nothing_until_the_spec_is_restored(restored: bool) -> None:
    bench = Bench("a", "1:2")
    bench.others("b")
    generation = bench.facts.generation
    assert generation is not None
    overwritten(bench, OTHER)
    decision = bench.facts.succession.decision
    assert decision is not None
    assert (decision.code, decision.reason) == (
        Reason.UNREADABLE,
        f"the spec has schema 99, and this agent has schema {SCHEMA}; {RESTORE}",
    )
    bench.shelf.delete(KEYS.member("b"))
    overwritten(bench, encode(bench.spec) if restored else OTHER)
    bench.at(1.0)
    assert bench.facts.generation is not None
    assert (bench.facts.generation.g > generation.g) is restored


def test_a_running_node_that_lost_its_key_says_once_why_it_does_not_register() -> None:
    bench = running()
    overwritten(bench, OTHER)
    asked = len(bench.asked)
    bench.expire()
    for _ in range(4):
        bench.at(bench.now + 0.5)
        bench.look()
    assert not bench.registered
    assert [action.text for action in bench.asked[asked:] if isinstance(action, LogLine)] == [
        f"job j1 has schema 99, and this agent has schema {SCHEMA}; this node was in the job, and waits until "
        f"{KEYS.spec} is restored"
    ]
    assert not [action for action in bench.asked[asked:] if isinstance(action, StartWorkers | StopWorkers)]
    overwritten(bench, encode(bench.spec))
    bench.at(bench.now + 1)
    assert bench.registered
