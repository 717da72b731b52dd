"""The board of a planned stop on torch's own store."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import count

import pytest
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # It is there, and documented.

from elastic.train.process_group import stop_agreement
from elastic.train.process_group.stop_agreement import BoardRead, CommitVerdict, StopBoard, at_commit


def test_a_worker_that_has_saved_leaves_also_when_rank_0_is_gone_with_the_board() -> None:
    theirs = TCPStore("127.0.0.1", 0, 2, is_master=True, wait_for_workers=False)
    board = StopBoard(TCPStore("127.0.0.1", theirs.port, 2, is_master=False, wait_for_workers=False), 2)
    assert board.do(BoardRead("heard")) == 0
    del theirs
    with pytest.raises(RuntimeError):
        board.do(BoardRead("heard"))
    board.leave(1, 2)


def test_rank_0_does_not_wait_for_a_worker_that_was_killed_after_it_had_seen_where_to_stop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stop_agreement, "LEAVE_LIMIT_S", float("inf"))  # Who waits for it waits for ever.
    store = TCPStore("127.0.0.1", 0, 2, is_master=True, wait_for_workers=False)
    boards = [
        StopBoard(store, 2),
        StopBoard(TCPStore("127.0.0.1", store.port, 2, is_master=False, wait_for_workers=False), 2),
    ]

    def stopped_at(board: StopBoard) -> int:
        return next(step for step in count(1) if board.run(at_commit(step, 2, first=step == 1)) is CommitVerdict.STOP)

    with ThreadPoolExecutor(2) as ranks:
        first, second = ranks.map(stopped_at, boards)
    assert first == second
    boards[0].leave(0, 2)
