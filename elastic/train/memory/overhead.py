"""What the memory tier costs of the training time, and the line that says when it is too much (pure)."""

from __future__ import annotations

from math import ceil

SHARE_MAX = 0.05
COMMITS = 20
"""So many commits are looked at together."""
COMMITS_SKIPPED = 2
"""The first ones take memory from the kernel, which no later one does."""


class CommitOverhead:
    """Counts the time that commits block training."""

    def __init__(self) -> None:
        """Nothing is counted yet."""
        self._count = 0
        self._since_s = 0.0
        self._blocked_s = 0.0
        self._said = False

    def line(self, began_s: float, ended_s: float) -> str:
        """Count one commit, by a monotonic clock; what to say about the last `COMMITS`, once, else ""."""
        self._count += 1
        if self._said:
            return ""
        if self._count <= COMMITS_SKIPPED:
            self._since_s = ended_s
            return ""
        self._blocked_s += ended_s - began_s
        if self._count < COMMITS_SKIPPED + COMMITS:
            return ""
        blocked_s, trained_s = self._blocked_s, ended_s - self._since_s - self._blocked_s
        self._count, self._since_s, self._blocked_s = COMMITS_SKIPPED, ended_s, 0.0
        if blocked_s <= SHARE_MAX * trained_s:
            return ""
        self._said = True
        share = blocked_s / trained_s if trained_s > 0 else 1.0
        return (
            f"copies to memory cost {100 * share:.0f} % of the training time ({1000 * blocked_s / COMMITS:.1f} ms "
            "each); "
            f"state.commit(memory_every=...) {ceil(share / SHARE_MAX)} times as large brings that below "
            f"{100 * SHARE_MAX:.0f} %"
        )
