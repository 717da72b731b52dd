"""How all ranks agree which checkpoint they go on from (pure).

Every rank says what it can read. The newest that any of them can read wins; one that nobody can read although the job
knows of it is an error, because training must never start over in silence.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

import msgspec

from elastic.errors import CheckpointDamaged, CheckpointError, RestoreUnrecoverable
from elastic.train.checkpoint import manifest


class KnownCheckpoint(msgspec.Struct, frozen=True):
    """The newest committed checkpoint that the job knows of, and who has it."""

    step: int
    host: str
    folder: str


class DamagedCheckpoint(msgspec.Struct, frozen=True, array_like=True):
    """One checkpoint that cannot be taken, by its folder's name, and why."""

    name: str
    why: str

    def __str__(self) -> str:
        """As people read it."""
        return f"{self.name}: {self.why}"


class RestoreReport(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank says before anybody reads: where it looks, what lies there, and what it was told.

    `token` is the folder's claim as this rank sees it: ranks with the same one share their folder. `seen` are the
    checkpoints that can be tried, by the names of their folders. `damaged` are those
    that lie there and cannot be tried, `transient` says that another start may find one of them whole. `error` is why
    it cannot take part.
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
    """What could be restored from disk, by the names of the checkpoints, the newest first."""
    return sorted({name for report in reports for name in report.seen}, key=manifest.age, reverse=True)


def known(reports: Sequence[RestoreReport]) -> KnownCheckpoint | None:
    """The newest checkpoint that any rank was told of."""
    found = [report.known for report in reports if report.known is not None]
    return max(found, key=lambda one: one.step, default=None)


def excluding_set_aside(reports: Sequence[RestoreReport], aside: Collection[str]) -> list[RestoreReport]:
    """The reports without what is known of checkpoints that were set aside, by the names of their folders."""
    return [
        msgspec.structs.replace(report, known=None)
        if report.known is not None and Path(report.known.folder).name in aside
        else report
        for report in reports
    ]


def trouble(reports: Sequence[RestoreReport]) -> str:
    """Why some rank cannot take part; "" if all can."""
    return next((f"rank {rank}: {report.error}" for rank, report in enumerate(reports) if report.error), "")


def check_newest(
    newest: int,
    reports: Sequence[RestoreReport],
    *,
    allow_rollback: bool,
    damaged: Iterable[DamagedCheckpoint] = (),
    transient: bool = False,
) -> str:
    """A line that says what is given up, "" if nothing is.

    `newest` is the step that can be read, -1 for none; `damaged` are checkpoints that turned out to be so when they
    were read; `transient` says that another start may read one of them. Raises `RestoreUnrecoverable` if `newest` is
    older than what the job has committed, or there is nothing but damaged ones, and that was not allowed;
    `CheckpointError` instead where another start may find more: a disk that fails, or a host that is away.
    """
    committed = known(reports)
    bad = _unreadable(reports, damaged)
    transient = transient or any(report.transient for report in reports)
    if committed is None or newest >= committed.step:
        if newest >= 0 or not bad:
            return ""
        nothing = f"no checkpoint in {reports[0].folder} can be read ({_join_damaged(bad)})"
        if allow_rollback:
            return f"{nothing} (--allow_rollback)"
        raise (CheckpointDamaged if transient else RestoreUnrecoverable)(
            f"{nothing}; bring one back, or start over with --allow_rollback"
        )
    best = f"the newest that can be read is step {newest}" if newest >= 0 else "nothing can be read"
    where = f"step {committed.step} was committed on {committed.host} in {committed.folder}, and {best}"
    if allow_rollback:
        return f"{where}{'; going on from there' if newest >= 0 else ''} (--allow_rollback)"
    folders = ", ".join(sorted({f"{report.host}:{report.folder}" for report in reports}))
    wanted = [checkpoint for checkpoint in bad if _age(checkpoint)[0] >= committed.step]
    hint = f"{_join_damaged(wanted)}; mend that" if wanted else f"bring {committed.host} back or mount its folder here"
    away = committed.host not in {report.host for report in reports}
    raise (CheckpointError if transient or away else RestoreUnrecoverable)(
        f"{where} ({folders}); {hint}, or accept the loss with --allow_rollback"
    )


def skipped_text(taken: str, reports: Sequence[RestoreReport], damaged: Iterable[DamagedCheckpoint]) -> str:
    """What to say of those newer than the checkpoint that is taken instead; "" if there are none."""
    newer = [checkpoint for checkpoint in _unreadable(reports, damaged) if _age(checkpoint) > manifest.age(taken)]
    return f"; skipped {_join_damaged(newer)}" if newer else ""


def _unreadable(reports: Sequence[RestoreReport], damaged: Iterable[DamagedCheckpoint]) -> list[DamagedCheckpoint]:
    """All that cannot be taken, the newest first: what ranks saw, and what they found reading."""
    both = {*damaged, *(checkpoint for report in reports for checkpoint in report.damaged)}
    return sorted(both, key=lambda checkpoint: (_age(checkpoint), checkpoint.why), reverse=True)


def _age(checkpoint: DamagedCheckpoint) -> tuple[int, int]:
    return manifest.age(checkpoint.name)


def _join_damaged(damaged: Iterable[DamagedCheckpoint]) -> str:
    return "; ".join(map(str, damaged))


def other_parts(origin: str, own: Iterable[str], saved: Iterable[str]) -> str:
    """A line about parts that only the script or only `origin` has; "" if there are none.

    A part with a new name would otherwise start anew in silence.
    """
    ours, theirs = set(own), set(saved)
    said = []
    if new := ", ".join(sorted(ours - theirs)):
        said.append(f"{origin} has no part {new}, which starts as it is in the script")
    if gone := ", ".join(sorted(theirs - ours)):
        said.append(f"part {gone} of {origin} is not in this elastic.State and is left out")
    return "; ".join(said)
