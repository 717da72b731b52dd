"""The order to change the number of nodes of a job."""

from __future__ import annotations

from elastic._text import counted
from elastic.core.model import Generation, Np
from elastic.core.transactions import Transaction
from elastic.core.view import StoreView
from elastic.errors import ConfigError
from launcher.job import orders
from launcher.job.named_job import NamedJob
from launcher.job.submit import OrderRejected, ended, submit


async def scale(job: NamedJob, wanted: Np) -> str:
    """Give the order; the line that says what follows. Raises `ConfigError`, and what `submit` raises."""

    def order(view: StoreView) -> Transaction | None:
        if view.verdict is not None:
            raise OrderRejected(ended(job, view))
        if view.spec is None:
            raise OrderRejected(f"{job.job_id} has no readable spec: start a node first")
        if unfit := orders.why_np_impossible(view.spec.value, wanted):
            raise ConfigError(unfit)
        return None if view.spec.value.np == wanted else orders.order_scale(job.keys, view, wanted)

    view, written = await submit(job, order, lambda view: f"elastic-ctl scale: {_becomes(view, wanted)}")
    assert view.spec is not None
    if not written:
        return f"{job.job_id}: --np is {wanted} already"
    return f"{job.job_id}: {_becomes(view, wanted)}; {_what_follows(view, wanted)}"


def _becomes(view: StoreView, np: Np) -> str:
    return f"--np {view.spec.value.np if view.spec is not None else '?'} becomes {np}"


def _what_follows(view: StoreView, np: Np) -> str:
    generation: Generation | None = view.generation.value if view.generation is not None else None
    inside = len(generation.members) if generation is not None else 0
    registered = len(view.members)
    run = counted(inside, "node runs", "nodes run")
    if np.high < inside:
        out = inside - np.high
        return f"{run}: {out} of them will leave the world and wait as {'a spare' if out == 1 else 'spares'}"
    if registered < np.low:
        until = f"holds until {counted(np.low - registered, 'more comes', 'more come')}"
        if inside and view.go is not None and generation is not None and view.go.value.g == generation.g:
            return f"it trains on with {inside}; after the next change it {until}"  # No world ends for want of others.
        return f"{counted(registered, 'node')} here: the job {until}"
    if registered > inside and np.high > inside:
        new = min(registered, np.high) - inside
        return f"{run}: {counted(new, 'that waits', 'that wait')} will be taken in"
    return f"{run}: that stays, until others come"
