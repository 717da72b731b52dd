"""The connection to the agent that has a process of a job."""

from __future__ import annotations

from elastic.core.model import Role
from launcher.job import placement
from launcher.job.inspect_client import Asking, Unasked
from launcher.job.job import Job


async def node_of(job: Job, role: Role, index: int, ended: str) -> Asking:
    """Whom to ask for a process that runs; `ended` says what follows for it from the end of the job.

    Raises `Unasked`, `NoSuchJob`, `StoreError`.
    """
    view = await job.view()
    if why := placement.elsewhere(view):
        raise Unasked(why)
    if view.verdict is not None:
        raise Unasked(f"the job has {view.verdict.value.status}: no worker runs, and {ended}")
    found = placement.where(view, role, index)
    if found is None:
        raise Unasked(placement.absent(view, role, index))
    stored = view.members.get(found.node)
    if stored is None:
        raise Unasked(f"node {found.node} of host {found.host} is not registered any more")
    secret = view.secret.value if view.secret is not None else None
    return Asking(job.job_id, secret, found.node, stored.value)
