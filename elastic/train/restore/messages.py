"""What the ranks of a restore say before anything is read: one message of each, in one round."""

from __future__ import annotations

import msgspec

from elastic.train.comm.rank_errors import RankError
from elastic.train.memory.step_agreement import RankStates
from elastic.train.restore.choose_checkpoint import RestoreReport
from elastic.train.restore.options import RestoreOptions


class RestoreStart(msgspec.Struct, frozen=True):
    """What rank 0 has done and says for all: what is asked for, and what was set aside.

    `since` is the generation from which on copies in memory count, `aside` are folders that no longer do. `error` is
    why it cannot go on.
    """

    wishes: RestoreOptions
    since: int = 0
    aside: frozenset[str] = frozenset()
    error: RankError | None = None


class RestoreMessage(msgspec.Struct, frozen=True):
    """What a rank says in the first round; `start` is rank 0's.

    `report` is None where it has not looked at its folder, because rank 0 was not ready.
    """

    report: RestoreReport | None
    holding: RankStates
    start: RestoreStart | None = None


class ReadReply(msgspec.Struct, frozen=True):
    """What a rank says of one checkpoint: it has read it, or why it could not, or neither: it does not see it."""

    read: bool
    error: RankError | None = None


decoder = msgspec.json.Decoder(RestoreMessage)
"""Made once: a nursery has it already when it forks a worker."""
reply_decoder = msgspec.json.Decoder(ReadReply)
