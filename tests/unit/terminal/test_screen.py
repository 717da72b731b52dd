"""A block of lines below text that scrolls, as a terminal shows it."""

from __future__ import annotations

import pyte
import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.terminal.screen import TerminalScreen

COLUMNS, ROWS = 40, 12
BLOCK = (b"------", b"job j1", b"step 3 of 9")


class Terminal:
    """A terminal, and all that ever stood on it."""

    def __init__(self) -> None:
        self.screen = pyte.HistoryScreen(COLUMNS, ROWS, history=1000)
        self.stream = pyte.ByteStream(self.screen)

    def feed(self, data: bytes) -> None:
        self.stream.feed(data.replace(b"\n", b"\r\n"))

    @property
    def lines(self) -> list[str]:
        past = ["".join(line[at].data for at in range(COLUMNS)) for line in self.screen.history.top]
        found = [line.rstrip() for line in [*past, *self.screen.display]]
        while found and not found[-1]:
            found.pop()
        return found


@pytest.fixture
def terminal() -> Terminal:
    return Terminal()


def test_the_block_stands_below_the_text_and_the_cursor_at_its_end(terminal: Terminal) -> None:
    screen = TerminalScreen()
    terminal.feed(screen.text(b"one\ntwo"))
    terminal.feed(screen.draw(BLOCK))
    assert terminal.lines == ["one", "two", "------", "job j1", "step 3 of 9"]
    assert (terminal.screen.cursor.y, terminal.screen.cursor.x) == (1, 3)
    terminal.feed(screen.text(b" and a half\nthree\n"))
    assert terminal.lines == ["one", "two and a half", "three"]
    terminal.feed(screen.draw(BLOCK))
    assert terminal.lines[-4:] == ["", "------", "job j1", "step 3 of 9"]


def test_a_bar_that_is_drawn_over_stays_one_line(terminal: Terminal) -> None:
    screen = TerminalScreen()
    for share in range(0, 101, 5):
        terminal.feed(screen.text(f"\r{share:3}%".encode()))
        terminal.feed(screen.draw(BLOCK))
    assert terminal.lines == ["100%", "------", "job j1", "step 3 of 9"]


def test_two_bars_of_which_one_is_below_the_other_stay_two_lines(terminal: Terminal) -> None:
    """As tqdm draws a bar at position 1: a line down, the bar, and up again."""
    screen = TerminalScreen()
    for share in range(0, 101, 5):
        for data in (f"\repochs {share}%".encode(), f"\n\rbatches {share}%\x1b[A".encode()):
            terminal.feed(screen.text(data))
            terminal.feed(screen.draw(BLOCK))
    assert terminal.lines == ["epochs 100%", "batches 100%", "------", "job j1", "step 3 of 9"]


def test_another_block_takes_the_place_of_the_one_before_also_if_it_is_shorter_or_longer(terminal: Terminal) -> None:
    screen = TerminalScreen()
    for block in (BLOCK, BLOCK[:1], (*BLOCK, b"more"), (b"x" * 39, b"y", b"z", b"w"), BLOCK):
        terminal.feed(screen.draw(block))
        assert terminal.lines == ["", *(line.decode() for line in block)]
    assert screen.draw(BLOCK) == b""
    terminal.feed(screen.draw(()))
    assert terminal.lines == []


@pytest.mark.parametrize("part", [b"\x1b", b"\x1b[", b"\x1b[3", b"\x1b]0;ti", "ä".encode()[:1], "😀".encode()[:3]])
def test_nothing_is_drawn_within_a_sign_or_an_order_of_the_text(terminal: Terminal, part: bytes) -> None:
    screen = TerminalScreen()
    terminal.feed(screen.draw(BLOCK) + screen.text(b"one" + part))
    assert screen.inside
    assert screen.draw(BLOCK) == b""


def test_what_was_never_written_is_forgotten(terminal: Terminal) -> None:
    screen = TerminalScreen()
    screen.draw(BLOCK)
    screen.forget()
    terminal.feed(screen.text(b"text\n") + screen.draw(BLOCK))
    assert terminal.lines == ["text", "", "------", "job j1", "step 3 of 9"]


def test_a_move_of_any_length_is_followed_as_a_terminal_does() -> None:
    for digits, below in ((b"", 1), (b"0", 1), (b"3", 3), (b"0003", 3), (b"9" * 4400, 20), (b"0" * 4400, 1)):
        screen = TerminalScreen()
        screen.text(b"\x1b[" + digits + b"A")
        assert (b"\x1b[%dB" % (below + 1)) in screen.draw(BLOCK), digits[:5]


SCRAPS = st.sampled_from(
    [b"\x1b[", b"\x1b]", b"\x1b", b"\x1b[" + b"7" * 4400, b"0" * 4400, b"A", b"B", b"\n", b"\xf0", b"\x07"]
)


@given(
    st.lists(
        st.tuples(st.lists(SCRAPS | st.binary(max_size=9), max_size=5).map(b"".join), st.integers(0, 3)), max_size=30
    )
)
def test_no_bytes_break_the_screen_and_all_of_them_are_written(story: list[tuple[bytes, int]]) -> None:
    screen = TerminalScreen()
    for data, size in story:
        assert screen.text(data).endswith(data)
        screen.draw(BLOCK[:size])
    screen.wipe()
    screen.forget()


PIECES = st.sampled_from(
    [b"word", b"\n", b"\r", b"\r50%", b"a\nb\nc\n", b"\x1b[31mred\x1b[0m", b"12345 " * 8, b"\n" * 7]
)


@given(st.lists(st.tuples(PIECES, st.integers(0, 3), st.booleans()), max_size=30))
def test_whatever_the_text_is_it_stands_there_as_it_would_without_a_block(
    story: list[tuple[bytes, int, bool]],
) -> None:
    screen, plain, shown = TerminalScreen(), Terminal(), Terminal()
    for data, size, again in story:
        plain.feed(data)
        shown.feed(screen.text(data))
        # A line that fills the terminal to its last column is left out: what follows there goes on below or not.
        if plain.screen.cursor.x < COLUMNS and (size or again):
            shown.feed(screen.draw(BLOCK[:size]))
            assert (shown.screen.cursor.x) == plain.screen.cursor.x
    shown.feed(screen.erase())
    assert shown.lines == plain.lines
