"""Fencing of a checkpoint directory: only the newest generation may write.

Rules
-----
1. A generation claims the directory with its fencing token (the `mark`), `<incarnation>/<g>`, before its workers start.
   Claims are numbered directories, `fence/0000000012/`, each published atomically by a rename that fails if the number
   is taken. So one of two concurrent claims fails, reads the newest claim again, and may find that its own token is too
   old. The highest number is the valid claim.
2. A generation never claims after a higher one of the same incarnation. A suspended agent that resumes cannot reclaim
   the directory.
3. A claim lists the checkpoints that are valid at that time. From then on a checkpoint is valid only if it is in that
   list, has the token of that claim, or was not written by any owner of this directory: without elastic-launch, or by
   another job and then copied.
4. A save checks the claim before it writes, before it renames and after it has renamed.

Rule 3 makes this safe, not rule 4: a writer that is suspended between its last check and its rename leaves a directory
that no reader accepts, however late it appears. So there is no lock, and nothing waits for a dead holder.

On NFS this needs close-to-open consistency (the default): every check opens the directory again. A claim writes into
the directory before it lists it, so that the listing is current.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated

import msgspec

from elastic._decode import UNREADABLE
from elastic.errors import CheckpointDamaged, CheckpointError, CheckpointFenced
from elastic.train.checkpoint import atomic_files, manifest

FENCE = "fence"
CLAIM = "claim.json"
CLAIMS_KEPT = 8
"""Claims that stay on disk, for people. Only the newest one is valid."""
CLAIM_TRIES_MAX = 16
"""Attempts of a claim; each failed one means that another generation has claimed the directory meanwhile."""
ACCEPTED_MAX = 256
"""The largest number of checkpoints that a claim lists, the newest first."""
INCARNATIONS_MAX = 64
"""The largest number of owners that a claim lists. No writer is expected to outlive 64 empty etcds."""

_NUMBER = re.compile(r"\d{10,19}")
_MARK = re.compile(r"(?P<incarnation>[^/]{1,128})/(?P<g>\d{1,19})")


class FenceClaim(msgspec.Struct, frozen=True):
    """One claim on disk: the owner of the directory, and the valid checkpoints of earlier owners.

    `incarnations` are all owners of the directory so far, including this one, the newest last.
    """

    mark: Annotated[str, msgspec.Meta(pattern=rf"^{_MARK.pattern}\Z")]
    accepted: tuple[str, ...]
    incarnations: tuple[str, ...]

    def accepts(self, name: str, mark: str) -> bool:
        """Return whether a checkpoint is valid (rule 3), by its name and the fencing token in its meta.json."""
        return mark == self.mark or name in self.accepted or mark.rpartition("/")[0] not in self.incarnations


_claim = msgspec.json.Decoder(FenceClaim)


def claim(folder: Path, mark: str, marks: Callable[[], Iterable[tuple[str, str | None]]] | None = None) -> str:
    """Claim `folder`, which is created if it does not exist, for the generation with the fencing token `mark`.

    `marks` lists the existing checkpoints, the newest first: each with its name and fencing token, None if the token
    cannot be read. By default they are the checkpoints of `elastic.train.checkpoint` in `folder`.

    Returns the token of another job that has claimed the directory since this job did, otherwise "": two jobs with one
    directory take it from each other. Does nothing if the token is already the valid claim. Raises CheckpointFenced if
    a higher generation of the same incarnation owns the directory, and CheckpointError, with a fix, if the directory
    cannot be read or written.
    """
    incarnation, _ = _split(mark)
    fence = folder / FENCE
    taken_by = ""
    with atomic_files.as_checkpoint_error("claiming the checkpoint directory", folder):
        fence.mkdir(parents=True, exist_ok=True)
        for _ in range(CLAIM_TRIES_MAX):
            staged = atomic_files.staging(fence, ".claim-")
            try:
                number, standing = _newest(fence)
                if standing is not None and standing.mark == mark:
                    return taken_by
                if standing is not None and overtaken(mark, standing.mark):
                    raise CheckpointFenced(
                        f"{folder} already belongs to generation {standing.mark}, which is newer than {mark}"
                    )
                before = () if standing is None else tuple(i for i in standing.incarnations if i != incarnation)
                owners = (*before, incarnation)[-INCARNATIONS_MAX:]
                if standing is not None and incarnation in standing.incarnations[:-1]:
                    taken_by = standing.mark
                document = FenceClaim(mark, _accepted(marks() if marks else _marks(folder), standing), owners)
                atomic_files.write(staged / CLAIM, msgspec.json.encode(document))
                if atomic_files.publish(staged, fence / f"{number + 1:010d}"):
                    _prune(fence)
            finally:
                atomic_files.drop(staged)
    raise CheckpointError(f"claiming {folder} for {mark} failed: others claimed it {CLAIM_TRIES_MAX} times meanwhile")


def check(folder: Path, mark: str, setting: str = "--checkpoint-dir") -> None:
    """Raise CheckpointFenced, naming the owner of the directory, unless `mark` is its valid claim.

    `setting` is the flag or variable that names the directory.
    """
    standing = current(folder)
    if standing is None:
        raise CheckpointFenced(
            f"no generation has claimed {folder}, but this worker is of generation {mark}; "
            "the directory was emptied while the job ran, or is not the one that the launcher claimed"
        )
    if _split(standing.mark)[0] != _split(mark)[0]:
        raise CheckpointFenced(
            f"another job ({standing.mark}) has claimed {folder} since this one ({mark}) did; "
            f"use a separate {setting} for each job"
        )
    if standing.mark != mark:
        raise CheckpointFenced(
            f"{folder} belongs to generation {standing.mark}; "
            f"this worker is of generation {mark} and may not write there"
        )


def current(folder: Path) -> FenceClaim | None:
    """Read the valid claim; None if the directory was never claimed."""
    with atomic_files.as_checkpoint_error("reading the claim", folder):
        return _newest(folder / FENCE)[1]


def overtaken(mark: str, standing: str) -> bool:
    """Return whether the token `standing` is of a later generation of the same incarnation than `mark`."""
    (incarnation, g), (standing_incarnation, standing_g) = _split(mark), _split(standing)
    return standing_incarnation == incarnation and standing_g > g


def _split(mark: str) -> tuple[str, int]:
    match = _MARK.fullmatch(mark)
    if match is None:
        raise ValueError(f"{mark!r} is not a fencing token; write <incarnation>/<generation>")
    return match["incarnation"], int(match["g"])


def _newest(fence: Path) -> tuple[int, FenceClaim | None]:
    """Find the highest claim and its number; (0, None) if there is none. If a claim was pruned meanwhile, retry."""
    for _ in range(CLAIM_TRIES_MAX):
        numbers = _numbers(fence)
        if not numbers:
            return 0, None
        path = fence / f"{numbers[-1]:010d}" / CLAIM
        try:
            return numbers[-1], _claim.decode(path.read_bytes())
        except FileNotFoundError:
            continue
        except UNREADABLE as error:
            raise CheckpointError(f"{path} is damaged ({error}); remove {fence} if no job uses it") from error
    raise CheckpointError(f"{path} is damaged (it has no {CLAIM}); remove {fence} if no job uses it")


def _numbers(fence: Path) -> list[int]:
    try:
        return sorted(int(path.name) for path in fence.iterdir() if _NUMBER.fullmatch(path.name))
    except FileNotFoundError:
        return []


def _marks(folder: Path) -> Iterator[tuple[str, str | None]]:
    """Yield the checkpoints in `folder`, each with its fencing token."""
    for entry in manifest.entries(folder):
        try:
            yield entry.name, manifest.read_meta(entry).mark
        except CheckpointDamaged:
            yield entry.name, None  # A reader reports the damage; it may still be in the list of a claim.


def _accepted(marks: Iterable[tuple[str, str | None]], standing: FenceClaim | None) -> tuple[str, ...]:
    """List the checkpoints that are valid under the current claim; all of them if there is none."""
    counting = (
        name
        for name, mark in marks
        if standing is None or name in standing.accepted or (mark is not None and standing.accepts(name, mark))
    )
    return tuple(islice(counting, ACCEPTED_MAX))


def _prune(fence: Path) -> None:
    for number in _numbers(fence)[:-CLAIMS_KEPT]:
        atomic_files.discard(fence / f"{number:010d}")
    atomic_files.sweep(fence, (".claim-", ".removed-"))
