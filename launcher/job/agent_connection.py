"""The connection to the agent that has a process of a job."""

from __future__ import annotations

from elastic.core.ps.model import Role
from launcher.job import process_location
from launcher.job.inspect_client import InspectClient, InspectError
from launcher.job.named_job import NamedJob


async def node_of(job: NamedJob, role: Role, index: int, ended: str) -> InspectClient:
    """Whom to ask for a process that runs; `ended` says what follows for it from the end of the job.

    Raises `InspectError`, `NoSuchJob`, `StoreError`.
    """
    view = await job.view()
    if why := process_location.elsewhere(view):
        raise InspectError(why)
    if view.verdict is not None:
        raise InspectError(f"the job has {view.verdict.value.status}: no worker runs, and {ended}")
    location = process_location.locate(view, role, index)
    if location is None:
        raise InspectError(process_location.why_absent(view, role, index))
    stored = view.members.get(location.node)
    if stored is None:
        raise InspectError(f"node {location.node} of host {location.host} is not registered any more")
    secret = view.secret.value if view.secret is not None else None
    return InspectClient(job.job_id, secret, location.node, stored.value)
