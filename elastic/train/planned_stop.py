"""A worker's part in a planned stop: all ranks agree on a step, save it, and exit together."""

from __future__ import annotations

from typing import Final, NoReturn

from elastic.channel.client import ChannelClient
from elastic.channel.messages import SavedAndLeaving
from elastic.train import report
from elastic.train.process_group import shutdown, stop_agreement
from elastic.train.process_group.topology import Topology
from elastic.train.torch_internals import default_store

LEAVING: Final = 143
"""The exit code of a worker after a planned stop: the same as after SIGTERM."""


class StopParticipant:
    """Stops all ranks at one step. The rules are in `elastic.train.process_group.stop_agreement`."""

    def __init__(self, place: Topology, channel: ChannelClient | None) -> None:
        self._place = place
        self._channel = channel
        self._board: stop_agreement.StopBoard | None = None

    def agreed(self, step: int) -> bool:
        """Return whether all ranks stop at this step. Every rank calls it at each commit after the request."""
        place = self._place
        if place.alone:
            return True
        first = self._board is None
        if self._board is None:
            self._board = stop_agreement.StopBoard(default_store(), place.world_size)
        rules = stop_agreement.at_commit(step, place.world_size, first=first)
        return self._board.run(rules) is stop_agreement.CommitVerdict.STOP

    def leave(self, step: int, reason: str) -> NoReturn:
        """Exit with code 143 once the other ranks know that all stop at this step, which is saved."""
        if self._channel is not None:
            self._channel.send(SavedAndLeaving(step))
        if self._board is not None:
            self._board.leave(self._place.rank, self._place.world_size)
            shutdown.mark_gil_released_wait()
        if self._place.rank == 0:
            report.log_to_agent(f"saved step {step}; workers exiting {reason}")
        raise SystemExit(LEAVING)
