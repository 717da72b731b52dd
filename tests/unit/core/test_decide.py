"""Whatever stands in the store, and whatever happened before, `decide` answers, and what it says keeps the rules."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from elastic.core.decide import decide
from elastic.core.failure_class import FailureClass
from elastic.core.membership.decision import ConcludeJob, FormGeneration, OpenGate, WaitDecision
from elastic.core.membership.memory import DecisionMemory
from elastic.core.model import FinalStatus, MemberState, OutcomeKind
from elastic.core.view import StoreView
from tests.support.job_transcript import POLICY, Job
from tests.support.strategies import job_views, memories, times, views

ACTS_MAX = 4
"""So many decisions in a row, at one moment, bring every job to rest."""


@settings(max_examples=40)
@given(views(complete=True), memories, times)
def test_decide_raises_nothing_on_any_documents(view: StoreView, memory: DecisionMemory, now: float) -> None:
    assert decide(view, memory, POLICY, now)[0].reason


@settings(max_examples=150)
@given(job_views(complete=True), st.just(DecisionMemory()) | memories, st.integers(0, 300).map(float))
def test_decide_raises_nothing_on_documents_that_contradict_each_other(
    view: StoreView, memory: DecisionMemory, now: float
) -> None:
    first, after = decide(view, memory, POLICY, now)
    assert (first, after) == decide(view, memory, POLICY, now)
    assert decide(view, after, POLICY, now + 200.0)[0].reason


STEPS = ("join", "join", "vanish", "drain", "proof", "ok", "failed", "failing", "stop all", "stop all", "scale", "time")
step = st.tuples(st.sampled_from(STEPS), st.integers(0, 5))


@settings(max_examples=150)
@given(
    st.sampled_from(["1", "2", "3", "2:2", "1:3", "2:4", "1:5"]),
    st.sampled_from([1, 100]),
    st.lists(step, min_size=20, max_size=60),
)
def test_whatever_happens_order_gate_and_verdict_keep_their_rules(
    np: str, restarts_max: int, steps: list[tuple[str, int]]
) -> None:
    story = Story(Job(np, restarts_max=restarts_max, join_window_s=1.0, scale_up_interval_s=5.0))
    for name, number in steps:
        story.happens(name, number)
        story.act()


class Story:
    """A job in which anything happens, in any order, and whose proposer carries out what it decides."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.now = 0.0
        self.born = 0
        self.went: dict[int, list[str]] = {}

    def happens(self, name: str, number: int) -> None:
        """One thing happens, to node `number` of those that it can happen to."""
        job = self.job
        here = sorted(job.view.members)
        open_ = [node for node in self.went[job.running_g] if not self.over(node)] if self.went else []
        match name:
            case "join":
                self.born += 1
                job.join(f"n{self.born}")
            case "vanish" if here:
                job.vanish(here[number % len(here)])
            case "drain" if here:
                job.drain(here[number % len(here)])
            case "proof" if here:
                job.prove_gone(here[number % len(here)])
            case "ok" if open_:
                job.ok(open_[number % len(open_)])
            case "failed" | "failing" if open_:
                job.failed(
                    open_[number % len(open_)],
                    over=name == "failed",
                    failure=FailureClass.SECONDARY if number > 3 else FailureClass.SCRIPT,
                )
            case "stop all" if self.went and job.generation.g > job.running_g:
                job.stopped(" ".join(node for node in open_ if node in here))
            case "scale":
                job.scale(["1", "3", "2:2", "1:4"][number % 4])
            case "time":
                self.now += [0.1, 0.4, 1.0, 2.0, 6.0, 150.0][number]

    def over(self, node: str) -> bool:
        """Tell whether a node has recorded how its workers of the running generation ended."""
        held = self.job.view.outcomes.get((self.job.running_g, node))
        return held is not None and held.value.over

    def act(self) -> None:
        """The proposer does what it decides, until there is nothing to do."""
        for _ in range(ACTS_MAX):
            decision = self.job.decide(self.now)
            match decision:
                case WaitDecision(until=until):
                    assert until is None or until > self.now, decision
                    return
                case FormGeneration():
                    self.check_order(decision)
                    self.job.write(decision)
                case OpenGate():
                    self.check_gate(decision)
                    self.job.write(decision)
                    self.went[decision.go.g] = [place.node for place in self.job.generation.members]
                case ConcludeJob():
                    self.check_end(decision)
                    self.job.write(decision)
        raise AssertionError(f"no rest: {decision}")

    def check_order(self, form: FormGeneration) -> None:
        """Survivors keep their order, newcomers are appended by age, and all of them are there and stay.

        A survivor is left out only if it is known to be gone, its host is in quarantine, or there is no room.
        """
        job, members = self.job, [place.node for place in form.generation.members]
        old = job.view.generation
        before = [place.node for place in old.value.members] if old is not None else []
        quarantined = {host.host for host in form.generation.budget.hosts if host.left_s > 0}
        joining_nodes = [node for node in members if node not in before]
        assert len(set(members)) == len(members) <= job.spec.np.high
        assert members == [node for node in before if node in members] + joining_nodes
        assert joining_nodes == sorted(joining_nodes, key=lambda node: job.view.members[node].create_revision)
        assert form.generation.g == (old.value.g if old is not None else 0) + 1
        for node in members:
            assert job.view.members[node].value.state is MemberState.READY
            assert (node, job.view.members[node].create_revision) not in job.memory.gone
        for node in before:
            stored = job.view.members.get(node)
            if stored is not None and stored.value.state is MemberState.READY and node not in members:
                gone = (node, stored.create_revision) in job.memory.gone
                assert gone or stored.value.host in quarantined or len(members) == job.spec.np.high
        if form.planned:
            assert not any((job.generation.g, node) in job.view.outcomes for node in before)
        assert not any((job.generation.g, node) in job.view.outcomes for node in form.lost)

    def check_gate(self, opened: OpenGate) -> None:
        """Nobody who may still run an older world is alive, and the go is for the newest generation."""
        job, generation = self.job, self.job.generation
        assert opened.go.g == generation.g
        assert len(generation.members) >= job.spec.np.low
        assert all(place.node in job.view.members for place in generation.members)
        for node in generation.before.nodes if generation.before is not None else ():
            assert node not in job.view.members or self.over(node)
            assert node in job.view.members or node in opened.absent

    def check_end(self, end: ConcludeJob) -> None:
        """Completed is ok of every member of one generation; failed has a cause."""
        if end.status is FinalStatus.FAILED:
            assert end.cause is not None
            return
        outcomes = [self.job.view.outcomes[end.g, node].value for node in self.went[end.g]]
        assert all(outcome.ended is OutcomeKind.OK for outcome in outcomes)
