"""How a job ends: the rules for its completion, and the decisions that end it (pure)."""

from __future__ import annotations

from elastic.core.membership.decision import ConcludeJob, Reason
from elastic.core.membership.situation import Situation, all_completed
from elastic.core.model import Cause, FinalStatus


def completed(s: Situation) -> ConcludeJob | None:
    """The workers of every member ended with exit code 0: the job is completed."""
    return completed_by(s, s.current.g) if all_completed(s.nodes, s.outcomes) else None


def completed_before(s: Situation) -> ConcludeJob | None:
    """The workers of every member of the generation before ended with exit code 0: the job is completed."""
    before = s.previous
    return completed_by(s, before.g) if before and all_completed(before.nodes, s.previous_outcomes) else None


def completed_by(s: Situation, g: int) -> ConcludeJob:
    """The job is completed by generation g."""
    return _conclude(
        s, Reason.COMPLETED, FinalStatus.COMPLETED, g, f"every worker of generation {g} ended with exit code 0"
    )


def failed_by(s: Situation, g: int, reason: str, cause: Cause | None) -> ConcludeJob:
    """The job has failed because no restart is left, or because the error is permanent."""
    return _conclude(s, Reason.EXHAUSTED, FinalStatus.FAILED, g, reason, cause)


def stopped_by(s: Situation, reason: str) -> ConcludeJob:
    """An operator has ended the job."""
    g = s.generation.g if s.generation is not None else 0
    return _conclude(s, Reason.HALTED, FinalStatus.STOPPED, g, reason)


def _conclude(
    s: Situation, code: Reason, status: FinalStatus, g: int, reason: str, cause: Cause | None = None
) -> ConcludeJob:
    return ConcludeJob(code, reason, status, s.spec.run, g, cause)
