"""Replicas that die on their own, as `elastic.testing` schedules them: losses and planned stops."""

from __future__ import annotations

import os
import signal
import sys

import pytest

from elastic.channel import client, messages
from elastic.testing import NodeFailure, Planned, RunFailed, World, reached, run


def die_in_the_first_world(rank: int) -> int:
    """One rank kills itself, the others wait to be ended."""
    generation = int(os.environ["ELASTIC_GENERATION"])
    if generation == 1:
        if int(os.environ["RANK"]) == rank:
            os.kill(os.getpid(), signal.SIGKILL)
        signal.pause()
    return generation


def die_in_a_planned_stop(rank: int) -> int:
    """All listen; when asked to stop, one rank dies and the others never leave."""
    generation = int(os.environ["ELASTIC_GENERATION"])
    if generation == 1:
        end = client.channel_client(os.environ)
        assert end is not None
        end.send(messages.AcceptsPlannedStop())
        reached(1)
        assert end.stop_asked()
        if int(os.environ["RANK"]) == rank:
            sys.exit(7)
        signal.pause()
    return generation


def test_a_loss_without_a_step_comes_when_a_replica_dies() -> None:
    result = run(die_in_the_first_world, args=(1,), worlds=[World(3, NodeFailure(nodes=(1,))), World(3)])
    before, after = result.worlds
    assert [replica.code for replica in before.replicas] == [-signal.SIGTERM, -signal.SIGKILL, -signal.SIGTERM]
    assert after.nodes[:2] == (before.nodes[0], before.nodes[2])
    assert result.values == [2, 2, 2]


def test_a_planned_stop_that_may_fail_ends_when_a_replica_dies_in_it() -> None:
    result = run(die_in_a_planned_stop, args=(1,), worlds=[World(2, Planned(1, may_fail=True)), World(1)])
    assert [replica.code for replica in result.worlds[0].replicas] == [-signal.SIGTERM, 7]
    assert result.values == [2]


def test_a_planned_stop_that_may_not_fail_names_who_did() -> None:
    with pytest.raises(RunFailed, match=r"rank 1 of world 0 \(node1-0001\) exited with code 7, instead of exiting"):
        run(die_in_a_planned_stop, args=(1,), worlds=[World(2, Planned(1)), World(1)])
