"""The errors of torch's interface, each of which ends torchrun with one line and an exit code of ours.

Whoever calls `next_rendezvous` catches torch's own classes. Uncaught, as in torchrun itself, they end python without a
stack trace: what the job says of itself needs none. Whoever raises one has written its text to stderr.

    JobClosed              RendezvousClosedError      0, 1    the job has ended: completed, or failed
    RoundTimedOut          RendezvousTimeoutError     4       no round came together in join_timeout
    RendezvousUnreachable  RendezvousConnectionError  3, 4    etcd refuses this node; it cannot be reached
    NodeRejected           RendezvousStateError       2 to 4  this machine lacks something; the job refuses this node
    RoundOver              RendezvousStateError       4       a world ended before torch's agent had started its workers
"""

from __future__ import annotations

from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousStateError,
    RendezvousTimeoutError,
)


class _ExitError(SystemExit):
    """Ends python with an exit code of ours where nobody catches it."""

    def __init__(self, text: str, code: int = 4) -> None:
        """Remember the text, and the code for python's own exit."""
        super().__init__(text)
        self.code = code


class JobClosed(_ExitError, RendezvousClosedError):
    """The job has ended."""


class RoundTimedOut(_ExitError, RendezvousTimeoutError):
    """No round with this node came together in time; the job stays open for the others."""


class RendezvousUnreachable(_ExitError, RendezvousConnectionError):
    """Etcd, or the node where a round meets, cannot be reached, or refuses this one."""


class NodeRejected(_ExitError, RendezvousStateError):
    """The job does not take this node, or this machine lacks something."""


class RoundOver(_ExitError, RendezvousStateError):
    """The round is over, and torch's agent, which has heard of it, is not yet where it can come back."""
