"""The rules for a generation that has no member left: start again with the nodes that are here (pure)."""

from __future__ import annotations

from typing import Final

from elastic.core import listed_hosts
from elastic.core.membership.decision import Decision, FormGeneration, Reason, WaitDecision
from elastic.core.membership.next_generation import form
from elastic.core.membership.rule import Rule, first_decision
from elastic.core.membership.settling import expected_nodes, settling_wait
from elastic.core.membership.situation import Situation, Stage
from elastic.core.model import OutcomeKind
from elastic.core.text import join_names, required_text


def nobody_left(s: Situation) -> Decision | None:
    """No member of the newest generation can continue: the rules of `REFORM` decide."""
    ended = s.lost or s.ended(OutcomeKind.FAILED) or s.ended(OutcomeKind.STOPPED)
    if s.staying or not (s.stage is Stage.GATE or ended):
        return None
    return first_decision(REFORM, s)[1]


def emptied(s: Situation) -> FormGeneration | None:
    """No node is here: publish an empty generation, which makes all nodes stop."""
    if s.joining_nodes or not s.nodes:
        return None
    return form(s, Reason.EMPTIED, _who_left(s), [], lost=_lost(s))


def missing(s: Situation) -> WaitDecision | None:
    """Wait until a node is here."""
    if s.joining_nodes:
        return None
    return s.wait(Reason.MISSING, "no node is available; waiting for nodes to join")


def below_min(s: Situation) -> WaitDecision | None:
    """Wait until np's minimum of nodes is here."""
    here, low, ips = len(s.joining_nodes), s.spec.np.low, s.spec.ips
    if here >= low:
        return None
    more = listed_hosts.missing_hosts_text(ips, s.hosts(s.joining_nodes), low - here) if ips else "more"
    return s.wait(Reason.BELOW_MIN, f"{required_text(here, low)}; waiting for {more}")


def settling(s: Situation) -> WaitDecision | None:
    """Wait for other nodes until the join window ends, or as many nodes are here as ran before."""
    return settling_wait(s, expected_nodes(s, len(s.nodes)))


def reformed(s: Situation) -> FormGeneration:
    """Form the next generation from the nodes that are here."""
    return form(s, Reason.REFORMED, _who_left(s), [], lost=_lost(s))


def _who_left(s: Situation) -> str:
    if s.stage is Stage.GATE:
        return f"{join_names(s.nodes)} left before the start" if s.nodes else "this generation has no nodes"
    left = s.lost or s.ended(OutcomeKind.FAILED) or s.ended(OutcomeKind.STOPPED)
    return f"{join_names(left)} left; no node of this generation remains"


def _lost(s: Situation) -> list[str]:
    return s.lost if s.stage is Stage.RUNNING else []


REFORM: Final[tuple[Rule, ...]] = (emptied, missing, below_min, settling, reformed)
