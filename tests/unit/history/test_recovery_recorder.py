"""Where the time of a recovery went, from what happens to one agent: each moment ends one phase."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from elastic.core.agent.actions import Action, NoteSilence, SilenceStep
from elastic.core.agent.candidates import RANK_S
from elastic.core.agent.events import Event, ProcessProvenDead, Tick, WorkersGone
from elastic.core.agent.links.silence import SilenceChanged
from elastic.core.agent.state import AgentState, Phase, SilentPeer
from elastic.core.membership.evictions import evicted
from elastic.core.model import ChangeReason, Outcome, OutcomeKind, Predecessor
from launcher.history.events import EventKind, of_recovery
from launcher.history.recorder_base import PATIENCE_S, START_PATIENCE_S
from launcher.history.recovery import PhaseEnd, Recovery, phases, shown
from launcher.history.recovery_recorder import LINGER_S, RecoveryRecorder
from tests.support.agent_harness import Bench, running
from tests.support.recorder_harness import NotedAgent
from tests.support.strategies import KEYS


class Noted(NotedAgent[RecoveryRecorder]):
    """The agent of node b with the notes of its timeline; its workers of generation 1 run, together with a's."""

    def __init__(self, **options: Any) -> None:
        super().__init__(RecoveryRecorder("b", -1.0))
        self.now = 0.0
        self.bench = running(watch=self.watch, **options)
        self.bench.others("a", link=9000)
        self.bench.lead("a")
        self.bench.look()
        self.timeline.spawned(1, 0.01)

    def trains(self, g: int, at: float, step: int) -> None:
        """A worker says that it made a step."""
        self.timeline.working(g, 0, at, at + 0.0005, step)

    def started(self) -> None:
        """The first start is over, with a first step at 0.5."""
        self.timeline.grouped(1, 0, 0.2, 0.21)
        self.trains(1, 0.5, 1)
        self.first = self.over(0.6, tells=False)  # a tells it: it is the first of generation 1.
        self.agent.now = 1.0

    def start_of_which_a_tells(self, at: float) -> Recovery:
        """The first start, which is over because the next change has come."""
        found = self.timeline.take(at)
        assert found is not None
        assert not found.tells
        return found

    def lose_a(self, at: float) -> None:
        """The lease of a, which leads, ends; its link is closed already. b takes the lead 10 ms later."""
        self.agent.now = at
        self.agent.links("a c")
        self.agent.links("")
        if "a" in self.agent.shelf.view.members:
            self.agent.lose("a")
        self.agent.at(at + RANK_S)

    def replaced(self, why: ChangeReason, at: float) -> None:
        """Somebody else, who is not in it, publishes a generation of b alone; a has left in order."""
        self.agent.now = at
        left = Outcome(ended=OutcomeKind.STOPPED, over=True, host="host-a")
        self.agent.shelf.put(KEYS.outcome(1, "a"), left)
        self.agent.world(2, "b", why=why, before=Predecessor(1, ("a", "b"), why))
        self.agent.lose("a")
        assert self.agent.phase is Phase.STOPPING

    def comes_back(self, g: int, at: float) -> None:
        """The old workers are gone at `at`, and the new ones come up in 0.1 s."""
        self.agent.now = at
        self.agent.gone()
        assert self.agent.starts[-1] == g
        self.timeline.spawned(g, at + 0.02)
        self.timeline.grouped(g, 0, at + 0.05, at + 0.051)
        self.timeline.restored(g, 7, at + 0.07, at + 0.071)
        self.trains(g, at + 0.1, 8)


def milliseconds(found: Recovery) -> dict[str, int]:
    return {str(name): round(length * 1000) for name, length in found.phases}


# --- losses ---------------------------------------------------------------------------------------------------------


