"""`elastic-ctl scale` in Kubernetes: it changes the number of pods of a Job or JobSet, without etcd."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Final

from elastic._text import counted
from elastic.core.model import Np
from elastic.errors import ConfigError, ElasticError
from launcher.job.named_job import NO_SUCH_JOB
from launcher.k8s.api import CHANGED, NO_ANSWER, NOT_FOUND, ApiRefused, ScaledObject
from launcher.k8s.connection import ACCOUNT, NO_SERVER, add_replicated_job, connected, scaled, server_inside
from launcher.k8s.objects import NotScalable
from launcher.k8s.sizing import WANTED
from launcher.text.sanitize import sanitize_line

TRIES_MAX: Final = 20
"""How often the object may change between a read and its patch before the command gives up."""
PROXY: Final = "run `kubectl proxy` on your machine, and there add --api-server http://127.0.0.1:8001"


class PodsNotScaled(ElasticError):
    """The object was not found, has ended, or changed too often. Nothing was changed."""

    exit_code = NO_SUCH_JOB


class ApiUnreachable(ElasticError):
    """The API server does not answer, or its answer cannot be read."""

    exit_code = 4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags that name an object of Kubernetes."""
    group = parser.add_argument_group(
        "which object of Kubernetes, instead of an etcd and a job; --np is its number of pods"
    )
    whose = group.add_mutually_exclusive_group()
    whose.add_argument("--k8s-job", metavar="NAME", help="the Job")
    whose.add_argument("--jobset", metavar="NAME", help="the JobSet, also the one of a TrainJob of this name")
    add_replicated_job(group)
    group.add_argument("--namespace", metavar="NAME", help="its namespace (default: the pod's own, or default)")
    group.add_argument(
        "--api-server",
        metavar="URL",
        help="the API server (default: the pod's own); http://127.0.0.1:8001 is that of `kubectl proxy`",
    )


def named(asked: argparse.Namespace) -> bool:
    """Return whether an object of Kubernetes was named. Raises `ConfigError` for flags that need one without it."""
    found = asked.k8s_job is not None or asked.jobset is not None
    if not found and (asked.namespace is not None or asked.api_server is not None):
        raise ConfigError("no Kubernetes object named; add --k8s-job NAME or --jobset NAME")
    return found


async def resize(asked: argparse.Namespace, environ: Mapping[str, str]) -> str:
    """Set the number of pods, and pin it for the autoscaler; return a message about what was done.

    Raises `ConfigError`, `PodsNotScaled`, `ApiRefused` and `ApiUnreachable`.
    """
    size = _pods(asked.np)
    inside = server_inside(environ)
    server = asked.api_server or inside
    if not server.startswith(("http://", "https://")):
        start = f"{server!r} is not an http:// or https:// URL" if server else NO_SERVER
        raise ConfigError(f"{start}; {PROXY}")
    own = server == inside
    if own and not (ACCOUNT / "token").is_file():
        raise ConfigError(f"this pod has no token of a service account; {PROXY}")
    namespace = asked.namespace or _own_namespace() or "default"
    token, ca_file = (ACCOUNT / "token", ACCOUNT / "ca.crt") if own else (None, None)
    try:
        async with connected(server, namespace, token, ca_file) as api:
            target = scaled(api, job=asked.k8s_job, jobset=asked.jobset, replicated_job=asked.replicated_job)
            return await _resize(target, size, namespace)
    except NotScalable as error:
        raise ConfigError(f"JobSet {asked.jobset}: {error}; name another one with --replicated-job") from error
    except NO_ANSWER as error:
        reason = sanitize_line(str(error) or type(error).__name__)
        raise ApiUnreachable(f"cannot reach the API server at {server}: {reason}") from error


def _pods(np: Np) -> int:
    if np.first != np.high:
        raise ConfigError(f"--np {np}: a Job or JobSet has one number of pods; write it, as in --np {np.first}")
    return np.high


def _own_namespace() -> str:
    found = ACCOUNT / "namespace"
    return found.read_text().strip() if found.is_file() else ""


async def _resize(target: ScaledObject, size: int, namespace: str) -> str:
    for _ in range(TRIES_MAX):
        try:
            job = await target.read()
            if any(each.type in ("Complete", "Failed") and each.status == "True" for each in job.status.conditions):
                raise PodsNotScaled(f"{target} has ended; its number of pods cannot be changed")
            await target.resize(size, pinned=True)
        except ApiRefused as error:
            if error.status == NOT_FOUND:
                raise PodsNotScaled(f"there is no {target} in the namespace {namespace}") from error
            if error.status not in CHANGED:
                raise
            continue
        before = job.spec.completions or 0
        how = f"stays at {counted(size, 'pod')}" if before == size else f"from {before} to {counted(size, 'pod')}"
        return f"{target}: {how}; the annotation {WANTED} is {size}, which the autoscaler keeps"
    raise PodsNotScaled(f"{target} is changing; try again")
