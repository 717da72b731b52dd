"""What the benchmarks keep of their rounds, and the tables that are made of it."""

from __future__ import annotations

from pathlib import Path

from tests.bench import learning, preparation, rendezvous, results, scale, scenarios
from tests.bench.results import OURS, Figure
from tests.bench.steplog import Step


def step(at_s: float, node: str, rank: int, number: int, *, world: int = 3) -> Step:
    return Step(at_s, 4 - world, rank, world, number, 100 + rank, node)


def of_round(what: str, who: str, *rounds: float) -> Figure:
    return results.figure(what, who, "s", rounds, "python -m tests.bench.recovery")


def test_a_scenario_has_the_median_the_spread_and_the_rounds_of_each_launcher_that_was_measured() -> None:
    measured = [
        of_round("SIGKILL of a node", OURS, 0.12, 0.1, 0.2),
        of_round("SIGKILL of a node", "torchrun, tuned", 7.0),
        of_round("drain, step to step", OURS, 0.3, 0.25),
    ]
    head, _, *rows = scenarios.table(measured).splitlines()
    assert head.count("|") == 2 + len(scenarios.COLUMNS)
    assert rows == [
        "| a node is killed; the script imports only torch | 0.12 s (0.1–0.2; 3) |  | 7 s (7–7; 1) |  |  |  |",
        "| a node drains (planned stop), step to step | 0.275 s (0.25–0.3; 2) |  |  |  |  |  |",
    ]


def test_the_table_of_scenarios_has_a_silent_host_a_state_and_planned_changes_next_to_the_killed_node() -> None:
    text = scenarios.table(results.read("recovery"))
    for words in ("imports only torch", "100 MB of state", "freezes", "loses its network", "joins", "drains"):
        assert f"{words}" in text


def test_no_scenario_is_measured_under_a_name_that_another_has() -> None:
    names = [scenario.what for scenario in scenarios.SCENARIOS]
    assert len(set(names)) == len(names)


def test_every_scenario_and_every_launcher_of_the_table_has_recorded_figures_under_its_name() -> None:
    measured = results.read("recovery")
    assert {scenario.what for scenario in scenarios.SCENARIOS} <= {figure.what for figure in measured}
    assert set(scenarios.COLUMNS.values()) <= {figure.who for figure in measured}


def test_a_figure_that_was_written_before_there_were_other_environments_is_of_the_first(tmp_path: Path) -> None:
    figure = '{"what": "w", "who": "o", "unit": "s", "value": 1.0, "rounds": [1.0], "command": "python -m x"}'
    (tmp_path / "recovery.json").write_text(f'{{"machine": "m", "figures": [{figure}]}}')
    assert [one.environment for one in results.read("recovery", tmp_path)] == [results.ENVIRONMENT]


def test_a_size_of_torchs_of_which_one_round_did_not_meet_has_no_time() -> None:
    rounds = [rendezvous.Met(seconds, 10, 1, 1) for seconds in (3.0, 1.0, 2.0)]
    assert scale.typical(rounds) == rounds[2]
    assert scale.typical([*rounds, None]) is None
    kept = scale.figures({}, {16: [*rounds], 32: [*rounds], 64: [*rounds, None]})
    assert [(one.what, one.value) for one in kept] == [("32 agents meet", 2.0)]


def test_the_table_has_beside_each_loss_how_long_it_took_until_all_workers_ran_again() -> None:
    change = scale.Change(1.0, 8000.0, 1.0)
    measured = [
        scale.Measured(
            connect_s=1.0, meet_s=1.0, meet_cpu_s=1.0, lost_s=lost_s, change_s=10 * lost_s, leader_lost_s=lost_s,
            leader_change_s=10 * lost_s, leads=1, apply_s=0.002, apply_worst_s=0.1, meet=change, lost=change,
            leader_lost=change, generations=1, document_bytes=30_000,
        )
        for lost_s in (0.3, 0.1, 0.2)
    ]  # fmt: skip
    kept = {one.what: one.value for one in scale.figures({100: measured, 1000: measured, 3000: measured[:1]}, {})}
    assert list(kept)[1:3] == ["one of 1000 lost", scale.running_again(1000)]
    assert (kept["one of 1000 lost"], kept[scale.running_again(1000)]) == (0.2, 2.0)
    assert (kept["one of 3000 lost"], kept[scale.running_again(3000)]) == (0.3, 3.0)
    assert not any("100 " in what for what in kept)


def test_steps_per_second_are_those_of_rank_0_in_two_windows_after_the_first_step_of_the_last_rank() -> None:
    moments = (9.9, 10.5, 11.0, 11.9, 12.5, 14.5)
    steps = [step(at_s, "a", rank, number) for number, at_s in enumerate(moments) for rank in (0, 1)]
    assert learning.windows_of(steps, 10.0, 2.0) == (1.5, 0.5)


def test_a_node_has_prepared_its_imports_when_it_first_logged_one_of_the_texts(tmp_path: Path) -> None:
    line = "2026-11-28T00:00:0{}.500+00:00 {} {}\n"
    lines = (
        (1, "a", f"{preparation.BEGUN}: numpy"),
        (2, "a", f"{preparation.READY}: numpy"),
        (3, "b", preparation.NOTHING),
        (4, "a", f"{preparation.READY}: pandas"),
    )
    (tmp_path / "launcher.log").write_text("".join(line.format(*one) for one in lines))
    found = preparation.first_logged(tmp_path, *preparation.DONE)
    assert list(found) == ["a", "b"]
    assert found["b"] - found["a"] == 1.0
    assert preparation.first_logged(tmp_path / "none", *preparation.DONE) == {}