def test_a_loss_is_counted_from_its_first_sign_to_the_first_step_and_the_phases_add_up() -> None:
    noted = Noted()
    noted.started()
    noted.trains(1, 1.99, 9)
    noted.lose_a(2.0)
    noted.comes_back(2, 2.05)
    assert noted.timeline.due_at == pytest.approx(2.1505 + LINGER_S - 0.0001, abs=0.001)
    assert noted.timeline.take(2.151) is None, "the node's other workers may have something to say"
    found = noted.told(2.3)
    assert (found.before, found.g, found.why, found.end, found.complete) == (
        1,
        2,
        ChangeReason.NODE_LOST,
        PhaseEnd.STEPPED,
        True,
    )
    assert list(milliseconds(found))[:4] == ["detect", "decide", "publish", "stop"]
    assert list(milliseconds(found))[-4:] == ["spawn", "group", "restore", "step"]
    assert found.began == 2.0
    assert found.total_s == pytest.approx(2.15 - 2.0)
    assert milliseconds(found)["decide"] == 1
    assert (found.last_step, found.restored_step, found.redone) == (9, 7, 2)
    assert found.line.startswith(
        "a was lost (its lease ended): back in 0.15 s: detect 13 ms · decide 1 · publish 2 · stop"
    )
    assert found.line.endswith(" · group 30 · restore 20 · step 30; at least 2 steps repeated")


def test_a_link_that_closed_is_where_the_loss_began() -> None:
    noted = Noted()
    noted.started()
    created = noted.agent.shelf.view.members["a"].create_revision
    noted.agent.now = 2.0
    noted.agent.tell(ProcessProvenDead("a", created, "host-a"))
    noted.lose_a(2.04)
    noted.comes_back(2, 2.1)
    found = noted.told(9.0)
    assert found.began == 2.0
    assert milliseconds(found)["detect"] == 3, "b takes the lead at once"


def test_the_loss_of_a_silent_node_began_when_it_was_heard_last() -> None:
    noted = Noted()
    noted.started()
    noted.agent.now = 2.0
    noted.agent.tell(SilenceChanged({"a": SilentPeer(1.0, 1.0, 1.0)}))
    noted.lose_a(2.2)
    noted.comes_back(2, 2.3)
    found = noted.told(9.0)
    assert found.began == 1.0
    assert milliseconds(found)["detect"] > 1200


def test_the_loss_of_an_evicted_node_began_when_it_was_heard_last_though_its_key_is_still_shown() -> None:
    noted = Noted()
    noted.started()
    noted.agent.at(2.0)
    facts = noted.agent.facts
    facts.memory = replace(facts.memory, evictions=(evicted("a", "host-a", 1, 2.0),))
    noted.watch(facts, Tick(), [NoteSilence(SilenceStep.EVICTED, "a", "host-a", 1.3, ("c",))])
    noted.agent.look()
    noted.lose_a(2.1)
    noted.comes_back(2, 2.2)
    assert noted.told(9.0).began == pytest.approx(0.7)


def test_a_silence_that_is_over_is_no_beginning_of_a_loss() -> None:
    noted = Noted()
    noted.started()
    noted.agent.now = 2.0
    noted.agent.tell(SilenceChanged({"a": SilentPeer(1.0, 1.0, 1.0)}), SilenceChanged({}))
    noted.lose_a(2.2)
    noted.comes_back(2, 2.3)
    assert noted.told(9.0).began == 2.2


def test_the_moment_of_a_workers_end_counts_and_not_the_moment_in_which_it_is_heard() -> None:
    noted = Noted()
    noted.started()
    noted.timeline.failed(1, 1.93, 2.0)
    noted.agent.now = 2.0
    noted.agent.exit(3)
    noted.lose_a(2.1)
    noted.comes_back(2, 2.2)
    found = noted.told(9.0)
    assert found.began == 1.93
    assert milliseconds(found)["detect"] == 170 + 13, "until b leads"
    assert found.total_s == pytest.approx(2.3 - 1.93)


