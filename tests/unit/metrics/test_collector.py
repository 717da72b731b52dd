"""The metrics of an agent, from what happens to it, and the page that Prometheus reads."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic.core.agent.actions import Action, NoteSilence, SilenceStep
from elastic.core.agent.events import Event, Tick
from elastic.core.agent.state import AgentState, Phase
from elastic.core.model import ChangeReason, Predecessor
from elastic.errors import ConfigError
from launcher.config.parse import parse
from launcher.config.readers import np as read_np
from launcher.history.recovery import PhaseEnd, Recovery
from launcher.local.commands import node_argv, node_environments
from launcher.metrics import readiness
from launcher.metrics.catalog import JOB, METRICS, PROCESS, WORKER_LABELS, MetricKind
from launcher.metrics.collector import MetricsCollector, Readings
from launcher.metrics.exposition import FRESH_S, MetricsPage
from launcher.wire.inspect_messages import WorkerState
from tests.support.agent_happenings import HAPPENINGS
from tests.support.agent_harness import Bench, running
from tests.support.prometheus_page import OPENMETRICS, families, samples
from tests.support.strategies import KEYS

QUIET = dict.fromkeys(WORKER_LABELS.values(), 0), 0, 0
NOTHING = Readings(MetricsCollector(0.0), None, *QUIET, 0.0)
RECOVERY = Recovery(
    why=ChangeReason.NODE_LOST,
    text="a was lost",
    before=1,
    g=2,
    began=10.0,
    phases=((PhaseEnd.DETECTED, 0.004), (PhaseEnd.STOPPED, 0.3), (PhaseEnd.STEPPED, 1.2)),
)


class Watched:
    """An agent on its bench whose metrics are noted, with its page."""

    def __init__(self, spare: bool = False) -> None:
        self.notes = MetricsCollector(-1.0)
        self.agent = Bench("c", watch=self.watch, after="a b") if spare else running(watch=self.watch)

    def watch(self, facts: AgentState, event: Event, actions: list[Action]) -> None:
        self.notes.observe(facts, event, actions, facts.now)

    def page(self) -> dict[str, float]:
        """Every sample of the page in text, by its name and the values of its own labels."""
        return samples(self._page().page("", 0.0).body.decode(), job_id="j1")

    def openmetrics(self) -> str:
        made = self._page().page(OPENMETRICS, 0.0)
        assert made.content_type.startswith("application/openmetrics-text")
        return made.body.decode()

    def _page(self) -> MetricsPage:
        return MetricsPage("j1", self.readings)

    def readings(self) -> Readings:
        return Readings(self.notes, self.agent.facts, *QUIET, self.agent.now)


@pytest.fixture
def watched() -> Watched:
    return Watched()


def known_in_full() -> Watched:
    """An agent of which everything is known."""
    watched = Watched()
    watched.agent.refreshed()
    watched.notes.stepped(0, 7, {"loss": 0.5}, 1.0)
    watched.notes.stepped(0, 8, {"loss": 0.25}, 2.0)
    watched.notes.recovered(RECOVERY)
    first = Recovery(
        why=ChangeReason.FIRST,
        text="",
        before=0,
        g=1,
        began=-1.0,
        phases=((PhaseEnd.JOINED, 0.5), (PhaseEnd.STEPPED, 1.5)),
        start=True,
    )
    watched.notes.recovered(first)
    watched.agent.now = 2.5
    return watched


# --- the page -------------------------------------------------------------------------------------------------------


def test_the_page_has_every_row_of_the_table_with_its_type_help_and_labels_and_no_other_metric() -> None:
    found = {family.name: family for family in families(known_in_full().openmetrics())}
    rows = {row.full.removesuffix("_total").removesuffix("_info"): row for row in METRICS}
    assert found.keys() - {name.removesuffix("_total") for name in PROCESS} == rows.keys()
    for name, row in rows.items():
        family = found[name]
        assert (family.type, family.documentation) == (row.kind, row.help)
        ours = {JOB, *row.labels, *({"le"} if row.kind is MetricKind.HISTOGRAM else ())}
        labels = {name for sample in family.samples for name in sample.labels}
        assert labels == ours


def test_the_page_in_text_has_the_same_samples_as_openmetrics() -> None:
    watched = known_in_full()
    own = {name: value for name, value in watched.page().items() if not name.startswith("process")}
    other = samples(watched.openmetrics(), job_id="j1")
    assert own == {name: value for name, value in other.items() if not name.startswith("process")}


@pytest.mark.parametrize("version", ["foo", "", "1.", "9" * 4000, "1.0.1", "-1", "1.0.0;version=x"])
def test_who_asks_for_a_version_that_there_is_not_gets_text_and_no_page_of_its_own(version: str) -> None:
    page = MetricsPage("j1", lambda: NOTHING)
    text = page.page("", 0.0)
    for kind in ("application/openmetrics-text", "text/plain"):
        assert page.page(f"{kind};version={version}", 0.0) is text
        assert page.page(f"{kind}; escaping=foo; version={version} ;q=1,,;", 0.0) is text


def test_prometheus_own_header_gets_openmetrics() -> None:
    accept = (
        "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
        "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;q=0.4,*/*;q=0.2"
    )
    page = MetricsPage("j1", lambda: NOTHING).page(accept, 0.0)
    assert page.content_type.startswith("application/openmetrics-text; version=1.0.0")
    assert page.body.endswith(b"# EOF\n")


def test_a_page_for_an_agent_that_has_not_reached_etcd_has_what_is_counted() -> None:
    readings = Readings(MetricsCollector(0.0), None, *QUIET, 5.0)
    text = MetricsPage("j1", lambda: readings).page("", 0.0).body.decode()
    found = samples(text, job_id="j1")
    assert found["elastic_launch_clock_seconds_total"] == 5.0
    assert "elastic_launch_generation" not in found


def test_who_asks_again_at_once_gets_the_same_page() -> None:
    asked: list[float] = []

    def read() -> Readings:
        asked.append(0.0)
        return NOTHING

    page = MetricsPage("j1", read)
    first = page.page("", 1.0)
    assert page.page("", 1.0 + FRESH_S / 2) is first
    assert page.page(OPENMETRICS, 1.0) is not first
    assert page.page("", 1.0 + FRESH_S) is not first
    assert len(asked) == 3


def test_names_follow_the_conventions_of_prometheus() -> None:
    for row in METRICS:
        assert row.full.endswith("_total") == (row.kind is MetricKind.COUNTER)
        assert row.full.endswith("_info") == (row.kind is MetricKind.INFO)
        assert not row.full.endswith(("_count", "_sum", "_bucket", "_milliseconds", "_ms"))
        assert list(row.buckets) == sorted(row.buckets)
        assert "le" not in row.labels
    assert len({row.name for row in METRICS}) == len(METRICS)


# --- what happens ---------------------------------------------------------------------------------------------------


def test_a_world_that_runs(watched: Watched) -> None:
    page = watched.page()
    assert page["elastic_launch_generation"] == 1
    assert page["elastic_launch_members"] == page["elastic_launch_world_size"] == 2
    assert page["elastic_launch_m_id"] == 1
    assert (page["elastic_launch_np_min"], page["elastic_launch_np_max"]) == (1, 3)
    assert page["elastic_launch_state{running}"] == 1
    assert sum(page[f"elastic_launch_state{{{phase}}}"] for phase in Phase) == 1
    assert (page["elastic_launch_restarts_counted"], page["elastic_launch_restarts_max"]) == (0, 3)


def test_a_job_without_a_maximum_has_no_gauge_of_it() -> None:
    watched = Watched()
    watched.agent.shelf.put(KEYS.spec, msgspec.structs.replace(watched.agent.spec, np=read_np("2+")))
    watched.agent.look()
    page = watched.page()
    assert page["elastic_launch_np_min"] == 1
    assert "elastic_launch_np_max" not in page


def test_a_generation_counts_as_a_restart_of_its_cause_once(watched: Watched) -> None:
    assert watched.page()["elastic_launch_restarts_total{node lost}"] == 0, "it is there before it happens"
    watched.agent.world(2, "b", why=ChangeReason.NODE_LOST, before=Predecessor(1, ("a", "b"), ChangeReason.FIRST))
    watched.agent.look()
    page = watched.page()
    assert page["elastic_launch_restarts_total{node lost}"] == 1
    assert page["elastic_launch_restarts_total{failure}"] == 0
    assert "elastic_launch_restarts_total{first}" not in page


def test_the_lease_and_the_right_to_run_are_told_in_seconds(watched: Watched) -> None:
    watched.agent.now = 100.0
    watched.agent.refreshed()
    watched.agent.now = 101.0
    page = watched.page()
    assert page["elastic_launch_lease_age_seconds"] == pytest.approx(1.0)
    assert page["elastic_launch_etcd_silence_seconds"] == pytest.approx(1.0)
    assert page["elastic_launch_lease_ttl_seconds"] == 5.0
    assert page["elastic_launch_lease_remaining_seconds"] == pytest.approx(5.0 - 0.75 - 1.0)
    assert page["elastic_launch_lease_remaining_max_seconds"] == pytest.approx(5.0 + 120.0 - 1.0)


def test_a_failed_worker_pauses_the_goodput_from_its_last_step_on(watched: Watched) -> None:
    watched.notes.stepped(0, 1, {}, 1.0)
    watched.notes.stepped(0, 2, {}, 2.0)
    watched.agent.now = 3.0
    watched.agent.exits(1)
    watched.agent.now = 7.0
    page = watched.page()
    assert page["elastic_launch_productive_seconds_total"] == 1.0
    assert page["elastic_launch_clock_seconds_total"] == 8.0
    assert page["elastic_launch_goodput_ratio"] == pytest.approx(1 / 8)
    assert page["elastic_launch_step"] == 2
    assert page["elastic_launch_last_step_age_seconds"] == 5.0
    assert "elastic_launch_steps_per_second" not in page
    assert "elastic_launch_lease_remaining_seconds" not in page, "nothing runs"


def test_the_rate_of_workers_that_hang_is_0_and_not_what_it_was(watched: Watched) -> None:
    watched.notes.stepped(0, 1, {}, 1.0)
    watched.notes.stepped(0, 2, {}, 2.0)
    watched.agent.now = 20.0
    assert watched.page()["elastic_launch_steps_per_second"] == 1.0
    watched.agent.now = 40.0
    assert watched.page()["elastic_launch_steps_per_second"] == 0.0


def test_what_a_script_that_reports_nothing_did_counts_when_its_recovery_is_told_by_the_next_change(
    watched: Watched,
) -> None:
    back = Recovery(
        why=ChangeReason.FIRST,
        text="",
        before=0,
        g=1,
        began=-1.0,
        phases=((PhaseEnd.JOINED, 0.5), (PhaseEnd.SPAWNED, 0.5)),
        start=True,
    )
    watched.agent.now = 40.0
    watched.agent.exits(1)
    watched.notes.recovered(back)
    watched.agent.now = 49.0
    page = watched.page()
    assert page["elastic_launch_productive_seconds_total"] == 40.0, "from 0 on, until the worker failed"
    assert page["elastic_launch_clock_seconds_total"] == 50.0
    assert page["elastic_launch_goodput_ratio"] == pytest.approx(0.8)


def test_workers_that_end_well_are_no_pause(watched: Watched) -> None:
    watched.notes.stepped(0, 1, {}, 1.0)
    watched.agent.now = 3.0
    watched.agent.exits(0)
    assert watched.page()["elastic_launch_productive_seconds_total"] == 2.0


def test_workers_that_save_before_they_leave_go_on_being_productive() -> None:
    watched = Watched()
    watched.notes.stepped(0, 1, {}, 1.0)
    watched.agent.now = 2.0
    watched.agent.world(2, "a b c", why=ChangeReason.SCALE_UP, before=Predecessor(1, ("a", "b"), ChangeReason.FIRST))
    assert watched.agent.phase is Phase.STOPPING
    watched.notes.stepped(0, 2, {}, 3.0)
    watched.agent.now = 4.0
    watched.agent.gone()
    assert watched.page()["elastic_launch_productive_seconds_total"] == 2.0


def test_a_spare_does_not_count_its_time() -> None:
    watched = Watched(spare=True)
    watched.agent.now = 1.0
    watched.agent.world(1, "a b", why=ChangeReason.FIRST)
    watched.agent.look()
    assert readiness.ready(watched.agent.facts, running=0, reason="").yes
    watched.agent.now = 90.0
    page = watched.page()
    assert page["elastic_launch_clock_seconds_total"] == 2.0
    assert "elastic_launch_m_id" not in page


def test_recoveries_are_in_the_histograms_and_a_first_start_is_not(watched: Watched) -> None:
    page = known_in_full().page()
    assert page["elastic_launch_recovery_seconds_count"] == 1
    assert page["elastic_launch_recovery_seconds_sum"] == pytest.approx(1.504)
    assert page["elastic_launch_recovery_seconds_bucket{1.0}"] == 0
    assert page["elastic_launch_recovery_seconds_bucket{2.5}"] == 1
    assert page["elastic_launch_recovery_phase_seconds_bucket{0.01,detect}"] == 1
    assert page["elastic_launch_recovery_phase_seconds_bucket{0.25,stop}"] == 0
    assert page["elastic_launch_recovery_phase_seconds_bucket{1.0,stop}"] == 1
    assert page["elastic_launch_recovery_phase_seconds_count{group}"] == 0
    assert page["elastic_launch_start_seconds"] == 2.0


def test_a_length_that_is_a_bound_is_in_its_bucket(watched: Watched) -> None:
    watched.notes.recovered(Recovery(ChangeReason.NODE_LOST, "", 1, 2, 0.0, ((PhaseEnd.STEPPED, 5.0),)))
    assert watched.page()["elastic_launch_recovery_seconds_bucket{5.0}"] == 1


def test_the_loss_is_the_last_one_that_was_reported_and_nan_if_it_was_not_finite(watched: Watched) -> None:
    watched.notes.stepped(0, 1, {"loss": 0.5}, 1.0)
    watched.notes.stepped(0, 2, {}, 2.0)
    assert watched.page()["elastic_launch_loss"] == 0.5
    watched.notes.stepped(0, 3, {"loss": None}, 3.0)
    assert math.isnan(watched.page()["elastic_launch_loss"])


def test_suspicions_their_clearing_and_evictions_are_counted(watched: Watched) -> None:
    counters = {
        SilenceStep.SUSPECTED: "elastic_launch_suspicions_total",
        SilenceStep.CLEARED: "elastic_launch_suspicions_cleared_total",
        SilenceStep.EVICTED: "elastic_launch_evictions_total",
    }
    assert [watched.page()[name] for name in counters.values()] == [0, 0, 0], "they are there before it happens"
    for times, step in enumerate(counters, 1):
        noted = [NoteSilence(step, "a", "host-a", 1.0)] * times
        watched.watch(watched.agent.facts, Tick(), [*noted])
    assert [watched.page()[name] for name in counters.values()] == [1, 2, 3]


@settings(max_examples=50)
@given(st.lists(st.tuples(st.sampled_from(sorted(HAPPENINGS)), st.integers(0, 3), st.booleans()), max_size=15))
def test_whatever_happens_to_an_agent_its_page_is_made_and_no_counter_falls(told: list[tuple[str, int, bool]]) -> None:
    watched, before = Watched(), dict[tuple[str, tuple[str, ...]], float]()
    for what, seconds, steps in told:
        watched.agent.now += seconds
        HAPPENINGS[what](watched.agent)
        if steps:
            watched.notes.stepped(0, seconds, {"loss": None}, watched.agent.now)
        counters = [row for row in METRICS if row.kind is MetricKind.COUNTER]
        readings = watched.readings()
        now = {
            (row.name, labels): value
            for row in counters
            for labels, value in row.samples(readings).items()
            if isinstance(value, float | int)
        }
        assert all(now[key] >= count for key, count in before.items())
        before = now
        readiness.ready(watched.agent.facts, running=1, reason="")
    assert watched.page()


# --- health ---------------------------------------------------------------------------------------------------------


def test_an_agent_without_a_nursery_is_not_healthy() -> None:
    assert readiness.healthy(nursery=True).yes
    assert not readiness.healthy(nursery=False).yes


def test_each_state_of_a_worker_has_a_label() -> None:
    assert {*WORKER_LABELS} == {*WorkerState}


def test_a_node_is_ready_when_its_workers_run(watched: Watched) -> None:
    assert readiness.ready(watched.agent.facts, running=2, reason="") == (True, "2 workers run in generation 1")
    assert readiness.ready(watched.agent.facts, running=0, reason="") == (False, "this node is starting its workers")


def test_a_node_that_is_not_ready_says_what_it_waits_for(watched: Watched) -> None:
    assert readiness.ready(None, running=0, reason="") == (False, "this agent has not connected to etcd yet")
    held = "AWS reclaims this machine at 08:01:58Z: this node does not join"
    assert readiness.ready(None, running=0, reason=held) == (False, held)
    waits = Bench("a", "2")
    words = "1 of 2 nodes is here; waiting for 1 more"
    assert readiness.ready(waits.facts, running=0, reason=words).words == words
    watched.agent.world(2, "b", why=ChangeReason.NODE_LOST, before=Predecessor(1, ("a", "b"), ChangeReason.FIRST))
    found = readiness.ready(watched.agent.facts, running=1, reason="")
    assert found == (False, "this node is stopping its workers: because of node lost")


# --- the flag -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("9401", ("127.0.0.1", 9401)),
        ("0.0.0.0:9401", ("0.0.0.0", 9401)),
        ("[::]:9401", ("::", 9401)),
        ("node-1:9401", ("node-1", 9401)),
        ("0", None),
    ],
)
def test_a_port_alone_is_one_of_loopback(text: str, at: tuple[str, int] | None) -> None:
    assert parse(["--metrics-port", text, "train.py"], {}).metrics_at == at
    assert parse(["train.py"], {"ELASTIC_METRICS_PORT": text}).metrics_at == at


@pytest.mark.parametrize("text", ["", "x", "-1", "65536", "1.5", ":9401", "::1:9401", "http://h:9401", "h:0", "h:x"])
def test_a_malformed_port_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--metrics-port") as refused:
        parse([f"--metrics-port={text}", "train.py"], {})
    assert "\n" not in str(refused.value)


def test_the_nodes_of_one_machine_have_a_port_each_one_after_the_other() -> None:
    config = parse(["--local-nodes", "3", "--metrics-port", "0.0.0.0:9401", "train.py"], {})
    ports = [one["ELASTIC_METRICS_PORT"] for one in node_environments(config, {"ELASTIC_METRICS_PORT": "1"})]
    assert ports == ["0.0.0.0:9401", "0.0.0.0:9402", "0.0.0.0:9403"]
    assert not [word for word in node_argv(config, "h:1") if "metrics" in word]
    without = parse(["--local-nodes", "2", "train.py"], {})
    assert "ELASTIC_METRICS_PORT" not in node_environments(without, {})[0]
    with pytest.raises(ConfigError, match="use 65534 or less"):
        parse(["--local-nodes", "2", "--metrics-port", "65535", "train.py"], {})
