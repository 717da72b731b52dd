"""Which nodes of this machine the leader looks for, and when their locks prove that nothing is left of them."""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path

import pytest
from msgspec.structs import replace

from elastic.core.agent.events import Event, NodeProvenDead
from elastic.core.membership.evictions import Eviction, evicted
from launcher.agent import local_death_proofs
from launcher.agent.local_death_proofs import DeathProver
from launcher.logs.console import Console
from launcher.logs.logger import AgentLog
from launcher.system import node_lock
from tests.support.silence_harness import NOTICED, leading

GONE = "gone"
"""A node that was evicted, and is no member any more."""


@pytest.fixture
def locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(node_lock, "lock_path", lambda job_id, node: tmp_path / f"{node}.lock")
    return tmp_path


def proofs(eviction: Eviction, monkeypatch: pytest.MonkeyPatch, now: float = NOTICED + 1.0) -> list[Event]:
    """What the leader finds out of an evicted node."""
    monkeypatch.setattr(local_death_proofs, "boottime", lambda: now)
    bench, found = leading(), list[Event]()
    bench.facts.memory = replace(bench.facts.memory, evictions=(eviction,))

    async def story() -> None:
        with tempfile.TemporaryFile() as output:
            DeathProver("j", AgentLog("a", Console(output.fileno())), found.append).check(bench.facts)

    asyncio.run(story())
    return found


def free_lock(folder: Path) -> None:
    os.close(node_lock.hold(folder / f"{GONE}.lock").fd)


def test_a_free_lock_proves_that_nothing_is_left_of_an_evicted_node(
    locks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free_lock(locks)
    assert proofs(evicted(GONE, "h", 1, NOTICED), monkeypatch) == [NodeProvenDead(GONE)]


def test_a_held_lock_proves_nothing(locks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = node_lock.hold(locks / f"{GONE}.lock")
    assert proofs(evicted(GONE, "h", 1, NOTICED), monkeypatch) == []
    os.close(held.fd)


def test_a_node_that_has_registered_again_is_not_looked_for(locks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free_lock(locks)
    assert proofs(replace(evicted(GONE, "h", 1, NOTICED), returned=True), monkeypatch) == []


def test_a_node_whose_workers_are_gone_in_any_case_is_not_looked_for(
    locks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free_lock(locks)
    eviction = evicted(GONE, "h", 1, NOTICED)
    ttl_s = leading().spec.lease_ttl_s
    assert proofs(eviction, monkeypatch, eviction.workers_gone_at(ttl_s)) == []
    assert proofs(eviction, monkeypatch, eviction.workers_gone_at(ttl_s) - 0.1) == [NodeProvenDead(GONE)]
