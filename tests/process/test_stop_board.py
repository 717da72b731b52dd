"""The board of a planned stop on torch's own store."""

from __future__ import annotations

import pytest
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # It is there, and documented.

from elastic.train.stop import Board, Read


def test_a_worker_that_has_saved_leaves_also_when_rank_0_is_gone_with_the_board() -> None:
    theirs = TCPStore("127.0.0.1", 0, 2, is_master=True, wait_for_workers=False)
    board = Board(TCPStore("127.0.0.1", theirs.port, 2, is_master=False, wait_for_workers=False), 2)
    assert board.do(Read("heard")) == 0
    del theirs
    with pytest.raises(RuntimeError):
        board.do(Read("heard"))
    board.leave(1, 2)
