"""--help-env names every variable that is read and every one that is set for workers."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from launcher import cli
from launcher.config import argv, env_reference
from launcher.config.flags import FLAGS
from launcher.workers import environment, ps_environment

ROOT = Path(__file__).parents[3]
IMPLIED = frozenset({"PATH", "PYTHONPATH"})
"""What every program reads."""


def read_names(path: Path) -> Iterator[str]:
    """The constants with which a file looks something up in an environment."""
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Call(func=ast.Attribute(value=where, attr="get"), args=[ast.Constant(str(name)), *_]):
                pass
            case ast.Subscript(value=where, slice=ast.Constant(str(name)), ctx=ast.Load()):
                pass
            case ast.Compare(left=ast.Constant(str(name)), ops=[ast.In() | ast.NotIn()], comparators=[where]):
                pass
            case _:
                continue
        if ast.unparse(where).rpartition(".")[2] in ("environ", "environment"):
            yield name


def named(rows: Iterable[env_reference.DocumentedVariables]) -> list[str]:
    return [name for row in rows for name in row.names]


def test_every_variable_that_the_code_reads_is_on_the_page() -> None:
    files = [path for package in ("launcher", "elastic") for path in (ROOT / package).rglob("*.py")]
    found = {
        name for path in files if not {"examples", "k8s"} & {*path.relative_to(ROOT).parts} for name in read_names(path)
    }
    assert {"CUDA_VISIBLE_DEVICES", "POD_IP", "NO_COLOR", "ELASTIC_FENCE"} <= found, "the search itself works"
    of_flags = {name for flag in FLAGS for name in flag.variables}
    assert (
        not found
        - of_flags
        - {*named(env_reference.READ), *named(environment.VARIABLES), *named(ps_environment.DOCUMENTED)}
        - IMPLIED
    )


@pytest.mark.parametrize("flag", ["--help-env", "--help_env"])
def test_the_page_has_one_line_for_each_variable(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([flag]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out.isascii()
    first, second = out.split("Variables that are set for workers.")
    second, third = second.split("Variables that are set for the processes of a parameter-server job instead.")
    for names, page in (
        ([name for flag in FLAGS for name in flag.variables] + named(env_reference.READ), first),
        (named(environment.VARIABLES), second),
        (named(ps_environment.DOCUMENTED), third),
    ):
        lines = [line.split(maxsplit=1) for line in page.splitlines() if line.startswith("  ")]
        assert sorted(name for name, _ in lines) == sorted(names)


def test_the_page_says_what_goes_before_what() -> None:
    text = env_reference.help_text((), ())
    first = " ".join(text.partition("\n\n")[0].split())
    assert "The first of these that is set counts: the flag, ELASTIC_<FLAG>, the variable of another launcher" in first
    assert "\n  PADDLE_ELASTIC_NP                 as ELASTIC_NP, which takes precedence\n" in text


def test_a_worker_that_is_given_the_flag_gets_it() -> None:
    assert argv.split_argv(["train.py", "--help-env"]).asks == ""
