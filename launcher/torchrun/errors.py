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


class JobClosed(RendezvousClosedError, SystemExit):
    """The job has ended."""

    def __init__(self, text: str, code: int) -> None:
        """Remember the text, and the code for python's own exit."""
        super().__init__(text)
        self.code = code


class RoundTimedOut(RendezvousTimeoutError, SystemExit):
    """No round with this node came together in time; the job stays open for the others."""

    def __init__(self, text: str) -> None:
        """Remember the text, and the code for python's own exit."""
        super().__init__(text)
        self.code = 4


class RendezvousUnreachable(RendezvousConnectionError, SystemExit):
    """Etcd, or the node where a round meets, cannot be reached, or refuses this one."""

    def __init__(self, text: str, code: int) -> None:
        """Remember the text, and the code for python's own exit."""
        super().__init__(text)
        self.code = code


class NodeRejected(RendezvousStateError, SystemExit):
    """The job does not take this node, or this machine lacks something."""

    def __init__(self, text: str, code: int) -> None:
        """Remember the text, and the code for python's own exit."""
        super().__init__(text)
        self.code = code


class RoundOver(RendezvousStateError, SystemExit):
    """The round is over, and torch's agent, which has heard of it, is not yet where it can come back."""

    def __init__(self, text: str) -> None:
        """Remember the text, and the code for python's own exit."""
        super().__init__(text)
        self.code = 4
