"""A job as it stands: what the store says, and what the nodes themselves say when they are asked."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

import msgspec

from elastic.core.view import StoreView
from launcher.job import process_location, status
from launcher.job.inspect_client import ask_all
from launcher.job.named_job import NamedJob
from launcher.wire.inspect_messages import NodeSnapshot

ASK_LIMIT_S: Final = 1.0
"""So long all nodes together may take to answer."""


class JobOverview(msgspec.Struct, frozen=True, kw_only=True):
    """`snapshots` are what the nodes say of themselves, by node. `unreachable` says of the others why there are none.

    `asked_at` is the wall clock when they were asked, from which the ages in their words count.
    """

    status: status.JobStatus
    snapshots: Mapping[str, NodeSnapshot]
    unreachable: Mapping[str, str]
    asked_at: float

    @property
    def as_json(self) -> dict[str, object]:
        """As one JSON object: the fields of the status, then `windows` and `unasked`."""
        found: dict[str, object] = msgspec.to_builtins(self.status)
        return {**found, "windows": msgspec.to_builtins(self.snapshots), "unasked": dict(self.unreachable)}


async def overview_of(job: NamedJob, view: StoreView) -> JobOverview:
    """What was read of the job, and what every registered node says.

    A job that has ended has nobody to ask, and torchrun's nodes answer nobody.
    """
    described, asked_at = status.describe(view, job.job_id), time.time()
    nobody_answers = view.verdict is not None or process_location.elsewhere(view)
    members = {node: stored.value for node, stored in view.members.items() if not nobody_answers}
    secret = view.secret.value if view.secret is not None else None
    snapshots, unreachable = await ask_all(job.job_id, secret, members, ASK_LIMIT_S)
    return JobOverview(status=described, snapshots=snapshots, unreachable=unreachable, asked_at=asked_at)
