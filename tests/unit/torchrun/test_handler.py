"""How the handler divides the time that `shutdown` has."""

from __future__ import annotations

import pytest

from launcher.torchrun.handler import CLOSE_MIN_S, close_limits
from launcher.torchrun.membership import LEAVE_LIMIT_S


@pytest.mark.parametrize("limit_s", [1.0, 3.0, 30.0, 600.0])
def test_agreeing_on_the_end_leaving_and_ending_the_thread_take_close_timeout_together(limit_s: float) -> None:
    agree_s, leave_s = close_limits(limit_s)
    assert agree_s + leave_s + CLOSE_MIN_S == pytest.approx(limit_s)
    assert 0 < leave_s <= LEAVE_LIMIT_S
    assert agree_s >= 0.5 * limit_s
