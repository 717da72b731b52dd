"""The run deadline: until when a node may run workers (pure).

The run deadline is a time on the node's own clock (CLOCK_BOOTTIME in the agent), and the later of two times:

- its own lease: the time at which the last successful refresh was *sent*, plus the granted time, minus a margin in
  which a SIGKILL empties the node;
- a grant by other nodes: a vouch by the leader, or, for the leader itself, a hold while every member of its generation
  is linked to it. Neither extends beyond the last successful refresh + the lease's TTL + `etcd_outage_timeout_s`.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

KILL_S = 0.5
"""Seconds that SIGKILL, its delivery and the exit of a process may take on a slow machine."""
CLOCK_ERROR = 0.05
"""Assumed largest relative error of the speed of a clock."""
NEVER = float("-inf")


class RunDeadline(Struct, frozen=True):
    """The facts that determine the run deadline. All times are on the node's own clock, in seconds."""

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
        """Note that a request sent at `sent_at` has granted or refreshed the lease."""
        return RunDeadline(ttl_s, outage_limit_s, max(sent_at, self.refreshed_at), True, self.vouched_until)

    def lost(self) -> RunDeadline:
        """Note that the lease is lost; grants by other nodes remain."""
        return replace(self, lease_held=False)

    def vouched(self, until: float) -> RunDeadline:
        """Note that a node entitled to do so has granted this node time until `until`."""
        return replace(self, vouched_until=max(until, self.vouched_until))

    def clear_grants(self) -> RunDeadline:
        """Drop the grants for the last generation: they do not count for the next one."""
        return replace(self, vouched_until=NEVER)


def margin_s(ttl_s: float) -> float:
    """Seconds before the end of the lease at which workers are killed."""
    return KILL_S + CLOCK_ERROR * ttl_s
