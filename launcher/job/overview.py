"""The current state of a job, from the store and from the agents of its nodes."""

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
"""Time limit for the answers of all nodes together."""


class JobOverview(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a job, with `snapshots` by node; `unreachable` says why the other nodes have none.

    `asked_at` is the wall-clock time of the queries, to which the ages in the snapshots refer.
    """

    status: status.JobStatus
    snapshots: Mapping[str, NodeSnapshot]
    unreachable: Mapping[str, str]
    asked_at: float

    @property
    def as_json(self) -> dict[str, object]:
        """One JSON object: the fields of the status, then `snapshots` and `unreachable`, both by node."""
        fields: dict[str, object] = msgspec.to_builtins(self.status)
        return {**fields, "snapshots": msgspec.to_builtins(self.snapshots), "unreachable": dict(self.unreachable)}


async def overview_of(job: NamedJob, view: StoreView) -> JobOverview:
    """Combine the view of a job with the answers of every registered node.

    A job that has ended has no nodes to query, and torchrun's nodes have no status endpoint.
    """
    described, asked_at = status.describe(view, job.job_id), time.time()
    nobody_answers = view.verdict is not None or process_location.elsewhere(view)
    members = {node: stored.value for node, stored in view.members.items() if not nobody_answers}
    secret = view.secret.value if view.secret is not None else None
    snapshots, unreachable = await ask_all(job.job_id, secret, members, ASK_LIMIT_S)
    return JobOverview(status=described, snapshots=snapshots, unreachable=unreachable, asked_at=asked_at)