def test_two_losses_in_a_row_are_one_recovery() -> None:
    noted = Noted(np="1:3")
    noted.started()
    noted.agent.others("c")
    noted.lose_a(2.0)
    assert [place.node for place in noted.agent.facts.generation.members] == ["b", "c"]  # type: ignore[union-attr]
    noted.agent.now = 2.5
    noted.agent.shelf.delete(KEYS.member("c"))
    noted.agent.look()
    noted.comes_back(3, 3.0)
    found = noted.told(9.0)
    assert (found.before, found.g, found.began) == (1, 3, 2.0)
    assert milliseconds(found)["earlier"] == 500
    assert found.total_s == pytest.approx(3.1 - 2.0)
    assert found.text == "a was lost (its lease ended); c was lost (its lease ended) before the start"


def test_a_loss_right_after_the_first_step_is_another_recovery() -> None:
    noted = Noted(np="1:3")
    noted.started()
    noted.agent.others("c")
    noted.lose_a(2.0)
    noted.agent.now = 2.05
    noted.agent.shelf.delete(KEYS.member("c"))
    noted.agent.look()
    noted.comes_back(3, 2.1)
    noted.agent.world(4, "b", before=Predecessor(3, ("b",), ChangeReason.FAILURE))
    assert noted.timeline.take(2.21) is not None
    assert noted.timeline.take(2.21) is None


# --- planned changes ------------------------------------------------------------------------------------------------


def test_a_planned_change_is_counted_from_step_to_step() -> None:
    noted = Noted()
    noted.started()
    noted.replaced(ChangeReason.DRAIN, 2.0)
    noted.trains(1, 2.2, 7)
    noted.comes_back(2, 2.3)
    found = noted.told(9.0)
    assert (found.between_steps, found.began, found.redone) == (True, 2.2, 0)
    assert found.line == (
        "because of drain: 0.20 s between steps: stop 100 ms · spawn 20 · group 30 · restore 20 · step 30"
    )


def test_who_is_not_the_first_of_the_new_world_and_did_not_propose_it_says_nothing() -> None:
    noted = Noted()
    noted.started()
    noted.agent.now = 2.0
    noted.agent.world(2, "a b", before=Predecessor(1, ("a", "b"), ChangeReason.FAILURE))
    noted.agent.gone()
    noted.agent.go(2)
    noted.timeline.spawned(2, 2.3)
    noted.trains(2, 2.5, 31)
    assert not noted.over(9.0, tells=False).start


def test_who_says_nothing_knows_its_own_recoveries_all_the_same() -> None:
    noted = Noted()
    noted.started()
    assert noted.first.start
    assert noted.first.total_s == pytest.approx(1.5)
    noted.agent.now = 2.0
    noted.agent.world(2, "a b", before=Predecessor(1, ("a", "b"), ChangeReason.FAILURE))
    noted.agent.now = 2.2
    noted.agent.gone()
    noted.agent.go(2)
    noted.timeline.spawned(2, 2.3)
    noted.trains(2, 2.5, 31)
    assert noted.timeline.take(2.5 + LINGER_S / 2) is None, "others may say something of the same moment"
    own = noted.over(2.5 + 2 * LINGER_S, tells=False)
    assert (own.g, own.began, own.end) == (2, 2.0, PhaseEnd.STEPPED)
    assert own.total_s == pytest.approx(0.5)


def test_a_node_that_is_not_in_the_new_world_forgets_it_at_its_go() -> None:
    noted = Noted()
    noted.started()
    noted.agent.world(2, "a", why=ChangeReason.SCALE_DOWN, before=Predecessor(1, ("a", "b"), ChangeReason.SCALE_DOWN))
    noted.agent.gone()
    noted.agent.go(2)
    assert noted.timeline.end() is None


# --- scripts that say little ----------------------------------------------------------------------------------------


def silent(noted: Noted, *, grouped: bool) -> None:
    """A second start of a script that reports no step, at 2.0; the first was like it."""
    noted.replaced(ChangeReason.FAILURE, 2.0)
    noted.agent.gone()
    noted.timeline.spawned(2, 2.3)
    if grouped:
        noted.timeline.grouped(2, 0, 2.4, 2.4)


