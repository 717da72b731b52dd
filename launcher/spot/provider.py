"""Detects the cloud provider of this host from its firmware, without any network request."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

DMI: Final = Path("/sys/class/dmi/id")
HYPERVISOR: Final = Path("/sys/hypervisor/uuid")
NAMES: Final = ("sys_vendor", "product_name", "bios_vendor", "bios_version", "chassis_asset_tag")
AZURE_TAG: Final = "7783-7084-3265-9085-8269-3286-77"
"""The asset tag of every Azure machine, and of no other machine on Hyper-V."""
BYTES_MAX = 256


def provider(said: Mapping[str, str]) -> str:
    """Return `aws`, `gcp`, `azure` or `none` (pure). `said`: the contents of the files of `NAMES`, and `hypervisor`."""
    if said.get("sys_vendor") == "Amazon EC2" or "amazon" in said.get("bios_version", "").lower():
        return "aws"
    if said.get("hypervisor", "").lower().startswith("ec2"):
        return "aws"
    if (
        "Google" in (said.get("sys_vendor"), said.get("bios_vendor"))
        or said.get("product_name") == "Google Compute Engine"
    ):
        return "gcp"
    return "azure" if said.get("chassis_asset_tag") == AZURE_TAG else "none"


def detect_provider(dmi: Path = DMI, hypervisor: Path = HYPERVISOR) -> str:
    """Return the provider of this host."""
    return provider({**{name: _text(dmi / name) for name in NAMES}, "hypervisor": _text(hypervisor)})


def _text(path: Path) -> str:
    """Return the first line of a small file, "" if it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(BYTES_MAX).decode("ascii", "replace").strip()
    except OSError:
        return ""
