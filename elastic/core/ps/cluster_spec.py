"""The rules of a parameter-server job: which node has which task, revision by revision (pure).

A generation of such a job is not replaced when its members change. It gets another revision: a node that keeps its
tasks is not disturbed, because workers talk to servers and not to each other. The rules, in their order:

1. There is no generation yet: wait until every server and enough nodes with workers are here, then form one.
2. Every worker in the cluster spec ended well: the job is completed, whatever its servers do.
3. No node of the cluster spec is here: form the next generation as soon as there are servers and workers again.
4. A lost node leaves the cluster spec. A node whose processes failed or were stopped gets its tasks again, in a new
   start that counts against the budget (`elastic.core.ps.restart`). Servers that had ended well start again with the
   workers that start.
5. A node that drains, or is no longer needed, is asked to leave; it keeps its tasks until it has stopped. The tasks
   of a lost node stay assigned for the length of a lease: the node is not registered, but its lease may have been
   revoked, and then it may still run for that long.
6. A free server is assigned to the oldest node that can run it; new nodes get workers up to np's maximum. No node joins
   once a worker has ended well.

Two nodes never have the same task: the run deadline in such a job is never later than the end of the lease
(`elastic.core.agent.links`). A link that shows a death ends that node's lease, but frees no task, because it can be
wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from elastic.core import operator_stop
from elastic.core.membership.conclusion import completed_by
from elastic.core.membership.decision import ConcludeJob, Decision, FormGeneration, Reason, WaitDecision
from elastic.core.membership.next_generation import successor
from elastic.core.membership.opening import OPENING, with_go
from elastic.core.membership.rule import Rule
from elastic.core.membership.settling import expected_nodes, settled_at
from elastic.core.membership.situation import Situation, Stage
from elastic.core.model import ChangeReason, OutcomeKind
from elastic.core.ps.model import ClusterSpec, PsLayout, TaskMember
from elastic.core.ps.presence import (
    UNLIMITED,
    candidates_outside,
    current_outcomes,
    ended_with,
    is_present,
    layout_of,
    newest,
    tasks_free_at,
)
from elastic.core.ps.revision import RevisionBuilder
from elastic.core.ps.task_placement import assign, has_servers, has_workers, host_of, in_order, vacant_servers
from elastic.core.ps.text import in_words, servers_in_words
from elastic.core.text import COUNTED, join_names, n_of_m, settling_text
from elastic.core.view import StoreView


def formed(s: Situation) -> Decision:
    """There is no generation yet: form the first one and start it at once when enough nodes are here."""
    first = assemble(Assembly(s, s.spec.np.first, Reason.FORMED, ChangeReason.FIRST))
    return with_go(s, first) if isinstance(first, FormGeneration) else first


def completed(s: Situation) -> ConcludeJob | None:
    """Every worker ended with exit code 0: the job is completed, whatever its servers do."""
    at_work = [member for member in newest(s).members if has_workers(member) and not member.leaving]
    done = bool(at_work) and all(ended_with(current_outcomes(s), member, OutcomeKind.OK) for member in at_work)
    return completed_by(s, s.current.g) if done else None


def reformed(s: Situation) -> Decision | None:
    """No node of the cluster spec is here: form the next generation when enough nodes are here."""
    if any_member_present(s):
        return None
    gone = f"{join_names(s.nodes)} left; no node of this cluster spec remains"
    return assemble(Assembly(s, s.spec.np.low, Reason.REFORMED, ChangeReason.REFORMED, gone))


def revised(s: Situation) -> Decision:
    """Revise the cluster spec for nodes that left, failed, drain or join, or wait."""
    return RevisionBuilder(s).decision()


def gate_reformed(s: Situation) -> Decision | None:
    """No node of the cluster spec is here, or it has fewer workers than are wanted: form the next generation."""
    low = s.spec.np.low
    if not any_member_present(s):
        gone = f"{join_names(s.nodes)} left before the start"
    elif layout_of(s).separate and sum(map(has_workers, newest(s).members)) < low:
        gone = f"workers on {low} nodes were wanted before the start"
    else:
        return None
    return assemble(Assembly(s, low, Reason.REFORMED, ChangeReason.REFORMED, gone, staying_at_gate(s)))


def stopping(s: Situation) -> WaitDecision | None:
    """A node of the generation before is present and still has processes: wait until it has stopped them."""
    busy = [node for node in _unfinished(s) if node in s.view.members]
    return s.wait(Reason.STOPPING, f"waiting for {join_names(busy)} to stop the old processes") if busy else None


def unproven(s: Situation) -> WaitDecision | None:
    """A node of the generation before is gone and may run until its lease ends: wait until then."""
    freed_at = max((tasks_free_at(s, node) for node in _unfinished(s)), default=s.now)
    if s.now >= freed_at:
        return None
    text = f"{join_names(_unfinished(s))} disappeared and may still run for {COUNTED}"
    return s.wait(Reason.UNPROVEN, text, freed_at)


def concluded(s: Situation) -> ConcludeJob | None:
    """The job completed or failed before the order to stop it."""
    decision = completed(s) or reformed(s) or revised(s)
    return decision if isinstance(decision, ConcludeJob) else None


PS_FIRST_START: Final[tuple[Rule, ...]] = (formed,)
PS_RUNNING: Final[tuple[Rule, ...]] = (completed, reformed, revised)
PS_GATE: Final[tuple[Rule, ...]] = (gate_reformed, stopping, unproven, *OPENING)
PS_STOP: Final[dict[Stage, tuple[Rule, ...]]] = {
    **operator_stop.STOP,
    Stage.RUNNING: (concluded, operator_stop.halted),
}
"""The rules of `STOP`, but a running job does not wait for lost nodes: a node with tasks continues without the others,
and can save."""


def any_member_present(s: Situation) -> bool:
    """Return whether any node of the newest cluster spec is present."""
    return any(is_present(s, node) for node in s.nodes)


def staying_at_gate(s: Situation) -> frozenset[str]:
    """The nodes of a cluster spec at its gate that can be in the next generation."""
    return frozenset(node for node in s.nodes if is_present(s, node) and not s.is_draining(node))


def _unfinished(s: Situation) -> list[str]:
    """The nodes of the generation before that have not recorded the end of their last start."""
    before = s.previous
    if before is None:
        return []
    last_start = dict(zip(before.nodes, before.since, strict=False))
    ends = {node: s.outcome(before.g, node) for node in before.nodes}
    over = {node for node, end in ends.items() if end is not None and end.over and end.since >= last_start.get(node, 0)}
    return [node for node in before.nodes if node not in over]


def vanished(view: StoreView, cluster_spec: ClusterSpec) -> list[str]:
    """Return unregistered nodes that may still run their tasks; a proof of their death frees these tasks."""
    found = []
    for member in cluster_spec.members:
        stored = view.outcomes.get((cluster_spec.g, member.node))
        end = stored.value if stored is not None and stored.value.since == member.since else None
        said = end is not None and (end.over or (end.ended is OutcomeKind.OK and not has_servers(member)))
        if member.tasks and member.node not in view.members and not said:
            found.append(member.node)
    return found


@dataclass(frozen=True)
class Assembly:
    """A new generation of the nodes that are here: nodes outside the old one, and those that `stay`.

    `need`: the number of nodes with workers that it must have. `gone`: why the old generation ended, in words.
    """

    s: Situation
    need: int
    code: Reason
    why: ChangeReason
    gone: str = ""
    stay: Collection[str] = ()

    @property
    def layout(self) -> PsLayout:
        """The layout of the job's processes."""
        return layout_of(self.s)

    @cached_property
    def members(self) -> list[TaskMember]:
        """The nodes with their tasks."""
        candidates = candidates_outside(self.s, frozenset(), self.stay)
        return assign(self.layout, (), candidates, self.s.spec.np.high if self.layout.separate else UNLIMITED, 0)

    @property
    def workers(self) -> int:
        """The number of members with workers."""
        return sum(map(has_workers, self.members))


