"""A node that asks to join a job, and what it does."""

from __future__ import annotations

from typing import Any

from elastic.core.admission import AdmissionPlan, Applicant, NodeIdentity, join
from elastic.core.model import JobSpec
from launcher.config.readers import np as read_np
from tests.support.job_specs import with_fields
from tests.support.job_transcript import member
from tests.support.store_fixture import Shelf
from tests.support.strategies import KEYS

STORED = JobSpec(np=read_np("1:4"), slots=2)


def me(*, force: bool = False, rerun: bool = False, allow_mismatch: bool = False, **spec: Any) -> NodeIdentity:
    """A node whose command line gives the job's settings, but for these."""
    mine = with_fields(STORED, **spec)
    return NodeIdentity(
        "d", member(slots=mine.slots), mine, "i9", force=force, rerun=rerun, allow_mismatch=allow_mismatch
    )


def a_job(*members: str, spec: JobSpec = STORED) -> Shelf:
    """A job with this spec and these members."""
    shelf = Shelf(KEYS)
    shelf.put(KEYS.incarnation, "i1")
    shelf.put(KEYS.spec, spec)
    for node in members:
        shelf.put(KEYS.member(node), member(), leased=True)
    return shelf


def plan(
    shelf: Shelf, node: NodeIdentity, somebody_lives: bool | None, *, again: bool = False, fresh: bool = False
) -> AdmissionPlan:
    """What the node does, given what it sees."""
    lease = shelf.core.grant(5.0, 0.0).id
    return join(Applicant(KEYS, shelf.view, node, "i9-1", lease, somebody_lives, again=again, fresh=fresh))
