"""What an agent shows of silent nodes and evicted hosts."""

from __future__ import annotations

from msgspec.structs import replace

from elastic.core.agent.state import AgentState, SilentPeer
from elastic.core.membership.evictions import SILENCE_COUNTS_AFTER_S, Eviction, evicted
from launcher.agent.node_snapshot import snapshot
from launcher.wire.inspect_messages import SILENT_MAX, EvictedHost, NodeSnapshot, SilentNode
from launcher.workers.reports.states import WorkerStates
from tests.support.agent_harness import running

NOW = 100.0


def agent(silent: dict[str, float] | None = None, *evictions: Eviction) -> AgentState:
    """An agent that has heard nothing from these nodes since those times."""
    facts = running().facts
    facts.silence.peers = {node: SilentPeer(since, 1.0, since) for node, since in (silent or {}).items()}
    facts.memory = replace(facts.memory, evictions=evictions)
    return facts


def shown(facts: AgentState) -> NodeSnapshot:
    return snapshot(facts, WorkerStates(), "", NOW, began_at=0.0, pid=1, version="0")


def test_an_agent_that_hears_every_node_shows_none() -> None:
    found = shown(agent())
    assert (found.silent, found.evicted) == ((), ())


def test_silent_nodes_are_shown_with_the_time_since_they_were_heard_and_the_longest_silence_first() -> None:
    found = shown(agent({"c": 98.5, "a": 97.0}))
    assert found.silent == (SilentNode(node="a", silent_s=3.0), SilentNode(node="c", silent_s=1.5))


def test_evicted_hosts_are_shown_for_as_long_as_their_silence_does_not_count_and_each_once() -> None:
    over = evicted("a", "host-a", 3, NOW - SILENCE_COUNTS_AFTER_S)
    first, again = evicted("c", "host-c", 4, 40.0), evicted("d", "host-c", 9, 90.0)
    found = shown(agent(None, over, first, again))
    assert found.evicted == (EvictedHost(host="host-c", node="d", counts_in_s=SILENCE_COUNTS_AFTER_S - 10.0),)


def test_of_very_many_the_longest_silences_and_the_newest_evictions_are_shown() -> None:
    count = SILENT_MAX + 5
    silent = {f"n{number}": float(number) for number in range(count)}
    evictions = [evicted(f"n{number}", f"h{number}", number + 1, 50.0) for number in range(count)]
    found = shown(agent(silent, *evictions))
    assert [one.node for one in found.silent] == [f"n{number}" for number in range(SILENT_MAX)]
    assert [one.host for one in found.evicted] == [f"h{number}" for number in range(5, count)]
