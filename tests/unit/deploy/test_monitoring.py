"""The dashboard and the alert rules in deploy/ ask for metrics that there are, by labels that they have."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from elastic.core.agent.state import Phase
from elastic.core.model import ChangeReason
from launcher.metrics.catalog import JOB, METRICS, PREFIX, PROCESS, WORKER_LABELS, MetricKind

ROOT = Path(__file__).parents[3]
DASHBOARD = ROOT / "deploy" / "grafana" / "elastic-launch.json"
ALERTS = ROOT / "deploy" / "prometheus" / "alerts.yaml"
SCRAPE = ROOT / "deploy" / "prometheus" / "scrape.yaml"

OF_PROMETHEUS = {"instance", "job"}
"""Labels that Prometheus itself adds to every sample."""
VALUES = {"state": {*Phase, *WORKER_LABELS.values()}, "why": {*ChangeReason}}


def known() -> dict[str, set[str]]:
    """Every name that can be asked for, with the labels of its samples."""
    found: dict[str, set[str]] = {name: set[str]() for name in PROCESS}
    for row in METRICS:
        labels = {JOB, *row.labels}
        if row.kind is MetricKind.HISTOGRAM:
            found |= {f"{row.full}_bucket": {*labels, "le"}, f"{row.full}_sum": labels, f"{row.full}_count": labels}
        else:
            found[row.full] = labels
    return found


KNOWN = known()


class Asked:
    """What one expression asks for: metrics with the labels that they are chosen by, and labels of its answers."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.chosen: list[tuple[str, dict[str, str]]] = []
        self.grouped: set[str] = set()
        # Grafana puts times in the place of these.
        promql_parser.walk(promql_parser.parse(re.sub(r"\$__(rate_)?interval", "5m", text)), self._note)

    def _note(self, part: promql_parser.Expr) -> bool:
        match part:
            case promql_parser.VectorSelector():
                matchers = {one.name: one.value for one in part.matchers.matchers}
                self.chosen.append((part.name or "", matchers))
            case promql_parser.AggregateExpr() if part.modifier is not None:
                self.grouped |= {*part.modifier.labels}
            case promql_parser.BinaryExpr() if part.modifier is not None and part.modifier.matching is not None:
                self.grouped |= {*part.modifier.matching.labels}
        return True

    def check(self) -> None:
        assert self.chosen, self.text
        for name, matchers in self.chosen:
            assert name in KNOWN, f"there is no metric {name}: {self.text}"
            assert matchers.keys() <= KNOWN[name] | OF_PROMETHEUS, self.text
            for label, value in matchers.items():
                assert {*value.split("|")} <= VALUES.get(label, {*value.split("|")}), self.text
        labels = set[str]().union(*(KNOWN[name] for name, _ in self.chosen), OF_PROMETHEUS)
        assert self.grouped <= labels, f"{self.grouped - labels}: {self.text}"


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(DASHBOARD.read_text())
    return found


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]


def targets() -> Iterator[dict[str, Any]]:
    for panel in dashboard()["panels"]:
        yield from panel["targets"]


# --- the dashboard --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("expression", [target["expr"] for target in targets()])
def test_every_expression_of_the_dashboard_asks_for_what_there_is_of_the_chosen_job(expression: str) -> None:
    asked = Asked(expression)
    asked.check()
    ours = [matchers for name, matchers in asked.chosen if name.startswith(PREFIX)]
    assert ours
    assert all(matchers.get(JOB) == "$job_id" for matchers in ours)


def test_annotations_of_the_dashboard_ask_for_what_there_is() -> None:
    for one in dashboard()["annotations"]["list"]:
        Asked(one["expr"]).check()


def test_a_legend_names_labels_that_the_answer_has() -> None:
    for target in targets():
        for label in re.findall(r"\{\{\s*(\w+)\s*\}\}", target["legendFormat"]):
            asked = Asked(target["expr"])
            assert label in asked.grouped | OF_PROMETHEUS, target


def test_panels_have_numbers_places_and_words_of_their_own() -> None:
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len({panel["title"] for panel in panels}) == len(panels)
    taken = set[tuple[int, int]]()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells
        assert panel["description"]
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])


