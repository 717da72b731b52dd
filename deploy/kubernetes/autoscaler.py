"""Lets an elastic Job of Kubernetes grow and shrink with the machines that there are.

    python autoscaler.py --job train --np 1:8

It asks for as many pods as `--np` allows, all at once: pods without a machine are what a cluster's own autoscaler adds
machines for. Those that still have none after `--patience` are taken back from the end, and asked for again after
`--again`. A number in the annotation `elastic-launch/nodes` of the Job counts instead. Completions and parallelism
are changed together, as Kubernetes (1.27 and later) wants it, and only if the Job is still what was read.

Nothing is kept: it may be started again at any time. Without it the Job runs as it is.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import ssl
import sys
import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, NoReturn, TypeVar
from urllib.parse import quote

import aiohttp
import msgspec

from elastic.model import Np
from launcher import values
from launcher.endpoints import join_host_port

T = TypeVar("T")

PATIENCE_S = 300.0
"""A cloud needs some minutes for a machine, longer with cards."""
AGAIN_S = 900.0
ROUND_S = 30.0
"""The Job is read so often even if nothing is heard of its pods: somebody may have changed it."""
CALM_S = 1.0
"""Pods change many at a time; they are listed at most so often."""
TROUBLE_S, TROUBLE_MAX_S = 0.5, 30.0
"""After trouble it waits so long, and twice as long each time that it is the same."""
NOT_FOUND, CHANGED = 404, (409, 410)
ANSWER_S = 20.0
BYTES_MAX = 256 << 20
"""Of one answer: a list of 10,000 pods."""
DIGITS_MAX = 10
"""Of a number in an annotation; the largest of Kubernetes has as many."""
INDEXES_MAX = 100_000
"""Of a Job whose indexes are all tracked, Kubernetes allows as many."""
WANTED: Final = "elastic-launch/nodes"
INDEX: Final = "batch.kubernetes.io/job-completion-index"
OWNER: Final = "batch.kubernetes.io/controller-uid"
ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")


# What is decided, and why: pure.


@dataclass(frozen=True, slots=True)
class View:
    """The Job and its pods. `running`, `waiting` and `done` are indexes; those that wait have no machine to run on.

    An index that is done, because its pod completed or failed for good, gets no pod any more.
    """

    size: int
    running: frozenset[int] = frozenset()
    waiting: frozenset[int] = frozenset()
    done: frozenset[int] = frozenset()
    wanted: str = ""
    ended: bool = False
    suspended: bool = False


@dataclass(frozen=True, slots=True)
class Policy:
    """How many pods at least and at most, how long one may wait for a machine, and when it is asked for again."""

    low: int
    high: int
    patience_s: float = PATIENCE_S
    again_s: float = AGAIN_S


@dataclass(frozen=True, slots=True)
class Memory:
    """Since when an index waits, since when one is done, and when some were taken back the last time."""

    since: Mapping[int, float] = field(default_factory=dict)
    taken_back: float | None = None
    done: Mapping[int, float] = field(default_factory=dict)
    drained: frozenset[int] = frozenset()
    """Done, and others ran on for the time of patience: the job was not over."""
    idle: float | None = None
    """Since when some are done and none runs."""


@dataclass(frozen=True, slots=True)
class Hold:
    """Nothing is to be changed before `until`, unless the Job or its pods change."""

    reason: str
    until: float | None = None


@dataclass(frozen=True, slots=True)
class Resize:
    """The Job is to have so many pods."""

    size: int
    reason: str


def decide(view: View, memory: Memory, policy: Policy, now: float) -> tuple[Hold | Resize, Memory]:
    """What to do with the Job, and what to remember of it. Only pods at the end are taken back: others would move."""
    memory = _remembered(view, memory, policy, now)
    since = memory.since
    if view.ended:
        return Hold("the Job has ended"), Memory()
    if view.suspended:
        return Hold("the Job is suspended"), memory
    if memory.idle is not None and not view.done <= memory.drained:
        return _at_the_end(view, max(memory.idle, *memory.done.values()) + policy.patience_s, now), memory
    if view.wanted:
        return _as_wanted(view, policy), memory
    if not policy.low <= view.size <= policy.high:
        size = _open(view, min(max(view.size, policy.low), policy.high))
        if size != view.size:
            return Resize(size, f"--np allows {policy.low} to {policy.high}"), memory

    given_up = {index for index, start in since.items() if now - start >= policy.patience_s}
    if kept := _kept(view, given_up, policy.low):
        reason = f"{_pods(view.size - kept)} found no machine in {policy.patience_s:g} s"
        return Resize(kept, reason), replace(memory, taken_back=now)
    if since:
        later = [start + policy.patience_s for index, start in since.items() if index not in given_up]
        return Hold(f"{_pods(len(since))} without a machine", min(later, default=None)), memory
    certain_at = max(memory.done.values(), default=now) + policy.patience_s
    if view.done and now < certain_at:  # The others may be about to complete, too.
        return Hold(_completed(view), certain_at), memory
    if len(view.running | view.done) < view.size:
        return Hold(f"{len(view.running)} of {_pods(view.size)} running"), memory
    here = f"all {_pods(view.size)} running"
    if view.done:  # Drained by hand: their indexes are used up.
        here = f"{len(view.running)} of {_pods(view.size)} running, the others ended"
    if view.size >= policy.high:
        return Hold(f"{here}, and more are not allowed"), memory
    if memory.taken_back is not None and now < memory.taken_back + policy.again_s:
        until = memory.taken_back + policy.again_s
        return Hold(f"{here}; there was no machine for more", until), memory
    return Resize(policy.high, here), memory


def _remembered(view: View, memory: Memory, policy: Policy, now: float) -> Memory:
    done = {index: memory.done.get(index, now) for index in view.done}
    drained = memory.drained & view.done
    if view.running:
        drained |= {index for index, at in done.items() if now - at >= policy.patience_s}
    idle = None
    if view.done and not view.running and not view.suspended:
        idle = memory.idle if memory.idle is not None else now
    since = {index: memory.since.get(index, now) for index in view.waiting if index < view.size}
    return replace(memory, since=since, done=done, drained=drained, idle=idle)


def _as_wanted(view: View, policy: Policy) -> Hold | Resize:
    try:
        number = int(view.wanted) if len(view.wanted) <= DIGITS_MAX else None
    except ValueError:
        number = None
    if number is None:
        return Hold(f"the annotation {WANTED} is {view.wanted[:40]!r} and no number; write one, or remove it")
    allowed = min(max(number, policy.low), policy.high)
    size = _open(view, allowed)
    within = "" if allowed == number else f", and --np allows {policy.low} to {policy.high}"
    within += "" if size == allowed else f", and the first {allowed} have ended"
    reason = f"the annotation {WANTED} says {number}{within}"
    return Hold(reason) if size == view.size else Resize(size, reason)


def _at_the_end(view: View, certain_at: float, now: float) -> Hold | Resize:
    """Some nodes have done their work and none runs: nobody is added or waited for, whatever is wanted."""
    kept = _kept(view, view.waiting, 0)
    if not kept:
        return Hold(_completed(view))
    if now < certain_at:  # They may have been drained before anybody looked, and the machines of the others be away.
        return Hold(f"{_completed(view)}, and none runs", certain_at)
    return Resize(kept, "the others have ended")


def _completed(view: View) -> str:
    return f"{len(view.done)} of {_pods(view.size)} ended"


def _kept(view: View, given_up: Set[int], low: int) -> int:
    """How many are left when those that are given up go, from the end on; 0 if none goes.

    Of those that are not done `low` stay: a Job whose indexes are all done is complete.
    """
    kept, open_ = view.size, view.size - len(view.done)
    while open_ > low and kept - 1 in given_up:
        kept, open_ = kept - 1, open_ - 1
    return kept if kept < view.size else 0


def _open(view: View, size: int) -> int:
    """The size, or what the Job needs at least so as not to be complete before its work is done."""
    return max(size, 1 + next((index for index in range(view.size) if index not in view.done), -1))


def _pods(number: int) -> str:
    return "1 pod" if number == 1 else f"{number} pods"


# What the API server says, as far as it counts here.


class Meta(msgspec.Struct, frozen=True, rename="camel"):
    """metadata."""

    uid: str = ""
    resource_version: str = ""
    annotations: dict[str, str] = {}
    deletion_timestamp: str | None = None


class Condition(msgspec.Struct, frozen=True):
    """One of status.conditions."""

    type: str = ""
    status: str = ""
    reason: str = ""


class Status(msgspec.Struct, frozen=True):
    """status of a pod."""

    phase: str = ""
    conditions: list[Condition] = []


class JobStatus(msgspec.Struct, frozen=True, rename="camel"):
    """status of a Job. Indexes are written as "0,2-5"; they stay when their pods are gone."""

    conditions: list[Condition] = []
    completed_indexes: str = ""
    failed_indexes: str = ""


class JobSpec(msgspec.Struct, frozen=True):
    """spec of a Job."""

    completions: int | None = None
    parallelism: int | None = None
    suspend: bool = False


class Job(msgspec.Struct, frozen=True):
    """A Job."""

    metadata: Meta
    spec: JobSpec
    status: JobStatus = JobStatus()


class Pod(msgspec.Struct, frozen=True):
    """A pod."""

    metadata: Meta
    status: Status = Status()


class Pods(msgspec.Struct, frozen=True):
    """A list of pods."""

    metadata: Meta
    items: list[Pod] = []


class Complaint(msgspec.Struct, frozen=True):
    """What the server says instead."""

    message: str = ""


def view_of(job: Job, pods: Sequence[Pod]) -> View:
    """The Job as `decide` sees it."""
    size = job.spec.completions or 0
    found: dict[str, set[int]] = {"running": set(), "waiting": set()}
    done = _indexes(job.status.completed_indexes, size) | _indexes(job.status.failed_indexes, size)
    for pod in pods:
        text = pod.metadata.annotations.get(INDEX, "")
        if not text.isdecimal() or len(text) > DIGITS_MAX or int(text) >= size:
            continue
        without = any(
            one.type == "PodScheduled" and one.status == "False" and one.reason == "Unschedulable"
            for one in pod.status.conditions
        )
        if pod.status.phase == "Succeeded":
            done.add(int(text))
        elif pod.metadata.deletion_timestamp is None and pod.status.phase == "Running":
            found["running"].add(int(text))
        elif pod.metadata.deletion_timestamp is None and pod.status.phase == "Pending" and without:
            found["waiting"].add(int(text))
    return View(
        size=size,
        running=frozenset(found["running"] - done),
        waiting=frozenset(found["waiting"] - done),
        done=frozenset(done),
        wanted=job.metadata.annotations.get(WANTED, "").strip(),
        ended=any(one.type in ("Complete", "Failed") and one.status == "True" for one in job.status.conditions),
        suspended=job.spec.suspend,
    )


def _indexes(text: str, size: int) -> set[int]:
    """The indexes below `size` that a text like "0,2-5" names; a part of it that is none is passed over."""
    found = set[int]()
    for part in text.split(","):
        first, _, last = part.partition("-")
        last = last or first
        if first.isdecimal() and last.isdecimal() and max(len(first), len(last)) <= DIGITS_MAX:
            found.update(range(int(first), min(int(last) + 1, size, INDEXES_MAX)))
    return found


# The thin shell.


NO_ANSWER: Final = (
    aiohttp.ClientError,
    OSError,
    TimeoutError,
    msgspec.MsgspecError,
    RecursionError,
    ValueError,
)
"""What a call raises when there is no answer, or one that cannot be read: nested too deep, or no text."""


class Refused(Exception):
    """The API server said no, with this status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"the API server says {status}: {message}")
        self.status = status


