"""The torchrun plugin: with `--rdzv-backend elastic-etcd`, torchrun uses this membership, over etcd v3.

torch finds `creator` by the entry point group `torchrun.handlers`, and calls it in every process that imports its
rendezvous. So nothing is imported here.

    options.py      reads --rdzv-endpoint and --rdzv-conf into a `Config`
    flag_names.py   the flags that our messages name, in torchrun's words
    rounds.py       what the core has started, and what torch's agent has taken (pure)
    session.py      one node in one job: the core with its store and links, in an asyncio loop
    loop_thread.py  the thread of that loop, because torch's agent is synchronous
    membership.py   what both threads share of the node's membership of the job
    stores.py       the TCPStore in which the agents and workers of a round meet
    errors.py       torch's errors, which end torchrun with one line
    handler.py      torch's interface
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed.elastic.rendezvous import RendezvousHandlerCreator


def creator() -> RendezvousHandlerCreator:
    """Return the function that torch calls for `--rdzv-backend elastic-etcd`."""
    from launcher.torchrun.handler import create_handler

    return create_handler
