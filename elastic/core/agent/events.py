"""The events that an agent's core takes in, and their handlers (pure).

Events come from the store, the session, the nursery, signals, links and the clock. The real agent and the simulation
use exactly these events and the `actions`. A handler updates what the agent knows of its subject, and decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from elastic.core.agent import leaving, registration, store, succession
from elastic.core.agent.leaving import DrainRequested
from elastic.core.agent.links import deaths, eviction, inbound, silence, vouching, watch
from elastic.core.agent.links.deaths import NodeProvenDead, ProcessProvenDead
from elastic.core.agent.links.inbound import InboundLinksChanged, NodeLookedUp
from elastic.core.agent.links.silence import PeerTried, SilenceChanged
from elastic.core.agent.links.vouching import Vouched
from elastic.core.agent.links.watch import LinksChanged
from elastic.core.agent.registration import (
    LeaseGranted,
    LeaseGrantFailed,
    LeaseRefreshed,
    MemberFound,
    NodePrepared,
    SessionLost,
)
from elastic.core.agent.state import AgentState
from elastic.core.agent.store import TransactionAnswered, ViewChanged
from elastic.core.agent.workers import exits, outcome
from elastic.core.agent.workers.exits import PeersUnreachable, WorkerExited, WorkersGone, WorkersHung, WorkersListen

__all__ = [
    "DrainRequested",
    "Event",
    "InboundLinksChanged",
    "LeaseGrantFailed",
    "LeaseGranted",
    "LeaseRefreshed",
    "LinksChanged",
    "MemberFound",
    "NodeLookedUp",
    "NodePrepared",
    "NodeProvenDead",
    "PeerTried",
    "PeersUnreachable",
    "ProcessProvenDead",
    "SessionLost",
    "SilenceChanged",
    "Tick",
    "TransactionAnswered",
    "ViewChanged",
    "Vouched",
    "WorkerExited",
    "WorkersGone",
    "WorkersHung",
    "WorkersListen",
]  # fmt: skip


class Tick(Struct, frozen=True):
    """The time that the core requested has been reached."""


Event = (
    ViewChanged | LeaseGranted | LeaseGrantFailed | LeaseRefreshed | SessionLost | TransactionAnswered |
    MemberFound | WorkerExited | WorkersListen | WorkersHung | PeersUnreachable | WorkersGone | NodePrepared |
    DrainRequested | LinksChanged | SilenceChanged | PeerTried | Vouched | InboundLinksChanged | NodeLookedUp |
    ProcessProvenDead | NodeProvenDead | Tick
)  # fmt: skip

Handler = Callable[[AgentState, Any], None]

ANSWERS: dict[str, tuple[Handler, ...]] = {
    "register": (registration.on_answer,),
    "lead": (succession.on_lead_answer,),
    "say": (leaving.on_announced,),
    "record": (outcome.on_answer,),
    "leave": (leaving.on_deregistered,),
    "evict": (eviction.on_evicted,),
    **dict.fromkeys(succession.PROPOSALS, (succession.on_proposal_answer,)),
}
"""The handlers of the answer to a transaction of each kind, if the answer was not lost."""


def _on_answer(agent: AgentState, event: TransactionAnswered) -> None:
    answered = event.succeeded is not None or event.transaction.kind == "evict"
    for handler in ANSWERS[event.transaction.kind] if answered else ():
        handler(agent, event)


HANDLERS: dict[type[Event], tuple[Handler, ...]] = {
    ViewChanged: (
        store.on_view,
        registration.check_own_key,
        leaving.read_order,
        succession.remember_view,
        deaths.distrust_hosts,
        silence.note_leader,
        eviction.on_view,
    ),
    TransactionAnswered: (store.on_answer, _on_answer),
    NodePrepared: (registration.on_prepared,),
    LeaseGranted: (silence.on_granted, registration.on_granted),
    LeaseGrantFailed: (registration.on_grant_failed,),
    LeaseRefreshed: (silence.on_refreshed, registration.on_refreshed),
    SessionLost: (registration.on_session_lost,),
    MemberFound: (registration.on_member_found,),
    WorkerExited: (exits.on_exit,),
    WorkersListen: (exits.on_listen,),
    WorkersHung: (exits.on_hung,),
    PeersUnreachable: (exits.on_unreachable,),
    WorkersGone: (exits.on_gone,),
    DrainRequested: (leaving.on_drain,),
    LinksChanged: (watch.on_links_changed,),
    SilenceChanged: (silence.on_silence_changed,),
    PeerTried: (silence.on_tried,),
    Vouched: (vouching.on_vouched,),
    InboundLinksChanged: (inbound.on_inbound_changed,),
    NodeLookedUp: (inbound.on_looked_up,),
    ProcessProvenDead: (deaths.on_process_dead,),
    NodeProvenDead: (deaths.on_node_dead,),
    Tick: (),
}
"""Every event, and its handlers in order."""
