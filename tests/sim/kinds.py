"""Which seeds are of which kind: below `ROSTERS_FROM` collective jobs, then parameter-server jobs, then plays.

Nothing of the core is imported here: a process that is to break it may know this.
"""

from __future__ import annotations

from typing import Final

ROSTERS_FROM: Final = 1_000_000
"""From this one on, seeds are parameter-server jobs."""
PLAYS_FROM: Final = 2_000_000
"""From this one on, each `SEEDS_OF_A_PLAY` seeds are one play of `plays.registry`, in the order of `PLAYS`."""
SEEDS_OF_A_PLAY: Final = 1_000
PLAYS: Final = (
    "all_members_lost",
    "gate_deserted",
    "done_and_fewer_wanted",
    "grown_twice",
    "bad_host",
    "drained_at_the_gate",
    "old_world_held",
    "back_before_the_go",
    "back_before_it_counts_as_lost",
    "first_without_ports",
    "revoke_lost",
    "all_leave_and_one_fails",
    "scaled_meanwhile",
    "done_meanwhile",
    "settings_meanwhile",
    "two_come_to_a_dead_job",
    "into_another_store",
    "echo_of_a_planned_stop",
    "asks_without_progress",
    "fails_in_a_planned_stop",
    "run_again",
    "no_key_can_be_written",
    "heard_and_gone",
    "seats_meanwhile",
    "fails_again",
    "machine_fails_again",
    "fails_for_good",
    "leases_ended",
    "crash",
    "failure",
    "drains",
    "shrink",
    "growth",
    "false_proof",
    "everybody_starts_again",
    "loss_in_plan",
    "lease_lost_at_gate",
    "walled",
    "long_outage",
    "long_astray",
    "failure_while_astray",
    "split",
    "outage",
    "astray",
    "taken_away",
    "peers_fail_first",
    "link_up_while_asked",
    "first_astray",
    "done_while_frozen",
    "leaver_dies_last",
    "all_lost_and_others_come",
    "done_at_the_gate",
    "all_but_one_lease_ended",
    "word_lingers",
    "split_of_two",
    "fails_in_a_split",
    "split_and_all_needed",
    "split_in_a_planned_stop",
    "more_wanted_at_the_gate",
    "proposer_revoked_meanwhile",
    "two_proposers",
    "lost_and_done",
    "forced_and_echo",
    "twins",
    "late_to_a_roster",
    "drain_of_a_roster",
    "split_and_a_spare",
    "split_of_pairs",
    "leases_ended_in_a_planned_stop",
    "deaf_and_taken_away",
    "done_in_an_outage",
    "passed_over_while_it_saves",
    "stopped",
    "stopped_and_lost",
    "stopped_and_fails",
    "stopped_at_the_gate",
    "stopped_now",
    "stopped_and_joined",
    "stopped_and_done",
    "told_to_leave",
    "stopped_roster",
    "stopped_as_leases_ended",
    "left_out_and_lost",
    "cannot_start",
    "all_lost_without_a_maximum",
    "store_empty_without_a_maximum",
    "astray_and_late",
    "astray_and_silent",
    "stranger_grants",
    "stranger_is_the_first",
    "strangers_linked",
    "leader_is_the_last",
    "leader_is_a_spare",
    "leader_cut_off",
    "leader_key_deleted",
    "leader_member_deleted",
    "rack_lost",
    "leader_of_a_list",
    "large_rack_lost",
    "all_astray_and_others_come",
    "revoked_as_the_first_dies",
    "drained_in_an_outage",
    "silent",
    "silent_leader",
    "leader_sleeps",
    "reached_by_another",
    "half_is_cut_off",
    "held_up_for_a_moment",
    "eviction_lingers",
    "evicted_and_another_comes",
    "silent_of_two",
    "silent_spare",
    "silent_at_the_gate",
    "cut_from_the_others",
    "silent_server",
    "steps_go_on",
)
"""A play is added at the end, so that the seeds of the others stay."""


def seeds_of(play: str, count: int) -> range:
    """The first seeds of a play."""
    first = PLAYS_FROM + SEEDS_OF_A_PLAY * PLAYS.index(play)
    return range(first, first + count)


def play_of(seed: int) -> str:
    """The play of a seed."""
    return PLAYS[(seed - PLAYS_FROM) // SEEDS_OF_A_PLAY]
