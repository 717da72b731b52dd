"""The exception that ended a worker, found in what the worker wrote. Tracebacks are made by python itself."""

from __future__ import annotations

import traceback

import pytest

from launcher.workers.exit_classification import TAIL_LINES, worker_exit
from launcher.workers.reports.tracebacks import LEFT_OUT, PART_MAX, excerpt, uncaught

PLAIN = "raise ValueError('the data is not there')"
CHAINED = """
try:
    {}['key']
except KeyError as error:
    raise RuntimeError('no such thing') from error
"""
DEEP = """
def down(n):
    if n == 0:
        raise ValueError('deep')
    down(n - 1)
    return n + 1
down(1) + down(60)
"""
GROUP = "raise ExceptionGroup('two of them', [ValueError('first'), TypeError('second')])"
NESTED = """
def fail(n):
    try:
        raise ValueError(f'number {n}')
    except ValueError as error:
        return error
raise ExceptionGroup('outer', [ExceptionGroup('inner', [fail(n) for n in range(4)]), OSError('beside')])
"""
LONG_MESSAGE = r"raise RuntimeError('Error(s) in loading:\n\tMissing key(s): \"a\"\n\tUnexpected key(s): \"b\"')"
ODD = """
class Surprise(Exception):
    pass
Surprise.__module__ = 'builtins'
raise Surprise
"""

FRAMES = [f"frame #{number}: c10::Error::Error() + 0x1 (0x2 in libc10.so)" for number in range(200)]
WARNINGS = ["[rank0]:[W1120 10:31:22.98 ProcessGroupNCCL.cpp:1] Warning: destroy_process_group() was not called"] * 200
OTHERS = [f"loader 3: batch {number} is ready" for number in range(200)]
NAMES = ["done", "closing", "INFO: writer closed"] * 70


def wrote(code: str) -> list[str]:
    """The lines on stderr of a script that python runs, without empty ones, as a log's end is given."""
    try:
        exec(compile(code, "train.py", "exec"), {})
    except BaseException:  # noqa: BLE001  # Whatever the code raises is what is looked at.
        return [line for line in traceback.format_exc().split("\n") if line]
    raise AssertionError("the code raised nothing")


@pytest.mark.parametrize("after", [FRAMES, WARNINGS, OTHERS, NAMES], ids=["frames", "warnings", "others", "names"])
@pytest.mark.parametrize(
    ("code", "ends"),
    [
        (PLAIN, ["ValueError: the data is not there"]),
        (CHAINED, ["RuntimeError: no such thing"]),
        (DEEP, ["ValueError: deep"]),
        (GROUP, ["ExceptionGroup: two of them (2 sub-exceptions)", "ValueError: first", "TypeError: second"]),
        (
            NESTED,
            ["ExceptionGroup: outer (2 sub-exceptions)", "ExceptionGroup: inner (4 sub-exceptions)"]
            + [f"ValueError: number {n}" for n in range(4)]
            + ["OSError: beside"],
        ),
        (LONG_MESSAGE, ["RuntimeError: Error(s) in loading:", 'Missing key(s): "a"', 'Unexpected key(s): "b"']),
        (ODD, ["Surprise"]),
        ("x = = 1", ["SyntaxError: invalid syntax"]),
    ],
    ids=["plain", "chained", "deep", "group", "nested", "long", "odd", "syntax"],
)
def test_the_exception_is_shown_whatever_follows_it(code: str, ends: list[str], after: list[str]) -> None:
    shown = excerpt(["started", *wrote(code), *after], TAIL_LINES)
    assert len(shown) <= TAIL_LINES
    found = [line.lstrip(" |+-\t") for line in shown]
    assert [line for line in found if line in ends] == ends


def test_the_end_of_the_log_is_shown_too_and_what_is_left_out_is_marked() -> None:
    shown = excerpt([*wrote(PLAIN), *OTHERS], TAIL_LINES)
    assert shown[shown.index("ValueError: the data is not there") + 1] == LEFT_OUT
    assert shown[-1] == OTHERS[-1]
    assert len(shown) == TAIL_LINES