class Api:
    """One Job at the API server. Calls raise `Refused` or one of `NO_ANSWER`."""

    def __init__(self, session: aiohttp.ClientSession, server: str, namespace: str, job: str, token: Path) -> None:
        """The token is read for each call: Kubernetes writes it anew every hour."""
        self._session = session
        self._job = f"{server}/apis/batch/v1/namespaces/{quote(namespace)}/jobs/{quote(job)}"
        self._pods = f"{server}/api/v1/namespaces/{quote(namespace)}/pods"
        self._token = token

    async def job(self) -> Job:
        """The Job as it is."""
        return msgspec.json.decode(await self._asked("GET", self._job), type=Job)

    async def pods(self, uid: str) -> Pods:
        """The Job's pods, and the moment (`resourceVersion`) from which they can be watched."""
        query = {"labelSelector": f"{OWNER}={uid}"}
        return msgspec.json.decode(await self._asked("GET", self._pods, query=query), type=Pods)

    async def changed(self, uid: str, version: str, limit_s: float) -> None:
        """Return when something happens to a pod, or can be missed, or after `limit_s`."""
        query = {"labelSelector": f"{OWNER}={uid}", "watch": "1", "resourceVersion": version}
        query["timeoutSeconds"] = str(max(1, round(limit_s)))
        try:
            async with asyncio.timeout(limit_s), await self._sent("GET", self._pods, query=query) as answer:
                await answer.content.readany()
        except TimeoutError:
            return

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
            message = msgspec.json.decode(said, type=Complaint).message
        except msgspec.MsgspecError:
            message = answer.reason or ""
        raise Refused(answer.status, " ".join(message.split())[:1000])


