"""Whatever an agent is told, in any order, its core raises nothing and keeps to what an agent may never do."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from elastic.core.admission import NodeIdentity
from elastic.core.agent.actions import Action, ExitAgent, ExtendRunDeadline, SendTransaction, StartWorkers
from elastic.core.agent.core import AgentCore
from elastic.core.agent.events import (
    DrainRequested,
    Event,
    InboundLinksChanged,
    LeaseGranted,
    LeaseGrantFailed,
    LeaseRefreshed,
    LinksChanged,
    MemberFound,
    NodeLookedUp,
    NodePrepared,
    NodeProvenDead,
    PeersUnreachable,
    PeerTried,
    ProcessProvenDead,
    SessionLost,
    SilenceChanged,
    Tick,
    TransactionAnswered,
    ViewChanged,
    Vouched,
    WorkerExited,
    WorkersGone,
)
from elastic.core.agent.state import AgentState, Phase, SilentPeer, Timeouts
from elastic.core.membership.decision import DecisionPolicy
from elastic.core.model import JobSpec, Np
from elastic.core.transactions import Transaction
from elastic.core.view import StoredDocument, StoreView
from tests.support.agent_happenings import HAPPENINGS
from tests.support.agent_harness import IN_PHASE
from tests.support.job_transcript import member, worker_exit
from tests.support.strategies import KEYS, job_views, nodes, texts, views, worker_exits

WELL = worker_exit(code=0)
leases = st.integers(1, 3)
generations_g = st.integers(0, 4)
times = st.floats(0, 100)
ttls = st.floats(0, 20)
out_of_reach = st.lists(nodes, max_size=3).map(tuple)
given_up = st.lists(worker_exits, max_size=1).map(tuple)
silent = st.builds(
    SilenceChanged, st.dictionaries(nodes, st.builds(SilentPeer, times, st.just(1.0))), times, st.frozensets(nodes)
)
reach = st.lists(nodes, max_size=2).map(tuple)
tried = st.builds(PeerTried, st.integers(1, 3), nodes, reach, reach, st.frozensets(nodes))
Unsent = tuple[int, bool | None, int]
"""The answer to one of the transactions that were sent: which, how, and at which revision."""

events: st.SearchStrategy[Event | Unsent] = st.one_of(
    st.builds(ViewChanged, job_views(), st.integers(0, 5)),
    st.builds(ViewChanged, job_views(), st.integers(0, 5)),
    st.builds(ViewChanged, views(), st.integers(0, 5)),
    st.builds(LeaseGranted, leases, ttls, times),
    st.builds(LeaseGranted, leases, ttls, times),
    st.just(LeaseGrantFailed()),
    st.builds(LeaseRefreshed, leases, ttls, times, st.integers(0, 12)),
    st.builds(SessionLost, leases, texts),
    st.tuples(st.integers(0, 3), st.sampled_from([True, True, False, None]), st.integers(0, 15)),
    st.tuples(st.integers(0, 3), st.sampled_from([True, True, False, None]), st.integers(0, 15)),
    st.builds(MemberFound, st.none() | st.booleans()),
    st.builds(WorkerExited, generations_g, worker_exits, st.booleans()),
    st.builds(PeersUnreachable, generations_g, out_of_reach, given_up),
    st.builds(WorkersGone, generations_g, st.integers(-1, 100)),
    st.just(NodePrepared()),
    st.builds(DrainRequested, st.integers(1, 15), texts),
    st.builds(LinksChanged, st.frozensets(nodes)),
    st.builds(LinksChanged, st.frozensets(nodes), times),
    silent,
    tried,
    st.builds(Vouched, nodes, generations_g, times, times),
    st.builds(InboundLinksChanged, st.lists(nodes, unique=True).map(tuple)),
    st.builds(NodeLookedUp, nodes, st.none() | st.booleans()),
    st.builds(ProcessProvenDead, nodes, st.integers(1, 12), texts),
    st.builds(NodeProvenDead, nodes),
    st.just(Tick()),
)
OWN = StoredDocument(member(), 2, 2, lease=1)
EMPTY = StoreView(revision=1)


def as_registered(view: StoreView) -> StoreView:
    """The same, but this node stands there and the store is the one that it has joined."""
    incarnation = StoredDocument("i1", 1, 1)
    return replace(view, members={**view.members, "a": OWN}, incarnation=incarnation, damaged=(), revision=12)


steady: st.SearchStrategy[Event | Unsent] = st.one_of(
    st.builds(ViewChanged, job_views().map(as_registered), st.integers(0, 5)),
    st.builds(ViewChanged, job_views().map(as_registered), st.integers(0, 5)),
    st.builds(ViewChanged, job_views().map(as_registered), st.integers(0, 5)),
    st.builds(LeaseRefreshed, st.just(1), st.just(20.0), times, st.sampled_from([0, 2, 2, 2, 5])),
    st.builds(WorkerExited, st.integers(2, 3), worker_exits, st.booleans()),
    st.builds(WorkerExited, st.integers(2, 3), st.just(WELL), st.just(True)),
    st.builds(PeersUnreachable, st.integers(2, 3), out_of_reach, given_up),
    st.builds(WorkersGone, st.integers(2, 3), st.integers(-1, 100)),
    st.builds(WorkersGone, st.integers(2, 3), st.integers(-1, 100)),
    st.builds(Vouched, nodes, st.integers(2, 3), times, times),
    st.builds(LinksChanged, st.frozensets(nodes)),
    silent,
    tried,
    st.tuples(st.integers(0, 3), st.sampled_from([True, True, False, None]), st.integers(0, 12)),
    st.tuples(st.integers(0, 3), st.sampled_from([True, True, False, None]), st.integers(0, 12)),
)


def timed(
    told: st.SearchStrategy[Event | Unsent], size_min: int
) -> st.SearchStrategy[list[tuple[Event | Unsent, float]]]:
    """Events, each after a pause."""
    return st.lists(st.tuples(told, st.sampled_from([0.0, 0.0, 0.1, 1.0, 10.0])), min_size=size_min, max_size=20)


class Watched:
    """An agent's core that is told anything, and what it did so far."""

    def __init__(self, *, rerun: bool, force: bool, join_timeout_s: float | None) -> None:
        spec = JobSpec(np=Np(low=1, high=3, first=1), slots=1, join_window_s=0.0)
        me = NodeIdentity("a", member(), spec, "i", force=force, rerun=rerun)
        limits = Timeouts(15.0, 2.0, join_timeout_s=join_timeout_s)
        self.core = AgentCore(AgentState(me, KEYS, limits, DecisionPolicy("a"), now=0.0))
        self.now = 0.0
        self.sent: list[Transaction] = []
        self.told_until = float("-inf")

    def tell(self, event: Event | Unsent) -> list[Action]:
        """Tell it, and look at what it asks for."""
        if isinstance(event, tuple):
            which, succeeded, revision = event
            known = self.sent[-1 - which % len(self.sent)] if self.sent else Transaction("go", (), ())
            event = TransactionAnswered(known, succeeded, revision)
        facts = self.core.facts
        ended, idle = facts.phase is Phase.ENDED, facts.workers.gone
        actions = self.core.handle(event, self.now)
        assert not (ended and actions), "nothing is asked after the end"
        assert self.core.wake_at is None or self.core.wake_at > self.now, "it is not called in the past"
        for action in actions:
            match action:
                case SendTransaction(transaction=transaction):
                    self.sent.append(transaction)
                case StartWorkers(generation=generation):
                    assert idle or isinstance(event, WorkersGone), "two worlds never run on one node"
                    assert generation.index("a") is not None
                    assert self.now < facts.workers.run_deadline.until(), "nothing starts without the right to run"
                    self.told_until = facts.workers.run_until
                case ExtendRunDeadline(t=t):
                    assert t > self.told_until, "a time that was promised to the nursery is not told again"
                    self.told_until = t
                case ExitAgent():
                    assert facts.phase is Phase.ENDED
                    assert idle or facts.workers.gone, "an agent does not leave its workers behind"
        assert (facts.phase is Phase.ENDED) == (ended or any(isinstance(action, ExitAgent) for action in actions))
        return actions