def test_an_exception_near_the_end_is_shown_as_it_stands() -> None:
    lines = [*OTHERS, *wrote(PLAIN), "good bye"]
    assert excerpt(lines, TAIL_LINES) == tuple(lines[-TAIL_LINES:])
    assert excerpt(["a", "b"], TAIL_LINES) == ("a", "b")
    assert excerpt([], TAIL_LINES) == ()


def test_the_last_lines_of_a_deep_traceback_are_shown() -> None:
    frames = [line for n in range(40) for line in (f'  File "train.py", line {n}, in f{n}', f"    f{n + 1}()")]
    deep = ["Traceback (most recent call last):", *frames, "ValueError: deep"]
    shown = excerpt([*deep, *OTHERS], TAIL_LINES)
    assert list(shown[:PART_MAX]) == deep[-PART_MAX:]


def test_a_script_that_cannot_be_read_has_no_header_and_is_found() -> None:
    lines = ['  File "/home/me/train.py", line 1', "    x = = 1", "        ^", "SyntaxError: invalid syntax"]
    shown = excerpt([*lines, *OTHERS], TAIL_LINES)
    assert list(shown[: len(lines)]) == lines


@pytest.mark.parametrize(
    "above",
    ["Exception in thread Thread-1 (watch):", "Exception ignored in: <function C.__del__ at 0x7f>", "Process Fork-1:"],
)
def test_the_exception_of_a_thread_or_a_destructor_is_not_taken_for_the_one_that_ended_it(above: str) -> None:
    lines = [*wrote(PLAIN), above, *wrote("raise OSError('in a thread')"), *OTHERS]
    shown = excerpt(lines, TAIL_LINES)
    assert "ValueError: the data is not there" in shown
    assert "OSError: in a thread" not in shown
    alone = excerpt(lines[len(wrote(PLAIN)) :], TAIL_LINES)
    assert "OSError: in a thread" in alone


def test_what_other_threads_write_into_a_traceback_does_not_hide_it() -> None:
    frames = wrote(PLAIN)
    mixed = [*frames[:2], "loader 1 closed", "done", *frames[2:], *OTHERS]
    assert "ValueError: the data is not there" in excerpt(mixed, TAIL_LINES)


def test_torchs_prefix_of_ranks_does_not_hide_it() -> None:
    lines = [f"[rank1]: {line}" for line in wrote(PLAIN)]
    assert "[rank1]: ValueError: the data is not there" in excerpt([*lines, *OTHERS], TAIL_LINES)


def test_the_exception_of_a_loaders_process_is_shown_with_the_one_that_it_became() -> None:
    lines = [
        "Traceback (most recent call last):",
        '  File "train.py", line 9, in <module>',
        "    for batch in loader:",
        "ValueError: Caught ValueError in DataLoader worker process 0.",
        "Original Traceback (most recent call last):",
        '  File "worker.py", line 3, in fetch',
        "    return self.dataset[i]",
        "ValueError: sample 7 is broken",
    ]
    assert "ValueError: sample 7 is broken" in excerpt([*lines, *OTHERS], TAIL_LINES)


def test_a_text_without_an_exception_is_its_end() -> None:
    assert uncaught(OTHERS) is None
    assert excerpt(OTHERS, 5) == tuple(OTHERS[-5:])
    assert uncaught(["Traceback (most recent call last):", "  File"]) is None


def test_a_worker_that_was_killed_or_stopped_shows_the_end_of_its_log() -> None:
    lines = [*wrote(PLAIN), *OTHERS]
    for code, stopped in ((-9, False), (-15, True), (0, False)):
        assert worker_exit(0, code, "log", lines, stopped=stopped).tail == tuple(OTHERS[-TAIL_LINES:])
    for code in (1, 3, -6):
        assert "ValueError: the data is not there" in worker_exit(0, code, "log", lines).tail


def test_what_torchs_record_wrote_is_preferred_and_its_signs_count() -> None:
    recorded = wrote("raise RuntimeError('x: EADDRINUSE')")
    found = worker_exit(0, 1, "log", OTHERS, recorded=recorded)
    assert found.tail == tuple(recorded)
    assert found.why == "address in use"
    assert worker_exit(0, -15, "log", OTHERS, recorded=recorded, stopped=True).tail == tuple(OTHERS[-TAIL_LINES:])
