"""Until when a node may run workers (pure).

The right to run is a time, on the node's own clock (CLOCK_BOOTTIME in the agent), and the later of two:

- its own lease: last good refresh, counted from its *send*, plus the granted time, less a margin in which a SIGKILL
  empties the node;
- the word of others: a vouch by the leader, or, for the leader itself, a hold while every member of its
  generation is linked to it. Neither goes beyond the last good refresh + the lease's time + `store_outage_limit_s`.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

KILL_S = 0.5
"""What SIGKILL, its delivery and the exit of a process may take on a slow machine."""
CLOCK_ERROR = 0.05
"""Clocks are trusted to run within this fraction of the right speed."""
NEVER = float("-inf")


class RunDeadline(Struct, frozen=True):
    """The facts from which the right to run follows. All times on the node's own clock."""

    ttl_s: float = 0.0
    outage_limit_s: float = 0.0
    refreshed_at: float = NEVER
    lease_held: bool = False
    vouched_until: float = NEVER

    def until(self) -> float:
        """The time at which every worker of this node must be gone."""
        own = self.refreshed_at + self.ttl_s - margin_s(self.ttl_s) if self.lease_held else NEVER
        limit = self.refreshed_at + self.ttl_s + self.outage_limit_s
        return max(own, min(self.vouched_until, limit))

    def refreshed(self, sent_at: float, ttl_s: float, outage_limit_s: float) -> RunDeadline:
        """The lease was granted or refreshed by a request sent at `sent_at`."""
        return RunDeadline(ttl_s, outage_limit_s, max(sent_at, self.refreshed_at), True, self.vouched_until)

    def lost(self) -> RunDeadline:
        """The lease is lost; what others have granted stands."""
        return replace(self, lease_held=False)

    def vouched(self, until: float) -> RunDeadline:
        """Somebody whose word counts has granted until `until`."""
        return replace(self, vouched_until=max(until, self.vouched_until))

    def clear_grants(self) -> RunDeadline:
        """Nothing that was granted for the last world counts for the next."""
        return replace(self, vouched_until=NEVER)


def margin_s(ttl_s: float) -> float:
    """How long before the lease's end workers are killed."""
    return KILL_S + CLOCK_ERROR * ttl_s
