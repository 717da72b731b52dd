"""The errors of torch's interface, each of which ends torchrun with one line and an exit code of ours.

A caller of `next_rendezvous` catches torch's own classes. Uncaught, as in torchrun itself, they end Python without a
stack trace: the messages of the job need none. The code that raises one has written its text to stderr.

    JobClosed              RendezvousClosedError      0, 1    the job has ended: completed, or failed
    RoundTimedOut          RendezvousTimeoutError     4       no round formed within join_timeout
    RendezvousUnreachable  RendezvousConnectionError  3, 4    etcd rejects this node, or is unreachable
    NodeRejected           RendezvousStateError       2 to 4  this host lacks something; the job rejects this node
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
    """Ends Python with an exit code of ours if it is not caught."""

    def __init__(self, text: str, code: int = 4) -> None:
        """Remember the text, and the code for Python's own exit."""
        super().__init__(text)
        self.code = code


class JobClosed(_ExitError, RendezvousClosedError):
    """The job has ended."""


class RoundTimedOut(_ExitError, RendezvousTimeoutError):
    """No round with this node formed in time; the job stays open for the others."""


class RendezvousUnreachable(_ExitError, RendezvousConnectionError):
    """Etcd, or the node where a round meets, is unreachable, or rejects this node."""


class NodeRejected(_ExitError, RendezvousStateError):
    """The job rejects this node, or this host lacks something."""


class RoundOver(_ExitError, RendezvousStateError):
    """The round is over, and torch's agent, which already knows the round, cannot yet return to `next_rendezvous`."""
