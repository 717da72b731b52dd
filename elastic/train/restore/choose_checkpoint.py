"""The agreement of all ranks on a checkpoint on disk (pure).

Every rank reports what it can read. The newest checkpoint that any rank can read wins. If the job has recorded a newer
one that no rank can read, that is an error, because training must never silently start from scratch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

import msgspec

from elastic.errors import CheckpointDamaged, CheckpointError, RestoreUnrecoverable
from elastic.train.checkpoint import manifest


class KnownCheckpoint(msgspec.Struct, frozen=True):
    """The newest committed checkpoint that the job has recorded, and the host that wrote it."""

    step: int
    host: str
    folder: str


class DamagedCheckpoint(msgspec.Struct, frozen=True, array_like=True):
    """A checkpoint that cannot be used, by the name of its directory, and the reason."""

    name: str
    why: str

    def __str__(self) -> str:
        """Return it for a message."""
        return f"{self.name}: {self.why}"


class RestoreReport(msgspec.Struct, frozen=True, kw_only=True):
    """The report of a rank before any rank reads: its directory, the checkpoints in it, and what the job has recorded.

    `token` is the fencing token of the directory: ranks that see the same token share their directory. `seen` are the
    names of the checkpoints that can be tried; `damaged` are those that cannot; `transient`: one of them may be
    readable after a restart. `error` is why the rank cannot take part.
    """

    host: str
    folder: str
    token: str = ""
    seen: tuple[str, ...] = ()
    damaged: tuple[DamagedCheckpoint, ...] = ()
    transient: bool = False
    known: KnownCheckpoint | None = None
    error: str = ""


def choices(reports: Sequence[RestoreReport]) -> list[str]:
    """Return the names of the checkpoints that any rank sees, the newest first."""
    return sorted({name for report in reports for name in report.seen}, key=manifest.age, reverse=True)


def known(reports: Sequence[RestoreReport]) -> KnownCheckpoint | None:
    """Return the newest recorded checkpoint that any rank knows."""
    checkpoints = [report.known for report in reports if report.known is not None]
    return max(checkpoints, key=lambda checkpoint: checkpoint.step, default=None)


def excluding_set_aside(reports: Sequence[RestoreReport], aside: Collection[str]) -> list[RestoreReport]:
    """Return the reports without recorded checkpoints whose directories were set aside."""
    return [
        msgspec.structs.replace(report, known=None)
        if report.known is not None and Path(report.known.folder).name in aside
        else report
        for report in reports
    ]


def problem(reports: Sequence[RestoreReport]) -> str:
    """Return why a rank cannot take part; "" if all can."""
    return next((f"rank {rank}: {report.error}" for rank, report in enumerate(reports) if report.error), "")


def check_newest(
    newest: int,
    reports: Sequence[RestoreReport],
    *,
    allow_rollback: bool,
    damaged: Iterable[DamagedCheckpoint] = (),
    transient: bool = False,
) -> str:
    """Check that `newest` is not older than what the job has committed; return a warning if a rollback is allowed.

    `newest` is the newest step that can be read, -1 for none; `damaged` are further checkpoints that could not be read;
    `transient`: one of them may be readable after a restart. Raises `RestoreUnrecoverable` if `newest` is older than
    the newest committed step, or all checkpoints are damaged, and a rollback is not allowed. Raises `CheckpointError`
    instead if a restart may find more: a disk fails, or a host is unavailable.
    """
    committed = known(reports)
    bad = _unreadable(reports, damaged)
    transient = transient or any(report.transient for report in reports)
    if committed is None or newest >= committed.step:
        if newest >= 0 or not bad:
            return ""
        nothing = f"no checkpoint in {reports[0].folder} can be read ({_join_damaged(bad)})"
        if allow_rollback:
            return f"{nothing} (--allow-rollback)"
        raise (CheckpointDamaged if transient else RestoreUnrecoverable)(
            f"{nothing}; restore one, or start from scratch with --allow-rollback"
        )
    best = f"the newest that can be read is step {newest}" if newest >= 0 else "no checkpoint can be read"
    where = f"step {committed.step} was committed on {committed.host} in {committed.folder}, but {best}"
    if allow_rollback:
        return f"{where}{'; rolling back to it' if newest >= 0 else ''} (--allow-rollback)"
    folders = ", ".join(sorted({f"{report.host}:{report.folder}" for report in reports}))
    wanted = [checkpoint for checkpoint in bad if _age(checkpoint)[0] >= committed.step]
    hint = f"{_join_damaged(wanted)}; repair it" if wanted else f"restart {committed.host} or mount its directory here"
    away = committed.host not in {report.host for report in reports}
    raise (CheckpointError if transient or away else RestoreUnrecoverable)(
        f"{where} ({folders}); {hint}, or roll back with --allow-rollback"
    )


def skipped_text(taken: str, reports: Sequence[RestoreReport], damaged: Iterable[DamagedCheckpoint]) -> str:
    """Return the text about damaged checkpoints that are newer than `taken`; "" if there are none."""
    newer = [checkpoint for checkpoint in _unreadable(reports, damaged) if _age(checkpoint) > manifest.age(taken)]
    return f"; skipped {_join_damaged(newer)}" if newer else ""


def _unreadable(reports: Sequence[RestoreReport], damaged: Iterable[DamagedCheckpoint]) -> list[DamagedCheckpoint]:
    """Return all damaged checkpoints, the newest first."""
    both = {*damaged, *(checkpoint for report in reports for checkpoint in report.damaged)}
    return sorted(both, key=lambda checkpoint: (_age(checkpoint), checkpoint.why), reverse=True)


def _age(checkpoint: DamagedCheckpoint) -> tuple[int, int]:
    return manifest.age(checkpoint.name)


def _join_damaged(damaged: Iterable[DamagedCheckpoint]) -> str:
    return "; ".join(map(str, damaged))


def other_parts(origin: str, own: Iterable[str], saved: Iterable[str]) -> str:
    """Return a warning about components that only the script or only `origin` has; "" if there are none.

    A component with a new name would otherwise silently start with its initial state.
    """
    ours, theirs = set(own), set(saved)
    lines = []
    if new := ", ".join(sorted(ours - theirs)):
        lines.append(f"{origin} has no component {new}, which starts with its initial state")
    if gone := ", ".join(sorted(theirs - ours)):
        lines.append(f"component {gone} of {origin} is not in this elastic.State and is ignored")
    return "; ".join(lines)
