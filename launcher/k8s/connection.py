"""The connection to the API server of a cluster, and the object that the flags name."""

from __future__ import annotations

import argparse
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import aiohttp

from launcher.k8s.api import ANSWER_S, KubeApi, ScaledJob, ScaledJobSet, ScaledObject
from launcher.net.endpoints import join_host_port

ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
REPLICATED_JOB: Final = "node"
"""The name that deploy/kubernetes and Kubeflow Trainer give to the replicated Job whose pods are the nodes."""
NO_SERVER: Final = "not running in a Kubernetes pod"


def server_inside(environ: Mapping[str, str]) -> str:
    """Return the URL of the API server from within a pod; empty elsewhere."""
    host, port = environ.get("KUBERNETES_SERVICE_HOST", ""), environ.get("KUBERNETES_SERVICE_PORT", "443")
    return f"https://{join_host_port(host, int(port))}" if host else ""


def add_replicated_job(parser: argparse._ActionsContainer) -> None:
    """Add the flag that names one replicated Job of a JobSet."""
    parser.add_argument(
        "--replicated-job",
        default=REPLICATED_JOB,
        metavar="NAME",
        help=f"the replicated Job of the JobSet whose pods are the nodes (default: {REPLICATED_JOB})",
    )


@asynccontextmanager
async def connected(server: str, namespace: str, token: Path | None, ca_file: Path | None) -> AsyncIterator[KubeApi]:
    """Connect to the API server at this URL. Raises OSError if the file of the certificate authority cannot be read."""
    secure: ssl.SSLContext | bool = True
    if server.startswith("https:"):
        secure = ssl.create_default_context(cafile=ca_file)
        # Python 3.13 demands extensions that the authorities of some clusters (older ones of EKS, MicroK8s) lack.
        secure.verify_flags &= ~ssl.VERIFY_X509_STRICT
    connector = aiohttp.TCPConnector(ssl=secure)
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=ANSWER_S)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        yield KubeApi(session, server, namespace, token)


def scaled(api: KubeApi, *, job: str | None, jobset: str | None, replicated_job: str) -> ScaledObject:
    """Return the named object: a Job, or a JobSet with its replicated Job."""
    if jobset is not None:
        return ScaledJobSet(api, jobset, replicated_job)
    assert job is not None
    return ScaledJob(api, job)
