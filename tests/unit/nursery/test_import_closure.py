"""Which module names a script can import: the files are read, and nothing of them is executed."""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path

import pytest

from launcher.nursery import library_state
from launcher.nursery.import_closure import valid_name, within

STDLIB = sysconfig.get_path("stdlib")
ROOT = Path(__file__).parents[3]
FAILS = "this_was_executed\n"
HOSTILE = (
    "this",
    "antigravity",
    "idlelib.idle",
    "test.regrtest",
    "sklearn.tree",
    "os; import x",
    "../evil",
    ".wave",
    "wave.",
    "wave.__main__",
    "__main__",
    "",
    "\0",
    f"wave.{'x' * 200}",
)


class Node:
    """What is installed on a node, and the folder of its script. Each file fails if it is executed."""

    def __init__(self, folder: Path) -> None:
        self.installed, self.own = folder / "installed", folder / "own"
        self.installed.mkdir()
        self.own.mkdir()

    def has(self, **texts: str) -> None:
        """Installed modules; `a__b` is the module `b` of the package `a`, and `a__INIT` the text of the package."""
        self._write(self.installed, texts)

    def has_own(self, **texts: str) -> None:
        self._write(self.own, texts)

    def _write(self, folder: Path, texts: dict[str, str]) -> None:
        for name, text in texts.items():
            path = folder.joinpath(*name.replace("__", "/").replace("INIT", "__init__").split("/")).with_suffix(".py")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(FAILS + text)

    def reaches(self, text: str, *wanted: str, limit_s: float = 60.0) -> set[str]:
        """Which of the wanted modules a script with this text can import."""
        self.has_own(script=text)
        return self.run(str(self.own / "script.py"), wanted=wanted, limit_s=limit_s)

    def run(self, *script: str, wanted: tuple[str, ...], limit_s: float = 60.0) -> set[str]:
        modules, importers = {*sys.modules}, {*sys.path_importer_cache}
        found = within(wanted, script, str(self.own), (STDLIB, str(self.installed)), limit_s)
        assert {*sys.modules} == modules, "nothing is imported"
        assert {*sys.path_importer_cache} == importers
        assert not [*self.own.rglob("*.pyc"), *self.installed.rglob("*.pyc")], "nothing is written"
        return found


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    node = Node(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(node.installed)])
    return node


@pytest.mark.parametrize(
    "text",
    [
        "import pack.inner.leaf",
        "import pack.inner.leaf as short",
        "from pack.inner import leaf",
        "from pack.inner import nothing, leaf",
        "from pack.inner.leaf import name",
        "from pack.inner.leaf import *",
        "def use():\n    import pack.inner.leaf",
        "class Some:\n    def use(self):\n        return lambda: [__import__ for _ in ()]\n    import pack.inner.leaf",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import pack.inner.leaf",
        "try:\n    import not_there\nexcept ImportError:\n    import pack.inner.leaf",
    ],
)
def test_an_import_statement_counts_wherever_it_is_and_reaches_the_packages_above(node: Node, text: str) -> None:
    node.has(pack__inner__leaf="", pack__inner__INIT="", pack__INIT="")
    wanted = "pack", "pack.inner", "pack.inner.leaf"
    assert node.reaches(text, *wanted, "pack.inner.leaf.name") == {*wanted}


def test_a_package_without_an_init_file_is_one(node: Node) -> None:
    node.has(space__inner__leaf="import wave")
    assert node.reaches("import space.inner.leaf", "space.inner", "space.inner.leaf", "wave") == {
        "space.inner",
        "space.inner.leaf",
        "wave",
    }


def test_the_files_of_the_user_and_of_installed_packages_are_followed(node: Node) -> None:
    node.has_own(mine__INIT="from . import near", mine__near="from .far import x", mine__far="import first")
    node.has(first="import second", second="import third", third="")
    assert node.reaches("import mine", "first", "second", "third", "wave") == {"first", "second", "third"}


