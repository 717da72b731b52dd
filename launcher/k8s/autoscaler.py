"""Grows and shrinks an elastic Job or JobSet of Kubernetes with the available machines.

    elastic-k8s-autoscaler --job train --np 1:8
    elastic-k8s-autoscaler --jobset train --np 1:8

It requests as many pods as `--np` allows, all at once: a cluster's own autoscaler adds machines for pods that have
none. Pods that still have none after `--patience` are removed, from the highest index down, and requested again after
`--again`. A number in the annotation `elastic-launch/nodes` of the Job overrides this. Completions and parallelism are
changed together, as Kubernetes (1.27 and later) requires it, and only if the Job is still what was read. Of a JobSet
(0.12 and later, with the feature gate ElasticJobSet) the same numbers are changed in its replicated Job.

It stores nothing and may be restarted at any time. Without it the Job runs at its present size.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final, NoReturn

from elastic._text import counted
from elastic.core.model import Np
from launcher.config import readers
from launcher.config.durations import METAVAR, duration, duration_text
from launcher.k8s.api import CHANGED, NO_ANSWER, NOT_FOUND, ApiRefused, KubeApi, ScaledObject
from launcher.k8s.connection import ACCOUNT, NO_SERVER, add_replicated_job, connected, scaled, server_inside
from launcher.k8s.objects import NotScalable, view_of
from launcher.k8s.sizing import AGAIN_S, PATIENCE_S, ResizeJob, ScalingMemory, ScalingPolicy, decide

PROG: Final = "elastic-k8s-autoscaler"
ROUND_S = 30.0
"""The Job is read this often even if no pod changes: a user may have changed it."""
CALM_S = 1.0
"""Minimum time between two lists of the pods: many change at a time."""
RETRY_S, RETRY_MAX_S = 0.5, 30.0
"""The back-off after an error, which doubles while the error is the same."""


class JobScaler:
    """Keeps one Job or JobSet at the size that `decide` returns. A reason is logged when it changes."""

    def __init__(self, api: KubeApi, target: ScaledObject, policy: ScalingPolicy, say: Callable[[str], None]) -> None:
        self._api = api
        self._target = target
        self._policy = policy
        self._say = say
        self._said = ""
        self._uid = ""
        self._memory = ScalingMemory()

    async def follow(self) -> None:
        """Run indefinitely. No answer or missing answer of the API server ends it."""
        before, wait_s = "", 0.0
        while True:
            try:
                await self._round()
                before = ""
                continue
            except ApiRefused as error:
                problem, said = f"{error}; retrying", error.status
            except NotScalable as error:
                problem, said = f"{error}; waiting for another one", 0
            except NO_ANSWER as error:
                problem, said = f"cannot query the API server ({error or type(error).__name__}); retrying", 0
            if said == NOT_FOUND:
                problem = "does not exist; waiting for it"
            if said not in CHANGED:  # Another client was faster: nothing to report.
                self._log_change(problem)
            wait_s = min(2 * wait_s, RETRY_MAX_S) if problem == before else RETRY_S
            before = problem
            await asyncio.sleep(wait_s)

    async def _round(self) -> None:
        """Read, decide, act, and wait for changes."""
        job = await self._target.read()
        if job.metadata.uid != self._uid:  # Another one under the same name.
            self._memory, self._uid = ScalingMemory(), job.metadata.uid
        listed = await self._api.pods(self._uid)
        now = time.monotonic()
        decision, memory = decide(view_of(job, listed.items), self._memory, self._policy, now)
        if isinstance(decision, ResizeJob):
            await self._target.resize(decision.size)
            self._memory = memory
            self._log_change(f"from {job.spec.completions} to {counted(decision.size, 'pod')}: {decision.reason}")
            return
        self._memory = memory
        self._log_change(decision.reason)
        limit_s = ROUND_S if decision.until is None else min(ROUND_S, max(0.1, decision.until - now))
        await self._api.changed(self._uid, listed.metadata.resource_version, limit_s)
        await asyncio.sleep(min(CALM_S, limit_s))

    def _log_change(self, what: str) -> None:
        if what != self._said:
            self._say(f"{self._target}: {what}")
            self._said = what


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


class _AutoscalerParser(argparse.ArgumentParser):
    """Reports a mistake in one line."""

    def error(self, message: str) -> NoReturn:
        """Print it and exit with 2."""
        self.exit(2, f"{PROG}: error: {message}\n")


def _pods(text: str) -> Np:
    """Parse a range of nodes with a maximum: this many pods are created."""
    np = readers.np(text)
    if np.unlimited:
        raise ValueError(f"{text!r} has no maximum, and the pods are created in advance; use {np.low}:{np.first}")
    return np


def _arguments(argv: Sequence[str], environ: Mapping[str, str]) -> argparse.Namespace:
    say = argparse.RawDescriptionHelpFormatter
    parser = _AutoscalerParser(prog=PROG, description=__doc__, formatter_class=say, allow_abbrev=False)
    whose = parser.add_mutually_exclusive_group(required=True)
    whose.add_argument("--job", metavar="NAME", help="the name of the Job")
    whose.add_argument("--jobset", metavar="NAME", help="the name of the JobSet")
    add_replicated_job(parser)
    parser.add_argument(
        "--np",
        required=True,
        type=readers.argument(_pods),
        metavar="MIN:MAX",
        help="minimum and maximum number of pods",
    )
    add_wait = partial(parser.add_argument, type=readers.argument(duration(0.1)), metavar=METAVAR)
    add_wait("--patience", default=PATIENCE_S, help=f"how long pods wait for a machine ({duration_text(PATIENCE_S)})")
    add_wait("--again", default=AGAIN_S, help=f"interval between requests for more ({duration_text(AGAIN_S)})")
    parser.add_argument(
        "--namespace",
        default=environ.get("POD_NAMESPACE", "default"),
        help="the namespace of the Job or JobSet (default: POD_NAMESPACE, or default)",
    )
    parser.add_argument("--server", default=server_inside(environ), help="the API server (default: that of the pod)")
    parser.add_argument(
        "--token-file",
        type=Path,
        default=ACCOUNT / "token",
        help="a file with the token for the API server (default: that of the pod's service account)",
    )
    parser.add_argument(
        "--ca-file",
        type=Path,
        default=ACCOUNT / "ca.crt",
        help="the CA certificates that verify the API server, a PEM file (default: those of the pod)",
    )
    arguments = parser.parse_args(argv)
    if not arguments.server:
        parser.error(f"{NO_SERVER}; name the API server with --server https://HOST:PORT")
    return arguments


async def _run(asked: argparse.Namespace) -> None:
    np: Np = asked.np
    policy = ScalingPolicy(np.low, np.high, asked.patience, asked.again)
    async with connected(asked.server, asked.namespace, asked.token_file, asked.ca_file) as api:
        target = scaled(api, job=asked.job, jobset=asked.jobset, replicated_job=asked.replicated_job)
        await JobScaler(api, target, policy, _say).follow()


def main(argv: Sequence[str] | None = None) -> int:
    """Run until it is ended; return its exit code."""
    asked = _arguments(sys.argv[1:] if argv is None else argv, os.environ)
    try:
        asyncio.run(_run(asked))
    except KeyboardInterrupt:
        return 130
    except OSError as error:
        sys.stderr.write(f"{PROG}: error: {asked.ca_file}: {error.strerror}; name the authority with --ca-file\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
