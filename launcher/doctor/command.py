"""The subcommand `doctor`: its flags, and the order of the checks."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

import msgspec

from elastic.core.keys import JobKeys
from launcher.config import store_access
from launcher.config.argv import named_values
from launcher.config.config import Config
from launcher.config.flags import BY_NAME, JOB_FLAGS
from launcher.config.readers import StoreEndpoints
from launcher.doctor.etcd import etcd_checks
from launcher.doctor.job import job_checks
from launcher.doctor.machine import machine_checks
from launcher.job import common_flags
from launcher.job.common_flags import wants_json
from launcher.system.checks import Check, CheckLevel, lines, warn
from launcher.system.stdout import print_result

FLAGS: Final = ("host", "nic", "port_range", "log_dir", "checkpoint_dir")
"""Flags of `elastic-launch` that select what it would use on this host."""
SOMETHING_FAILED = 1


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the subcommand, without those of the job."""
    for name in FLAGS:
        flag = BY_NAME[name]
        help_text = f"{flag.help} ({flag.variables[0]})".replace("%", "%%")
        parser.add_argument(flag.option, metavar=flag.metavar, help=help_text)
    common_flags.add_output(parser, "json: one JSON object, for scripts")


async def run(asked: argparse.Namespace, environ: Mapping[str, str]) -> int:
    """Run all checks and print them; return 0 if none failed, 1 otherwise.

    Without a server it checks this host; with one, also etcd; with a job ID, also the job.
    """
    values = named_values(vars(asked), environ, (*JOB_FLAGS, *FLAGS))
    checks: list[Check] = []
    colours = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    as_json = wants_json(asked)
    async for check in _checks(values, environ):
        checks.append(check)
        if not as_json:
            print_result("".join(f"{line}\n" for line in lines(check, colours=colours)))
    failed = any(check.level is CheckLevel.FAIL for check in checks)
    if as_json:
        print_result(msgspec.json.encode({"ok": not failed, "checks": checks}).decode() + "\n")
    return SOMETHING_FAILED if failed else 0


async def _checks(values: Mapping[str, Any], environ: Mapping[str, str]) -> AsyncIterator[Check]:
    servers: StoreEndpoints = values.get("servers") or StoreEndpoints((), tls=False)
    job_id = values.get("job_id", "")
    own = {name: values[name] for name in FLAGS if name in values}
    own.setdefault("checkpoint_dir", os.path.join("checkpoints", job_id))
    for check in machine_checks(Config(script="", servers=servers.endpoints, **own), environ):
        yield check
    if not servers.endpoints:
        return
    way, warnings = store_access.read_access(values, environ)
    for line in warnings:
        yield warn("files", line, "")
    store = way.open()
    try:
        keys = JobKeys(job_id or "doctor", values["key_prefix"])
        answering = True
        for check in await etcd_checks(store, servers.endpoints, keys.spec):
            answering = answering and not (check.name == "etcd" and check.level is CheckLevel.FAIL)
            yield check
        if job_id and answering:
            async for check in job_checks(store, keys):
                yield check
    finally:
        await store.close()
