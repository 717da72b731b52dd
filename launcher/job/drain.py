"""The order to drain nodes of a job."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import Final

from elastic._text import counted
from elastic.core.agent.state import DEADLINE_SPARE_S
from elastic.core.transactions import Transaction
from elastic.core.view import StoreView
from elastic.errors import ConfigError
from launcher.job import orders
from launcher.job.named_job import NamedJob
from launcher.job.submit import OrderRejected, ended, operator, submit
from launcher.text.sanitize import sanitize_line

DEADLINE_MIN_S: Final = DEADLINE_SPARE_S + 1.0
"""Of a shorter one nothing would be left for the workers."""


async def drain(job: NamedJob, targets: Sequence[str], deadline_s: float | None) -> tuple[str, list[str]]:
    """Give the order; the line that says what follows, and the nodes that were told to leave.

    Raises `ConfigError`, and what `submit` raises.
    """
    view = await job.view()
    if view.verdict is not None:
        raise OrderRejected(ended(job, view))
    nodes = chosen(view, targets)
    reason = f"elastic-ctl drain by {operator()}"
    leaving: list[str] = []
    for at in range(0, len(nodes), orders.LEAVING_MAX):
        view, some = await _submit_drain(job, nodes[at : at + orders.LEAVING_MAX], reason, deadline_s)
        leaving += some
    if not leaving:
        return f"{job.job_id}: {', '.join(map(sanitize_line, nodes))} left meanwhile", []
    left = len(set(view.members) - set(leaving))
    low = view.spec.value.np.low if view.spec is not None else 1
    holds = f"; {counted(left, 'node')} left, fewer than the {low} that may run: the job holds until others come"
    whom = f"{', '.join(map(sanitize_line, leaving))} {'is' if len(leaving) == 1 else 'are'}"
    return f"{job.job_id}: {whom} told to leave{holds if left < low else ''}", leaving


async def _submit_drain(
    job: NamedJob, nodes: Sequence[str], reason: str, deadline_s: float | None
) -> tuple[StoreView, list[str]]:
    """Tell those that are still there, all in one transaction, so that the world changes once; the view, and whom."""

    def present(view: StoreView) -> list[str]:
        return [node for node in nodes if node in view.members]

    def order(view: StoreView) -> Transaction | None:
        if view.verdict is not None or not present(view):
            return None
        return orders.order_drain(job.keys, view, present(view), reason, deadline_s, round(time.time(), 3))

    view, written = await submit(job, order, lambda view: f"elastic-ctl drain {' '.join(present(view))}")
    return view, present(view) if written else []


def chosen(view: StoreView, targets: Sequence[str]) -> list[str]:
    """The members that these words name: node ids, M_ids, hosts. Raises `ConfigError` for one that names none."""
    generation = view.generation.value if view.generation is not None else None
    nodes: dict[str, None] = {}
    for target in targets:
        hosts = [node for node, stored in view.members.items() if stored.value.host == target]
        if target in view.members:
            nodes[target] = None
        elif _M_ID.fullmatch(target) and generation is not None and int(target) < len(generation.members):
            node = generation.members[int(target)].node
            if node not in view.members:
                raise ConfigError(f"M_id {target} is {node}, which is not registered any more")
            nodes[node] = None
        elif hosts:
            nodes.update(dict.fromkeys(hosts))
        else:
            known = ", ".join(view.members) or "none is registered"
            raise ConfigError(f"{target!r} is no node, M_id or host of this job; its nodes: {known}")
    return list(nodes)


_M_ID: Final = re.compile(r"[0-9]{1,9}")
