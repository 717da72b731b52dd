"""What the benchmark of loads counts, and when it says that no healthy node was evicted."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.bench.loads import Run, counts, evicted_hosts, steps_since, within

RUN = Run(
    kind="cores",
    silence_timeout_s=None,
    minutes=60.0,
    nodes=3,
    by="",
    injections=0,
    suspicions=0,
    cleared=0,
    evictions=0,
    evictions_printed=0,
    evictions_of_one_host=0,
    restarts=0,
    steps=1000,
    longest_gap_s=0.0,
    agents_ended=0,
)


def test_counters_are_read_with_labels_and_without_and_an_agent_that_has_ended_counts_nothing() -> None:
    page = (
        '# TYPE elastic_launch_evictions_total counter\nelastic_launch_evictions_total{job="j1"} 2.0\n'
        "elastic_launch_suspicions_total 5.0\nelastic_launch_suspicions_cleared_total 3.0\n"
    )
    assert counts(page) == {"evictions": 2, "suspicions": 5, "cleared": 3}
    assert not counts("")


def test_a_page_without_one_of_the_counters_proves_nothing() -> None:
    with pytest.raises(LookupError, match="elastic_launch_suspicions_total"):
        counts("elastic_launch_evictions_total 2.0\n")


def test_evictions_are_counted_for_each_host() -> None:
    line = "[elastic-launch] {} (host {}) has sent nothing for 1.3 s, and n1 and n2 cannot connect to it: evicted\n"
    cleared = "[elastic-launch] n3 (host h3) is alive: n1 reached it\n"
    outputs = [line.format("n3", "h3") + line.format("n2", "h2") + cleared, line.format("n3", "h3")]
    assert evicted_hosts(outputs) == {"h3": 2, "h2": 1}


def test_steps_are_those_of_rank_0_after_the_load_began_and_the_gap_counts_from_there(tmp_path: Path) -> None:
    log = tmp_path / "steps.log"
    line = "{:.4f} generation=1 rank={} world=2 step=7 pid=1 node=n\n"
    log.write_text("".join(line.format(*step) for step in ((9.0, 0), (10.5, 0), (10.6, 1), (12.0, 0), (12.1, 0))))
    assert steps_since(log, 10.0, 12.5) == (3, 1.5)
    assert steps_since(log, 10.0, 15.1) == (3, 3.0), "the last step was long ago"


@pytest.mark.parametrize(
    ("kind", "evictions", "of_one_host", "restarts_of_baseline", "kept"),
    [
        ("cores", 0, 0, None, True),
        ("cores", 1, 1, 5, False),
        ("loss", 1, 1, None, False),
        ("loss", 1, 1, 1, True),
        ("loss", 2, 1, 1, False),
        ("long_pauses", 3, 1, None, True),
        ("long_pauses", 2, 2, None, False),
    ],
)
def test_how_many_evictions_a_load_allows(
    kind: str, evictions: int, of_one_host: int, restarts_of_baseline: int | None, kept: bool
) -> None:
    mine = replace(RUN, kind=kind, evictions=evictions, evictions_printed=evictions, evictions_of_one_host=of_one_host)
    baseline = None if restarts_of_baseline is None else replace(RUN, kind=kind, restarts=restarts_of_baseline)
    assert within(mine, baseline) is kept


@pytest.mark.parametrize(("counted", "printed"), [(0, 1), (1, 0)])
def test_evictions_of_which_the_metrics_and_the_output_disagree_prove_nothing(counted: int, printed: int) -> None:
    mine = replace(RUN, kind="long_pauses", evictions=counted, evictions_printed=printed, evictions_of_one_host=printed)
    assert not within(mine, None)


def test_a_job_that_makes_no_step_under_the_load_proves_nothing() -> None:
    assert within(RUN, None)
    assert not within(replace(RUN, steps=0), None)
