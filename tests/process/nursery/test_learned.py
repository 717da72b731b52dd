"""What a nursery loads of what a script has imported, in a python of its own, and what it refuses and why."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from launcher.nursery import learned
from launcher.nursery.import_watch import EVERY_VARIABLE
from launcher.nursery.process_state import ARGUMENTS, ENTROPY, FILTERS, FOLDER, LOCALE, METHOD, RANDOM
from tests.support.script_runs import LIMIT_S

ROOT = Path(__file__).parents[3]
LOADS = """
import json, logging, multiprocessing, os, random, sys, tempfile, uuid  # The most that a nursery has.
from launcher.nursery import import_watch, library_state, learned
from launcher.nursery.protocol import ModuleToLoad, PrepareSuccessor
pauses, meta_path, methods = [], [*sys.meta_path], {name: vars(type(os.environ))[name] for name in import_watch.METHODS}
folders = (*library_state.installed(), os.environ["INSTALLED"])
sys.path += os.environ["PLACES"].split(os.pathsep)
modules = [ModuleToLoad(name, file, tuple(changed)) for name, file, changed in json.loads(sys.argv[1])]
why = ""
try:
    order = PrepareSuccessor(tuple(modules), ("RANK", "OURS"), (), ("mine",), 1.0)
    wrote = lambda: sys.stdout.flush() or os.fstat(1).st_size
    learned.load(order, learned.Surroundings(folders, lambda name: None, lambda: pauses.append(1), wrote))
except learned.Unfit as error:
    why = str(error)
assert sys.meta_path == meta_path
assert all(vars(type(os.environ))[name] is method for name, method in methods.items())
print("\\n" + json.dumps([why, bool(pauses), [name for name, *_ in modules if name in sys.modules]]))
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
        with (self.script.parent / "out").open("w+b") as out:
            subprocess.run(command, env=environ, stdout=out, check=True, timeout=LIMIT_S)
            out.seek(0)
            said = out.read()
        why, paused, loaded = json.loads(said.splitlines()[-1])
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
    assert why.startswith("datasets: imports what cannot be corrected in a worker (name 'fingerprint_rng'"), why


@pytest.mark.parametrize("name", ["mine", "outer"])
def test_a_module_that_has_the_name_of_one_of_the_user_is_refused(packages: Packages, name: str) -> None:
    packages.has(mine="", outer="import mine")
    assert packages.load(name)[0] == f"{name}: imports mine, which is also the name of one of the script's own modules"


READS_AND_REFUSED = [
    ("sys.argv[1:]", ARGUMENTS),
    ("len(sys.argv)", ARGUMENTS),
    ("'--debug' in sys.argv", ARGUMENTS),
    ("[*sys.argv]", ARGUMENTS),
    ("os.urandom(8)", ENTROPY),
    ("random.Random()", ENTROPY),
    ("random.SystemRandom().random()", ENTROPY),
    ("tempfile.mktemp()", ENTROPY),
    ("uuid.uuid4()", ENTROPY),
]


@pytest.mark.parametrize(("text", "what"), READS_AND_REFUSED, ids=[text for text, _ in READS_AND_REFUSED])
def test_a_module_that_may_keep_what_is_another_in_each_process_is_refused(
    packages: Packages, text: str, what: str
) -> None:
    packages.has(reads=f"import os, random, sys, tempfile, uuid\n{text}")
    assert packages.load("reads")[0] == f"reads: reads reads {what} when it is imported"


@pytest.mark.parametrize("text", ["import sys\nkept = sys.argv", "import sys\nsys.argv = ['mine']"])
def test_a_module_that_keeps_or_replaces_the_arguments_is_refused(packages: Packages, text: str) -> None:
    packages.has(keeps=text)
    assert packages.load("keeps")[0] == f"keeps: a module reads {ARGUMENTS} when it is imported"


CHANGES_AND_REFUSED = [
    ("random.seed(1)", RANDOM),
    ("random.seed()", RANDOM),
    ("signal.signal(signal.SIGTERM, print)", "a signal handler"),
    ("os.chdir('/')", FOLDER),
    ("os.umask(0o77)", "the umask"),
    ("file = open('/dev/null')", "the open files"),
    ("sys.path.append('/nowhere')", "sys.path"),
    ("sys.excepthook = print", "sys.excepthook"),
    ("logging.basicConfig()", "the root logger"),
    ("multiprocessing.set_start_method('spawn')", METHOD),
    ("os.environ['HOME'] = '/'", "HOME"),
    ("del os.environ['HOME']", "HOME"),
    ("os.environ['RANK'] = '0'", "RANK"),
    ("os.environ['ELASTIC_MINE'] = '0'", "ELASTIC_MINE"),
]
IMPORTS = "import logging, multiprocessing, os, random, signal, sys, warnings\n"


