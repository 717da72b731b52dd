"""The API server of `fake_kubernetes` with JobSet: its webhook, and its controller as far as the size is concerned.

The webhook refuses what that of JobSet 0.12 refuses of a change, with its words (pkg/webhooks/jobset_webhook.go of
kubernetes-sigs/jobset, `ValidateUpdate`). A JSON patch is applied as the API server does it.
"""

from __future__ import annotations

import copy
from typing import Any

from aiohttp import web

from tests.support.fake_kubernetes import MERGE_PATCH, NAME, NAMESPACE, Cluster, complaint, modified, unknown_format
from tests.support.kustomize import KUBERNETES, Thing, one, rendered

JSON_PATCH = "application/json-patch+json"
GROUP = "jobset.x-k8s.io"
REPLICATED = "node"
FIELDS = ("parallelism", "completions")


class JobSetCluster(Cluster):
    """The JobSet of the manifests; its replicated Job is the Job of the cluster."""

    FOLDER = "jobset"
    JOB = f"{NAME}-{REPLICATED}-0"

    def __init__(self, size: int, machines: int) -> None:
        self.gate = True
        """Whether the feature gate ElasticJobSet is on."""
        self.jobset: Thing = {}
        self.created = True
        """Whether the controller has created the Job."""
        super().__init__(size, machines)

    def renew(self, size: int) -> None:
        """Another JobSet under the same name, and so another Job."""
        super().renew(size)
        self.jobset = copy.deepcopy(one(rendered(KUBERNETES / self.FOLDER), "JobSet", NAME))
        self.jobset["metadata"] |= {"uid": f"jobset-{self.job['metadata']['uid']}", "annotations": {}}
        self.jobset["status"] = {}
        self.jobset["spec"]["replicatedJobs"][0]["template"]["spec"] |= dict.fromkeys(FIELDS, size)
        self.stir()

    def stir(self) -> None:
        """Something was written."""
        super().stir()
        self.jobset.setdefault("metadata", {})["resourceVersion"] = self.job["metadata"]["resourceVersion"]

    @property
    def size(self) -> int:
        """What the JobSet says of its nodes."""
        return sizes(self.jobset)["completions"]

    async def end(self, kind: str = "Completed") -> None:
        """The JobSet has ended."""
        self.jobset["status"]["conditions"] = [{"type": kind, "status": "True"}]
        await self.change()

    def route(self, router: web.UrlDispatcher) -> None:
        """Add what the server answers."""
        super().route(router)
        url = f"/apis/{GROUP}/v1alpha2/namespaces/{NAMESPACE}/jobsets/{NAME}"
        router.add_get(url, self._get_jobset)
        router.add_patch(url, self._patch_jobset)

    async def _get(self, request: web.Request) -> web.Response:
        if not self.created:
            return complaint(404, "NotFound", f'jobs.batch "{self.JOB}" not found')
        return await super()._get(request)

    async def _get_jobset(self, request: web.Request) -> web.Response:
        return web.json_response(self.jobset)

    async def _patch_jobset(self, request: web.Request) -> web.Response:
        """Kubernetes knows no strategic merge for kinds that it has not defined itself."""
        if request.content_type not in (JSON_PATCH, MERGE_PATCH):
            return unknown_format(JSON_PATCH, MERGE_PATCH)
        if self.disturb:
            self.disturb -= 1
            self.stir()
        body = await request.json()
        try:
            new = patched(self.jobset, body) if request.content_type == JSON_PATCH else merge_patched(self.jobset, body)
        except (LookupError, ValueError):
            return complaint(422, "Invalid", "the server rejected our request due to an error in our request")
        if new["metadata"]["resourceVersion"] != self.jobset["metadata"]["resourceVersion"]:
            return modified(f'jobsets.{GROUP} "{NAME}"')
        if said := self._refusal(new):
            denied = 'admission webhook "vjobset.kb.io" denied the request: '
            return complaint(422, "Invalid", f'{denied}JobSet.{GROUP} "{NAME}" is invalid: {said}')
        self.jobset = new
        self.patches.append(dict(sizes(new)))
        self._take_over()
        await self.tell()
        return web.json_response(self.jobset)

    def _refusal(self, new: Thing) -> str:
        """What the webhook says against a change; nothing if it lets it through."""
        old_jobs, new_jobs = copy.deepcopy((self.jobset["spec"]["replicatedJobs"], new["spec"]["replicatedJobs"]))
        by_name = {entry["name"]: entry for entry in old_jobs}
        for number, entry in enumerate(new_jobs):
            if not self.gate or entry["name"] not in by_name:
                continue
            spec, old = entry["template"]["spec"], by_name[entry["name"]]["template"]["spec"]
            path = f"spec.replicatedJobs[{number}].template.spec"
            if any(spec[field] != old[field] for field in FIELDS):
                if any(each["status"] == "True" for each in self.jobset["status"].get("conditions", ())):
                    what = "Cannot mutate parallelism or completions when JobSet is in a terminal state"
                    return f"{path}: Forbidden: {what} (Completed or Failed)"
                for field in FIELDS:
                    if spec[field] < 1:
                        return f"{path}.{field}: Invalid value: {spec[field]}: {field} must be >= 1"
                if spec["parallelism"] != spec["completions"]:
                    what = "completions must be equal to parallelism for Elastic Indexed Jobs"
                    return f"{path}.completions: Invalid value: {spec['completions']}: {what}"
            spec |= {field: old[field] for field in FIELDS}
        return "" if old_jobs == new_jobs else "spec.replicatedJobs: Invalid value: […]: field is immutable"

    def _take_over(self) -> None:
        """Write the size into the Job, as the controller does."""
        self.job["spec"] |= sizes(self.jobset)
        self.settle()


def sizes(jobset: Thing) -> dict[str, int]:
    """Both numbers of the replicated Job whose pods are the nodes."""
    (entry,) = (entry for entry in jobset["spec"]["replicatedJobs"] if entry["name"] == REPLICATED)
    return {field: entry["template"]["spec"][field] for field in FIELDS}


def merge_patched(old: Any, change: Any) -> Any:
    """A JSON merge patch (RFC 7396): it replaces a list as a whole."""
    if not isinstance(change, dict):
        return change
    made = dict(old) if isinstance(old, dict) else {}
    for name, value in change.items():
        if value is None:
            made.pop(name, None)
        else:
            made[name] = merge_patched(made.get(name), value)
    return made


def patched(old: Thing, operations: list[Thing]) -> Thing:
    """A JSON patch (RFC 6902) of `add`, `replace` and `test`. Raises LookupError or ValueError for one that fails."""
    new = copy.deepcopy(old)
    for operation in operations:
        *parents, last = (step.replace("~1", "/").replace("~0", "~") for step in operation["path"].split("/")[1:])
        holder: Any = new
        for step in parents:
            holder = holder[int(step)] if isinstance(holder, list) else holder[step]
        if operation["op"] != "add" and last not in holder:
            raise KeyError(last)
        if operation["op"] == "test":
            if holder[last] != operation["value"]:
                raise ValueError(f"testing {operation['path']} failed")
        else:
            holder[last] = operation["value"]
    return new