@pytest.mark.parametrize("text", ["from .a.b import c", "from . import a", "from .a import b", "from .a.b.c import x"])
def test_relative_imports_are_followed_within_their_package(node: Node, text: str) -> None:
    node.has(p__INIT=text, p__a__INIT="from .b import c", p__a__b__INIT="", p__a__b__c="from ... import z")
    node.has(p__z="", z="")
    assert node.reaches("import p", "p.a.b.c", "p.z", "z") == {"p.a.b.c", "p.z"}


def test_a_relative_import_beyond_its_package_or_in_a_script_reaches_nothing(node: Node) -> None:
    node.has(p__INIT="from ...a import b", a="")
    assert node.reaches("import p\nfrom . import a\nfrom .a import b", "a", "p") == {"p"}


def test_a_module_that_is_run_is_looked_for_as_python_does(node: Node) -> None:
    node.has_own(job__INIT="import first", job__more="import second")
    (node.own / "job" / "__main__.py").write_text(FAILS + "from . import more")
    node.has(first="", second="", third="")
    wanted = "first", "second", "third"
    assert node.run("-m", "job", wanted=wanted) == {"first", "second"}
    assert node.run("-m", "job.more", "--flag", wanted=wanted) == {"first", "second"}
    assert node.run("-m", "not_there", wanted=wanted) == set()


def test_hostile_names_are_refused(node: Node) -> None:
    assert node.reaches("import wave", "wave", *HOSTILE) == {"wave"}


def test_a_module_of_the_user_is_refused_although_the_script_imports_it(node: Node) -> None:
    node.has_own(mine="import first", json="import second", wave="")
    node.has(first="", second="", wave="")
    wanted = "mine", "json", "json.decoder", "wave", "first", "second"
    assert node.reaches("import mine, json, wave", *wanted) == {"first", "second"}


def test_a_script_that_is_not_there_or_cannot_be_compiled_reaches_nothing(node: Node) -> None:
    assert node.run(str(node.own / "none.py"), wanted=("wave",)) == set()
    for text in ("import wave\nif", "import wave\n\0", f"import wave\n{'(' * 5000}"):
        assert node.reaches(text, "wave") == set()


def test_a_file_that_cannot_be_compiled_can_be_named_and_is_not_followed(node: Node) -> None:
    node.has(broken="import wave\nif")
    assert node.reaches("import broken", "broken", "wave") == {"broken"}


def test_modules_of_python_without_a_file_are_found(node: Node) -> None:
    assert node.reaches("import sys, zipimport", "sys", "zipimport", "marshal") == {"sys", "zipimport"}


def test_an_extension_module_is_found(node: Node) -> None:
    assert node.reaches("import _ctypes", "_ctypes") == {"_ctypes"}


def test_the_search_ends_at_its_limit_and_says_what_it_has(node: Node) -> None:
    node.has(first="")
    assert node.reaches("import first", "first", limit_s=0) == set()


def test_packages_on_the_way_to_a_wanted_module_are_read_before_all_others(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launcher.nursery.import_closure.FILES_MAX", 3)
    node.has(**{f"other{number}": "" for number in range(9)}, pack__INIT="from . import inner")
    node.has(pack__inner__INIT="from . import leaf", pack__inner__leaf="")
    others = ", ".join(f"other{number}" for number in range(9))
    assert node.reaches(f"import {others}, pack", "pack.inner.leaf") == {"pack.inner.leaf"}


def test_the_example_reaches_what_it_is_recorded_to_import() -> None:
    script = ROOT / "elastic" / "examples" / "digits.py"
    wanted = "sklearn", "sklearn.datasets"
    found = within(wanted, [os.fspath(script)], os.fspath(script.parent), library_state.installed(), 60.0)
    assert found == {*wanted}


@pytest.mark.parametrize("name", ["wave", "a.b.c", "_x.__init__", "ä.b", "a1", "x" * 200])
def test_a_dotted_name_of_identifiers_is_valid(name: str) -> None:
    assert valid_name(name)


@pytest.mark.parametrize(
    "name", ["a.", ".a", "a..b", "1a", "a b", "a-b", "a/b", "x" * 201, "__main__", "a.__main__", ""]
)
def test_any_other_name_is_not(name: str) -> None:
    assert not valid_name(name)