def test_data_source_and_job_are_variables() -> None:
    found = dashboard()
    variables = {one["name"]: one for one in found["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    asked = re.fullmatch(r"label_values\((\w+), (\w+)\)", variables["job_id"]["query"]["query"])
    assert asked is not None
    assert asked[1] in KNOWN
    assert asked[2] == JOB
    sources = [one["datasource"] for one in (*found["panels"], *targets(), *found["annotations"]["list"])]
    assert all(source == {"type": "prometheus", "uid": "${datasource}"} for source in sources)


# --- the rules ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_every_alert_asks_for_what_there_is_and_says_what_to_do(rule: dict[str, Any]) -> None:
    asked = Asked(rule["expr"])
    asked.check()
    assert promql_parser.parse_duration(rule["for"]).total_seconds() > 0
    assert rule["labels"]["severity"] in ("warning", "critical")
    assert rule["annotations"].keys() == {"summary", "action"}
    words = " ".join(rule["annotations"].values())
    used = set(re.findall(r"\$labels\.(\w+)", words))
    assert JOB in used
    assert used <= (asked.grouped or {JOB, *OF_PROMETHEUS}), "labels that the expression keeps"


def test_alerts_have_names_of_their_own_and_are_explained_on_the_page() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(set(names)) == len(names)
    text = (ROOT / "docs" / "guides/metrics.md").read_text()
    explained = [name for line in text.splitlines() if (name := line.split("`")[1:2]) and line.startswith("| `Elastic")]
    assert [name for (name,) in explained] == names


def test_a_job_that_hangs_before_its_first_step_is_alerted_whatever_its_workers_do_meanwhile() -> None:
    (rule,) = (rule for rule in rules() if rule["alert"] == "ElasticLaunchNoFirstStep")
    (states, unless) = Asked(rule["expr"]).chosen
    assert {*states[1]["state"].split("|")} == {"starting", "joining", "formed"}
    assert "unless on (job_id)" in rule["expr"]
    assert unless[0] == "elastic_launch_last_step_age_seconds"


def fires(expression: str, **known: float) -> bool:
    """Whether an alert is raised where one node of one job has these metrics, which then all have the same labels."""

    def value(part: Any) -> float | None:
        match part:
            case promql_parser.NumberLiteral():
                return float(part.val)
            case promql_parser.VectorSelector():
                return known.get((part.name or "").removeprefix(PREFIX))
            case promql_parser.ParenExpr() | promql_parser.AggregateExpr():
                return value(part.expr)
        assert isinstance(part, promql_parser.BinaryExpr)
        left, right = value(part.lhs), value(part.rhs)
        if str(part.op) == "or":
            return left if left is not None else right
        if left is None or right is None:
            return None
        found: dict[str, float | None] = {
            "+": left + right,
            "*": left * right,
            "/": left / right if right else None,
            ">": left if left > right else None,
            "<": left if left < right else None,
            "and": left,
        }
        return found[str(part.op)]

    return value(promql_parser.parse(expression)) is not None


@pytest.mark.parametrize(
    "alert", ["ElasticLaunchStoreNotAnswering", "ElasticLaunchNodeWithoutStore", "ElasticLaunchNodeRightNearlyOver"]
)
def test_a_node_with_a_long_lease_that_is_due_later_is_no_silence_of_etcd(alert: str) -> None:
    (rule,) = (rule["expr"] for rule in rules() if rule["alert"] == alert)
    right = {"lease_remaining_max_seconds": 50.0}
    assert not fires(rule, etcd_silence_seconds=14.9, lease_ttl_seconds=60.0, **right)
    assert fires(rule, etcd_silence_seconds=25.1, lease_ttl_seconds=60.0, **right)
    assert fires(rule, etcd_silence_seconds=11.3, lease_ttl_seconds=5.0, **right)
    assert fires(rule, etcd_silence_seconds=10.1, **right), "who has lost its lease has no ttl"
    assert not fires(rule, etcd_silence_seconds=9.0, **right)
    assert not fires(rule)


def test_prometheus_itself_takes_the_rules() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian: prometheus)")
    checked = subprocess.run(
        [promtool, "check", "rules", ALERTS], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_the_example_of_scraping_names_machines_and_pods() -> None:
    found = yaml.safe_load(SCRAPE.read_text())
    machines, pods = found["scrape_configs"]
    assert machines["static_configs"][0]["targets"]
    assert pods["kubernetes_sd_configs"] == [{"role": "pod"}]
    (phases,) = (one for one in pods["relabel_configs"] if one.get("action") == "drop")
    assert phases["source_labels"] == ["__meta_kubernetes_pod_phase"]
    assert {*phases["regex"].split("|")} == {"Succeeded", "Failed"}, "pods that have ended answer nobody"
    assert found["rule_files"] == [ALERTS.name]
    names = [one["job_name"] for one in found["scrape_configs"]]
    assert len(set(names)) == len(names)