agents = st.builds(
    Watched, rerun=st.booleans(), force=st.booleans(), join_timeout_s=st.sampled_from([None, None, 30.0])
)


@settings(max_examples=25)
@given(agents, timed(events, 0))
def test_an_agents_core_raises_nothing_whatever_it_is_told(
    agent: Watched, told: list[tuple[Event | Unsent, float]]
) -> None:
    for event, pause_s in told:
        agent.now += pause_s
        agent.tell(event)


@settings(max_examples=30)
@given(agents, timed(steady, 8), timed(events, 0))
def test_a_registered_agents_core_raises_nothing_whatever_it_is_told(
    agent: Watched,
    told: list[tuple[Event | Unsent, float]],
    then: list[tuple[Event | Unsent, float]],
) -> None:
    agent.tell(ViewChanged(EMPTY, 1))
    agent.tell(LeaseGranted(1, 20.0, 0.0))
    agent.tell((0, True, 2))
    assert agent.core.phase is Phase.SPARE
    for event, pause_s in [*told, *then]:
        agent.now += pause_s
        agent.tell(event)


@settings(max_examples=300)
@given(
    st.sampled_from([phase for phase in Phase if phase is not Phase.ENDED]),
    st.lists(st.sampled_from(sorted(HAPPENINGS)), min_size=3, max_size=25),
)
def test_an_agent_in_a_real_store_keeps_to_its_table_whatever_happens(phase: Phase, happenings: list[str]) -> None:
    bench = IN_PHASE[phase]()
    for name in happenings:
        HAPPENINGS[name](bench)
        assert bench.starts == sorted(set(bench.starts)), "each generation is started once, in order"
        assert all(g in bench.starts for g, _ in bench.stops), "only what was started is stopped"
        assert bench.phase in (Phase.RUNNING, Phase.STOPPING) or bench.facts.workers.gone
        if bench.phase is Phase.ENDED:
            assert bench.exit_code in (0, 1, 143)
            return
