"""Restores all ranks from one checkpoint: from the memory of the nodes, from disk, or from another run.

It is a collective in rounds. First every rank reports the checkpoints that it can read, and the one that the job has
recorded. Then the ranks read the newest one, and a rank that cannot read it receives it from one that can. If the job
has committed a step that no rank can read, that is an error (`elastic.train.restore.choose_checkpoint` has the rules).
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
    """The state to resume from. `step` is -1 if there is none; `warm`: it is from another run.

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
        """`others` are directories of other states, whose recorded checkpoints are ignored."""
        self.shared = False
        """Whether all ranks are known to see one directory: each finds the claim that only the node of rank 0 wrote."""
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
        """Restore every rank to the same step; a collective.

        Raises `CheckpointError` on all ranks, and its subclass `RestoreUnrecoverable` if a restart would not help.
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
                self._say(f"cannot restore step {agreed.step} from memory: {error}; trying the disk", warn=True)
        return self._from_disk(choices, candidates, reports, wishes)

    def ready(self) -> None:
        """Run the last round: afterwards the agent may request a planned stop, and commits may write to memory."""
        if self._end is not None:
            self._end.send(AcceptsPlannedStop())
        byte_collectives.gather(b"", self._here.group)

    # The rounds.

    def _meet(
        self, wishes: RestoreOptions
    ) -> tuple[RestoreStart, dict[str, CheckpointCandidate], list[RestoreReport], list[RankStates]]:
        """Return the decisions of rank 0, the checkpoints of this rank, and the reports of all ranks.

        Usually it is one round: every rank scans its directory and memory, and then reports. The scan of a rank is
        valid if it finds the claim of this generation, which exists before rank 0 continues, and if rank 0 sets nothing
        aside. If a scan is not valid, all ranks scan again.
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
        if wrong := choose_checkpoint.problem(reports):
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
        """On rank 0: wait until this generation owns the directory, and set newer checkpoints aside if requested."""
        since, aside = 0, frozenset[str]()
        run = restore_step.run_mark()
        try:
            self._checkpoints.await_mark()
            if wishes.step is not None:
                restore_step.rollback(self._checkpoints, wishes.step, run)
            record = restore_step.rolled_back(self._checkpoints.folder)
        except CheckpointError as error:
            transient = not isinstance(error, RestoreUnrecoverable)  # It may be fixed before the next start.
            return RestoreStart(wishes, error=RankError(str(error), transient))
        if record is not None:  # Another run counts its generations from 1.
            since, aside = record.generation if record.run == run else 0, restore_step.names_aside(record)
        return RestoreStart(wishes, since, aside)

    def _look_early(self, wishes: RestoreOptions) -> tuple[dict[str, CheckpointCandidate], RestoreReport | None]:
        """Scan before the message of rank 0; None if that scan would not be valid."""
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
        """Return the checkpoints of this rank, and its report about them."""
        error = ""
        self._checkpoints.forget_damage()  # Checkpoints that were set aside do not matter.
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
        """Return the replicated components of a checkpoint, None if it cannot be read; and the reply for the others."""
        if candidate is None:
            return None, ReadReply(read=False)
        try:
            if why := self._mismatch(candidate):
                raise RestoreUnrecoverable(why)
            return self._checkpoints.read(candidate, map_location="cpu"), ReadReply(read=True)
        except CheckpointError as error:
            return None, ReadReply(read=False, error=RankError.of(error))

    def _mismatch(self, candidate: CheckpointCandidate) -> str:
        """Name a component that is sharded in the checkpoint but not in this script, or the reverse; "" if none."""
        for name, part in self._parts.items():
            if part.sharded and name in candidate.meta.parts and not isinstance(part, ShardedModule):
                return (
                    f"{name} was saved unsharded, but is sharded now; start with --resume-from and a file of the model"
                )
            if not part.sharded and name in candidate.meta.sharded:
                return (
                    f"{name} was saved sharded, but is not sharded now; export it to a plain file with elastic.export"
                )
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
                f"{checkpoint} has sharded components, but cannot be read on {blind}; --checkpoint-dir must be "
                "readable on every node"
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
        """Return the RNG state of this rank, if the world size is the same as in the checkpoint."""
        if not isinstance(random, dict) or random.get("world") != self._here.world_size:
            return None
        own = random["ranks"].get(str(self._here.rank))
        return own if isinstance(own, dict) else None

    def _initial_state(self, warm: str | None, lost: str) -> RestoreResult:
        """Start without a checkpoint: from --resume-from, or from the initial components of rank 0."""
        if warm is not None:
            given = initial_state.load_resume_source(self._here, self._checkpoints, self._parts, warm)
            if not given.keys() & self._parts.keys():
                raise RestoreUnrecoverable(
                    f"--resume-from {warm}: it has the components {', '.join(given)}, but elastic.State has "
                    f"{', '.join(self._parts)}; use the same name for a component"
                )
            self._say(f"starting from {warm} (--resume-from)")
            values = _values(given, 0)  # Step and epoch belong to the other run.
            return RestoreResult(0, self._completed(given), {"values": values.get("values", {})}, warm=True)
        if lost:
            self._say(f"starting from scratch; {lost}")
        elif os.environ.get("ELASTIC_GENERATION", "1") != "1":
            folder = self._checkpoints.folder.absolute()
            self._say(f"no checkpoint in memory or in {folder}: training starts at step 0", warn=True)
        return RestoreResult(-1, self._completed({}))

    def _completed(self, given: dict[str, Any]) -> dict[str, Any]:
        """Add the replicated components of rank 0 that the checkpoint lacks."""
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
    """Remove step, epoch and plain values from the restored components; only the step if there are none."""
    return parts.pop("values", None) or {"step": step}
