"""The pictures in docs/pictures: what they are drawn from, and that people can read them on both kinds of page."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

import pytest

from launcher.history.recovery import PhaseEnd
from tests.bench import recording, results, scale, scenarios
from tests.bench.against import MEETING
from tests.bench.pictures import drawings, groups, recovery, terminal
from tests.bench.pictures import scale as scale_picture
from tests.bench.pictures import scenarios as scenarios_picture
from tests.bench.pictures.drawings import DEMO, FOLDER, PICTURES
from tests.bench.pictures.names import NAMES
from tests.bench.pictures.style import ASCENT, DARK, DESCENT, LIGHT, TEXT_MIN, THEMES, Colours, seconds, text_width
from tests.bench.recording import Recording
from tests.bench.results import OURS, Figure

ROOT = Path(__file__).parents[3]
REWRITE = os.environ.get("REWRITE_DOCS") == "1"
SVG = "{http://www.w3.org/2000/svg}"
COLOUR = re.compile(r"#[0-9a-f]{6}")
PHASES = ["detect", "decide", "publish", "stop", "barrier", "spawn", "script", "group", "restore", "step"]
"""The phases of a recovery in the words and the order of docs/concepts/recovery.md."""
CONTRAST_MIN = 4.5
"""Of text on its background (WCAG, level AA)."""
DEMO_BYTES_MAX = 300_000
OVERLAP_MAX = 0.5

BOTH = [(name, theme) for name in PICTURES for theme in THEMES]


class Box(NamedTuple):
    """The place of an element."""

    left: float
    top: float
    right: float
    bottom: float
    what: str


def number(element: ElementTree.Element, name: str) -> float:
    return float(element.get(name, "0"))


def texts(root: ElementTree.Element) -> Iterator[Box]:
    for element in root.iter(f"{SVG}text"):
        size = number(element, "font-size")
        words = "".join(element.itertext())
        width = text_width(words, size, bold="font-weight" in element.attrib)
        x, y = number(element, "x"), number(element, "y")
        left = x - width * {"start": 0.0, "middle": 0.5, "end": 1.0}[element.get("text-anchor", "start")]
        yield Box(left, y - ASCENT * size, left + width, y + DESCENT * size, words)


def marks(root: ElementTree.Element) -> Iterator[Box]:
    for element in root.iter(f"{SVG}circle"):
        x, y, r = (number(element, name) for name in ("cx", "cy", "r"))
        yield Box(x - r, y - r, x + r, y + r, "a circle")
    for element in root.iter(f"{SVG}path"):
        if place := re.fullmatch(r"translate\((\S+) (\S+)\)", element.get("transform", "")):
            x, y = float(place[1]), float(place[2])
            yield Box(x - 7, y - 7, x + 7, y + 7, "a mark")


def rectangles(root: ElementTree.Element) -> Iterator[Box]:
    for element in root.iter(f"{SVG}rect"):
        x, y = number(element, "x"), number(element, "y")
        yield Box(x, y, x + number(element, "width"), y + number(element, "height"), "a rectangle")


def overlap(one: Box, other: Box) -> bool:
    across = min(one.right, other.right) - max(one.left, other.left)
    upright = min(one.bottom, other.bottom) - max(one.top, other.top)
    return across > OVERLAP_MAX and upright > OVERLAP_MAX


@pytest.fixture(scope="module")
def themed() -> dict[str, dict[str, str]]:
    return drawings.themed()


def test_the_pictures_are_drawn_from_what_was_measured_and_recorded() -> None:
    drawn = drawings.drawings()
    if REWRITE:
        for name, drawing in drawn.items():
            (FOLDER / name).write_text(drawing)
    assert {path.name: path.read_text() for path in FOLDER.iterdir()} == drawn, "make pictures draws them again"


def test_every_picture_is_on_a_page_for_light_and_for_dark() -> None:
    pages = "".join(path.read_text() for path in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")))
    names = [f"{name}-{theme}.svg" for name, theme in BOTH]
    assert [name for name in (*names, DEMO) if f"pictures/{name}" not in pages] == []


@pytest.mark.parametrize("name", PICTURES)
def test_the_light_and_the_dark_picture_differ_in_their_colours_alone(
    name: str, themed: dict[str, dict[str, str]]
) -> None:
    light, dark = themed[name]["light"], themed[name]["dark"]
    assert light != dark
    assert COLOUR.sub("", light) == COLOUR.sub("", dark)


@pytest.mark.parametrize("colours", THEMES.values(), ids=THEMES)
def test_text_has_enough_contrast(colours: Colours) -> None:
    for text in (colours.text, colours.soft, colours.ours, colours.peer, colours.bad):
        assert contrast(text, colours.back) >= CONTRAST_MIN
    for text in (colours.text, colours.soft):
        assert contrast(text, colours.box) >= CONTRAST_MIN


def contrast(one: str, other: str) -> float:
    """The ratio of their luminances, as WCAG defines it."""
    dark, light = sorted(map(luminance, (one, other)))
    return (light + 0.05) / (dark + 0.05)


def luminance(colour: str) -> float:
    parts = (int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5))
    linear = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return sum(factor * part for factor, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_groups_of_phases_have_colours_of_their_own() -> None:
    for colours in (LIGHT, DARK):
        assert len(set(colours.phases)) == len(colours.phases) == len(groups.GROUPS) <= 6


@pytest.mark.parametrize("name", PICTURES)
def test_text_is_large_enough_within_the_picture_and_on_nothing_else(
    name: str, themed: dict[str, dict[str, str]]
) -> None:
    root = ElementTree.fromstring(themed[name]["light"])
    _, _, width, height = map(float, root.get("viewBox", "").split())
    assert [element.text for element in root.iter(f"{SVG}text") if number(element, "font-size") < TEXT_MIN] == []
    words = list(texts(root))
    outside = [
        box.what
        for box in (*words, *marks(root), *rectangles(root))
        if box.left < 0 or box.top < 0 or box.right > width or box.bottom > height
    ]
    assert outside == []
    pairs = [*combinations(words, 2), *((text, mark) for text in words for mark in marks(root))]
    assert [(one.what, other.what) for one, other in pairs if overlap(one, other)] == []


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_has_a_title_and_writes_negative_numbers_with_a_minus_sign(
    name: str, themed: dict[str, dict[str, str]]
) -> None:
    root = ElementTree.fromstring(themed[name]["dark"])
    words = list(root.itertext())
    assert root.findtext(f"{SVG}title")
    assert [text for text in words if re.search(r"(?<![\w-])-\d", text)] == []


# --- what the pictures of recoveries say -----------------------------------------------------------------------------


def test_the_groups_have_all_phases_of_a_recovery_in_their_order() -> None:
    names = [str(phase) for group in groups.GROUPS for phase in group.phases]
    assert names == PHASES
    assert names == [str(phase) for phase in PhaseEnd if phase in names]


def figure(what: str, value: float, *, who: str = OURS, phases: dict[str, float] | None = None) -> Figure:
    return results.figure(what, who, "s", [value], "python -m tests.bench", phases=phases)


def test_detect_begins_with_the_kill() -> None:
    killed = figure("killed", 0.1, phases={"detect": 2.0, "stop": 50.0, "step": 28.0})
    assert groups.lengths_ms(killed) == [22.0, 0.0, 50.0, 0.0, 0.0, 28.0]
    planned = figure("planned", 0.1, phases={"stop": 50.0, "step": 28.0})
    assert sum(groups.lengths_ms(planned)) == 78.0


def test_a_phase_that_no_group_has_is_not_left_out_silently() -> None:
    with pytest.raises(ValueError, match="no group has the phases seat"):
        groups.lengths_ms(figure("w", 0.1, phases={"seat": 2.0}))


def test_whole_numbers_add_up_to_the_whole() -> None:
    assert groups.whole([1.4, 1.4, 1.4]) == [2, 1, 1]
    assert groups.whole([0.2, 0.3]) == [0, 0]


def test_the_phases_in_the_first_picture_add_up_to_its_number(themed: dict[str, dict[str, str]]) -> None:
    words = [element.text or "" for element in ElementTree.fromstring(themed["recovery"]["light"]).iter(f"{SVG}text")]
    ours = next(figure for figure in recovery.measured(results.FOLDER) if figure.who == OURS)
    lengths = [int(text.removesuffix(" ms")) for text in words if re.fullmatch(r"\d+ ms", text)]
    ticks = [length for length in lengths if length % 100 == 0]
    assert sum(lengths) - sum(ticks) == round(1000 * ours.value)
    assert words.count(seconds(ours.value)) == 2, "as the number of the picture, and beside its bar"


def test_every_launcher_in_the_first_picture_ran_the_same_scenario_and_the_shortest_recovery_is_first() -> None:
    figures = recovery.measured(results.FOLDER)
    assert {one.what for one in figures} == {recovery.WHAT}
    assert [one.value for one in figures] == sorted(one.value for one in figures)
    assert figures[0].who == OURS


def test_every_scenario_of_the_table_has_a_name_and_a_row_in_the_picture() -> None:
    assert list(NAMES) == [scenario.what for scenario in scenarios.SCENARIOS]
    assert len(set(NAMES.values())) == len(NAMES)
    rows = scenarios_picture.measured(results.FOLDER)
    assert {row[0].what for row in rows} == set(NAMES)
    ours = [next(one.value for one in row if one.who == OURS) for row in rows]
    assert ours == sorted(ours)
    assert {*scenarios_picture.PROJECT, *scenarios_picture.PEERS} == set(scenarios.COLUMNS.values())


# --- what the picture of large jobs says ------------------------------------------------------------------------------


def test_a_size_that_did_not_finish_is_marked_with_its_limit(tmp_path: Path) -> None:
    rounds = [None, None]
    results.write("scale_sizes", scale.sizes({}, {128: [*rounds]}), tmp_path)
    results.write("scale", [figure("1000 agents meet", 1.5), figure("32 agents meet", 1.3, who=MEETING)], tmp_path)
    words = list(ElementTree.fromstring(scale_picture.draw(tmp_path, LIGHT)).itertext())
    assert "not within 280 s" in words


# --- the recording of the demo ---------------------------------------------------------------------------------------


def frames(*output: tuple[float, str], columns: int = 20, rows: int = 3) -> list[tuple[int, str, float, float | None]]:
    lines, _, _ = terminal.frames(Recording(columns, rows, output))
    return [
        (line.number, "".join(char.data for char in line.chars), line.shown_at_s, line.hidden_at_s) for line in lines
    ]


def test_a_line_is_shown_from_its_moment_on_and_a_long_pause_is_cut() -> None:
    seen = frames((0.0, "a\r\n"), (0.5, "b\r\n"), (100.0, "c"))
    assert seen == [(0, "a", 0.0, None), (1, "b", 0.5, None), (2, "c", 0.5 + terminal.PAUSE_MAX_S, None)]


def test_a_line_that_is_written_over_disappears_when_the_new_one_comes() -> None:
    assert frames((0.0, "10 %"), (1.0, "\r20 %")) == [(0, "10 %", 0.0, 1.0), (0, "20 %", 1.0, None)]


def test_lines_that_do_not_fit_move_up() -> None:
    lines, scrolls, _ = terminal.frames(Recording(20, 3, ((0.0, "a\r\nb\r\nc"), (1.0, "\r\nd\r\ne"))))
    assert [line.number for line in lines] == [0, 1, 2, 3, 4]
    assert scrolls == [(0.0, 0), (1.0, 2)]


def test_a_recording_is_read_as_it_was_written(tmp_path: Path) -> None:
    output = Recording(80, 24, ((0.0, "$ a\r\n"), (1.5, "\x1b[1mb\x1b[0m ·\r\n")))
    (tmp_path / recording.FILE).write_bytes(recording.encode(output))
    assert recording.read(tmp_path) == output


def test_the_demo_is_small_and_shows_its_last_frame_where_motion_is_not_wanted() -> None:
    drawing = terminal.drawing(results.FOLDER)
    assert len(drawing.encode()) < DEMO_BYTES_MAX
    assert "@media (prefers-reduced-motion:reduce){.a{animation:none}}" in drawing
    root = ElementTree.fromstring(drawing)
    lines, scrolls, _ = terminal.frames(recording.read())
    height = float(root.get("viewBox", "").split()[3])
    last = terminal.BAR + terminal.PAD + terminal.LINE * (max(line.number for line in lines) + 1 - scrolls[-1][1])
    assert last <= height, "the last line is in sight when all lines have moved up"
    shown = "\n".join("".join(element.itertext()) for element in root.iter(f"{SVG}text"))
    assert all("".join(char.data for char in line.chars) in shown for line in lines)


def test_the_recorded_demo_is_one_that_kept_its_promises() -> None:
    output = "".join(text for _, text in recording.read().output)
    assert "is killed (SIGKILL)" in output
    assert "summary" in output
    assert "BAD" not in output
