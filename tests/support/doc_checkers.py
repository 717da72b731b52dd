"""What can be said of a command of the documents without running it: each checker raises where it is wrong."""

from __future__ import annotations

import ast
import importlib.util
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from launcher.config import parse
from launcher.config.flags import BY_NAME
from launcher.ctl import cli
from tests.support.doc_commands import ROOT, Command

OURS_TO_READ: Final = ("deploy/", "tests/", "elastic/", ".ci/")
"""Paths that begin so are files of the project."""
ETCD: Final = "10.0.0.5:2379"
ASKS: Final = frozenset({"--help", "--help-env", "--version"})


def filled(program: str, words: Sequence[str]) -> list[str]:
    """The arguments of a command of ours with what a reader has in place of `…`, `RANK` and the like."""
    made: list[str] = []
    for word in words:
        if word in PLACES:
            made.append(PLACES[word])
        elif word != "…":
            made.append(word)
        elif made[-1:] == ["--elastic-server"]:
            made.append(ETCD)
        elif program != "elastic-ctl":
            made.append("train.py")
    return made


PLACES: Final[Mapping[str, str]] = {"RANK": "0", "OLD": "old.pt", "HOST:2379": ETCD, "NODE": "0"}
"""Words that stand for what a reader has."""


def launch(words: Sequence[str]) -> None:
    """Read as the agent reads it; of `elastic-launch` alone with some flags, these are real."""
    given = filled(words[0], words[1:])
    if ASKS & set(given) or all(word.startswith("--") for word in given):
        known = {*ASKS, "--explain", *(flag.option for flag in BY_NAME.values())}
        assert known.issuperset(word.replace("_", "-") for word in given), given
        return
    read = parse.parse(given, {})
    assert read.script, given


def synopsis(command: Command) -> None:
    """Each flag that is shown is one of the command, or of its subcommand."""
    shown = re.findall(r"--([\w-]+)", command.text)
    words = command.text.split()
    known = {flag.option[2:] for flag in BY_NAME.values()} if words[0] == "elastic-launch" else flags_of_ctl()[words[1]]
    assert set(shown) <= known, set(shown) - known


def flags_of_ctl() -> dict[str, set[str]]:
    """The long flags of each subcommand of `elastic-ctl`, without dashes."""
    return {
        name: {flag[2:] for flag in made.flags if flag.startswith("--")} for name, made in cli.parser().commands.items()
    }


def operate(words: Sequence[str]) -> None:
    """Read as `elastic-ctl` reads it; the name of a subcommand alone is that of one there is."""
    given = filled(words[0], words[1:])
    if given[0] in ASKS:
        return
    if len(given) == 1:
        assert given[0] in flags_of_ctl(), given
    else:
        cli.parser().read(given)


def torchrun(words: Sequence[str]) -> None:
    """Read by torch's own parser."""
    from torch.distributed.run import get_args_parser

    if all(word.startswith("--") for word in words[1:]):
        assert set(words[1:]) <= set(get_args_parser()._option_string_actions), words
        return
    asked = get_args_parser().parse_args(list(words[1:]))
    assert asked.training_script == "train.py"


def python(words: Sequence[str]) -> None:
    """A module that is there and knows the flags, a script of the reader's, or a piece of Python that can be read."""
    given = list(words[1:])
    if given[:1] == ["-c"]:
        ast.parse(" ".join(given[1:]))
    elif given[:1] != ["-m"]:
        assert given[0] in ("train.py", "test_train.py", "…"), given
    elif given[1] == "launcher":
        launch(["elastic-launch", *given[2:]])
    elif given[1] == "pytest":
        pytest(given[1:])
    elif given[1].split(".")[0] not in OTHERS:
        found = importlib.util.find_spec(given[1])
        assert found is not None, f"there is no module {given[1]}"
        assert found.origin is not None
        takes(Path(found.origin), given[2:])


OTHERS: Final = frozenset({"paddle", "venv", "http", "module"})
"""Modules after `-m` that are not ours: other launchers', Python's own, and a word for the reader's."""


def takes(source: Path, words: Sequence[str]) -> None:
    """The flags stand in the module's source, or in what its package has."""
    text = "".join(path.read_text() for path in source.parent.glob("*.py"))
    for word in words:
        if word.startswith("--"):
            assert f'"{word}"' in text, f"{source} has no {word}"


def pytest(words: Sequence[str]) -> None:
    """The files are there, `-k` names a test in them, and a marker or a flag is one of ours."""
    paths = [word for word in words[1:] if word.startswith("tests/")]
    tests = [name for path in paths for name in names(ROOT / path)]
    assert not paths or tests, f"{paths} have no test"
    if "-k" in words:
        wanted = words[words.index("-k") + 1]
        assert any(chosen(wanted, name) for name in tests), f"no test in {paths} is chosen by -k {wanted!r}"
    if "-m" in words:
        marker = words[words.index("-m") + 1]
        made = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]["markers"]
        assert any(one.startswith(f"{marker}:") for one in made), marker
    if "--seed" in words:
        assert '"--seed"' in (ROOT / "tests/sim/conftest.py").read_text()


def names(path: Path) -> list[str]:
    """The names of the tests in a file or a folder, each with its file's and the words of its parameters."""
    files = sorted(path.rglob("test_*.py")) if path.is_dir() else [path]
    found = []
    for file in files:
        for part in ast.walk(ast.parse(file.read_text())):
            if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef) and (
                part.name[:4] == "test" or part.decorator_list
            ):
                words = [str(word.value) for mark in part.decorator_list for word in constants(mark)]
                found.append(" ".join([file.name, part.name, *words]))
    return found


def constants(part: ast.AST) -> list[ast.Constant]:
    """The constants in a piece of Python."""
    return [word for word in ast.walk(part) if isinstance(word, ast.Constant)]


def chosen(wanted: str, name: str) -> bool:
    """Tell whether pytest's `-k` chooses a test, of words with `or` between them."""
    assert not {"and", "not"} & set(wanted.split()), wanted
    return any(word.strip().lower() in name.lower() for word in wanted.split(" or "))


def make(words: Sequence[str]) -> None:
    """Its targets, and the variables that it sets, are in the Makefile."""
    makefile = (ROOT / "Makefile").read_text()
    for word in words[1:]:
        variable, sets, _ = word.partition("=")
        known = f"$({variable})" in makefile if sets else re.search(rf"^{word}:", makefile, re.M)
        assert known, f"no {'variable' if sets else 'target'} {variable}"


def pip(words: Sequence[str]) -> None:
    """Our package, from a checkout, as it is on no index, with extras that there are."""
    made = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for word in words[2:]:
        assert words[1] == "uninstall" or not word.startswith(made["name"]), word
        if ours := re.fullmatch(r"\.(?:\[(.*)\])?", word):
            assert set(filter(None, (ours[1] or "").split(","))) <= set(made["optional-dependencies"]), word


def files(words: Sequence[str], folder: Path = ROOT) -> None:
    """What is named of the project is there."""
    for word in words:
        if word.startswith(OURS_TO_READ):
            assert (folder / word).exists(), f"there is no {word}"


READ: Final[Mapping[str, Callable[[Sequence[str]], None]]] = {
    "elastic-launch": launch,
    "elastic-ctl": operate,
    "torchrun": torchrun,
    "python": python,
    "pytest": pytest,
    "make": make,
    "pip": pip,
}
"""Programs whose command lines are read here, by what reads them when the command is run."""
