"""What is learned of the imports of several workers of a node: by values."""

from __future__ import annotations

from elastic.channel.messages import MODULES_MAX, OwnFile, ScriptImport, ScriptImports
from launcher.workers.learning import common, merged

A, B, C = (ScriptImport(name, f"/lib/{name}.py") for name in "abc")


def named(imports: ScriptImports) -> str:
    return "".join(module.name for module in imports.modules)


def test_what_one_worker_has_imported_is_taken_as_it_is() -> None:
    imports = ScriptImports((A, ScriptImport("b", "/lib/b.py", ("LEVEL",))), ("LEVEL",), (OwnFile("__main__", "/s"),))
    assert common([imports]) == imports


def test_a_module_must_have_been_imported_by_every_worker() -> None:
    heard = [ScriptImports((A, B, C)), ScriptImports((C, A)), ScriptImports((A, B, C))]
    assert named(common(heard)) == "ac"
    assert common([ScriptImports((A, B)), ScriptImports(())]) == ScriptImports(())


def test_they_come_in_the_order_of_the_first_worker() -> None:
    assert named(common([ScriptImports((C, A, B)), ScriptImports((A, B, C))])) == "cab"


def test_the_file_is_that_of_the_first_worker() -> None:
    assert common([ScriptImports((A,)), ScriptImports((ScriptImport("a", "/other/a.py"),))]).modules == (A,)


def test_what_any_worker_has_changed_before_a_module_or_by_the_end_counts() -> None:
    heard = [
        ScriptImports((ScriptImport("a", "/a", ("Z", "X")), ScriptImport("b", "/b")), ("Z", "X")),
        ScriptImports((ScriptImport("a", "/a", ("Y", "X")), ScriptImport("b", "/b", ("W",))), ("Y", "X", "W")),
    ]
    found = common(heard)
    assert [module.changed for module in found.modules] == [("X", "Y", "Z"), ("W",)]
    assert found.changed == ("W", "X", "Y", "Z")


def test_the_files_of_all_workers_are_named_once_each() -> None:
    main, rank_0, rank_1 = (OwnFile(name, f"/{name}.py") for name in ("__main__", "writes", "reads"))
    found = common([ScriptImports((), (), (main, rank_0)), ScriptImports((), (), (main, rank_1))])
    assert found.own == (main, rank_0, rank_1)


def test_what_workers_do_not_report_is_kept_of_the_list_before() -> None:
    before = ScriptImports((A, B, C), ("OLD",), (OwnFile("__main__", "/old"),))
    new = ScriptImports((ScriptImport("d"), ScriptImport("b", "/new/b.py")), ("NEW",), (OwnFile("__main__", "/s"),))
    found = merged(before, {"a", "b"}, new)
    assert [(module.name, module.file) for module in found.modules] == [
        ("a", A.file),
        ("b", "/new/b.py"),
        ("d", ""),
    ]
    assert (found.changed, found.own) == (new.changed, new.own)


def test_no_more_modules_are_named_than_a_message_takes() -> None:
    many = tuple(ScriptImport(f"m{number}") for number in range(MODULES_MAX))
    assert merged(ScriptImports((A,)), {"a"}, ScriptImports(many)).modules == (A, *many[:-1])
