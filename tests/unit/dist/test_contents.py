"""What a wheel and an sdist must have."""

from __future__ import annotations

from tests.dist.contents import SDIST_ALSO, complaints, package_files

FILES = {"elastic/__init__.py", "elastic/py.typed", "launcher/py.typed", "launcher/web/static/page.js"}
SDIST = FILES | {*SDIST_ALSO}


def test_a_wheel_with_all_files_of_the_packages_and_its_metadata_is_complete() -> None:
    assert complaints(FILES | {"elastic_launch-0.1.0.dist-info/METADATA"}, SDIST, FILES) == []


def test_a_file_that_is_missing_is_named() -> None:
    wheel = FILES - {"launcher/web/static/page.js", "elastic/py.typed"}
    assert complaints(wheel, SDIST - {"LICENSE"}, FILES) == [
        "the wheel lacks elastic/py.typed",
        "the wheel lacks launcher/web/static/page.js",
        "the sdist lacks LICENSE",
    ]


def test_a_foreign_file_is_named() -> None:
    wheel = FILES | {"tests/__init__.py"}
    assert complaints(wheel, SDIST, FILES) == ["the wheel has tests/__init__.py, which is not in the repository"]


def test_the_packages_have_their_marks_for_type_checkers_and_the_page() -> None:
    assert {"elastic/py.typed", "launcher/py.typed"} <= package_files()
    assert any(path.startswith("launcher/web/static/") for path in package_files())
