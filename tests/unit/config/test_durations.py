"""Durations have units; a number without one counts seconds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic.errors import ConfigError
from launcher.config.durations import DURATION_MAX_S, METAVAR, duration, duration_text
from launcher.config.flags import FLAGS
from launcher.config.parse import parse
from launcher.ctl import cli
from launcher.k8s import autoscaler
from launcher.torchrun.options import OPTIONS

read = duration(0)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30", 30.0),
        ("2.5", 2.5),
        ("1e3", 1000.0),
        (" 7 ", 7.0),
        ("30s", 30.0),
        (" 30s ", 30.0),
        ("1.5s", 1.5),
        ("10m", 600.0),
        ("0.5m", 30.0),
        ("1h", 3600.0),
        ("500ms", 0.5),
        ("1h30m", 5400.0),
        ("2d", 172_800.0),
        ("1d12h", 129_600.0),
        ("1m30s", 90.0),
        ("1m500ms", 60.5),
        ("1h1m1s1ms", 3661.001),
        ("0s", 0.0),
    ],
)
def test_a_duration_is_a_number_of_seconds_or_has_units(text: str, seconds: float) -> None:
    assert read(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text",
    ["", " ", "soon", "s", "10 s", "10sec", "10S", "10w", "30m1h", "12h1d", "1h1h", "1h30", "-5s", "1,5s", "infs"],
)
def test_anything_else_is_refused_with_the_forms_that_are_read(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a duration; write 10s, 5m, 1h30m, 2d or 500ms; a number without "):
        read(text)


@pytest.mark.parametrize("text", ["-1", "721h", "31d", "inf", "nan", "99999999999m"])
def test_a_duration_outside_its_range_is_refused_as_it_was_written(text: str) -> None:
    with pytest.raises(ValueError, match=rf"^{text} is not between 0s and 30d$"):
        read(text)


@given(st.floats(0, DURATION_MAX_S) | st.integers(0, int(DURATION_MAX_S)).map(float))
def test_a_duration_that_is_shown_can_be_read_and_is_the_same(seconds: float) -> None:
    assert read(duration_text(seconds)) == pytest.approx(seconds, rel=1e-15)


def test_a_duration_is_shown_in_the_largest_unit_that_fits() -> None:
    shown = {text: duration_text(seconds) for text, seconds in (("0s", 0.0), ("2s", 2.0), ("90s", 90.0), ("0.5s", 0.5))}
    assert all(text == made for text, made in shown.items())
    assert (duration_text(120.0), duration_text(1800.0), duration_text(7200.0)) == ("2m", "30m", "2h")
    assert (duration_text(86_400.0), duration_text(129_600.0), duration_text(DURATION_MAX_S)) == ("1d", "36h", "30d")


def test_every_flag_whose_field_counts_seconds_takes_a_duration_with_a_unit() -> None:
    timed = [flag for flag in FLAGS if flag.field.endswith("_s")]
    assert len(timed) > 10
    for flag in timed:
        assert flag.metavar == METAVAR
        assert flag.read is not None
        assert flag.read("10s") == 10.0
    assert {flag.name for flag in FLAGS if flag.metavar == METAVAR} == {flag.name for flag in timed}


def test_flags_and_variables_have_units() -> None:
    config = parse(["--stop-timeout", "1m", "--hang-timeout=2h", "t.py"], {"ELASTIC_SAVE_TIMEOUT": "10m"})
    assert (config.stop_timeout_s, config.hang_timeout_s, config.save_timeout_s) == (60.0, 7200.0, 600.0)
    with pytest.raises(ConfigError, match=r"^ELASTIC_STOP_TIMEOUT: '1 minute' is not a duration; write "):
        parse(["t.py"], {"ELASTIC_STOP_TIMEOUT": "1 minute"})


def test_the_options_of_the_plugin_have_units() -> None:
    assert {option.read("10s") for option in OPTIONS if option.field.endswith("_s")} == {10.0}


@pytest.mark.parametrize(
    ("words", "name", "seconds"),
    [
        (["drain", "a", "--deadline", "2m"], "deadline", 120.0),
        (["drain", "a", "--deadline", "90"], "deadline", 90.0),
        (["status", "--watch", "500ms"], "watch", 0.5),
        (["status", "--watch"], "watch", 2.0),
    ],
)
def test_elastic_ctl_takes_units(words: list[str], name: str, seconds: float) -> None:
    assert vars(cli.parser().parse_args(words))[name] == seconds


def test_the_autoscaler_takes_units() -> None:
    asked = autoscaler._arguments(["--job=j", "--np=1:2", "--server=https://k", "--patience=10m", "--again", "1h"], {})
    assert (asked.patience, asked.again) == (600.0, 3600.0)