class Follower:
    """Keeps one Job at the size that `decide` finds right. A reason is said when it is another one."""

    def __init__(self, api: Api, name: str, policy: Policy, say: Callable[[str], None]) -> None:
        self._api = api
        self._name = name
        self._policy = policy
        self._say = say
        self._said = ""
        self._uid = ""
        self._memory = Memory()

    async def follow(self) -> None:
        """For ever. Nothing that the API server says or fails to say ends it."""
        before, wait_s = "", 0.0
        while True:
            try:
                await self._round()
                before = ""
                continue
            except Refused as error:
                trouble, said = f"{error}; trying again", error.status
            except NO_ANSWER as error:
                trouble, said = f"the API server cannot be asked ({error or type(error).__name__}); trying again", 0
            if said == NOT_FOUND:
                trouble = "there is none; waiting for it"
            if said not in CHANGED:  # Somebody was faster: nothing to tell.
                self._tell(trouble)
            wait_s = min(2 * wait_s, TROUBLE_MAX_S) if trouble == before else TROUBLE_S
            before = trouble
            await asyncio.sleep(wait_s)

    async def _round(self) -> None:
        """Read, decide, act, and wait for news."""
        job = await self._api.job()
        if job.metadata.uid != self._uid:  # Another one under the same name.
            self._memory, self._uid = Memory(), job.metadata.uid
        pods = await self._api.pods(self._uid)
        now = time.monotonic()
        decision, memory = decide(view_of(job, pods.items), self._memory, self._policy, now)
        if isinstance(decision, Resize):
            await self._api.resize(decision.size, job.metadata.resource_version)
            self._memory = memory
            self._tell(f"from {job.spec.completions} to {_pods(decision.size)}: {decision.reason}")
            return
        self._memory = memory
        self._tell(decision.reason)
        limit_s = ROUND_S if decision.until is None else min(ROUND_S, max(0.1, decision.until - now))
        await self._api.changed(self._uid, pods.metadata.resource_version, limit_s)
        await asyncio.sleep(min(CALM_S, limit_s))

    def _tell(self, what: str) -> None:
        if what != self._said:
            self._say(f"Job {self._name}: {what}")
            self._said = what


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


