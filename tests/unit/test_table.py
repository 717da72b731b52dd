"""The tables of `elastic-ctl` on a narrow terminal."""

from __future__ import annotations

import io

from rich.console import Console

from launcher.operate import table
from launcher.picturewords import COLUMNS, NUMBERS

ROW = ("0", "192.168.0.1-0f8b", "192.168.0.1", "0-7", "running", "12 s", "1651", "127.9/s", "keeps its place here")


def drawn(width: int) -> str:
    written = io.StringIO()
    Console(file=written, width=width).print(table.drawn(COLUMNS, [ROW], [""], NUMBERS))
    return written.getvalue()


def test_what_one_types_again_is_whole_on_80_columns_and_no_word_of_a_note_is_lost() -> None:
    head, *lines = drawn(80).splitlines()
    assert ROW[1] in lines[0]
    assert "running" in lines[0]
    assert max(map(len, lines)) <= 80
    note = "".join(line[head.index("note") :] for line in lines)
    assert note.replace(" ", "") == ROW[-1].replace(" ", "")


def test_with_room_a_row_is_one_line() -> None:
    assert len(drawn(120).splitlines()) == 2
