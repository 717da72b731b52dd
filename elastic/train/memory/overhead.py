"""What the memory tier costs of the training time, and the line that says when it is too much (pure)."""

from __future__ import annotations

from math import ceil

SHARE_MAX = 0.05
COMMITS = 20
"""So many commits are looked at together."""
COMMITS_SKIPPED = 2
"""The first ones take memory from the kernel, which no later one does."""


class CommitOverhead:
    """Measures the time that commits block training."""

    def __init__(self) -> None:
        """Nothing is measured yet."""
        self._commits: list[tuple[float, float]] = []
        self._is_reported = False

    def line(self, began_s: float, ended_s: float) -> str:
        """Add one commit, by a monotonic clock; what to say about the last `COMMITS`, once, else ""."""
        if self._is_reported:
            return ""
        self._commits.append((began_s, ended_s))
        if len(self._commits) < COMMITS_SKIPPED + COMMITS:
            return ""
        before, looked_at = self._commits[:COMMITS_SKIPPED], self._commits[COMMITS_SKIPPED:]
        self._commits = looked_at[-COMMITS_SKIPPED:]
        blocked_s = sum(ended - began for began, ended in looked_at)
        trained_s = ended_s - before[-1][1] - blocked_s
        if blocked_s <= SHARE_MAX * trained_s:
            return ""
        self._is_reported = True
        share = blocked_s / trained_s if trained_s > 0 else 1.0
        return (
            f"copies to memory cost {100 * share:.0f} % of the training time ({1000 * blocked_s / COMMITS:.1f} ms "
            "each); "
            f"state.commit(memory_every=...) {ceil(share / SHARE_MAX)} times as large brings that below "
            f"{100 * SHARE_MAX:.0f} %"
        )
