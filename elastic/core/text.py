"""Sentences for people, and the names of nodes, processes and logs in them (pure)."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Final

from elastic._text import counted, shortened, time_text
from elastic.core.failure_class import FailureClass
from elastic.core.model import ANY_RANK, NP_UNLIMITED, SCHEMA, WORKER_ROLE, Generation, Outcome, WorkerExit

_NAMES: Final = {WORKER_ROLE: "rank", "server": "server", "heter": "heter worker"}
"""The name of one process of a role in sentences, in the order in which roles are listed; other roles keep theirs."""
A_WORKER: Final = "a worker"
NAMED_MAX = 64
"""Processes that one sentence lists; a list of thousands helps no reader."""
SPLIT: Final = "the network is split"
"""The reason to end a worker that waits for unreachable peers (`FailureClass.PARTITION`)."""
SPLIT_NAMED_MAX = 4
"""Nodes that cannot reach others and that one reason lists."""
COUNTED: Final = "\ufffc"
"""Placeholder in a sentence for a time that is counted down (Unicode's object replacement character)."""
DRAIN_REASON_MAX = 120
"""Characters of a drain reason that messages about the node repeat."""
REASONS_MAX = 2
"""Different drain reasons in one sentence."""


def schemas_text(schema: int, program: str) -> str:
    """Say that the schemas of a job and of a program differ: "has schema 6, and this agent has schema 7"."""
    return f"has schema {schema}, and this {program} has schema {SCHEMA}"


def process_name(role: str, index: int) -> str:
    """Name one process in a sentence: "rank 3", "server 1"; "a worker" for `ANY_RANK`."""
    return f"{_role_name(role)} {index}" if index != ANY_RANK else A_WORKER


def _role_name(role: str) -> str:
    return _NAMES.get(role, role)


def processes_name(processes: Iterable[tuple[str, int]]) -> str:
    """Name several processes in a few words: "rank 3", "ranks 0-7", "ranks 0,2-3 and server 1"."""
    of: dict[str, list[int]] = {role: [] for role in _NAMES}
    for role, index in sorted(processes):
        of.setdefault(role, []).append(index)
    named = [(_role_name(role), ids) for role, ids in of.items() if ids]
    return " and ".join(f"{name}{'s' if len(ids) > 1 else ''} {spans(ids)}" for name, ids in named)


def spans(indexes: Sequence[int]) -> str:
    """Format sorted indexes with consecutive ones as ranges: "0,2-5"."""
    found: list[tuple[int, int]] = []
    for index in indexes:
        if found and index == found[-1][1] + 1:
            found[-1] = (found[-1][0], index)
        else:
            found.append((index, index))
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in found)


def log_name(role: str, index: int) -> str:
    """The file name of a process's log: workerlog.3, serverlog.1, heterlog.0."""
    return f"{role}log.{index}"


def listed(indexes: Iterable[int]) -> str:
    """Format indexes as in Paddle's messages, without blanks: "[2,3]"."""
    found = list(indexes)
    more = ",..." if len(found) > NAMED_MAX else ""
    return f"[{','.join(map(str, found[:NAMED_MAX]))}{more}]"


def failed_processes_text(exits: Iterable[WorkerExit], host: str) -> str:
    """Say which processes failed, on which host, and in which log: "rank=[4] failed on host h, see workerlog.4".

    Processes that only lost a peer are listed if there are no others; the sentence then says that they lost a peer,
    because the cause is elsewhere. Under torchrun it is not known which of the two happened, and a text that says where
    to look replaces the path of the log.
    """
    failed = list(exits)
    own = [worker for worker in failed if not worker.secondary]
    elsewhere = next((worker.log for worker in own or failed if worker.log and "/" not in worker.log), "")
    what = "failed" if own else "failed or lost a peer" if elsewhere else "lost a peer"
    named: dict[str, list[int]] = {}
    for worker in own or failed:
        named.setdefault(worker.role, []).append(worker.rank)
    if not named:
        return f"{A_WORKER} failed on host {host}"
    who = " and ".join(
        f"{_role_name(role).replace(' ', '_')}={listed(sorted(set(ids)))}" if ANY_RANK not in ids else A_WORKER
        for role, ids in named.items()
    )
    first = (own or failed)[0]
    return f"{who} {what} on host {host}, see {elsewhere or log_name(first.role, first.rank)}"


