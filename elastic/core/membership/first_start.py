"""The rules for the first start: wait for enough nodes, then for the end of the join window (pure)."""

from __future__ import annotations

from typing import Final

from elastic.core import listed_hosts
from elastic.core.membership.decision import FormGeneration, Reason, WaitDecision
from elastic.core.membership.next_generation import form
from elastic.core.membership.opening import with_go
from elastic.core.membership.rule import Rule
from elastic.core.membership.settling import expected_nodes, settling_wait
from elastic.core.membership.situation import Situation
from elastic.core.text import n_of_m


def missing(s: Situation) -> WaitDecision | None:
    """Wait until the number of nodes that the first start needs is here."""
    here, need = len(s.joining_nodes), s.spec.np.first
    if here >= need:
        return None
    more = listed_hosts.missing_hosts_text(s.spec.ips, s.hosts(s.joining_nodes), need - here)
    return s.wait(Reason.MISSING, f"{n_of_m(here, need)} here; waiting for {more}")


def settling(s: Situation) -> WaitDecision | None:
    """Wait for other nodes until the join window ends, or np's maximum of nodes is here."""
    return settling_wait(s, _expected(s))


def formed(s: Situation) -> FormGeneration:
    """Form the first generation and start it at once: no node can run an older one."""
    reason = f"{n_of_m(len(s.joining_nodes), _expected(s))} here"
    return with_go(s, form(s, Reason.FORMED, reason, []))


def _expected(s: Situation) -> int:
    return expected_nodes(s, max(len(s.joining_nodes), s.memory.size_before))


FIRST_START: Final[tuple[Rule, ...]] = (missing, settling, formed)
