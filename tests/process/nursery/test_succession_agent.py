"""A successor under an agent in a process of its own: each of the three ends or stands still; what workers inherit."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from launcher.doctor.machine import may_raise_priority
from launcher.system import node_lock
from launcher.system.processes import descendants
from tests.support.nursery_harness import LIMIT_S, watch_end
from tests.support.succession_harness import PROGRAMS_STARTED, STARTS, InstalledModules, agent, shares

pytestmark = pytest.mark.timeout(120)


class TestTheAgentEnds:
    @pytest.mark.parametrize("stopped", [False, True])
    @pytest.mark.parametrize("busy", [False, True])
    def test_while_a_successor_imports_and_nothing_is_left(
        self, tmp_path: Path, modules: InstalledModules, busy: bool, stopped: bool
    ) -> None:
        with agent(tmp_path) as one:
            one.hears("NurseryReady")
            workers = [one.begins()] if busy else []
            successor = one.prepares(modules.hold("held", before=STARTS))
            programs = [process.pid for process in descendants(successor)]
            assert len(programs) == PROGRAMS_STARTED
            ended = [watch_end(pid) for pid in (*workers, successor, *programs, one.nursery)]
            if stopped:
                os.kill(successor, signal.SIGSTOP)
                os.kill(one.nursery, signal.SIGSTOP)
            one.process.kill()
            assert all(has_ended(LIMIT_S) for has_ended in ended)
            assert one.becomes_proof()

    @pytest.mark.parametrize("stopped", [False, True])
    def test_when_a_successor_is_ready_and_nothing_is_left(
        self, tmp_path: Path, modules: InstalledModules, stopped: bool
    ) -> None:
        with agent(tmp_path) as one:
            one.hears("NurseryReady")
            worker = one.begins()
            successor = one.has_ready(modules.hold("held"))
            ended = [watch_end(pid) for pid in (worker, successor, one.nursery)]
            if stopped:
                os.kill(successor, signal.SIGSTOP)
            one.process.kill()
            assert all(has_ended(LIMIT_S) for has_ended in ended)
            assert one.becomes_proof()

    def test_after_a_hand_over_and_a_successor_that_was_stopped_wakes_up_to_end_the_workers_and_itself(
        self, tmp_path: Path, modules: InstalledModules
    ) -> None:
        with agent(tmp_path) as one:
            one.hears("NurseryReady")
            old_ended = watch_end(one.nursery)
            successor = one.has_handed_over(modules.hold("held"))
            assert old_ended(LIMIT_S)
            ended = [watch_end(pid) for pid in (one.begins(), successor)]
            os.kill(successor, signal.SIGSTOP)
            one.process.kill()
            assert all(has_ended(LIMIT_S) for has_ended in ended)
            assert one.becomes_proof()


class TestTheOldNurseryEnds:
    @pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
    @pytest.mark.parametrize("busy", [False, True])
    def test_while_a_successor_imports_that_ends_with_it(
        self, tmp_path: Path, modules: InstalledModules, busy: bool, number: signal.Signals
    ) -> None:
        with agent(tmp_path) as one:
            one.hears("NurseryReady")
            workers = [one.begins()] if busy else []
            successor = one.prepares(modules.hold("held", before=STARTS))
            programs = [process.pid for process in descendants(successor)]
            ended = [watch_end(pid) for pid in (*workers, successor, one.nursery, *programs)]
            os.kill(successor, signal.SIGSTOP)
            os.kill(one.nursery, number)
            one.orders("run", s=30)  # A nursery that stands still does not answer.
            one.hears("NurseryDied")
            assert all(has_ended(LIMIT_S) for has_ended in ended)
            assert one.becomes_proof()
            assert descendants(one.process.pid) == []

    def test_the_lock_proves_nothing_while_a_successor_that_was_ready_is_there(
        self, tmp_path: Path, modules: InstalledModules
    ) -> None:
        with agent(tmp_path) as one:
            one.hears("NurseryReady")
            worker = one.begins()
            successor = one.has_ready(modules.hold("held"))
            old_ended, worker_ended = watch_end(one.nursery), watch_end(worker)
            successor_ended = watch_end(successor)
            one.process.send_signal(signal.SIGSTOP)  # Else it drops the successor.
            os.kill(one.nursery, signal.SIGKILL)
            assert old_ended(LIMIT_S)
            assert worker_ended(LIMIT_S)
            assert not node_lock.proven_dead(one.lock)
            one.process.send_signal(signal.SIGCONT)
            one.hears("NurseryDied")
            assert successor_ended(LIMIT_S)
            assert one.becomes_proof()

    def test_the_workers_end_at_the_deadline_while_the_agent_stands_still(
        self, tmp_path: Path, modules: InstalledModules
    ) -> None:
        with agent(tmp_path) as one:
            one.hears("NurseryReady")
            worker_ended = watch_end(one.begins())
            old, successor = one.nursery, one.has_ready(modules.hold("held"))
            one.orders("run", s=0.5)
            one.hears("Deadline")
            one.process.send_signal(signal.SIGSTOP)
            assert worker_ended(LIMIT_S)
            one.process.send_signal(signal.SIGCONT)
            one.hears("GenerationExpired")
            one.hears("GenerationExited")
            assert one.nursery == successor != old
            one.orders("run", s=60)
            one.begins(2)


class TestSharesOfTheMachine:
    @pytest.mark.parametrize("nice", [0, 5])
    def test_workers_of_a_successor_have_those_of_the_agent_also_where_nobody_may_raise_any(
        self, tmp_path: Path, modules: InstalledModules, nice: int
    ) -> None:
        with agent(tmp_path, ordinary=True, within=("nice", "-n", str(nice))) as one:
            ours = tuple(one.hears("Shares")["shares"])
            one.hears("NurseryReady")
            successor = one.has_handed_over(modules.hold("held"))
            assert shares(one.begins()) == ours
            assert shares(successor) == ours

    @pytest.mark.skipif(not may_raise_priority(), reason="the tests may not raise a priority here")
    def test_a_successor_is_raised_as_its_nursery_was_and_its_workers_are_not(
        self, tmp_path: Path, modules: InstalledModules
    ) -> None:
        with agent(tmp_path) as one:
            ours = tuple(one.hears("Shares")["shares"])
            one.hears("NurseryReady")
            before = shares(one.nursery)
            successor = one.has_handed_over(modules.hold("held"))
            assert shares(successor) == before != ours
            assert shares(one.begins()) == ours
