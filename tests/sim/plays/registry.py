"""Plays: what happens in one of them is written down; the seed decides about delays, clocks and sizes alone.

Some rules of the core matter only where three or four things meet: a proposal that lingers while a node comes back, a
member that has lost its key as it becomes the first. Faults that strike at random bring them together once in many
thousands of runs. Here each has seeds of its own (`tests.sim.kinds`), so that what is added does not move the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from elastic.core.model import NP_UNLIMITED, Generation, Np
from tests.sim import calm, kinds
from tests.sim.calm import Calm
from tests.sim.checks import Promises
from tests.sim.ends import Ends
from tests.sim.evictions import Evictions
from tests.sim.life import CHAOS_S, HEALED_S, heal, over
from tests.sim.nodes import Node
from tests.sim.plays import leaders, meetings, operators, partings, races, silences, strangers, successions
from tests.sim.rosters import RosterPromises, RosterWorld
from tests.sim.rules import Rules
from tests.sim.world import World

HEARD: Final[Mapping[str, Any]] = {"lease_ttl_s": 5.0, "silence_timeout_s": 1.0, "scale_up_interval_s": 5.0}
BEGINS_S = 15.0
"""By then the job trains."""
Act = Callable[[World, Calm, Node, Generation], None]


class Play(NamedTuple):
    """What happens, and to which job.

    Without `nodes` the seed says which job it is.

    `act` gets a node that is neither the first nor the last, where there is one, and the generation that trains.
    `early` is called before anybody comes. `spec` are parts of the spec, `low`, `high` and `first` those of np.
    """

    act: Act
    nodes: int = 0
    low: int = 1
    high: int = 0
    first: int = 0
    links: bool | None = None
    listens: bool | None = None
    work_s: float = 45.0
    spec: Mapping[str, Any] = {}
    early: Callable[[World], None] = lambda _: None
    roster: bool = False


PLAYS: Final[Mapping[str, Play]] = {
    "all_members_lost": Play(meetings.all_members_lost, nodes=5, low=2, high=3),
    "gate_deserted": Play(meetings.gate_deserted, nodes=5, low=2, high=3),
    "done_and_fewer_wanted": Play(meetings.done_and_fewer_wanted, nodes=4),
    "grown_twice": Play(meetings.grown_twice, nodes=3, spec={"join_window_s": 1.0}, work_s=120.0),
    "bad_host": Play(meetings.bad_host, nodes=4),
    "drained_at_the_gate": Play(meetings.drained_at_the_gate, nodes=4),
    "old_world_held": Play(
        meetings.old_world_held, links=True, nodes=3, low=2, spec={"lease_ttl_s": 2.0, "etcd_outage_timeout_s": 30.0}
    ),
    "back_before_the_go": Play(races.back_before_the_go, links=False, nodes=4, spec={"lease_ttl_s": 5.0}),
    "back_before_it_counts_as_lost": Play(
        races.back_before_it_counts_as_lost, links=False, nodes=4, spec={"lease_ttl_s": 5.0}
    ),
    "first_without_ports": Play(meetings.first_without_ports, links=True, nodes=5),
    "revoke_lost": Play(meetings.revoke_lost, links=True, nodes=4, spec={"lease_ttl_s": 5.0}),
    "all_leave_and_one_fails": Play(meetings.all_leave_and_one_fails, nodes=3, listens=False),
    "scaled_meanwhile": Play(races.scaled_meanwhile, nodes=4),
    "done_meanwhile": Play(races.done_meanwhile, nodes=4),
    "settings_meanwhile": Play(races.settings_meanwhile, nodes=4, high=6),
    "two_come_to_a_dead_job": Play(races.two_come_to_a_dead_job, nodes=2, high=2, spec={"slots": 1}),
    "into_another_store": Play(
        meetings.nothing, early=races.into_another_store, nodes=1, high=2, first=1, spec={"join_window_s": 10.0}
    ),
    "echo_of_a_planned_stop": Play(meetings.echo_of_a_planned_stop, nodes=4, listens=False),
    "asks_without_progress": Play(meetings.asks_without_progress, nodes=4),
    "fails_in_a_planned_stop": Play(meetings.fails_in_a_planned_stop, nodes=4, listens=True, spec={"slots": 2}),
    "run_again": Play(meetings.run_again, nodes=3, low=1, first=2),
    "no_key_can_be_written": Play(meetings.no_key_can_be_written, nodes=4, links=False),
    "heard_and_gone": Play(meetings.heard_and_gone, nodes=4, links=True),
    "seats_meanwhile": Play(races.seats_meanwhile, roster=True, work_s=40.0),
    "fails_again": Play(meetings.fails_again, nodes=3),
    "machine_fails_again": Play(meetings.machine_fails_again, nodes=3),
    "fails_for_good": Play(meetings.fails_for_good, nodes=3),
    "leases_ended": Play(meetings.leases_ended),
    **{one.__name__: Play(one) for one in (*calm.SITUATIONS, calm.split) if one is not calm.silent},
    "outage": Play(meetings.outage),
    "astray": Play(meetings.astray),
    "taken_away": Play(meetings.taken_away),
    "peers_fail_first": Play(partings.peers_fail_first, links=True, nodes=4),
    "link_up_while_asked": Play(partings.link_up_while_asked, links=True, nodes=4),
    "first_astray": Play(partings.first_astray, links=True),
    "done_while_frozen": Play(partings.done_while_frozen, nodes=3, spec={"lease_ttl_s": 5.0}),
    "leaver_dies_last": Play(partings.leaver_dies_last, nodes=3, listens=False),
    "all_lost_and_others_come": Play(partings.all_lost_and_others_come, nodes=2, high=5, spec={"join_window_s": 3.0}),
    "done_at_the_gate": Play(partings.done_at_the_gate, nodes=3),
    "all_but_one_lease_ended": Play(partings.all_but_one_lease_ended, nodes=4, links=True),
    "word_lingers": Play(partings.word_lingers, nodes=3, spec={"slots": 2}),
    "split_of_two": Play(partings.split_of_two, nodes=2),
    "fails_in_a_split": Play(partings.fails_in_a_split, nodes=4),
    "split_and_all_needed": Play(partings.split_and_all_needed, nodes=3, low=3),
    "split_in_a_planned_stop": Play(partings.split_in_a_planned_stop, nodes=4, listens=True),
    "more_wanted_at_the_gate": Play(partings.more_wanted_at_the_gate, roster=True, work_s=60.0),
    "proposer_revoked_meanwhile": Play(races.proposer_revoked_meanwhile, nodes=4),
    "two_proposers": Play(races.two_proposers, nodes=4, links=True, spec={"lease_ttl_s": 5.0}),
    "lost_and_done": Play(races.lost_and_done, nodes=4, links=False, spec={"lease_ttl_s": 5.0}),
    "forced_and_echo": Play(partings.forced_and_echo, nodes=3, spec={"lease_ttl_s": 5.0}),
    "twins": Play(races.twins, nodes=3, high=5),
    "late_to_a_roster": Play(races.late_to_a_roster, roster=True, work_s=80.0),
    "drain_of_a_roster": Play(races.drain_of_a_roster, roster=True, work_s=80.0),
    "split_and_a_spare": Play(partings.split_and_a_spare, nodes=4, low=3, high=3),
    "split_of_pairs": Play(partings.split_of_pairs, nodes=5),
    "leases_ended_in_a_planned_stop": Play(
        partings.leases_ended_in_a_planned_stop, nodes=4, links=True, listens=True, spec={"lease_ttl_s": 2.0}
    ),
    "deaf_and_taken_away": Play(races.deaf_and_taken_away, roster=True, work_s=80.0),
    "done_in_an_outage": Play(
        meetings.done_in_an_outage, nodes=3, links=True, spec={"lease_ttl_s": 2.0, "etcd_outage_timeout_s": 30.0}
    ),
    "passed_over_while_it_saves": Play(
        partings.passed_over_while_it_saves,
        nodes=3,
        links=False,
        listens=True,
        work_s=90.0,
        spec={"lease_ttl_s": 5.0, "join_window_s": 0.2, "scale_up_interval_s": 1.0},
    ),
    "stopped": Play(operators.stopped, nodes=4, listens=True),
    "stopped_and_lost": Play(operators.stopped_and_lost, nodes=4, listens=True),
    "stopped_and_fails": Play(operators.stopped_and_fails, nodes=4, listens=True),
    "stopped_at_the_gate": Play(operators.stopped_at_the_gate, nodes=4),
    "stopped_now": Play(operators.stopped_now, nodes=4, listens=True),
    "stopped_and_joined": Play(operators.stopped_and_joined, nodes=3, high=5),
    "stopped_and_done": Play(operators.stopped_and_done, nodes=3),
    "told_to_leave": Play(operators.told_to_leave, nodes=4),
    "stopped_roster": Play(operators.stopped_roster, roster=True, work_s=80.0),
    "stopped_as_leases_ended": Play(operators.stopped_as_leases_ended, links=False, nodes=4, listens=True),
    "left_out_and_lost": Play(partings.left_out_and_lost, nodes=4, listens=True),
    "cannot_start": Play(meetings.nothing, early=meetings.cannot_start, nodes=3, low=3),
    "all_lost_without_a_maximum": Play(meetings.all_members_lost, nodes=4, high=NP_UNLIMITED, first=2),
    "store_empty_without_a_maximum": Play(
        meetings.store_empty_without_a_maximum, nodes=4, high=NP_UNLIMITED, first=2, spec={"join_window_s": 10.0}
    ),
    "astray_and_late": Play(
        meetings.astray_and_late,
        links=True,
        nodes=4,
        spec={"lease_ttl_s": 5.0, "etcd_outage_timeout_s": 40.0, "silence_timeout_s": 2.0},
    ),
    "astray_and_silent": Play(
        meetings.astray_and_silent, links=True, nodes=4, spec={"lease_ttl_s": 5.0, "etcd_outage_timeout_s": 120.0}
    ),
    "stranger_grants": Play(strangers.stranger_grants, links=True, nodes=4, spec={"etcd_outage_timeout_s": 30.0}),
    "stranger_is_the_first": Play(
        strangers.stranger_is_the_first, links=True, nodes=4, spec={"etcd_outage_timeout_s": 30.0}
    ),
    "strangers_linked": Play(strangers.strangers_linked, links=True, nodes=4),
    "leader_is_the_last": Play(leaders.leader_is_the_last, nodes=4, links=True),
    "leader_is_a_spare": Play(leaders.leader_is_a_spare, nodes=5, high=3, links=True),
    "leader_cut_off": Play(leaders.leader_cut_off, nodes=4),
    "leader_key_deleted": Play(leaders.leader_key_deleted, nodes=4, links=True),
    "leader_member_deleted": Play(leaders.leader_member_deleted, nodes=4, links=True),
    "rack_lost": Play(leaders.rack_lost, nodes=7),
    "leader_of_a_list": Play(leaders.leader_is_the_last, nodes=4, links=True, spec={"ips": ("h3", "h1", "h0", "h2")}),
    "large_rack_lost": Play(leaders.rack_lost, nodes=40, links=True),
    "all_astray_and_others_come": Play(
        partings.all_astray_and_others_come,
        nodes=2,
        high=4,
        links=True,
        spec={"lease_ttl_s": 2.0, "etcd_outage_timeout_s": 60.0},
        work_s=120.0,
    ),
    "revoked_as_the_first_dies": Play(leaders.revoked_as_the_first_dies, nodes=4, links=True),
    "drained_in_an_outage": Play(
        operators.drained_in_an_outage,
        nodes=4,
        links=True,
        listens=True,
        spec={"lease_ttl_s": 5.0, "etcd_outage_timeout_s": 30.0},
    ),
    "silent": Play(calm.silent, nodes=4, links=True, spec=HEARD),
    "silent_leader": Play(silences.silent_leader, nodes=4, links=True, spec=HEARD),
    "leader_sleeps": Play(silences.leader_sleeps, nodes=4, links=True, spec=HEARD),
    "reached_by_another": Play(silences.reached_by_another, nodes=4, links=True, spec=HEARD),
    "half_is_cut_off": Play(silences.half_is_cut_off, nodes=6, links=True, spec=HEARD),
    "held_up_for_a_moment": Play(silences.held_up_for_a_moment, nodes=4, links=True, spec=HEARD),
    "eviction_lingers": Play(silences.eviction_lingers, nodes=4, links=True, spec=HEARD),
    "evicted_and_another_comes": Play(
        silences.evicted_and_another_comes,
        nodes=4,
        links=True,
        work_s=90.0,
        spec={"lease_ttl_s": 5.0, "silence_timeout_s": 1.0, "scale_up_interval_s": 0.0, "join_window_s": 0.1},
    ),
    "silent_of_two": Play(silences.silent_of_two, nodes=2, links=True, spec=HEARD),
    "silent_spare": Play(silences.silent_spare, nodes=5, high=4, links=True, spec=HEARD),
    "silent_at_the_gate": Play(silences.silent_at_the_gate, nodes=4, links=True, spec=HEARD),
    "cut_from_the_others": Play(silences.cut_from_the_others, nodes=4, links=True, spec=HEARD),
    "silent_server": Play(silences.silent_server, roster=True, links=True, work_s=80.0, spec=HEARD),
    "steps_go_on": Play(silences.steps_go_on, nodes=4, links=True, spec={"lease_ttl_s": 5.0, "silence_timeout_s": 2.0}),
    "one_of_two_is_cut_off": Play(silences.cut_from_the_others, nodes=2, links=True, spec=HEARD),
    "both_of_two_are_needed": Play(silences.halves_apart, nodes=2, low=2, links=True, spec=HEARD),
    "halves_apart": Play(silences.halves_apart, nodes=6, links=True, spec=HEARD),
    "silent_as_another_joins": Play(
        silences.silent_as_another_joins,
        nodes=1,
        high=2,
        links=True,
        spec={"lease_ttl_s": 5.0, "silence_timeout_s": 1.0, "scale_up_interval_s": 0.0, "join_window_s": 0.1},
    ),
    "split_from_the_leader": Play(partings.split_from_the_leader, nodes=4, links=True, spec={"silence_timeout_s": 0.0}),
    "cut_off_with_the_leader": Play(silences.cut_off_with_the_leader, nodes=7, links=True, spec=HEARD),
    "leader_is_deaf": Play(silences.leader_is_deaf, nodes=4, links=True, spec=HEARD),
    "reached_meanwhile": Play(
        silences.reached_meanwhile,
        nodes=5,
        high=4,
        links=True,
        spec={"lease_ttl_s": 5.0, "silence_timeout_s": 1.0, "scale_up_interval_s": 0.0, "join_window_s": 0.1},
    ),
    "two_are_apart": Play(silences.two_are_apart, nodes=7, links=True, spec=HEARD),
    "half_is_cut_off_as_one_joins": Play(
        silences.half_is_cut_off_as_one_joins, nodes=5, high=6, links=True, spec={**HEARD, "join_window_s": 0.7}
    ),
    "nursery_dies_preparing": Play(successions.nursery_dies_preparing, nodes=4),
    "successor_dies": Play(successions.successor_dies, nodes=4, links=True),
    "succeeded_and_dies": Play(successions.succeeded_and_dies, nodes=3),
    "agent_dies_preparing": Play(successions.agent_dies_preparing, nodes=4),
}
"""Every play, by its name."""


def run_play_seed(seed: int) -> World:
    """Run one play; raises `Violation`. The same seed gives the same run."""
    world = make_play(seed)
    live_play(world)
    return world


def make_play(seed: int) -> World:
    """A world before anything has happened, watched by every guarantee."""
    play = PLAYS[kinds.play_of(seed)]
    if play.roster:
        world: World = RosterWorld(seed)
        world.observe(RosterPromises(), Evictions())
    else:
        world = World(seed)
        world.observe(Promises(), Rules(), Ends(), Evictions())
    if play.nodes:
        world.size = play.nodes
        high = play.high or play.nodes
        world.np = Np(low=play.low, high=high, first=play.first or min(play.nodes, high))
        fields = {"np": world.np, "ips": (), "restarts_max": 30, **play.spec}
        world.spec = msgspec.structs.replace(world.spec, **fields)
    world.job.work_s = play.work_s
    world.links = world.links if play.links is None else play.links
    world.job.listens = world.job.listens if play.listens is None else play.listens
    return world


def live_play(world: World) -> None:
    """Nodes start, the job trains, the play is played, all is healed, the job ends."""
    name = kinds.play_of(world.seed)
    play = PLAYS[name]
    watch = Calm()
    world.watch_faults = False
    if not play.roster:
        world.observe(watch)
    play.early(world)
    for number in range(world.size):
        world.after(0.01 * number, lambda number=number: meetings.comes(world, f"h{number}"))  # type: ignore[misc]

    def act() -> None:
        old = watch.steady(world)
        if old is not None:
            world.counts[f"play {name}"] += 1
            world.log(f"play: {name}")
            members = old.members
            play.act(world, watch, world.nodes[members[min(1, len(members) - 1)].node], old)

    world.after(BEGINS_S, act)
    world.run_to(CHAOS_S + 40.0, stop=lambda: over(world) and not world.runs_again)
    heal(world)
    if play.roster and not world.verdict_there():  # Perhaps it is a list of hosts.
        for number in range(world.size + 1):
            meetings.comes(world, f"h{number}")
    world.run_to(world.now + HEALED_S, stop=lambda: over(world))
    if not over(world):
        world.fail("liveness", "the play is over, and the job does not end")