class _Parser(argparse.ArgumentParser):
    """A mistake is one line."""

    def error(self, message: str) -> NoReturn:
        """Say it and leave with 2."""
        self.exit(2, f"autoscaler: error: {message}\n")


def _of(read: Callable[[str], T]) -> Callable[[str], T]:
    """A reader of the launcher's, with its own words when something is wrong."""

    def reading(text: str) -> T:
        try:
            return read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return reading


def _arguments(argv: Sequence[str], environ: Mapping[str, str]) -> argparse.Namespace:
    host, port = environ.get("KUBERNETES_SERVICE_HOST", ""), environ.get("KUBERNETES_SERVICE_PORT", "443")
    inside = f"https://{join_host_port(host, int(port))}" if host else ""
    say = argparse.RawDescriptionHelpFormatter
    parser = _Parser(prog="autoscaler.py", description=__doc__, formatter_class=say, allow_abbrev=False)
    parser.add_argument("--job", required=True, help="the name of the Job")
    parser.add_argument(
        "--np", required=True, type=_of(values.np), metavar="MIN:MAX", help="pods, at least and at most"
    )
    seconds = _of(values.seconds(0.1))
    parser.add_argument("--patience", type=seconds, default=PATIENCE_S, help="seconds without a machine (300)")
    parser.add_argument("--again", type=seconds, default=AGAIN_S, help="seconds until more is asked for (900)")
    parser.add_argument("--namespace", default=environ.get("POD_NAMESPACE", "default"))
    parser.add_argument("--server", default=inside, help="the API server; inside a pod it is known")
    parser.add_argument("--token_file", type=Path, default=ACCOUNT / "token")
    parser.add_argument("--ca_file", type=Path, default=ACCOUNT / "ca.crt")
    found = parser.parse_args(argv)
    if not found.server:
        parser.error("this is no pod of Kubernetes; name the API server with --server https://HOST:PORT")
    return found


async def _run(asked: argparse.Namespace) -> None:
    np: Np = asked.np
    policy = Policy(np.low, np.high, asked.patience, asked.again)
    secure = ssl.create_default_context(cafile=asked.ca_file) if asked.server.startswith("https:") else True
    connector = aiohttp.TCPConnector(ssl=secure)
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=ANSWER_S)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        api = Api(session, asked.server.rstrip("/"), asked.namespace, asked.job, asked.token_file)
        await Follower(api, asked.job, policy, _say).follow()


def main(argv: Sequence[str] | None = None) -> int:
    """Run until it is ended; its exit code."""
    asked = _arguments(sys.argv[1:] if argv is None else argv, os.environ)
    try:
        asyncio.run(_run(asked))
    except KeyboardInterrupt:
        return 130
    except OSError as error:
        sys.stderr.write(f"autoscaler: error: {asked.ca_file}: {error.strerror}; name the authority with --ca_file\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