def failure_text(nodes: Iterable[str], outcomes: Mapping[str, Outcome], generation: Generation) -> str:
    """Say which ranks failed, on which hosts, and in which log."""
    found = [outcomes[node] for node in nodes if outcomes[node].exits]
    if not found:
        return f"a worker failed on {join_names(nodes)}"
    own = [outcome for outcome in found if not outcome.exits[0].secondary] or found
    exits = [worker for outcome in own for worker in outcome.exits]
    if all(worker.failure is FailureClass.PARTITION for worker in exits):
        return _split_text(own, generation)
    return failed_processes_text(exits, ", ".join(dict.fromkeys(outcome.host for outcome in own)))


def _split_text(outcomes: Iterable[Outcome], generation: Generation) -> str:
    """Say which hosts cannot reach which: "the network is split: a cannot connect to b"."""
    hosts = {member.node: member.host for member in generation.members}
    found = [
        f"{one.host} cannot connect to {join_names(hosts.get(node, node) for node in one.unreached)}"
        for one in outcomes
    ]
    return f"{SPLIT}: {'; '.join(found[:SPLIT_NAMED_MAX])}"


def lost_text(lost: Iterable[str], registered: Container[str], evicted: Container[str]) -> str:
    """Say which nodes were lost, and how that was detected."""

    def how(node: str) -> str:
        if node in evicted:
            return "it was silent"
        return "its process is gone" if node in registered else "its lease ended"

    return ", ".join(f"{node} was lost ({how(node)})" for node in lost)


def drain_text(nodes: list[str], reasons: Iterable[str]) -> str:
    """Say which nodes drain, and why if reasons are given: "a drains: SIGTERM"."""
    why = drain_reasons_text(reasons)
    return with_verb(nodes, "drain") + (f": {why}" if why else "")


def drain_reasons_text(reasons: Iterable[str]) -> str:
    """Join the reasons of drains, each once; beyond `REASONS_MAX` only their number."""
    found = list(dict.fromkeys(reason[:DRAIN_REASON_MAX] for reason in reasons if reason))
    return shortened(found, REASONS_MAX, "; ")


def join_names(nodes: Iterable[str]) -> str:
    """Join the names of nodes for a sentence; "no node" without any."""
    return ", ".join(nodes) or "no node"


def with_verb(nodes: list[str], verb: str) -> str:
    """Join nodes and a verb: "a joins", "a, b join"."""
    return f"{join_names(nodes)} {verb}{'s' if len(nodes) == 1 else ''}"


def n_of_m(here: int, wanted: int) -> str:
    """Say how many of the wanted nodes there are, with the verb; only how many if the job has no maximum."""
    if wanted == NP_UNLIMITED:
        return counted(here, "node is", "nodes are")
    return f"{here} of {counted(wanted, 'node')} {'is' if here == 1 else 'are'}"


def required_text(here: int, low: int) -> str:
    """Say how many of np's minimum of nodes are here: "1 of 2 required nodes is here"."""
    return f"{here} of {counted(low, 'required node')} {'is' if here == 1 else 'are'} here"


def settling_text(here: int, wanted: int, whom: str = "others to join") -> str:
    """Say what a join window waits for, with a time that is counted down."""
    return f"{n_of_m(here, wanted)} here; waiting {COUNTED} more for {whom}"


def counted_down(sentence: str, left: Sequence[float]) -> str:
    """Put these seconds in place of the `COUNTED` placeholders of a sentence, in their order."""
    first, *rest = sentence.split(COUNTED)
    times = [duration_in_words(seconds) for seconds in left[: len(rest)]]
    return first + "".join(time + text for time, text in zip_longest(times, rest, fillvalue=""))


def duration_in_words(seconds: float) -> str:
    """Format a remaining time: "60 s", "30 min"; at least "1 s"."""
    return time_text(max(seconds, 1.0))


def clock_time(wall_s: float) -> str:
    """Format seconds since the epoch as a time of day in UTC: "12:34:56"."""
    minutes, seconds = divmod(int(wall_s) % 86_400, 60)
    return f"{minutes // 60:02d}:{minutes % 60:02d}:{seconds:02d}"
