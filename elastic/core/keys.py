"""The key of each document of a job in the store; `elastic.core.view` writes them (pure).

::

    <prefix>/<job>/halt                 model.StopOrder, from an operator: end the run
    <prefix>/<job>/incarnation          random, created once; compared in every transaction
    <prefix>/<job>/leader               model.Leader, under that node's lease
    <prefix>/<job>/secret               text; proves that an agent belongs to the job (`link_messages`)
    <prefix>/<job>/spec                 model.JobSpec, or ps.model.PsJobSpec
    <prefix>/<job>/leave/<node>         model.DrainOrder, from an operator: drain that node
    <prefix>/<job>/members/<node>       model.Member, under the node's lease
    <prefix>/<job>/generation           model.Generation, written by the leader (`generation_codec`)
    <prefix>/<job>/generation_cluster_spec  ps.model.ClusterSpec, instead of `generation` in a parameter-server job
    <prefix>/<job>/go                   model.Go
    <prefix>/<job>/outcomes/<g>/<node>  model.Outcome; g with ten digits, so that keys sort by it. Of a later start in
                                        the same generation the node is <node>/<since>
    <prefix>/<job>/verdict              model.Verdict
    <prefix>/<job>/events/<at>-<tag>    HistoryEvent, for people
    <prefix>/<job>/curve                TrainingCurve, for people: step, loss and rate over the training so far
    <prefix>/<job>/fork_server_imports  ImportAdvice: the modules that other nodes' fork servers loaded for the script
    <prefix>/<job>/probe                Probe, under the client's lease: every agent tries to connect to every other one
    <prefix>/<job>/saved                model.SavedCheckpoint, the newest committed checkpoint; no rule depends on it
    <prefix>/<job>/answers/<id>/<node>  ProbeAnswer to that probe, under the node's lease; no agent mirrors it
"""

from __future__ import annotations

import re
from typing import Final

from elastic.core.kv import KeyRange
from elastic.core.model import Generation

JOB_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
PREFIX_DEFAULT = "/elastic"


class JobKeys:
    """The keys of one job."""

    def __init__(self, job_id: str, prefix: str = PREFIX_DEFAULT) -> None:
        """Build every key from the job's id, which must match `JOB_ID`."""
        if not JOB_ID.fullmatch(job_id):
            raise ValueError(f"job ID {job_id!r}: 1 to 128 letters, digits, '.', '_' or '-'")
        self.job_id = job_id
        self.root: Final = f"{prefix.rstrip('/')}/{job_id}/"
        self.leader: Final = self.root + "leader"
        self.incarnation: Final = self.root + "incarnation"
        self.secret: Final = self.root + "secret"
        self.spec: Final = self.root + "spec"
        self.halt: Final = self.root + "halt"
        self.leaves: Final = self.root + "leave/"
        self.members: Final = self.root + "members/"
        self.generation: Final = self.root + Generation.document_name
        self.cluster_spec: Final = self.root + "generation_cluster_spec"
        self.go: Final = self.root + "go"
        self.outcomes: Final = self.root + "outcomes/"
        self.verdict: Final = self.root + "verdict"
        self.events: Final = self.root + "events/"
        self.curve: Final = self.root + "curve"
        self.imports: Final = self.root + "fork_server_imports"
        self.probe: Final = self.root + "probe"
        self.saved: Final = self.root + "saved"
        self.answers: Final = self.root + "answers/"

    @property
    def generations(self) -> tuple[str, ...]:
        """The keys that can hold the newest generation, one for each type of job.

        Both are in the first range of `documents`, which is read at one revision.
        """
        return (self.generation, self.cluster_spec)

    def generation_of(self, generation: Generation) -> str:
        """The key of a generation."""
        return self.root + generation.document_name

    def member(self, node: str) -> str:
        """The key of a member."""
        return self.members + node

    def leave(self, node: str) -> str:
        """The key of an operator's order to drain a node."""
        return self.leaves + node

    def outcome(self, g: int, node: str, since: int = 0) -> str:
        """The key of a node's outcome of generation g, and of start `since` in it (`model.Stamp`)."""
        return f"{self.outcomes}{g:010d}/{node}" + (f"/{since}" if since else "")

    def later_outcomes(self, g: int, node: str) -> KeyRange:
        """The outcomes of every later start of a node in generation g."""
        return KeyRange.prefix(self.outcome(g, node) + "/")

    def answer(self, probe: str, node: str) -> str:
        """The key of a node's answer to a probe."""
        return f"{self.answers}{probe}/{node}"

    def outcomes_below(self, g: int) -> KeyRange:
        """Every outcome of the generations before g."""
        return KeyRange(self.outcomes, f"{self.outcomes}{g:010d}/")

    @property
    def tolerated_prefixes(self) -> tuple[str, ...]:
        """The prefixes of keys whose documents at most one node depends on: the job continues if they are damaged."""
        return (self.members, self.outcomes, self.saved, self.secret, self.halt, self.leaves, self.leader)

    @property
    def everything(self) -> tuple[KeyRange, ...]:
        """The keys that the leader follows: all except answers, curve, events and import advice, which sort first."""
        return (KeyRange(self.generation, self._end),)

    @property
    def documents(self) -> tuple[KeyRange, ...]:
        """The job's documents, without members and outcomes."""
        return (KeyRange(self.generation, self.members), KeyRange(self.outcomes[:-1] + "0", self._end))

    def followed(self, node: str) -> tuple[KeyRange, ...]:
        """The keys that every other agent follows: the job's documents, and the key of its own node."""
        return (*self.documents, KeyRange.key(self.member(node)))

    @property
    def _end(self) -> str:
        return self.root[:-1] + "0"
