"""The API server of Kubernetes, for one namespace: a Job or a JobSet, its pods, and how many there are."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar
from urllib.parse import quote

import aiohttp
import msgspec

from elastic.errors import ElasticError
from launcher.k8s.objects import (
    ApiErrorBody,
    KubeJob,
    KubeJobSet,
    PodList,
    as_job,
    job_name,
    job_patch,
    jobset_patch,
)

ANSWER_S = 20.0
BYTES_MAX = 256 << 20
"""The largest size of an answer: a list of 10,000 pods."""
OWNER: Final = "batch.kubernetes.io/controller-uid"
NO_ANSWER: Final = (
    aiohttp.ClientError,
    OSError,
    TimeoutError,
    msgspec.MsgspecError,
    RecursionError,
    ValueError,
)
"""The errors of a call without an answer, or with one that cannot be parsed: nested too deeply, or not text."""
MERGE_PATCH: Final = "application/merge-patch+json"
JSON_PATCH: Final = "application/json-patch+json"
NOT_FOUND, CHANGED = 404, (409, 410)
IMMUTABLE: Final = "field is immutable"
"""The message of the JobSet webhook for a size that it does not let change."""

Read = TypeVar("Read")


class ApiRefused(ElasticError):
    """The API server rejected a request, with this status."""

    exit_code = 3

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"the API server answers {status}: {message}")
        self.status = status


class KubeApi:
    """One namespace at the API server. Calls raise `ApiRefused` or one of `NO_ANSWER`."""

    def __init__(self, session: aiohttp.ClientSession, server: str, namespace: str, token: Path | None) -> None:
        """The token is read for each call: Kubernetes renews it every hour. None: no token, as for `kubectl proxy`."""
        self._session = session
        self._server = server.rstrip("/")
        self._namespace = quote(namespace, safe="")
        self._token = token

    async def get(self, group: str, resource: str, name: str, kind: type[Read]) -> Read:
        """Return an object of a group with its version, such as batch/v1."""
        return msgspec.json.decode(await self._asked("GET", self._url(group, resource, name)), type=kind)

    async def patch(self, group: str, resource: str, name: str, patch: Any, content_type: str) -> None:
        """Change an object."""
        body = msgspec.json.encode(patch)
        await self._asked("PATCH", self._url(group, resource, name), body=body, content_type=content_type)

    async def pods(self, uid: str) -> PodList:
        """Return the pods of the Job with this uid, and the `resourceVersion` from which they can be watched."""
        return msgspec.json.decode(await self._asked("GET", self._pods, query=_of(uid)), type=PodList)

    async def changed(self, uid: str, version: str, limit_s: float) -> None:
        """Return when a pod changes, or a change may have been missed, or after `limit_s`."""
        query = _of(uid) | {"watch": "1", "resourceVersion": version}
        query["timeoutSeconds"] = str(max(1, round(limit_s)))
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s), await self._sent("GET", self._pods, query=query) as answer:
                await answer.content.readany()

    def _url(self, group: str, resource: str, name: str) -> str:
        return f"{self._server}/apis/{group}/namespaces/{self._namespace}/{resource}/{quote(name, safe='')}"

    @property
    def _pods(self) -> str:
        return f"{self._server}/api/v1/namespaces/{self._namespace}/pods"

    async def _asked(
        self,
        method: str,
        url: str,
        *,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = "",
    ) -> bytes:
        sent = self._sent(method, url, query=query, body=body, content_type=content_type)
        async with asyncio.timeout(ANSWER_S), await sent as answer:
            said = await answer.content.read(BYTES_MAX)
            while not answer.content.at_eof() and len(said) < BYTES_MAX:
                said += await answer.content.read(BYTES_MAX - len(said))
            return said

    async def _sent(
        self,
        method: str,
        url: str,
        *,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = "",
    ) -> aiohttp.ClientResponse:
        headers = {"Accept": "application/json"}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token.read_text().strip()}"
        if body is not None:
            headers["Content-Type"] = content_type
        answer = await self._session.request(method, url, params=query, data=body, headers=headers)
        if answer.status < 300:
            return answer
        async with answer:
            said = await answer.content.read(1 << 16)
        try:
            message = msgspec.json.decode(said, type=ApiErrorBody).message
        except msgspec.MsgspecError:
            message = answer.reason or ""
        raise ApiRefused(answer.status, " ".join(message.split())[:1000])


def _of(uid: str) -> dict[str, str]:
    return {"labelSelector": f"{OWNER}={uid}"}


class ScaledObject(Protocol):
    """An object of Kubernetes whose number of pods can be changed. `str` names it in messages.

    Calls raise `ApiRefused`, `NotScalable` or one of `NO_ANSWER`.
    """

    async def read(self) -> KubeJob:
        """Return the object as a Job."""

    async def resize(self, size: int, *, pinned: bool = False) -> None:
        """Set completions and parallelism in one change, if the object is still what `read` returned last.

        `pinned` also writes the annotation that the autoscaler obeys.
        """


class ScaledJob:
    """A Job."""

    def __init__(self, api: KubeApi, name: str) -> None:
        self._api = api
        self._name = name
        self._last: KubeJob | None = None

    def __str__(self) -> str:
        return f"Job {self._name}"

    async def read(self) -> KubeJob:
        """Return the Job as it is."""
        self._last = await self._api.get("batch/v1", "jobs", self._name, KubeJob)
        return self._last

    async def resize(self, size: int, *, pinned: bool = False) -> None:
        """Set the number of its pods."""
        assert self._last is not None, "read comes first"
        await self._api.patch("batch/v1", "jobs", self._name, job_patch(self._last, size, pinned=pinned), MERGE_PATCH)


class ScaledJobSet:
    """One replicated Job of a JobSet. The JobSet controller copies the numbers into the Job that it created."""

    GROUP: Final = "jobset.x-k8s.io/v1alpha2"

    def __init__(self, api: KubeApi, name: str, replicated: str) -> None:
        self._api = api
        self._name = name
        self._replicated = replicated
        self._last: KubeJobSet | None = None

    def __str__(self) -> str:
        return f"JobSet {self._name}"

    async def read(self) -> KubeJob:
        """Return the JobSet as a Job, with the Job that its controller has created, if it has."""
        self._last = await self._api.get(self.GROUP, "jobsets", self._name, KubeJobSet)
        child: KubeJob | None = None
        try:
            child = await self._api.get("batch/v1", "jobs", job_name(self._name, self._replicated), KubeJob)
        except ApiRefused as error:
            if error.status != NOT_FOUND:
                raise
        return as_job(self._last, self._replicated, child)

    async def resize(self, size: int, *, pinned: bool = False) -> None:
        """Set the number of pods of the replicated Job."""
        assert self._last is not None, "read comes first"
        patch = jobset_patch(self._last, self._replicated, size, pinned=pinned)
        try:
            await self._api.patch(self.GROUP, "jobsets", self._name, patch, JSON_PATCH)
        except ApiRefused as error:
            if IMMUTABLE not in str(error):
                raise
            hint = "JobSet rejects a new size; use JobSet 0.12 or later and turn on its feature gate ElasticJobSet"
            raise ApiRefused(error.status, hint) from error
