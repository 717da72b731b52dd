"""What is on the page of a job, and its document, from values alone."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from typing import Any

import pytest
from msgspec.structs import replace

from elastic.core.model import FinalStatus, SavedCheckpoint, Verdict
from launcher.history.job_report import build_report
from launcher.history.recovery import PhaseEnd
from launcher.history.training_curve import CurvePoint, TrainingCurve
from launcher.web.api import log_as_shown
from launcher.web.html import document
from launcher.web.page_data import newest_point, sections, with_live_points
from launcher.wire.inspect_messages import SilentNode
from tests.support.job_reports import FIRST, LOST, back, course, ended, go, made
from tests.support.page_values import NOW, POINTS, picture, told

# The head


def test_the_newest_words_of_rank_0_come_before_what_is_stored() -> None:
    head = told(picture(777))["head"]
    assert (head["step"], head["loss"]) == (777, 0.5)
    assert told(picture())["head"]["step"] == 400


@pytest.mark.parametrize(
    ("step", "run", "g", "shown"),
    [(1500, 1, 1, 1500), (1400, 1, 1, 1486), (1500, 1, 0, 1486), (1500, 0, 1, 1486), (1500, 1, 2, 1500)],
)
def test_the_step_is_that_of_a_newer_checkpoint_unless_the_checkpoint_is_of_an_older_generation_or_run(
    step: int, run: int, g: int, shown: int
) -> None:
    seen = picture(1486)
    saved = SavedCheckpoint(step=step, host="a", folder="/data", run=run, g=g)
    head = told(replace(seen, status=replace(seen.status, saved=saved)))["head"]
    assert head["step"] == shown


def test_without_rank_0_the_step_is_the_highest_that_is_stored_or_saved() -> None:
    seen = picture()
    saved = SavedCheckpoint(step=500, host="a", folder="/data", run=1, g=1)
    assert told(replace(seen, status=replace(seen.status, saved=saved)))["head"]["step"] == 500


def losses(*points: tuple[float | None, int]) -> TrainingCurve:
    return TrainingCurve(points=tuple(CurvePoint(step, 50.0 + step, g, loss) for step, (loss, g) in enumerate(points)))


@pytest.mark.parametrize("loss", [None, 0.0])
def test_a_loss_that_is_not_finite_and_one_of_zero_are_told_as_they_are(loss: float | None) -> None:
    assert told(picture(7, loss=loss), points=losses((0.25, 1)))["head"]["loss"] == loss


def test_the_newest_loss_that_is_stored_may_be_one_that_is_not_finite_and_without_any_there_is_none() -> None:
    assert told(picture(), points=losses((0.25, 1), (None, 1)))["head"]["loss"] is None
    assert told(picture(), points=losses((0.25, 1), (None, 2)))["head"]["loss"] == 0.25
    assert "loss" not in told(picture(), points=losses((None, 1)))["head"]


@pytest.mark.parametrize(
    ("events", "state"),
    [((*FIRST, *LOST), "training"), ((*FIRST, *LOST[:2]), "recovering"), (FIRST[:2], "starting")],
)
def test_a_job_with_a_go_trains_when_its_first_step_is_made(events: tuple[Any, ...], state: str) -> None:
    points = POINTS if len(events) == 6 else TrainingCurve()
    assert told(picture(), *events, points=points)["head"]["state"] == state


def test_a_job_whose_steps_are_old_is_in_downtime() -> None:
    story = build_report((*FIRST, *LOST), POINTS, now=1000.0)
    found = sections(picture(), story, POINTS, (), 1000.0)
    assert found["head"]["state"] == "downtime"


def test_the_verdict_is_the_state_and_the_sentence() -> None:
    verdict = Verdict(status=FinalStatus.FAILED, reason="no restart is left", run=1, g=2, at=90.0)
    head = told(picture(verdict=verdict), *FIRST, *LOST, ended(2, 90.0), verdict=verdict)["head"]
    assert (head["state"], head["sentence"], head["until"]) == ("failed", "Failed: no restart is left", 90.0)


# Nodes and generations


def test_ages_are_told_as_moments_so_that_what_stands_still_stays_the_same() -> None:
    (node,) = told(picture(5))["nodes"]
    assert (node["since"], node["workers"][0]["since"]) == (NOW - 250.0, NOW - 40.0)


def test_a_node_of_which_another_one_hears_nothing_has_that_as_its_note() -> None:
    seen = picture(5)
    asked = replace(seen.snapshots["a-1"], node="b-1", silent=(SilentNode(node="a-1", silent_s=1.24),))
    (node,) = told(replace(seen, snapshots={"b-1": asked}))["nodes"]
    assert node["note"] == "b-1 has received nothing from it for 1.2 s"


def test_a_node_that_was_not_asked_has_no_workers_but_its_ranks() -> None:
    (node,) = told(picture())["nodes"]
    assert "workers" not in node
    assert node["ranks"] == [0, 1]


def test_nodes_of_generations_are_places_in_one_list_of_names() -> None:
    found = told(picture())
    assert found["names"] == ["a", "b"]
    assert [one["nodes"] for one in found["generations"]] == [[0, 1], [0]]


def test_who_has_left_is_told_with_the_reason_of_the_next_generation_and_the_newest_first() -> None:
    lost = replace(LOST[0], reason="b was lost")
    again = replace(made(3, 70.0, nodes=("c",)), reason="a was lost")
    gone = told(picture(), *FIRST, lost, *LOST[1:], again)["gone"]
    assert [(one["node"], one["g"], one["reason"]) for one in gone] == [("a", 2, "a was lost"), ("b", 1, "b was lost")]


def test_a_node_that_came_back_has_not_left() -> None:
    again = made(3, 70.0, nodes=("a", "b"))
    assert told(picture(), *FIRST, *LOST, again, go(3, 70.1), back(3, 70.0, 1.0))["gone"] == []


def test_an_empty_history_is_a_page_too() -> None:
    story = build_report((), None, now=NOW)
    found = sections(picture(), story, None, (), NOW)
    assert (found["generations"], found["course"]["points"], found["failure"]) == ([], [], None)


# The course between two writes


def test_what_was_seen_since_the_course_was_written_is_added_and_nothing_twice() -> None:
    seen = course((400, 49.5, 1), (385, 52.0, 2), (500, 60.0, 2))
    found = with_live_points(POINTS, seen)
    assert found is not None
    assert [point.step for point in found.points] == [100, 400, 390, 500]
    assert with_live_points(None, seen) == seen
    assert with_live_points(None, TrainingCurve()) is None


def test_what_was_seen_of_a_generation_whose_rank_0_was_lost_before_it_stored_anything_stays() -> None:
    seen = course((10, 12.0, 1), (20, 13.0, 1), (30, 51.0, 2))
    found = with_live_points(course((30, 51.0, 2), (40, 52.0, 2)), seen)
    assert found is not None
    assert [point.step for point in found.points] == [10, 20, 30, 40]


def test_the_newest_point_is_when_it_was_made_and_none_without_steps() -> None:
    found = newest_point(picture(7))
    assert found is not None
    assert found[0] == CurvePoint(7, NOW - 1.0, 1, 0.5)
    assert newest_point(picture()) is None


# A log


def test_a_log_is_shown_as_a_terminal_shows_it_in_the_end() -> None:
    bar = b"".join(b"\r%d%%|###   | %d/200" % (step // 2, step) for step in range(201))
    data = b"\x1b[31mred\x1b[0m\n" + bar + b"\n\ttabs \xff\r\n"
    assert log_as_shown(data) == "red\n100%|###   | 200/200\n    tabs \ufffd\n"


# The document


HOSTILE = "</script><script>alert(1)</script><!--x--> \u2028 & ' \" <!--script-->"


def test_data_in_the_document_ends_no_tag_and_reads_back_as_it_was() -> None:
    html = document({"job": HOSTILE}, {"text": HOSTILE}).html.decode()
    assert html.count("</script>") == html.count("<script") == 3
    found = re.search(r'id="data">(.*?)</script>', html)
    assert found is not None
    assert json.loads(found[1]) == {"text": HOSTILE}


def test_the_policy_lets_in_two_pieces_by_their_hashes_and_nothing_else() -> None:
    served, kept = document({"job": "j"}), document({"job": "j"}, {})
    assert served.policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in served.policy
    assert "connect-src 'self'" in served.policy
    assert "connect-src" not in kept.policy
    assert kept.policy in kept.html.decode()
    assert "http-equiv" not in served.html.decode()


def test_the_document_names_no_other_place() -> None:
    html = document({"job": ""}).html.decode()
    places = set(re.findall(r"https?://[^\s\"'`)]+", html))
    assert places == {"http://www.w3.org/2000/svg"}, "which is a name, and never asked"


def test_the_page_names_the_phases_of_a_recovery_as_the_line_of_an_agent_does_and_in_its_order() -> None:
    source = (files("launcher.web") / "static" / "js" / "recoveries.js").read_text()
    table = source.partition("const PHASES = {")[2].partition("};")[0]
    assert re.findall(r"^  (\w+): \[", table, re.MULTILINE) == [str(phase) for phase in PhaseEnd]
