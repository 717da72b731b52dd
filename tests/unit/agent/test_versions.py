"""What runs on a node: how it is found without importing it, and how two nodes are compared."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic.core.versions import differences
from launcher import __version__
from launcher.agent import versions
from launcher.config.config import Config
from launcher.config.parse import parse

names = st.sampled_from(["python", "torch", "nccl", "launcher", "script", "later"])
sides = st.dictionaries(names, st.sampled_from(["1.2.3", "1.2.4", "1.3.0", "1.2", "2", "", "x"]))


def config(folder: Path, *argv: str) -> Config:
    (folder / "train.py").write_text("print('hello')\n")
    return parse(argv or (str(folder / "train.py"),), {})


def test_the_script_is_known_by_its_digest(tmp_path: Path) -> None:
    found = versions.own_versions(config(tmp_path))
    assert found["script"] == hashlib.sha256(b"print('hello')\n").hexdigest()[:12]
    assert found["launcher"] == __version__
    assert found["python"] == ".".join(map(str, sys.version_info[:3]))
    assert found["torch"].startswith("2.")


def test_a_module_and_a_package_are_known_by_the_file_that_python_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tool").mkdir()
    (tmp_path / "tool" / "__init__.py").write_text("raise SystemExit('never imported')")
    (tmp_path / "tool" / "__main__.py").write_text("main")
    (tmp_path / "tool" / "run.py").write_text("run")
    monkeypatch.chdir(tmp_path)
    for name, text in (("tool", b"main"), ("tool.run", b"run")):
        found = versions.own_versions(config(tmp_path, "-m", name))
        assert found["script"] == hashlib.sha256(text).hexdigest()[:12]


def test_of_an_executable_only_the_launcher_and_its_file_are_told(tmp_path: Path) -> None:
    (tmp_path / "train.sh").write_text("#!/bin/sh\n")
    assert set(versions.own_versions(config(tmp_path, str(tmp_path / "train.sh")))) == {"launcher", "script"}


def test_what_cannot_be_read_has_no_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "script" not in versions.own_versions(config(tmp_path, "-m", "no.such.module"))
    assert "script" not in versions.own_versions(config(tmp_path, str(tmp_path / "gone.py")))
    monkeypatch.setattr(versions, "DIGEST_BYTES_MAX", 3)
    assert "script" not in versions.own_versions(config(tmp_path))


@given(sides, sides)
def test_sides_that_tell_the_same_do_not_differ_and_others_name_both_values(
    there: dict[str, str], here: dict[str, str]
) -> None:
    assert differences(there, there) == ()
    found = differences(there, here)
    for one in found:
        assert (one.there, one.here) == (there.get(one.name, ""), here.get(one.name, ""))
        assert one.there != one.here
        assert one.words() == f"{one.words().partition(' is ')[0]} is {one.there or 'missing'} there, " + (
            f"{one.here or 'missing'} here"
        )
    if there and here:
        different = {name for name in there | here if there.get(name, "") != here.get(name, "")}
        assert {one.name for one in found} == different


@pytest.mark.parametrize(
    ("name", "there", "here", "refused"),
    [
        ("torch", "2.13.0", "2.12.0", True),
        ("torch", "2.13.0", "3.13.0", True),
        ("torch", "2.13.0", "2.13.1", False),
        ("torch", "2.13.0+cpu", "2.13.0+cu128", False),
        ("torch", "2.1+cpu", "2.1.0", False),
        ("torch", "2.13.0", "", False),
        ("script", "aa", "bb", False),
        ("later", "1", "2", False),
        ("launcher", "0.1.0", "0.2.3", False),
        ("launcher", "0.10.0", "0.9.0", False),
        ("launcher", "0.1.0", "0.3.0", True),
        ("launcher", "0.9.0", "1.0.0", True),
        ("launcher", "0.1.0", "0.dev", True),
        ("launcher", "0.1.0", "1", True),
    ],
)
def test_another_major_or_minor_version_keeps_nodes_apart(name: str, there: str, here: str, refused: bool) -> None:
    (found,) = differences({name: there, "x": "1"}, {name: here, "x": "1"})
    assert found.refused is refused


def test_a_side_that_tells_nothing_differs_in_nothing() -> None:
    assert differences({}, {"torch": "2.13.0"}) == differences({"torch": "2.13.0"}, {}) == ()
