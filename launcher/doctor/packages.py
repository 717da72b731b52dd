"""Whether Python packages named `elastic` or `launcher` that are not ours can be imported in place of ours."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import Distribution
from pathlib import Path
from typing import Final, NamedTuple

from launcher.system.checks import Check, CheckLevel, ok

DISTRIBUTION: Final = "elastic-launch"
PACKAGES: Final = ("elastic", "launcher")
IMPORTED_BY_SCRIPTS: Final = ("elastic",)
NAME: Final = "packages"


class OtherPackage(NamedTuple):
    """A package with the name of one of ours: the directory that has it, and the distribution that installed it."""

    package: str
    folder: Path
    distribution: str = ""
    """"" if no distribution installed it; it shadows ours because `folder` comes first."""
    version: str = ""
    checkout: bool = False
    """`folder` is a checkout of this project, so the package is ours, but not the installed one."""


def packages_check(own: Path, others: Sequence[OtherPackage], search_path: Sequence[Path]) -> Check:
    """Report every other package in one check, with the fix for the first; `own` is the directory of our packages.

    The check fails if the other package is imported in place of ours or is installed over it, and warns otherwise.
    """
    if not others:
        return ok(NAME, f"{' and '.join(PACKAGES)} are those of {DISTRIBUTION}, in {own}")
    before_ours = set(search_path[: search_path.index(own)] if own in search_path else search_path)
    failed = any(other.folder == own or other.folder in before_ours for other in others)
    return Check(
        level=CheckLevel.FAIL if failed else CheckLevel.WARN,
        name=NAME,
        text="; ".join(dict.fromkeys(_text(other, own) for other in others)),
        hint=_hint(others[0], own),
    )


def _text(other: OtherPackage, own: Path) -> str:
    if other.checkout:
        return f"{other.folder} is a checkout of {DISTRIBUTION}: scripts that start there import its {other.package}"
    if not other.distribution:
        return f"{other.folder} has another package {other.package}, which shadows that of {DISTRIBUTION}"
    distribution = f"{other.distribution} {other.version}".rstrip()
    text = f"the distribution {distribution} also installs a package {other.package}, in {other.folder}"
    return f"{text}, over that of {DISTRIBUTION}" if other.folder == own else text


def _hint(other: OtherPackage, own: Path) -> str:
    if other.checkout:
        return "start them from another directory, or install the checkout with pip install -e"
    if not other.distribution:
        return f"rename {other.folder / other.package}, or remove {other.folder} from PYTHONPATH"
    reinstall = f" and pip install --force-reinstall {DISTRIBUTION}" if other.folder == own else ""
    return f"pip uninstall {other.distribution}{reinstall}, or install {DISTRIBUTION} in a separate environment"


def other_packages(
    distributions: Iterable[Distribution], search_path: Sequence[Path], working_folder: Path, own: Path
) -> list[OtherPackage]:
    """Return the packages of other distributions, then those that no distribution installed and that shadow ours.

    `search_path` is that of this process. The scripts of workers also import from their own directory, which usually is
    `working_folder`.
    """
    installed = [other for distribution in distributions for other in _installed_by(distribution)]
    before_ours = search_path[: search_path.index(own)] if own in search_path else search_path
    shadows = [_in(folder, name) for folder in before_ours for name in PACKAGES if _has(folder, name)]
    if working_folder != own and working_folder not in before_ours:
        shadows += [_in(working_folder, name) for name in IMPORTED_BY_SCRIPTS if _has(working_folder, name)]
    known = {(other.package, other.folder) for other in installed}
    return installed + [shadow for shadow in shadows if (shadow.package, shadow.folder) not in known]


def _installed_by(distribution: Distribution) -> Iterator[OtherPackage]:
    try:
        fields = distribution.metadata.json
        name, version = (str(fields.get(key, "")) for key in ("name", "version"))
        top_level = set((distribution.read_text("top_level.txt") or "").split())
        files = distribution.files or ()
        folder = Path(str(distribution.locate_file(""))).resolve()
    except (OSError, ValueError, KeyError, csv.Error):
        return  # Its metadata is damaged: pip cannot uninstall it either.
    if not name or re.sub(r"[-_.]+", "-", name).lower() == DISTRIBUTION:
        return
    top_level.update(file.parts[0].removesuffix(".py") for file in files if file.parts)
    for package in PACKAGES:
        if package in top_level:
            yield OtherPackage(package, folder, name, version)


def _in(folder: Path, package: str) -> OtherPackage:
    try:
        checkout = f'name = "{DISTRIBUTION}"' in (folder / "pyproject.toml").read_text(errors="replace")
    except OSError:
        checkout = False
    return OtherPackage(package, folder, checkout=checkout)


def _has(folder: Path, package: str) -> bool:
    return (folder / package / "__init__.py").is_file() or (folder / f"{package}.py").is_file()
