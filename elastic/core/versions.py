"""What runs on two nodes, compared by name (pure).

A node with another major or minor version does not belong into the job: its workers would fail later, and without a
clear word. Another patch level, another build (`2.13.0+cpu`), or another script is said and borne.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

BINDING = ("python", "torch", "nccl", "launcher")
"""What must agree in major and minor version."""
SCRIPT = "script"
"""The digest of the script: it is compared as a whole."""
HINTS = {
    "python": "install the same Python on every node",
    "torch": "install the same torch on every node",
    "nccl": "install the same torch, which brings NCCL, on every node",
    "launcher": "install the same elastic-launch on every node",
    SCRIPT: "copy the same script to every node",
}


@dataclass(frozen=True, slots=True)
class VersionDifference:
    """One name with two values; "" where a side has none. `refused`: they cannot work together."""

    name: str
    there: str
    here: str
    refused: bool

    @property
    def hint(self) -> str:
        """What to do about it."""
        return HINTS.get(self.name, f"install the same {self.name} on every node")

    def words(self, there: str = "there", here: str = "here") -> str:
        """Both values, each with whose it is."""
        name = "the script's digest" if self.name == SCRIPT else self.name
        return f"{name} is {self.there or 'missing'} {there}, {self.here or 'missing'} {here}"


def differences(theirs: Mapping[str, str], ours: Mapping[str, str]) -> tuple[VersionDifference, ...]:
    """What differs, the worst first. A side that tells nothing at all differs in nothing."""
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
    return name in BINDING and bool(there and here) and _major_minor(there) != _major_minor(here)


def _major_minor(version: str) -> tuple[str, ...]:
    return tuple(version.partition("+")[0].split(".")[:2])
