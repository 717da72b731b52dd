"""Compares a built wheel and sdist with the files of the repository.

    python -m tests.dist.contents dist
"""

from __future__ import annotations

import sys
import tarfile
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PACKAGES: Final = ("elastic", "launcher")
SDIST_ALSO: Final = (
    *("README.md", "CHANGELOG.md", "LICENSE", "Makefile", "constraints.txt"),
    *("tests/conftest.py", "docs/index.md", "deploy/Dockerfile"),
)
"""Other files that an sdist must have."""


def package_files(root: Path = ROOT) -> set[str]:
    """Return the files of both packages that a wheel must have: all but compiled ones."""
    return {
        path.relative_to(root).as_posix()
        for package in PACKAGES
        for path in (root / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def complaints(wheel: Iterable[str], sdist: Iterable[str], files: Iterable[str]) -> list[str]:
    """Return one line for each file that is missing, or that a wheel must not have.

    Args:
        wheel: Paths in the wheel.
        sdist: Paths in the sdist, without its top folder.
        files: Paths of the packages in the repository.
    """
    wheel, sdist, files = set(wheel), set(sdist), set(files)
    required = files | {f"{package}/py.typed" for package in PACKAGES}
    lines = [f"the wheel lacks {path}" for path in sorted(required - wheel)]
    lines += [f"the sdist lacks {path}" for path in sorted((required | {*SDIST_ALSO}) - sdist)]
    foreign = {path for path in wheel - files if ".dist-info/" not in path}
    return lines + [f"the wheel has {path}, which is not in the repository" for path in sorted(foreign)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Check the one wheel and the one sdist of a folder; return 1 if something is missing."""
    (folder,) = map(Path, sys.argv[1:] if arguments is None else arguments)
    (wheel_path,), (sdist_path,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    with zipfile.ZipFile(wheel_path) as wheel, tarfile.open(sdist_path) as sdist:
        in_sdist = [name.partition("/")[2] for name in sdist.getnames()]
        lines = complaints(wheel.namelist(), in_sdist, package_files())
    for line in lines:
        print(line, file=sys.stderr)
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
