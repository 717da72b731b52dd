"""An API server of Kubernetes as far as one Job is concerned, with the Job controller and the scheduler behind it.

It refuses what the real one refuses, with its words: completions without parallelism, a version that is not the newest,
a patch of another type, a token that does not count, and every verb that the Role of the manifests does not give.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator
from typing import Any

from aiohttp import web

from tests.support.kustomize import KUBERNETES, Thing, one, rendered

NAME, NAMESPACE = "train", "elastic"
LABEL = "batch.kubernetes.io/controller-uid"
INDEX = "batch.kubernetes.io/job-completion-index"
MERGE_PATCH = "application/merge-patch+json"


class Cluster:
    """One Job, its pods, and so many machines, each for one pod."""

    FOLDER = "overlays/spot"
    """The manifests whose Role counts."""
    JOB = NAME
    """The name of the Job."""

    def __init__(self, size: int, machines: int) -> None:
        self.machines = machines
        self.tokens = {"first"}
        self.rules: list[Thing] = one(rendered(KUBERNETES / self.FOLDER), "Role", "autoscaler")["rules"]
        self.pods: dict[int, Thing] = {}
        self.done: set[int] = set()
        """Indexes whose pod has succeeded, whether or not it is still there."""
        self.taken: list[tuple[int, str]] = []
        """Pods that were removed because the Job became smaller: index, and phase at that moment."""
        self.patches: list[Thing] = []
        self.job: Thing = {}
        self.disturb = 0
        """So many patches find that somebody was faster."""
        self.broken = False
        self.nonsense = b""
        """Said to every question instead of an answer."""
        self.forgets = False
        """No watch can begin where it wants to."""
        self._version = 100
        self._made = 0
        self.news = asyncio.Condition()
        self.renew(size)

    def renew(self, size: int) -> None:
        """Another Job under the same name."""
        self._made += 1
        self.pods, self.done = {}, set()
        spec = {"completionMode": "Indexed", "completions": size, "parallelism": size, "suspend": False}
        meta = {"name": self.JOB, "uid": f"uid-{self._made}", "annotations": {}}
        self.job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": spec, "status": {}}
        self.settle()

    def settle(self) -> None:
        """What the Job controller and the scheduler do. Of a smaller Job the highest indexes go."""
        size = self.job["spec"]["completions"]
        for index in [index for index in self.pods if index >= size]:
            self.taken.append((index, self.phase(index)))
            del self.pods[index]
        for index in range(size):
            if index not in self.pods and index not in self.done:
                self._made += 1
                meta = {
                    "name": f"{self.JOB}-{index}-{self._made}",
                    "annotations": {INDEX: str(index)},
                    "labels": {LABEL: self.job["metadata"]["uid"]},
                }
                self.pods[index] = {"metadata": meta, "status": {"phase": "Pending"}}
        for index in sorted(self.pods):
            status = self.pods[index]["status"]
            if status["phase"] == "Pending":
                placed = sum(self.phase(each) == "Running" for each in self.pods) < self.machines
                scheduled = {"type": "PodScheduled", "status": "True" if placed else "False"}
                if not placed:
                    scheduled |= {"reason": "Unschedulable", "message": "0/3 nodes are available: 3 Insufficient gpu."}
                self.pods[index]["status"] = {"phase": "Running" if placed else "Pending", "conditions": [scheduled]}
        self.stir()

    def stir(self) -> None:
        """Something was written."""
        self._version += 1
        self.job["metadata"]["resourceVersion"] = str(self._version)

    def phase(self, index: int) -> str:
        """Of the pod with this index."""
        return str(self.pods[index]["status"]["phase"])

    async def tell(self) -> None:
        """Watches hear of it, and so do those who wait in the test."""
        async with self.news:
            self.news.notify_all()

    async def change(self, machines: int | None = None) -> None:
        """Machines come or go; who has one keeps it here."""
        self.machines = self.machines if machines is None else machines
        self.settle()
        await self.tell()

    async def finish(self, index: int) -> None:
        """The pod of an index exits with 0."""
        self.pods[index]["status"] = {"phase": "Succeeded"}
        self.done.add(index)
        self.job["status"]["completedIndexes"] = ",".join(map(str, sorted(self.done)))
        await self.change()

    async def clear_away(self, index: int) -> None:
        """A pod that has ended is deleted, as when the machine on which it ran is removed."""
        del self.pods[index]
        await self.change()

    async def take_all(self) -> None:
        """All machines go at once; pods that ran wait for another."""
        for pod in self.pods.values():
            if pod["status"]["phase"] == "Running":
                pod["status"] = {"phase": "Pending"}
        await self.change(machines=0)

    async def until(self, size: int, running: int) -> None:
        """Wait until the Job has this size and so many pods run."""
        async with asyncio.timeout(60), self.news:
            await self.news.wait_for(lambda: (self.job["spec"]["completions"], self.running()) == (size, running))

    def running(self) -> int:
        """How many pods run."""
        return sum(self.phase(index) == "Running" for index in self.pods)

    @contextlib.asynccontextmanager
    async def serve(self, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
        """Answer requests; the address."""
        app = web.Application(middlewares=[self._guard])
        self.route(app.router)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
        await site.start()
        try:
            yield f"{'https' if tls else 'http'}://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()

    def route(self, router: web.UrlDispatcher) -> None:
        """Add what the server answers."""
        job = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs/{self.JOB}"
        router.add_get(job, self._get)
        router.add_patch(job, self._patch)
        router.add_get(f"/api/v1/namespaces/{NAMESPACE}/pods", self._list)

    @web.middleware
    async def _guard(self, request: web.Request, handler: Any) -> web.StreamResponse:
        if self.nonsense:
            return web.Response(body=self.nonsense, content_type="application/json")
        if self.broken:
            return complaint(500, "InternalError", "etcdserver: request timed out")
        if request.headers.get("Authorization", "").removeprefix("Bearer ") not in self.tokens:
            return complaint(401, "Unauthorized", "Unauthorized")
        group, resource, name = "", "pods", ""
        if request.path.startswith("/apis/"):
            group, (resource, name) = request.path.split("/")[2], request.path.split("/")[-2:]
        verb = {"PATCH": "patch"}.get(
            request.method, "get" if name else "watch" if "watch" in request.query else "list"
        )
        if not any(
            group in rule["apiGroups"]
            and resource in rule["resources"]
            and verb in rule["verbs"]
            and (not rule.get("resourceNames") or name in rule["resourceNames"])
            for rule in self.rules
        ):
            who = f'User "system:serviceaccount:{NAMESPACE}:autoscaler" cannot {verb} resource "{resource}"'
            what = f"{resource}{'.' + group if group else ''}{f' {json.dumps(name)}' if name else ''} is forbidden: "
            return complaint(403, "Forbidden", f'{what}{who} in API group "{group}" in the namespace "{NAMESPACE}"')
        return await handler(request)  # type: ignore[no-any-return]

    async def _get(self, request: web.Request) -> web.Response:
        if not self.job:
            return complaint(404, "NotFound", f'jobs.batch "{self.JOB}" not found')
        return web.json_response(self.job)

    async def _patch(self, request: web.Request) -> web.Response:
        if request.content_type != MERGE_PATCH:
            return unknown_format(MERGE_PATCH)
        if self.disturb:
            self.disturb -= 1
            self.stir()
        body = await request.json()
        version = body.get("metadata", {}).get("resourceVersion")
        if version is not None and version != self.job["metadata"]["resourceVersion"]:
            return modified(f'jobs.batch "{self.JOB}"')
        spec = self.job["spec"] | body.get("spec", {})
        if spec["completions"] != self.job["spec"]["completions"] and spec["completions"] != spec["parallelism"]:
            said = f"Invalid value: {spec['completions']}: can only be modified in tandem with spec.parallelism"
            return complaint(422, "Invalid", f'Job.batch "{self.JOB}" is invalid: spec.completions: {said}')
        self.job["spec"] = spec
        self.job["metadata"]["annotations"] |= body.get("metadata", {}).get("annotations", {})
        self.patches.append(body["spec"])
        self.settle()
        await self.tell()
        return web.json_response(self.job)

    async def _list(self, request: web.Request) -> web.StreamResponse:
        label, _, uid = request.query.get("labelSelector", "").partition("=")
        assert label == LABEL
        if "watch" in request.query:
            return await self._watch(request)
        pods = [pod for pod in self.pods.values() if pod["metadata"]["labels"][LABEL] == uid]
        return web.json_response(
            {"kind": "PodList", "metadata": {"resourceVersion": str(self._version)}, "items": pods}
        )

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        """One event when anything has changed since the version that is named; an end when the time is over."""
        answer = web.StreamResponse(headers={"Content-Type": "application/json"})
        await answer.prepare(request)
        if self.forgets:
            gone = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}
            await answer.write(json.dumps({"type": "ERROR", "object": gone}).encode() + b"\n")
            return answer
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(float(request.query["timeoutSeconds"])), self.news:
                await self.news.wait_for(lambda: self._version > int(request.query["resourceVersion"]))
            pod = next(iter(self.pods.values()), {})
            await answer.write(json.dumps({"type": "MODIFIED", "object": pod}).encode() + b"\n")
        return answer


def unknown_format(*known: str) -> web.Response:
    """A patch of another type."""
    said = "the body of the request was in an unknown format - accepted media types include: "
    return complaint(415, "UnsupportedMediaType", said + ", ".join(known))


def modified(what: str) -> web.Response:
    """A version that is not the newest."""
    said = "the object has been modified; please apply your changes to the latest version and try again"
    return complaint(409, "Conflict", f"Operation cannot be fulfilled on {what}: {said}")


def complaint(code: int, reason: str, message: str) -> web.Response:
    """What the server says instead."""
    body = {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "message": message,
        "reason": reason,
        "code": code,
    }
    return web.json_response(body, status=code)