def test_a_script_without_steps_is_followed_to_its_process_group_once_that_was_learned() -> None:
    noted = Noted()
    noted.timeline.grouped(1, 0, 0.2, 0.2)
    assert noted.timeline.due_at == pytest.approx(0.2 + START_PATIENCE_S)
    noted.over(0.2 + START_PATIENCE_S, tells=False)
    silent(noted, grouped=False)
    assert noted.timeline.due_at is None, "the first start came to a process group, so this one will"
    noted.timeline.grouped(2, 0, 2.4, 2.4)
    assert noted.timeline.due_at == pytest.approx(2.4 + LINGER_S)
    assert "process group up again in 0.40 s" in noted.told(9.0).line


def test_a_step_is_waited_for_where_nobody_knows_whether_one_comes() -> None:
    noted = Noted()
    noted.timeline.grouped(1, 0, 0.2, 0.2)
    silent(noted, grouped=True)
    assert noted.start_of_which_a_tells(2.4).start
    assert noted.timeline.due_at == pytest.approx(2.4 + PATIENCE_S)


def test_a_script_that_says_nothing_at_all_is_followed_to_its_start() -> None:
    noted = Noted()
    noted.over(0.01 + START_PATIENCE_S, tells=False)
    silent(noted, grouped=False)
    assert "workers run again in 0.30 s" in noted.told(2.3 + LINGER_S).line


def again(noted: Noted, g: int, at: float) -> None:
    """The worker of b, which is alone, fails; b starts it again in 0.1 s."""
    noted.agent.now = at
    noted.agent.refreshed()
    noted.timeline.failed(g - 1, at, at)
    noted.agent.exit(1)
    noted.agent.gone()
    assert noted.agent.starts[-1] == g
    noted.timeline.spawned(g, at + 0.1)


def test_the_time_in_which_a_script_that_says_nothing_runs_is_no_part_of_its_next_recovery() -> None:
    noted = Noted()
    silent(noted, grouped=False)
    again(noted, 3, 54.0)
    assert noted.timeline.due_at == 0.0
    assert noted.start_of_which_a_tells(54.1).g == 1
    first = noted.timeline.take(54.1)
    assert first is not None
    assert "workers run again in 0.30 s" in first.line
    second = noted.told(54.1 + START_PATIENCE_S)
    assert (second.before, second.g, second.began) == (2, 3, 54.0)
    assert "earlier" not in milliseconds(second)
    assert second.total_s == pytest.approx(0.1)


def test_a_start_that_ends_before_what_the_script_is_known_to_say_came_to_nothing() -> None:
    noted = Noted()
    noted.timeline.grouped(1, 0, 0.2, 0.2)
    silent(noted, grouped=False)
    again(noted, 3, 6.0)
    assert noted.start_of_which_a_tells(6.1).g == 1
    assert noted.timeline.take(6.1) is None
    noted.timeline.grouped(3, 0, 6.3, 6.3)
    found = noted.told(20.0)
    assert (found.before, found.g, found.began) == (1, 3, 2.0)
    assert milliseconds(found)["earlier"] == 4000


def test_a_script_that_has_restored_its_state_will_make_a_step_however_late() -> None:
    noted = Noted()
    silent(noted, grouped=True)
    assert noted.start_of_which_a_tells(2.4).start
    noted.timeline.restored(2, 7, 2.5, 2.5)
    assert noted.timeline.due_at is None
    found = noted.timeline.end()
    assert found is not None
    assert "state restored in 0.50 s" in found.line, "the agent ends before it"


def test_a_worker_is_believed_within_the_time_in_which_it_can_have_happened() -> None:
    noted = Noted()
    noted.started()
    noted.replaced(ChangeReason.FAILURE, 1.5)
    noted.agent.now = 2.0
    noted.agent.gone()
    noted.timeline.spawned(2, 2.3)
    noted.timeline.grouped(2, 0, 1e9, 2.4)
    noted.timeline.working(2, 0, 0.001, 2.5, 3)
    found = noted.told(9.0)
    assert found.end is PhaseEnd.STEPPED
    assert found.total_s == pytest.approx(2.4 - 1.5), "to the process group, which is heard of at 2.4"


