"""The tables of `elastic-ctl` on a narrow terminal."""

from __future__ import annotations

import io
from collections.abc import Collection, Sequence

import pytest
from rich.console import Console

from launcher.ctl import list_jobs, table
from launcher.job.status_text import COLUMNS, NUMBERS

ROW = ("0", "192.168.0.1-0f8b", "192.168.0.1", "0-7", "running", "12 s", "1651", "127.9/s", "keeps its place here")


NAME = "ip-10-0-12-134.eu-west-1.compute.internal"
LONG = ("127", f"{NAME}-1a2b", NAME, "1016-1023", "at the barrier", "12 s", "211000", "19.8/s", "")
SEATS = ("3", "10.0.12.134-1a2b", "10.0.12.134", "server 0, workers 2-3, heter 1", "running", "12 s", "-", "-", "")
JOB = (
    "resnet50-imagenet-sweep-017-lr0.1",
    *("running", "100:200", "198 of 200", "1243", "1600", "7 seconds ago"),
    "10.0.0.7-b105 was lost (its process is gone)",
)


def drawn(
    width: int, row: Sequence[str] = ROW, columns: Sequence[str] = COLUMNS, numbers: Collection[str] = NUMBERS
) -> str:
    written = io.StringIO()
    Console(file=written, width=width).print(table.render_rich(columns, [row], [""], numbers))
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


@pytest.mark.parametrize("width", [40, 80, 100, 140])
@pytest.mark.parametrize(("row", "columns"), [(LONG, COLUMNS), (SEATS, COLUMNS), (JOB, list_jobs.COLUMNS)])
def test_what_does_not_fit_takes_another_line_and_no_column_but_the_host_is_cut(
    row: Sequence[str], columns: Sequence[str], width: int
) -> None:
    written = drawn(width, row, columns)
    assert max(map(len, written.splitlines())) <= width
    words = written.split()
    whole = [cell for name, cell in zip(columns, row, strict=True) if name not in table.GIVE_WAY]
    for word in " ".join(whole).split():
        assert word in words or len(word) > width, word
