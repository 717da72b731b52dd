"""What a node without work heard from the leader that it waits for."""

from __future__ import annotations

from typing import NamedTuple

from elastic.core.membership.decision import Reason
from elastic.core.text import counted_down
from launcher.wire.link_messages import WaitTold


class HeardWait(NamedTuple):
    """What this node heard from `node`: `ends` are when the times of the text are over, on this node's clock.

    Without a `code` it is a wait that this version does not know.
    """

    node: str
    code: Reason | None
    text: str
    ends: tuple[float, ...]

    @classmethod
    def of(cls, node: str, told: WaitTold, now: float) -> HeardWait:
        """What a message says that comes now."""
        return cls(node, Reason.__members__.get(told.code), told.text, tuple(now + left for left in told.left))

    def reason_at(self, now: float) -> str:
        """The sentence as it is to be said now."""
        return counted_down(self.text, [end - now for end in self.ends])
