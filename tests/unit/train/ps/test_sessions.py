"""Who is there, as one server sees it."""

from __future__ import annotations

import pytest

from elastic.errors import SessionReplaced
from elastic.train.ps.sessions import MISSING_AFTER_S, SessionState, UnknownSession, WorkerSessions

LOST_AFTER_S = 10.0


@pytest.fixture
def sessions() -> WorkerSessions:
    return WorkerSessions(LOST_AFTER_S)


def opened(sessions: WorkerSessions, worker: int) -> None:
    """A worker comes and registers."""
    sessions.open(worker, f"{worker}-a", 0.0)
    sessions.seen[worker].registered = True


class TestLife:
    def test_a_worker_that_said_hello_is_live_and_its_session_is_known(self, sessions: WorkerSessions) -> None:
        sessions.open(3, "3-a", 0.0)
        assert [worker for worker, one in sessions.seen.items() if one.state.live] == [3]
        assert sessions.check("3-a") == 3

    def test_a_broken_connection_is_a_loss_after_ten_seconds_and_not_before(self, sessions: WorkerSessions) -> None:
        sessions.open(0, "0-a", 0.0)
        assert sessions.disconnected(0, 5.0)
        assert sessions.next_lapse() == 15.0
        assert sessions.lapse(14.9) == []
        assert [worker for worker, one in sessions.seen.items() if one.state.live] == [0]
        assert sessions.lapse(15.0) == [0]
        assert [worker for worker, one in sessions.seen.items() if one.state.live] == []
        assert sessions.next_lapse() is None
        assert sessions.lapse(99.0) == []

    def test_a_worker_that_comes_back_in_time_is_no_loss(self, sessions: WorkerSessions) -> None:
        sessions.open(0, "0-a", 0.0)
        sessions.disconnected(0, 5.0)
        sessions.open(0, "0-a", 14.0)
        assert sessions.lapse(99.0) == []

    def test_a_worker_that_closed_is_no_loss_when_its_connection_ends(self, sessions: WorkerSessions) -> None:
        sessions.open(0, "0-a", 0.0)
        assert sessions.close("0-a", 1.0) == 0
        assert not sessions.disconnected(0, 2.0)
        assert sessions.lapse(99.0) == []
        with pytest.raises(UnknownSession):
            sessions.check("0-a")

    def test_a_lost_worker_may_come_back_with_its_session_and_its_pushes_stay_counted(
        self, sessions: WorkerSessions
    ) -> None:
        sessions.open(0, "0-a", 0.0)
        sessions.seen[0].applied = 7
        sessions.disconnected(0, 0.0)
        sessions.lapse(10.0)
        with pytest.raises(UnknownSession):
            sessions.check("0-a")
        sessions.open(0, "0-a", 20.0)
        assert sessions.check("0-a") == 0
        assert sessions.seen[0].applied == 7


class TestReplaced:
    def test_another_process_with_the_number_replaces_the_session_at_once(self, sessions: WorkerSessions) -> None:
        sessions.open(0, "0-a", 0.0)
        sessions.seen[0].applied = 7
        sessions.open(0, "0-b", 1.0)
        assert sessions.check("0-b") == 0
        assert sessions.seen[0].applied == 0
        with pytest.raises(SessionReplaced, match="another process has connected as worker 0"):
            sessions.check("0-a")

    def test_the_replaced_one_cannot_come_back(self, sessions: WorkerSessions) -> None:
        sessions.open(0, "0-a", 0.0)
        sessions.open(0, "0-b", 1.0)
        with pytest.raises(SessionReplaced):
            sessions.open(0, "0-a", 2.0)
        assert sessions.check("0-b") == 0

    @pytest.mark.parametrize("session", ["", "0", "x-a", "-1-a", "99999999999999999999-a", "٣-a", "1-a"])
    def test_a_session_that_nobody_opened_is_unknown(self, sessions: WorkerSessions, session: str) -> None:
        sessions.open(3, "3-a", 0.0)
        with pytest.raises(UnknownSession):
            sessions.check(session)


