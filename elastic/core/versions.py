"""Comparison of the software versions of two nodes, by name (pure).

A node with a different major or minor version is refused: its workers would fail later, without a clear message. A
different patch level, build (`2.13.0+cpu`) or script only causes a warning. So does a launcher of the neighbouring
minor release, which makes rolling upgrades possible (docs/reference/stability.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

LAUNCHER = "launcher"
BINDING = ("python", "torch", "nccl", LAUNCHER)
"""What must agree in major and minor version; launchers may be one minor version apart."""
SCRIPT = "script"
"""The name of the digest of the script, which is compared as a whole."""
HINTS = {
    "python": "install the same Python on every node",
    "torch": "install the same torch on every node",
    "nccl": "install the same torch, which brings NCCL, on every node",
    "launcher": "install the same elastic-launch on every node",
    SCRIPT: "copy the same script to every node",
}


@dataclass(frozen=True, slots=True)
class VersionDifference:
    """One name with two values, "" on a side that has none. `refused`: the two cannot work together."""

    name: str
    there: str
    here: str
    refused: bool

    @property
    def hint(self) -> str:
        """What to do about the difference."""
        return HINTS.get(self.name, f"install the same {self.name} on every node")

    def words(self, there: str = "there", here: str = "here") -> str:
        """Both values, each with the side that it belongs to."""
        name = "the script's digest" if self.name == SCRIPT else self.name
        return f"{name} is {self.there or 'missing'} {there}, {self.here or 'missing'} {here}"


def differences(theirs: Mapping[str, str], ours: Mapping[str, str]) -> tuple[VersionDifference, ...]:
    """Return the differences, refused ones first; none if one side has registered no versions."""
    if not theirs or not ours:
        return ()
    differing = [
        VersionDifference(
            name,
            theirs.get(name, ""),
            ours.get(name, ""),
            _is_incompatible(name, theirs.get(name, ""), ours.get(name, "")),
        )
        for name in dict.fromkeys((*BINDING, SCRIPT, *theirs, *ours))
        if theirs.get(name, "") != ours.get(name, "")
    ]
    return tuple(sorted(differing, key=lambda difference: not difference.refused))


def _is_incompatible(name: str, there: str, here: str) -> bool:
    if name not in BINDING or not (there and here) or _major_minor(there) == _major_minor(here):
        return False
    return name != LAUNCHER or not _neighbours(_major_minor(there), _major_minor(here))


def _neighbours(there: tuple[str, ...], here: tuple[str, ...]) -> bool:
    """Return whether two versions are minor releases of which one follows the other: 0.1 and 0.2, not 0.9 and 1.0."""
    (major, minor), (other_major, other_minor) = ((*version, "", "")[:2] for version in (there, here))
    if major != other_major or not (minor.isdecimal() and other_minor.isdecimal()):
        return False
    return abs(int(minor) - int(other_minor)) == 1


def _major_minor(version: str) -> tuple[str, ...]:
    return tuple(version.partition("+")[0].split(".")[:2])
