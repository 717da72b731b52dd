"""All ranks go on from one checkpoint: from the nodes' memory, from disk, or from where another run ended.

A collective in rounds. First every rank says what it can read and what it was told. Then the newest is tried, and who
cannot read it receives it from who can. What the job has committed and nobody can read is an error
(`elastic.train.restore.choose_checkpoint` has the rules).
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import msgspec

from elastic.channel.client import ChannelClient
from elastic.channel.messages import AcceptsPlannedStop
from elastic.errors import CheckpointDamaged, CheckpointError, RestoreUnrecoverable, TensorsDiffer, TensorsMissing
from elastic.train.checkpoint import fence, manifest
from elastic.train.checkpoint.folder import Checkpoints
from elastic.train.checkpoint.manifest import CheckpointCandidate
from elastic.train.comm import byte_collectives
from elastic.train.comm.broadcast_tree import broadcast_trees
from elastic.train.comm.rank_errors import RankError, raise_first
from elastic.train.memory.step_agreement import AgreedStep, RankStates
from elastic.train.memory.tier import MemoryTier
from elastic.train.process_group.topology import Topology, host
from elastic.train.report import log_to_agent
from elastic.train.restore import choose_checkpoint, initial_state, messages, restore_step
from elastic.train.restore.choose_checkpoint import DamagedCheckpoint, RestoreReport
from elastic.train.restore.messages import ReadReply, RestoreMessage, RestoreStart
from elastic.train.restore.options import RestoreOptions, newest_known, read_options
from elastic.train.statedict.parts import ShardedModule, ShardedPart, StatePart


@dataclass(frozen=True)
class RestoreResult:
    """What this rank goes on from. `step` is -1 if there was nothing; `warm` says that it is of another run.

    `newest` is the step of the newest checkpoint on disk, -1 if there is none.
    """

    step: int
    parts: dict[str, Any] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    random: dict[str, Any] | None = None
    on_disk: bool = False
    warm: bool = False
    newest: int = -1


class Restorer:
    """One rank's part in a restore."""

    def __init__(
        self,
        place: Topology,
        checkpoints: Checkpoints,
        memory: MemoryTier,
        parts: Mapping[str, StatePart],
        end: ChannelClient | None,
        *,
        others: Collection[str] = (),
    ) -> None:
        """What the job knows of the folders `others` says nothing of this state."""
        self.shared = False
        """Whether it is known that all ranks see one folder: each finds there what rank 0's node alone has written."""
        self._others = others
        self._here = place
        self._checkpoints = checkpoints
        self._memory = memory
        self._parts = parts
        self._end = end
        self._sharded = [name for name, part in parts.items() if part.sharded]

    def run(
        self, *, step: int | None, resume_from: str | os.PathLike[str] | None, allow_rollback: bool | None
    ) -> RestoreResult:
        """Bring every rank to the same step. Every rank calls it.

        Raises `CheckpointError` on all of them, `RestoreUnrecoverable` where another start would find the same.
        """
        start, candidates, reports, holdings = self._meet(
            read_options(os.environ, step, resume_from, allow_rollback=allow_rollback)
        )
        wishes = start.wishes
        choices = choose_checkpoint.choices(reports)
        newest = manifest.age(choices[0])[0] if choices else -1
        agreed = self._memory.choose(holdings, since=start.since)
        if agreed is not None and agreed.step >= newest:
            lost = choose_checkpoint.check_newest(agreed.step, reports, allow_rollback=wishes.allow_rollback)
            try:
                return self._from_memory(agreed, holdings, lost, newest)
            except (CheckpointDamaged, TensorsDiffer, TensorsMissing) as error:  # The same on all ranks.
                self._say(f"step {agreed.step} cannot be taken from memory: {error}; looking on disk", warn=True)
        return self._from_disk(choices, candidates, reports, wishes)

    def ready(self) -> None:
        """The last round: from now on a planned stop may be asked for with a word, and memory may be written again."""
        if self._end is not None:
            self._end.send(AcceptsPlannedStop())
        byte_collectives.gather(b"", self._here.group)

    # The rounds.

    def _meet(
        self, wishes: RestoreOptions
    ) -> tuple[RestoreStart, dict[str, CheckpointCandidate], list[RestoreReport], list[RankStates]]:
        """What rank 0 says for all, and what every rank sees on disk and in memory, as every rank knows it.

        Mostly it is one round: everybody looks, and then says all. A look counts if it found the mark of this
        generation, which is put up before rank 0 goes on, and rank 0 has set nothing aside. If some do not count,
        everybody looks once more.
        """
        start = self._start(wishes) if self._here.rank == 0 else None
        candidates, report = self._look_early(wishes)
        holding = self._memory.readable_states(sharded=bool(self._sharded))
        said = self._exchange(RestoreMessage(report, holding, start))
        start = said[0].start
        assert start is not None
        raise_first([start.error])
        looks = said
        if start.wishes.step is not None or any(message.report is None for message in said):
            candidates, report = self._scan_checkpoints()
            looks = self._exchange(RestoreMessage(report, RankStates()))
        reports = [message.report for message in looks if message.report is not None]
        mark = self._checkpoints.mark
        self.shared = bool(mark) and all(report.token == mark for report in reports)
        if wrong := choose_checkpoint.trouble(reports):
            raise CheckpointError(wrong)
        return (
            start,
            candidates,
            choose_checkpoint.excluding_set_aside(reports, start.aside),
            [message.holding for message in said],
        )

    def _exchange(self, own: RestoreMessage) -> list[RestoreMessage]:
        return [
            messages.decoder.decode(data)
            for data in byte_collectives.gather(msgspec.json.encode(own), self._here.group)
        ]

    def _start(self, wishes: RestoreOptions) -> RestoreStart:
        """On rank 0: wait until its folder carries this generation's mark, and set newer checkpoints aside if asked."""
        since, aside = 0, frozenset[str]()
        run = restore_step.run_mark()
        try:
            self._checkpoints.await_mark()
            if wishes.step is not None:
                restore_step.rollback(self._checkpoints, wishes.step, run)
            record = restore_step.rolled_back(self._checkpoints.folder)
        except CheckpointError as error:
            transient = not isinstance(error, RestoreUnrecoverable)  # The next start may find it fixed.
            return RestoreStart(wishes, error=RankError(str(error), transient))
        if record is not None:  # The generations of another run are counted anew.
            since, aside = record.generation if record.run == run else 0, restore_step.names_aside(record)
        return RestoreStart(wishes, since, aside)

    def _look_early(self, wishes: RestoreOptions) -> tuple[dict[str, CheckpointCandidate], RestoreReport | None]:
        """This rank's checkpoints, before rank 0 has said anything; None where they would not count."""
        if self._here.rank != 0 and wishes.step is not None:
            return {}, None
        if self._here.rank != 0 and self._checkpoints.mark:
            try:
                claim = fence.current(self._checkpoints.folder)
            except CheckpointError:
                claim = None
            if claim is None or claim.mark != self._checkpoints.mark:
                return {}, None
        return self._scan_checkpoints()

    def _scan_checkpoints(self) -> tuple[dict[str, CheckpointCandidate], RestoreReport]:
        """This rank's checkpoints, and what it says of them."""
        error = ""
        self._checkpoints.forget_damage()  # What was set aside does not matter any more.
        candidates: dict[str, CheckpointCandidate] = {}
        try:
            candidates = {candidate.name: candidate for candidate in self._checkpoints.candidates()}
            claim = fence.current(self._checkpoints.folder)
        except CheckpointError as failed:
            claim, error = None, str(failed)
        known = newest_known(os.environ)
        if known is not None and os.path.abspath(Path(known.folder).parent) in self._others:
            known = None
        return candidates, RestoreReport(
            host=host(),
            folder=str(self._checkpoints.folder.absolute()),
            token=claim.mark if claim is not None else "",
            seen=tuple(candidates),
            damaged=tuple(DamagedCheckpoint(name, str(why)) for name, why in self._checkpoints.damaged.items()),
            transient=any(why.transient for why in self._checkpoints.damaged.values()),
            known=known,
            error=error,
        )

    def _from_memory(self, agreed: AgreedStep, holdings: list[RankStates], lost: str, newest: int) -> RestoreResult:
        templates = {name: cast("ShardedPart", self._parts[name]).template for name in self._sharded}
        replicated, own, sharded = self._memory.fetch(agreed, holdings, templates)
        self._say(f"resumed at step {agreed.step} from memory{f'; {lost}' if lost else ''}")
        parts, random = self._completed({**replicated, **sharded}), own.get("rng") if own else None
        return RestoreResult(agreed.step, parts, _values(parts, agreed.step), random, newest=newest)

    def _from_disk(
        self,
        choices: list[str],
        candidates: Mapping[str, CheckpointCandidate],
        reports: list[RestoreReport],
        wishes: RestoreOptions,
    ) -> RestoreResult:
        bad: list[DamagedCheckpoint] = []
        transient = False
        for name in choices:
            candidate = candidates.get(name)
            trees, own_reply = self._read(candidate)
            said = byte_collectives.gather(msgspec.json.encode(own_reply), self._here.group)
            replies = [messages.reply_decoder.decode(data) for data in said]
            holders = [reply.read for reply in replies]
            errors = [reply.error for reply in replies if reply.error is not None]
            transient = transient or any(error.transient for error in errors)
            if not any(holders):
                bad.append(DamagedCheckpoint(name, errors[0].text))
                continue
            step, allowed = manifest.age(name)[0], wishes.allow_rollback
            lost = choose_checkpoint.check_newest(
                step, reports, allow_rollback=allowed, damaged=bad, transient=transient
            )
            given = broadcast_trees(trees, holders, self._here.group) if not self._here.alone else dict(trees or {})
            if self._sharded:
                try:
                    given |= self._read_sharded(name, candidate, holders, reports)
                except CheckpointDamaged as error:  # On all ranks.
                    bad.append(DamagedCheckpoint(name, str(error)))
                    transient = transient or error.transient
                    continue
            where = f"{reports[holders.index(True)].folder}/{name}"
            helped = f", sent to {holders.count(False)} ranks that cannot read it" if not all(holders) else ""
            skipped = choose_checkpoint.skipped_text(name, reports, bad)
            self._say(f"resumed at step {step} from {where}{helped}{skipped}{f'; {lost}' if lost else ''}")
            random = self._own_random(given.pop("rng", None))
            parts = self._completed(given)
            return RestoreResult(step, parts, _values(parts, step), random, on_disk=True, newest=step)
        allowed = wishes.allow_rollback
        lost = choose_checkpoint.check_newest(-1, reports, allow_rollback=allowed, damaged=bad, transient=transient)
        return self._initial_state(wishes.resume_from, lost)

    def _read(self, candidate: CheckpointCandidate | None) -> tuple[dict[str, Any] | None, ReadReply]:
        """The whole parts of a checkpoint, None where it cannot be read; and what the others are to know."""
        if candidate is None:
            return None, ReadReply(read=False)
        try:
            if why := self._mismatch(candidate):
                raise RestoreUnrecoverable(why)
            return self._checkpoints.read(candidate, map_location="cpu"), ReadReply(read=True)
        except CheckpointError as error:
            return None, ReadReply(read=False, error=RankError.of(error))

    def _mismatch(self, candidate: CheckpointCandidate) -> str:
        """Say which part was saved in another way than this script keeps it; "" if none was."""
        for name, part in self._parts.items():
            if part.sharded and name in candidate.meta.parts and not isinstance(part, ShardedModule):
                return f"{name} was saved whole and is sharded now; start with --resume_from and a file of the model"
            if not part.sharded and name in candidate.meta.sharded:
                return f"{name} was saved in shards and is whole now; make a plain file of it with elastic.export"
        return ""

    def _read_sharded(
        self,
        checkpoint: str,
        candidate: CheckpointCandidate | None,
        holders: list[bool],
        reports: list[RestoreReport],
    ) -> dict[str, Any]:
        if not all(holders):
            blind = ", ".join(sorted({reports[rank].host for rank, holds in enumerate(holders) if not holds}))
            raise CheckpointError(
                f"{checkpoint} has sharded parts and cannot be read on {blind}; --checkpoint_dir must lie where "
                "every node can read it"
            )
        assert candidate is not None
        parts = {
            name: cast("ShardedPart", self._parts[name]) for name in self._sharded if name in candidate.meta.sharded
        }
        return {
            name: self._checkpoints.read_sharded(candidate, name, part.template, self._here.group)
            for name, part in parts.items()
        }

    def _own_random(self, random: Any) -> dict[str, Any] | None:
        """This rank's random state, if the world is the one that saved it."""
        if not isinstance(random, dict) or random.get("world") != self._here.world_size:
            return None
        found = random["ranks"].get(str(self._here.rank))
        return found if isinstance(found, dict) else None

    def _initial_state(self, warm: str | None, lost: str) -> RestoreResult:
        """Nothing was saved yet: from --resume_from, or from the start. Rank 0's parts count for all."""
        if warm is not None:
            given = initial_state.load_resume_source(self._here, self._checkpoints, self._parts, warm)
            if not given.keys() & self._parts.keys():
                raise RestoreUnrecoverable(
                    f"--resume_from {warm}: it has the parts {', '.join(given)}, and elastic.State has "
                    f"{', '.join(self._parts)}: nothing to start from; name a part as it is there"
                )
            self._say(f"starting from {warm} (--resume_from)")
            values = _values(given, 0)  # Step and epoch of another run are not ours.
            return RestoreResult(0, self._completed(given), {"values": values.get("values", {})}, warm=True)
        if lost:
            self._say(f"starting anew; {lost}")
        elif os.environ.get("ELASTIC_GENERATION", "1") != "1":
            folder = self._checkpoints.folder.absolute()
            self._say(f"no step is in memory and none in {folder}: training starts at step 0", warn=True)
        return RestoreResult(-1, self._completed({}))

    def _completed(self, given: dict[str, Any]) -> dict[str, Any]:
        """What was restored; for replicated parts that are not in it, rank 0's on the other ranks."""
        missing = {name: part for name, part in self._parts.items() if not part.sharded and name not in given}
        return (
            given
            if self._here.alone or not missing
            else given | initial_state.broadcast_from_rank_0(self._here, missing)
        )

    def _say(self, text: str, *, warn: bool = False) -> None:
        if self._here.rank == 0:
            log_to_agent(text, warn=warn)


def _values(parts: dict[str, Any], step: int) -> dict[str, Any]:
    """Take step, epoch and plain values out of what was restored; only the step where it has no such part."""
    return parts.pop("values", None) or {"step": step}
