"""Checks of a job: its state, missing nodes, differing versions, and blocked connections between nodes."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Mapping, Sequence

from elastic._text import counted, shortened
from elastic.core.decide import decide
from elastic.core.keys import JobKeys
from elastic.core.membership.decision import DecisionPolicy, WaitDecision
from elastic.core.membership.memory import DecisionMemory
from elastic.core.run_deadline import KILL_S
from elastic.core.versions import VersionDifference, differences
from elastic.core.view import StoreView
from elastic.errors import StoreDenied, StoreError
from elastic.store.protocol import Store
from launcher.doctor.probe import ANSWER_LIMIT_S, ProbeBusy, probe_members
from launcher.job import status
from launcher.job.absent_nodes import ASKED, absent_nodes
from launcher.job.named_job import NamedJob, NoSuchJob, OtherSchema
from launcher.system.checks import Check, fail, ok, warn
from launcher.wire.probe_messages import ProbeAnswer

NAMED_MAX = 4
"""Nodes that are listed for one version; the others are counted."""


async def job_checks(store: Store, keys: JobKeys) -> AsyncIterator[Check]:
    """Yield check by check. If the store fails meanwhile, that is the last check."""
    try:
        view = await NamedJob(keys.job_id, keys, store, ()).view()
        for check in standing_checks(view, keys.job_id):
            yield check
        if view.members:
            yield versions_check({node: stored.value.versions for node, stored in view.members.items()})
            yield reach_check(sorted(view.members), await probe_members(store, keys, view.members))
    except NoSuchJob:
        yield fail("job", f"no job {keys.job_id} below {keys.root}", "check --job-id and --key-prefix")
    except OtherSchema as error:
        text, _, hint = str(error).partition("; ")
        yield fail("job", text, hint)
    except ProbeBusy as busy:
        yield warn("reachability", str(busy))
    except StoreError as error:
        what = "denied access" if isinstance(error, StoreDenied) else "stopped answering"
        yield fail("job", f"etcd {what} ({error})")


def standing_checks(view: StoreView, job_id: str) -> list[Check]:
    """Check the state of the job and which nodes are missing."""
    described = status.describe(view, job_id)
    text = f"{job_id}: {counted(len(view.members), 'node is', 'nodes are')} registered; {described.now}"
    checks = [warn("job", text, "run elastic-ctl status") if view.damaged else ok("job", text)]
    if not view.members or view.verdict is not None:
        return checks
    decision, _ = decide(
        view, DecisionMemory(linked=frozenset(view.members)), DecisionPolicy("", kill_s=2 * KILL_S), 0.0
    )
    absent = absent_nodes(view)
    if isinstance(decision, WaitDecision) and decision.code in ASKED:
        checks.append(warn("missing", decision.reason, "" if absent else "start elastic-launch on more nodes", absent))
    elif absent:
        checks.append(warn("missing", f"{counted(len(absent), 'node is', 'nodes are')} not available", "", absent))
    else:
        checks.append(ok("missing", "none"))
    return checks


def versions_check(versions: Mapping[str, Mapping[str, str]]) -> Check:
    """Compare the versions that the members registered, and list each value with its members."""
    telling = [own for own in versions.values() if own]
    differing: dict[str, VersionDifference] = {}
    for first, second in itertools.pairwise(telling):
        for difference in differences(first, second):
            if difference.refused or difference.name not in differing:
                differing[difference.name] = difference
    if not differing:
        same = ", ".join(f"{name} {text}" for own in telling[:1] for name, text in own.items()) or "no node reports any"
        return ok("versions", f"the same on every node ({same})" if len(versions) > 1 else same)
    details = [f"{name}: {_holders(name, versions)}" for name in differing]
    apart = [difference for difference in differing.values() if difference.refused]
    text = f"{', '.join(differing)} {'differs' if len(differing) == 1 else 'differ'} between nodes"
    if apart:
        return fail("versions", text, apart[0].hint, tuple(details))
    return warn("versions", text, next(iter(differing.values())).hint, tuple(details))


def _holders(name: str, versions: Mapping[str, Mapping[str, str]]) -> str:
    holders: dict[str, list[str]] = {}
    for node, own in versions.items():
        holders.setdefault(own.get(name, "") or "missing", []).append(node)
    return "; ".join(f"{text} on {shortened(nodes, NAMED_MAX)}" for text, nodes in sorted(holders.items()))


def reach_check(nodes: Sequence[str], answers: Mapping[str, ProbeAnswer]) -> Check:
    """Check which nodes cannot connect to which others, in both directions, and which did not reply."""
    closed = {(node, peer.node): peer.why for node, answer in answers.items() for peer in answer.unreached}
    silent = [node for node in nodes if node not in answers]
    untried = sum(answer.untried for answer in answers.values())
    details = [
        f"{way[0]} cannot connect to {way[1]}: {why}{_back(way, closed, answers)}" for way, why in closed.items()
    ]
    details += [f"no reply from {node}: its agent is suspended or has just started" for node in silent]
    if untried:
        details.append(f"{counted(untried, 'connection was', 'connections were')} not tried for lack of time")
    if closed:
        text = f"{counted(len(closed), 'connection is', 'connections are')} blocked between {len(nodes)} nodes"
        hint = "open all ports between the nodes in both directions, or use --host or --nic"
        if all(way[1] in silent for way in closed):
            hint = "check whether the agents that did not reply are suspended"
        return fail("reachability", text, hint, tuple(details))
    if silent or untried:
        text = f"{len(answers)} of {len(nodes)} nodes answered within {ANSWER_LIMIT_S:g} s"
        return warn(
            "reachability", text + (", and they can connect to all others" if answers else ""), "", tuple(details)
        )
    if len(nodes) == 1:
        return ok("reachability", "the job has one node")
    return ok("reachability", f"every node can connect to every other ({len(nodes)} nodes)")


def _back(way: tuple[str, str], closed: Mapping[tuple[str, str], str], answers: Mapping[str, ProbeAnswer]) -> str:
    """Describe the opposite direction."""
    if (way[1], way[0]) in closed:
        return " (the other direction is blocked, too)"
    return " (the other direction works)" if way[1] in answers else " (it did not reply to the doctor, either)"
