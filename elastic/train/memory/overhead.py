"""The share of training time that in-memory checkpoints take, and the warning if it is too large (pure)."""

from __future__ import annotations

from math import ceil

SHARE_MAX = 0.05
COMMITS = 20
"""The number of commits in a measurement."""
COMMITS_SKIPPED = 2
"""The first commits allocate memory; later ones do not."""


class CommitOverhead:
    """Measures the time that commits block training."""

    def __init__(self) -> None:
        self._commits: list[tuple[float, float]] = []
        self._is_reported = False

    def line(self, began_s: float, ended_s: float) -> str:
        """Add one commit, in seconds of a monotonic clock; return a warning about the last `COMMITS`, once, else ""."""
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
            f"in-memory checkpoints take {100 * share:.0f} % of training time ({1000 * blocked_s / COMMITS:.1f} ms "
            f"each); increase memory_every about {ceil(share / SHARE_MAX)}× to stay below {100 * SHARE_MAX:.0f} %"
        )
