"""Who may write into a checkpoint folder: the newest generation, and nobody of an older one.

Rules
-----
1. A generation claims the folder with its mark, `<incarnation>/<g>`, before its workers start. Claims are numbered
   folders, `fence/0000000012/`, each published whole by a rename that fails when the number is taken. So of two
   claims that race one loses, looks again, and may find that it is too old. The highest number is the one that counts.
2. A generation never claims after a higher one of the same incarnation. A frozen agent that wakes up cannot take the
   folder back.
3. A claim lists the checkpoints that count at that moment. From then on a checkpoint counts only if it is in that list,
   or carries the mark of that claim, or was written by nobody who ever owned this folder: without elastic-launch, or by
   another job and then copied here.
4. A save looks at the mark before it writes, before it renames and after it renamed.

Rule 3 is what makes this safe, not rule 4: a writer that was frozen between its last look and its rename leaves a
folder that no reader ever takes, however late it lands. So there is no lock, and nothing waits for a dead holder.

On NFS this needs close-to-open consistency (the default): every look opens the folder anew. A claim writes into the
folder before it lists it, so that its listing is not an old one.
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
"""Claims that stay on disk, for people. Only the newest one counts."""
CLAIM_TRIES_MAX = 16
"""Races lost in a row before a claim gives up; each one means that another generation claimed meanwhile."""
ACCEPTED_MAX = 256
"""Checkpoints that a claim lists at most, the newest first."""
INCARNATIONS_MAX = 64
"""Owners that a claim remembers at most. A writer that slept through so many new stores is not expected."""

_NUMBER = re.compile(r"\d{10,19}")
_MARK = re.compile(r"(?P<incarnation>[^/]{1,128})/(?P<g>\d{1,19})")


class FenceClaim(msgspec.Struct, frozen=True):
    """One claim as it stands on disk: whose folder it is, and the checkpoints that count from before it.

    `incarnations` are those that ever owned the folder, this one included, the newest last.
    """

    mark: Annotated[str, msgspec.Meta(pattern=rf"^{_MARK.pattern}\Z")]
    accepted: tuple[str, ...]
    incarnations: tuple[str, ...]

    def accepts(self, name: str, mark: str) -> bool:
        """Tell whether a checkpoint counts (rule 3), by its folder's name and the mark in its meta.json."""
        return mark == self.mark or name in self.accepted or mark.rpartition("/")[0] not in self.incarnations


_claim = msgspec.json.Decoder(FenceClaim)


def claim(folder: Path, mark: str, marks: Callable[[], Iterable[tuple[str, str | None]]] | None = None) -> str:
    """Make `folder` the property of the generation that `mark` names, creating it if need be.

    `marks` lists the checkpoints that are there, the newest first: the name of each and its mark, None where the mark
    cannot be read. By default they are the checkpoints of `elastic.train.checkpoint` in `folder`.

    Returns the mark of another job that claimed it after this one had had it, otherwise "": two jobs that run on one
    folder take it from each other. Returns at once when the mark already stands there. Raises CheckpointFenced when a
    higher generation of the same incarnation has it, and CheckpointError, with the mend, when the folder cannot be read
    or written.
    """
    incarnation, _ = _split(mark)
    fence = folder / FENCE
    taken_by = ""
    with atomic_files.as_checkpoint_error("claiming the checkpoint folder", folder):
        fence.mkdir(parents=True, exist_ok=True)
        for _ in range(CLAIM_TRIES_MAX):
            staged = atomic_files.staging(fence, ".claim-")
            try:
                number, standing = _newest(fence)
                if standing is not None and standing.mark == mark:
                    return taken_by
                if standing is not None and overtaken(mark, standing.mark):
                    raise CheckpointFenced(
                        f"{folder} already belongs to generation {standing.mark}; {mark} comes too late"
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
    raise CheckpointError(f"claiming {folder} as {mark} failed: others claimed it {CLAIM_TRIES_MAX} times meanwhile")


def check(folder: Path, mark: str, setting: str = "--checkpoint_dir") -> None:
    """Return if `mark` stands in the folder; raise CheckpointFenced, saying whose folder it is, if another does.

    `setting` is what the user names the folder with.
    """
    standing = current(folder)
    if standing is None:
        raise CheckpointFenced(
            f"{folder} carries no mark, but this worker is of generation {mark}; "
            "it was emptied while the job ran, or it is not the folder that the launcher claimed"
        )
    if _split(standing.mark)[0] != _split(mark)[0]:
        raise CheckpointFenced(
            f"another job ({standing.mark}) has claimed {folder} since this one ({mark}) did; "
            f"give each job its own {setting}"
        )
    if standing.mark != mark:
        raise CheckpointFenced(
            f"{folder} belongs to generation {standing.mark}; "
            f"this worker is of generation {mark} and may not write there"
        )


def current(folder: Path) -> FenceClaim | None:
    """Read the claim that counts, None if the folder was never claimed."""
    with atomic_files.as_checkpoint_error("reading the mark", folder):
        return _newest(folder / FENCE)[1]


def overtaken(mark: str, standing: str) -> bool:
    """Tell whether `standing` is of a later generation of the same incarnation."""
    (incarnation, g), (standing_incarnation, standing_g) = _split(mark), _split(standing)
    return standing_incarnation == incarnation and standing_g > g


def _split(mark: str) -> tuple[str, int]:
    match = _MARK.fullmatch(mark)
    if match is None:
        raise ValueError(f"a mark is <incarnation>/<generation>: {mark!r}")
    return match["incarnation"], int(match["g"])


def _newest(fence: Path) -> tuple[int, FenceClaim | None]:
    """Find the highest claim and its number; (0, None) if there is none. One that vanishes was pruned: look again."""
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
            raise CheckpointError(f"{path} is damaged ({error}); remove {fence} if no job runs on it") from error
    raise CheckpointError(f"{path} is damaged (it has no {CLAIM}); remove {fence} if no job runs on it")


def _numbers(fence: Path) -> list[int]:
    try:
        return sorted(int(path.name) for path in fence.iterdir() if _NUMBER.fullmatch(path.name))
    except FileNotFoundError:
        return []


def _marks(folder: Path) -> Iterator[tuple[str, str | None]]:
    """The checkpoints in `folder`, each with its mark."""
    for entry in manifest.entries(folder):
        try:
            yield entry.name, manifest.read_meta(entry).mark
        except CheckpointDamaged:
            yield entry.name, None  # Its reader says what is wrong with it; only the list tells whether it is ours.


def _accepted(marks: Iterable[tuple[str, str | None]], standing: FenceClaim | None) -> tuple[str, ...]:
    """List the checkpoints that count under the claim that stands now (all, if there is none)."""
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