def assemble(assembly: Assembly) -> Decision:
    """Form a generation, or wait: the rules of `ASSEMBLY`."""
    return next(decision for rule in ASSEMBLY if (decision := rule(assembly)) is not None)


def servers_missing(it: Assembly) -> WaitDecision | None:
    """Wait until there is a node for every server."""
    vacant = vacant_servers(it.layout, it.members)
    return it.s.wait(Reason.MISSING, f"waiting for {servers_in_words(it.layout, vacant)}") if vacant else None


def workers_missing(it: Assembly) -> WaitDecision | None:
    """Wait until the required number of nodes with workers is here."""
    if not it.layout.separate or it.workers >= it.need:
        return None
    text = f"{n_of_m(it.workers, it.need)} here for workers; waiting for {it.need - it.workers} more"
    return it.s.wait(Reason.MISSING, text)


def hosts_missing(it: Assembly) -> WaitDecision | None:
    """Wait for the hosts that the command line lists: for all of them at the first start, later for one."""
    if it.layout.separate:
        return None
    present = {member.host for member in it.members}
    hosts = dict.fromkeys(host_of(endpoint) for endpoint in (*it.layout.workers, *it.layout.heters))
    missing = [host for host in hosts if host not in present]
    if missing and (it.need > 1 or len(missing) == len(hosts)):
        return it.s.wait(Reason.MISSING, f"waiting for {', '.join(missing)}")
    return None if it.members else it.s.wait(Reason.MISSING, "waiting for a node")


def settling(it: Assembly) -> WaitDecision | None:
    """Wait for other nodes until the join window ends, or the expected number of nodes is here."""
    s = it.s
    before = sum(map(has_workers, newest(s).members)) if s.generation is not None else 0
    until, expected = settled_at(s, [member.node for member in it.members]), expected_nodes(s, before)
    if not it.layout.separate or it.workers >= expected or s.now >= until:
        return None
    return s.wait(Reason.SETTLING, settling_text(it.workers, expected), until)


def assembled(it: Assembly) -> FormGeneration:
    """Every server and enough workers are here: form the generation."""
    reason = it.gone or f"{in_words(it.layout, it.members)} are here"
    return FormGeneration(it.code, reason, successor(it.s, in_order(it.members), it.why, reason))


ASSEMBLY: Final[Sequence[Callable[[Assembly], Decision | None]]] = (
    servers_missing, workers_missing, hosts_missing, settling, assembled,
)  # fmt: skip
