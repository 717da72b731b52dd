"""The messages of the ranks in a restore: one from each rank, in one round."""

from __future__ import annotations

import msgspec

from elastic.train.comm.rank_errors import RankError
from elastic.train.memory.step_agreement import RankStates
from elastic.train.restore.choose_checkpoint import RestoreReport
from elastic.train.restore.options import RestoreOptions


class RestoreStart(msgspec.Struct, frozen=True):
    """The decisions of rank 0 for all ranks: the options, and the directories that it has set aside.

    In-memory checkpoints are valid from generation `since` on; `aside` are checkpoints that are no longer valid.
    `error` is why rank 0 cannot continue.
    """

    wishes: RestoreOptions
    since: int = 0
    aside: frozenset[str] = frozenset()
    error: RankError | None = None


class RestoreMessage(msgspec.Struct, frozen=True):
    """The message of a rank in the first round; only rank 0 sends `start`.

    `report` is None if the rank has not scanned its directory, because rank 0 was not ready.
    """

    report: RestoreReport | None
    holding: RankStates
    start: RestoreStart | None = None


class ReadReply(msgspec.Struct, frozen=True):
    """The reply of a rank about one checkpoint: read, an error, or neither if it does not see the checkpoint."""

    read: bool
    error: RankError | None = None


decoder = msgspec.json.Decoder(RestoreMessage)
"""Created once: a fork server already has it when it forks a worker."""
reply_decoder = msgspec.json.Decoder(ReadReply)
