"""The API server of Kubernetes, as far as the autoscaler asks it: one Job and its pods."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final
from urllib.parse import quote

import aiohttp
import msgspec

from launcher.k8s.objects import ApiErrorBody, KubeJob, PodList

ANSWER_S = 20.0
BYTES_MAX = 256 << 20
"""Of one answer: a list of 10,000 pods."""
OWNER: Final = "batch.kubernetes.io/controller-uid"
NO_ANSWER: Final = (
    aiohttp.ClientError,
    OSError,
    TimeoutError,
    msgspec.MsgspecError,
    RecursionError,
    ValueError,
)
"""What a call raises when there is no answer, or one that cannot be read: nested too deep, or no text."""


class ApiRefused(Exception):
    """The API server said no, with this status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"the API server says {status}: {message}")
        self.status = status


class KubeApi:
    """One Job at the API server. Calls raise `ApiRefused` or one of `NO_ANSWER`."""

    def __init__(self, session: aiohttp.ClientSession, server: str, namespace: str, job: str, token: Path) -> None:
        """The token is read for each call: Kubernetes writes it anew every hour."""
        self._session = session
        self._job = f"{server}/apis/batch/v1/namespaces/{quote(namespace)}/jobs/{quote(job)}"
        self._pods = f"{server}/api/v1/namespaces/{quote(namespace)}/pods"
        self._token = token

    async def job(self) -> KubeJob:
        """The Job as it is."""
        return msgspec.json.decode(await self._asked("GET", self._job), type=KubeJob)

    async def pods(self, uid: str) -> PodList:
        """The Job's pods, and the moment (`resourceVersion`) from which they can be watched."""
        query = {"labelSelector": f"{OWNER}={uid}"}
        return msgspec.json.decode(await self._asked("GET", self._pods, query=query), type=PodList)

    async def changed(self, uid: str, version: str, limit_s: float) -> None:
        """Return when something happens to a pod, or can be missed, or after `limit_s`."""
        query = {"labelSelector": f"{OWNER}={uid}", "watch": "1", "resourceVersion": version}
        query["timeoutSeconds"] = str(max(1, round(limit_s)))
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s), await self._sent("GET", self._pods, query=query) as answer:
                await answer.content.readany()

    async def resize(self, size: int, version: str) -> None:
        """Both numbers in one change, if the Job is still as it was at `version`."""
        spec = {"completions": size, "parallelism": size}
        body = msgspec.json.encode({"metadata": {"resourceVersion": version}, "spec": spec})
        await self._asked("PATCH", self._job, body=body)

    async def _asked(
        self, method: str, url: str, *, query: Mapping[str, str] | None = None, body: bytes | None = None
    ) -> bytes:
        async with asyncio.timeout(ANSWER_S), await self._sent(method, url, query=query, body=body) as answer:
            said = await answer.content.read(BYTES_MAX)
            while not answer.content.at_eof() and len(said) < BYTES_MAX:
                said += await answer.content.read(BYTES_MAX - len(said))
            return said

    async def _sent(
        self, method: str, url: str, *, query: Mapping[str, str] | None = None, body: bytes | None = None
    ) -> aiohttp.ClientResponse:
        headers = {"Authorization": f"Bearer {self._token.read_text().strip()}", "Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = "application/merge-patch+json"
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