# --- first starts, and words ----------------------------------------------------------------------------------------


def test_a_first_start_is_counted_from_the_command() -> None:
    timeline, agents = RecoveryRecorder("b", -1.0), list[Bench]()

    def watch(facts: AgentState, event: Event, actions: list[Action]) -> None:
        timeline.observe(facts, event, actions, arrived=facts.now, now=facts.now)

    agents.append(Bench(after="", np="1", watch=watch))
    agents[0].others("")
    agents[0].look()
    assert agents[0].starts == [1]
    timeline.spawned(1, 0.1)
    timeline.grouped(1, 0, 0.3, 0.3)
    timeline.working(1, 0, 1.1, 1.1, 1)
    found = timeline.take(9.0)
    assert found is not None
    assert found.start
    assert found.line.startswith(
        "1 of 1 node is here: first step 2.10 s after the command: join 1000 ms · rendezvous 0 · "
    )
    event = of_recovery(found, "b", 12.0, 12.0)
    assert (event.what, event.g, event.text) == (EventKind.START, 1, found.line)
    assert sum(event.phases.values()) == pytest.approx(2.1)


def test_the_imports_of_the_script_are_counted_until_the_last_worker_asks_for_the_process_group() -> None:
    noted = Noted(slots=2)
    noted.started()
    noted.agent.now = 2.0
    noted.lose_a(2.0)
    noted.agent.now = 2.05
    noted.agent.gone()
    g = noted.agent.starts[-1]
    noted.timeline.spawned(g, 2.07)
    for local_rank, asked_at in enumerate((4.0, 3.0)):
        noted.timeline.asked_for_group(g, local_rank, asked_at, asked_at + 0.01)
        noted.timeline.asked_for_group(g, local_rank, asked_at, asked_at + 1.0)  # It is said again while it waits.
    for local_rank in range(2):
        noted.timeline.grouped(g, local_rank, 4.5, 4.51)
    noted.trains(g, 5.0, 8)
    found = milliseconds(noted.told(5.2))
    assert (found["script"], found["group"], found["step"]) == (1930, 500, 500)


def test_a_moment_that_came_before_its_turn_took_no_time() -> None:
    marks = {PhaseEnd.DETECTED: 1.0, PhaseEnd.DECIDED: 1.5, PhaseEnd.STOPPED: 1.2, PhaseEnd.STEPPED: 2.0}
    assert phases(1.0, marks) == ((PhaseEnd.DETECTED, 0.0), (PhaseEnd.DECIDED, 0.5), (PhaseEnd.STEPPED, 0.5))
    assert phases(1.0, {PhaseEnd.GROUPED: 2.0, PhaseEnd.STEPPED: 1.9}) == (
        (PhaseEnd.GROUPED, 1.0),
        (PhaseEnd.STEPPED, 0.0),
    )


def test_a_short_lesser_phase_is_counted_in_the_next_one_and_never_lost() -> None:
    found = (
        (PhaseEnd.ASSIGNED, 0.004),
        (PhaseEnd.STOPPED, 0.1),
        (PhaseEnd.HEARD_GO, 0.5),
        (PhaseEnd.SPAWNED, 0.02),
    )
    assert shown(found) == [
        (PhaseEnd.STOPPED, pytest.approx(0.104)),
        (PhaseEnd.HEARD_GO, 0.5),
        (PhaseEnd.SPAWNED, 0.02),
    ]


def test_no_order_of_words_raises() -> None:
    timeline = RecoveryRecorder("b", 0.0)
    timeline.working(5, 0, 0.0, 1.0, None)
    timeline.grouped(1, 0, 0.0, 1.0)
    timeline.restored(1, -1, 0.0, 1.0)
    timeline.spawned(2, 1.0)
    timeline.failed(2, 1.0, 1.0)
    assert timeline.take(9.0) is None
    assert timeline.end() is None
    noted = Noted()
    noted.agent.tell(WorkersGone(1), WorkersGone(1), WorkersGone(9))
