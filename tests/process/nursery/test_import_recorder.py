"""What a script is recorded to import, in a python of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.script_runs import LIMIT_S

ROOT = Path(__file__).parents[3]
RECORDS = """
import importlib.util, json, os, sys
from importlib.machinery import PathFinder
from launcher.nursery import library_state
from launcher.nursery.import_recorder import ImportRecorder
before = vars(PathFinder)["find_spec"]
recorder = ImportRecorder(library_state.installed())
recorder.start()
{script}
found = recorder.stop()
assert vars(PathFinder)["find_spec"] is before
print(json.dumps(found[0]))
"""


def recorded(folder: Path, script: str) -> list[tuple[str, list[str]]]:
    """The name of each module, and what was changed before."""
    path = folder / "script.py"
    path.write_text(RECORDS.format(script=script))
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    out = subprocess.run([sys.executable, path], env=environ, stdout=-1, check=True, timeout=LIMIT_S).stdout
    found = json.loads(out.splitlines()[-1])
    assert all(Path(file).exists() for _, file, *_ in found)
    return [(name, changed) for name, _, changed in found]


def names(folder: Path, script: str) -> list[str]:
    return [name for name, *_ in recorded(folder, script)]


def test_modules_are_named_in_their_order_and_not_those_that_they_import(tmp_path: Path) -> None:
    script = "from xml.dom import minidom\nimport wave\nfrom sklearn import datasets\nimport wave"
    assert names(tmp_path, script) == ["xml", "xml.dom", "xml.dom.minidom", "wave", "sklearn", "sklearn.datasets"]


@pytest.mark.parametrize("script", ["importlib.import_module('wave')", "def use():\n    import wave\nuse()"])
def test_an_import_in_a_function_is_named(tmp_path: Path, script: str) -> None:
    assert names(tmp_path, script) == ["wave"]


def test_a_module_of_the_user_is_not_named_and_what_it_imports_is(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import wave")
    assert names(tmp_path, "import mine") == ["wave"]


def test_a_module_that_is_only_looked_for_is_not_named(tmp_path: Path) -> None:
    script = "assert importlib.util.find_spec('wave')\ntry:\n    import not_there\nexcept ImportError:\n    pass"
    assert names(tmp_path, script) == []


def test_what_the_script_changes_before_an_import_is_told_with_it(tmp_path: Path) -> None:
    script = (
        "import wave\nos.environ['A'] = '1'\ndel os.environ['HOME']\nimport sqlite3\n"
        "sys.argv.append('x')\nimport warnings\nwarnings.simplefilter('error')\nimport imaplib"
    )
    assert recorded(tmp_path, script) == [
        ("wave", []),
        ("sqlite3", ["A", "HOME"]),
        ("imaplib", ["A", "HOME", "sys.argv", "warnings.filters"]),
    ]


def test_a_process_that_the_script_forks_has_nothing_to_tell(tmp_path: Path) -> None:
    script = (
        "import wave\nif not (child := os.fork()):\n    os._exit(bool(recorder.stop()))\n"
        "assert os.waitpid(child, 0)[1] == 0"
    )
    assert names(tmp_path, script) == ["wave"]


def test_the_traceback_of_an_import_that_fails_is_as_without_it(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("1 / 0")
    script = (
        "import traceback\ntry:\n    import broken\nexcept ZeroDivisionError as error:\n"
        "    assert [frame.name for frame in traceback.extract_tb(error.__traceback__)] == ['<module>'] * 2"
    )
    assert "traceback" not in names(tmp_path, "import traceback\n" + script)[1:]
