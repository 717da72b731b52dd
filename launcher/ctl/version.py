"""`elastic-ctl version`: what a bug report needs; with an etcd, the version of each of its servers."""

from __future__ import annotations

import argparse
import platform
from collections.abc import Mapping
from typing import Final

import msgspec

from elastic.core.model import SCHEMA
from launcher import __version__
from launcher.config.argv import named_values
from launcher.config.flags import STORE_FLAGS
from launcher.job import common_flags
from launcher.job.common_flags import wants_json
from launcher.job.named_job import Subcommand, open_store, write
from launcher.system import package_versions

PACKAGES: Final = ("torch", "grpcio", "msgspec")
"""Packages whose versions matter; they are looked up, not imported."""


class Versions(msgspec.Struct, frozen=True, kw_only=True):
    """Versions on this machine. `etcd` has those of the servers by endpoint, and is empty if none was named.

    `cuda` is the version that torch was built for, None without CUDA; `nccl` that of the package for torch's wheels.
    """

    elastic_launch: str
    schema: int
    python: str
    system: str
    cuda: str | None
    nccl: str | None
    packages: dict[str, str | None]
    etcd: dict[str, str]

    def lines(self) -> list[str]:
        """Return one line for each package, including packages that are not installed."""
        rows = [
            ("elastic-launch", self.elastic_launch),
            ("schema", str(self.schema)),
            ("Python", self.python),
            *((name, version or "not installed") for name, version in self.packages.items()),
            *((name, version) for name, version in (("CUDA", self.cuda), ("NCCL", self.nccl)) if version),
            *((f"etcd {endpoint}", version) for endpoint, version in self.etcd.items()),
            ("system", self.system),
        ]
        width = max(len(name) for name, _ in rows) + 2
        return [f"{name:<{width}}{version}" for name, version in rows]


def _arguments(parser: argparse.ArgumentParser) -> None:
    common_flags.add_output(parser, "json: one JSON object, for scripts")


async def _run(asked: argparse.Namespace, environ: Mapping[str, str]) -> int:
    etcd: dict[str, str] = {}
    if named_values(vars(asked), environ, STORE_FLAGS).get("servers"):
        store = open_store(vars(asked), environ)
        try:
            etcd = {status.endpoint: status.version for status in await store.statuses()}
        finally:
            await store.close()
    report = Versions(
        elastic_launch=__version__,
        schema=SCHEMA,
        python=platform.python_version(),
        system=platform.platform(),
        cuda=package_versions.cuda_of_torch() or None,
        nccl=package_versions.installed()["nccl"] or None,
        packages={name: package_versions.package_version(name) or None for name in PACKAGES},
        etcd=etcd,
    )
    write([msgspec.json.encode(report).decode()] if wants_json(asked) else report.lines())
    return 0


COMMAND: Final = Subcommand(
    "version",
    "show the versions of elastic-launch, Python, torch, CUDA, NCCL and etcd",
    _arguments,
    alone=_run,
    flags=STORE_FLAGS,
    examples=(
        ("Show the versions on this machine", "elastic-ctl version"),
        ("Show the version of etcd, too", "elastic-ctl version --elastic-server 10.0.0.5:2379"),
    ),
)