class TestTheEnd:
    def test_by_hand_it_is_over_when_all_have_come_and_closed_or_are_lost(self, sessions: WorkerSessions) -> None:
        sessions.open(1, "1-a", 0.0)
        assert sessions.over_at(2, replaced=False) is None
        sessions.open(0, "0-a", 0.0)
        sessions.close("0-a", 2.0)
        assert sessions.over_at(2, replaced=False) is None
        sessions.disconnected(1, 3.0)
        assert sessions.over_at(2, replaced=False) is None
        sessions.lapse(13.0)
        assert sessions.over_at(2, replaced=False) == 13.0

    def test_by_hand_workers_that_never_came_are_given_up_a_while_after_the_others_have_ended(
        self, sessions: WorkerSessions
    ) -> None:
        sessions.open(0, "0-a", 0.0)
        assert sessions.over_at(2, replaced=False) is None
        sessions.close("0-a", 1.0)
        assert sessions.over_at(2, replaced=False) == 1.0 + MISSING_AFTER_S
        sessions.open(1, "1-a", 2.0)
        assert sessions.over_at(2, replaced=False) is None

    def test_under_the_launcher_a_loss_is_no_end(self, sessions: WorkerSessions) -> None:
        sessions.open(0, "0-a", 0.0)
        sessions.disconnected(0, 0.0)
        sessions.lapse(10.0)
        sessions.open(2, "2-a", 11.0)
        sessions.close("2-a", 12.0)
        assert sessions.over_at(1, replaced=True) is None
        sessions.open(0, "0-b", 13.0)
        sessions.close("0-b", 14.0)
        assert sessions.over_at(1, replaced=True) == 14.0
        assert sessions.over_at(3, replaced=True) is None, "another one will come"

    def test_nobody_ever_seen_is_no_end(self, sessions: WorkerSessions) -> None:
        assert sessions.over_at(1, replaced=False) is None


class TestFirstValues:
    def test_those_of_worker_0_win_and_the_others_wait_for_it(self, sessions: WorkerSessions) -> None:
        opened(sessions, 1)
        assert sessions.initializer(2) is None
        sessions.open(0, "0-a", 1.0)
        assert sessions.initializer(2) is None, "worker 0 is here, and has not yet registered"
        sessions.seen[0].registered = True
        assert sessions.initializer(2) == 0

    def test_without_worker_0_the_lowest_gives_them_once_it_cannot_come_first(self, sessions: WorkerSessions) -> None:
        opened(sessions, 2)
        opened(sessions, 3)
        assert sessions.initializer(3) is None
        assert sessions.initializer(2) == 2
        sessions.open(0, "0-a", 0.0)
        assert sessions.initializer(2) is None
        sessions.disconnected(0, 0.0)
        sessions.lapse(10.0)
        assert sessions.initializer(9) == 2

    def test_nobody_who_registered_is_nobody(self, sessions: WorkerSessions) -> None:
        assert sessions.initializer(0) is None

    def test_a_worker_that_ended_or_was_replaced_registers_again(self, sessions: WorkerSessions) -> None:
        for worker in range(3):
            opened(sessions, worker)
        assert sessions.registered() == [0, 1, 2]
        sessions.close("0-a", 1.0)
        sessions.open(1, "1-b", 1.0)
        sessions.disconnected(2, 1.0)
        assert sessions.registered() == [2]
        sessions.lapse(11.0)
        for worker, session in enumerate(("0-a", "1-b", "2-a")):
            sessions.open(worker, session, 12.0)
        assert sessions.registered() == []


def test_a_server_that_came_back_waits_for_the_workers_it_knew(sessions: WorkerSessions) -> None:
    sessions.restore(1, "1-a", 5, SessionState.HERE, 100.0)
    sessions.restore(0, "0-a", 9, SessionState.CLOSED, 100.0)
    assert [worker for worker, one in sessions.seen.items() if one.state.live] == [1]
    assert sessions.seen[1].applied == 5
    assert sessions.over_at(2, replaced=False) is None
    assert sessions.lapse(110.0) == [1]
    assert sessions.over_at(2, replaced=False) == 110.0