@pytest.mark.parametrize(("text", "what"), CHANGES_AND_REFUSED, ids=[text for text, _ in CHANGES_AND_REFUSED])
def test_a_module_that_changes_what_a_worker_has_of_its_own_is_refused(
    packages: Packages, text: str, what: str
) -> None:
    packages.has(changes=IMPORTS + text)
    assert packages.load("changes")[0] == f"changes: changes {what} when it is imported"


@pytest.mark.parametrize(
    "text",
    [
        "random.random()",
        "random.Random(1)",
        "os.getcwd()",
        "warnings.simplefilter('ignore')",
        "os.environ['NEW'] = '1'",
        "with open('/dev/null'): pass",
    ],
)
def test_a_module_that_leaves_what_its_import_would_leave_in_the_script_is_loaded(
    packages: Packages, text: str
) -> None:
    packages.has(harmless=IMPORTS + text)
    assert packages.load("harmless") == ("", ["harmless"])


@pytest.mark.parametrize(
    ("text", "what", "why"),
    [
        ("os.getcwd()", FOLDER, f"meets reads {FOLDER} when it is imported"),
        (
            "warnings.simplefilter('ignore')",
            FILTERS,
            f"changes {FILTERS} when it is imported, which the script has changed before",
        ),
        (
            "locale.setlocale(locale.LC_ALL, 'C.UTF-8')",
            LOCALE,
            f"changes {LOCALE} when it is imported, which the script has changed before",
        ),
        ("os.environ['NEW'] = '1'", "NEW", "changes NEW when it is imported"),
    ],
)
def test_a_module_that_meets_with_what_the_script_has_changed_before_is_refused(
    packages: Packages, text: str, what: str, why: str
) -> None:
    packages.has(meets=f"import locale, os, warnings\n{text}")
    assert packages.load("meets", changed=("ANOTHER",))[0] == ""
    assert packages.load("meets", changed=(what,))[0] == f"meets: {why}"


@pytest.mark.parametrize(
    "text", ["print('welcome')", "import os; os.write(1, b'welcome')", "import os; os.system('echo')"]
)
def test_a_module_that_writes_is_refused(packages: Packages, text: str) -> None:
    packages.has(writes=text)
    assert packages.load("writes")[0] == "writes: writes to stdout or stderr when it is imported"


# --- libraries in C -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (b"\x7fELF\0RANK\0", "RANK"),
        (b"\xff\0ELASTIC_STORE\0", "ELASTIC_"),
        (b"\0MASTER_PORT", "MASTER_PORT"),
        (b"\0LEVEL\0", "LEVEL"),
        (b"\0getenv\0environ\0", EVERY_VARIABLE),
        (b"\0RANK\0__environ\0", EVERY_VARIABLE),
        (b"\0environment\0the environ\0", ""),
        (b"\0FRANK\0MY_RANK\0Rank\0", ""),
        (b"sys.argv the working directory", ""),
        (b"", ""),
    ],
)
def test_the_name_of_a_variable_in_a_library_is_found_and_that_it_reads_all(
    tmp_path: Path, content: bytes, name: str
) -> None:
    file = tmp_path / "library.so"
    file.write_bytes(content)
    assert learned._named_in(file, ("LEVEL", ARGUMENTS, FOLDER)) == name


def test_a_library_of_no_reviewed_package_is_loaded_unless_it_reads_a_variable_of_a_worker(packages: Packages) -> None:
    (original,) = Path(sysconfig.get_config_var("DESTSHARED")).glob("_lsprof.*.so")
    symbols = {"plain": b"", "names": b"\0RANK\0", "walks": b"\0environ\0"}
    for package, symbol in symbols.items():
        (packages.folder / package).mkdir()
        packages.has(**{f"{package}/__init__": f"import {package}._lsprof", f"{package}_outer": f"import {package}"})
        (packages.folder / package / original.name).write_bytes(original.read_bytes() + symbol)
    packages.has(stdlib="import _lsprof")
    assert packages.load("stdlib", "plain_outer") == ("", ["stdlib", "plain_outer"])
    for package, read in (("names", "RANK"), ("walks", "the whole environment")):
        file = packages.folder / package / original.name
        assert packages.load(f"{package}_outer")[0] == f"{package}_outer: loads {file}, which may read {read}"


def test_a_library_of_a_reviewed_package_reads_what_is_known_of_it() -> None:
    libraries = ("/lib/torch/lib/libtorch.so", "/lib/numpy/core.so", "/lib/lib-dynload/_ssl.so")

    def why(*changed: str) -> list[str]:
        return [*learned._why_libraries(libraries, changed, ("/lib",))]

    assert why("OMP_NUM_THREADS") == ["loads /lib/torch/lib/libtorch.so, which may read OMP_NUM_THREADS"]
    assert why("RANK", "OPENBLAS_NUM_THREADS", "SSL_CERT_FILE") == []
