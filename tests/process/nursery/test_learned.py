"""What a nursery loads of what a script has imported, in a python of its own, and what it refuses and why."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.script_runs import LIMIT_S

ROOT = Path(__file__).parents[3]
LOADS = """
import json, os, sys
from launcher.nursery import import_watch, library_state, learned
from launcher.nursery.protocol import ModuleToLoad, PrepareSuccessor
pauses, meta_path, methods = [], [*sys.meta_path], {name: vars(type(os.environ))[name] for name in import_watch.METHODS}
folders = (*library_state.installed(), os.environ["INSTALLED"])
sys.path += os.environ["PLACES"].split(os.pathsep)
modules = [ModuleToLoad(name, file, tuple(changed)) for name, file, changed in json.loads(sys.argv[1])]
why = ""
try:
    order = PrepareSuccessor(tuple(modules), ("RANK", "OURS"), (), ("mine",), 1.0)
    wrote = lambda: os.fstat(1).st_size
    learned.load(order, learned.Surroundings(folders, lambda name: None, lambda: pauses.append(1), wrote))
except learned.Unfit as error:
    why = str(error)
assert sys.meta_path == meta_path
assert all(vars(type(os.environ))[name] is method for name, method in methods.items())
print(json.dumps([why, bool(pauses), [name for name, *_ in modules if name in sys.modules]]))
"""


class Packages:
    """Modules that are installed, and a folder of the script before them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.script = folder / "installed", folder / "script"
        self.folder.mkdir()
        self.script.mkdir()

    def has(self, **modules: str) -> None:
        for name, text in modules.items():
            (self.folder / f"{name}.py").write_text(text)

    def load(self, *names: str, changed: tuple[str, ...] = (), file: str = "") -> tuple[str, list[str]]:
        """Why a module was refused, "" if none was, and which are loaded."""
        modules = [(name, file or str(self.folder / f"{name}.py"), changed) for name in names]
        places = os.pathsep.join(map(str, (self.script, self.folder)))
        environ = {**os.environ, "PYTHONPATH": str(ROOT), "INSTALLED": str(self.folder), "PLACES": places}
        command = [sys.executable, "-c", LOADS, json.dumps(modules)]
        with (self.script.parent / "out").open("w+b") as file:
            subprocess.run(command, env=environ, stdout=file, check=True, timeout=LIMIT_S)
        out = (self.script.parent / "out").read_bytes()
        why, paused, loaded = json.loads(out.splitlines()[-1])
        assert paused
        return why, loaded


@pytest.fixture
def packages(tmp_path: Path) -> Packages:
    return Packages(tmp_path)


def test_modules_are_loaded_in_their_order(packages: Packages) -> None:
    packages.has(first="import os\nos.environ.get('HOME')", second="import first\nassert first")
    assert packages.load("first", "second") == ("", ["first", "second"])


@pytest.mark.parametrize(
    ("text", "changed", "what"),
    [
        ("os.environ['RANK']", (), "RANK"),
        ("os.environ.get('OURS')", (), "OURS"),
        ("os.getenv('RANK')", (), "RANK"),
        ("'RANK' in os.environ", (), "RANK"),
        ("os.environb.get(b'RANK')", (), "RANK"),
        ("os.environ.get('LEVEL')", ("LEVEL",), "LEVEL"),
        ("dict(os.environ)", (), "the whole environment"),
        ("os.environ.copy()", (), "the whole environment"),
        ("os.environ | {}", (), "the whole environment"),
        ("[*os.environ.items()]", (), "the whole environment"),
    ],
)
def test_a_module_that_reads_what_is_another_in_a_worker_is_refused(
    packages: Packages, text: str, changed: tuple[str, ...], what: str
) -> None:
    packages.has(reads=f"import os\ntry:\n    {text}\nexcept KeyError:\n    pass", outer="import reads")
    why, loaded = packages.load("outer", changed=changed)
    assert why == f"outer: reads reads {what} when it is imported"
    assert "outer" in loaded, "so this process is of no use any more"


def test_a_module_that_leaves_a_thread_or_a_process_or_fails_is_refused(packages: Packages) -> None:
    packages.has(
        threads="import threading\nthreading.Thread(target=threading.Event().wait, daemon=True, name='t').start()",
        forks="import subprocess\nleft = subprocess.Popen(['sleep', '1'])",
        fails="1 / 0",
        leaves="import sys\nsys.exit(3)",
    )
    assert packages.load("threads")[0] == "threads: threads left a thread running (t)"
    assert packages.load("forks")[0] == "forks: forks left a process running"
    assert packages.load("fails")[0] == "fails: cannot be imported (ZeroDivisionError: division by zero)"
    assert packages.load("leaves")[0] == "leaves: cannot be imported (SystemExit: 3)"


def test_a_file_of_the_script_in_the_place_of_an_installed_one_is_refused(packages: Packages) -> None:
    packages.has(helpers="", outer="import helpers")
    (packages.script / "helpers.py").write_text("")
    assert packages.load("outer")[0] == f"outer: imports helpers from {packages.script / 'helpers.py'}"


def test_a_known_module_that_cannot_be_set_right_is_refused(packages: Packages) -> None:
    (packages.folder / "datasets").mkdir()
    (packages.folder / "datasets" / "__init__.py").write_text("import datasets.fingerprint")
    (packages.folder / "datasets" / "fingerprint.py").write_text("import random\nfingerprint_rng = random.Random()")
    file = str(packages.folder / "datasets" / "__init__.py")
    assert packages.load("datasets", file=file)[0] == ""
    (packages.folder / "datasets" / "fingerprint.py").write_text("import random\nother_rng = random.Random()")
    why = packages.load("datasets", file=file)[0]
    assert why.startswith("datasets: imports what cannot be set right in a worker (name 'fingerprint_rng'"), why
