"""events.jsonl: what happened on the nodes of this directory, one JSON object per line, for programs that read logs.

Every line has `time` (UTC), `job`, `node`, `what` and `generation` (null before the first one):

    joined        `again` tells whether it had been a member before
    generation    a new generation was published: `why`, `reason`, `nodes`, `world_size`, `m_id` (null: this is a spare)
    go            its workers may start: `master`, `restarts` counted so far, `note`
    worker ended  `rank`, `role`, `code`, `words`, `stopped` (by the agent), `log`
    stopped       this node's workers get SIGTERM: `why`, `stop_timeout_s`, `planned` (the agent asks first)
    failure       the cause of a generation's failure: `ranks`, and of the first `rank`, `host`, `words`, `log`
    lease lost    `reason`
    suspected     `of` has sent nothing for `silent_s`: it is on `host`, and the nodes in `by` also try to connect to it
    cleared       the same node sent something again, or the nodes in `by` can connect to it
    evicted       this node, the leader, has evicted it; the nodes in `by` could not connect to it either
    recovery      training continues after a change: `why`, `reason`, `before` (the generation that ended), `total_s`,
                  `phases` (seconds, in their order), `between_steps` (counted from the last step before), `complete`,
                  `last_step`, `restored_step` (null: not reported); on one node of the job. With parameter servers
                  `before` is the generation itself, and `revision` the one that started this node's tasks
    start         the same of the first start, counted from this node's command
    verdict       `status`, `reason`, `late` (this node arrived after the end)
    left          `exit_code`

The file is renamed to events.1.jsonl when it is too long, so that both together are bounded.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from elastic.core.agent import events as agent_events
from elastic.core.agent.actions import Action, ExitAgent, NoteSilence, ReportVerdict, StopWorkers
from elastic.core.agent.state import AgentState
from elastic.core.model import Cause

LINE_BYTES_MAX = 64 << 10
"""A longer line (the members of a very large world) loses its list of nodes."""


FILE = "events.jsonl"


class JsonEventLog:
    """Formats the events as lines; `append` writes them."""

    def __init__(self, append: Callable[[bytes], object], job_id: str, node: str) -> None:
        """`append` receives each line, with its end; every line names job and node."""
        self._append = append
        self._common = {"job": job_id, "node": node}
        self._generation = 0
        self._go = 0

    def observe(
        self, facts: AgentState, event: agent_events.Event, actions: Sequence[Action], taken: Sequence[str]
    ) -> None:
        """Write what an event caused: `actions` are what the core requested, `taken` the rows of its table."""
        self._log_generation(facts, taken)
        if isinstance(event, agent_events.WorkerExited):
            worker = event.exit
            fields = {"rank": worker.rank, "role": worker.role, "code": worker.code, "words": worker.words}
            self.write("worker ended", event.g, {**fields, "stopped": not event.own, "log": worker.log})
        elif isinstance(event, agent_events.SessionLost):
            self.write("lease lost", self._generation, {"reason": event.reason})
        for action in actions:
            if isinstance(action, StopWorkers):
                fields = {"why": action.why, "stop_timeout_s": action.stop_timeout_s, "planned": action.planned}
                self.write("stopped", action.g, fields)
            elif isinstance(action, ReportVerdict):
                verdict = action.verdict
                fields = {"status": verdict.status, "reason": verdict.reason, "late": action.late}
                self.write("verdict", verdict.g, fields)
            elif isinstance(action, NoteSilence):
                fields = {"of": action.node, "host": action.host, "silent_s": round(action.silent_s, 3)}
                self.write(action.step, self._generation, {**fields, "by": action.by})
            elif isinstance(action, ExitAgent):
                self.write("left", self._generation, {"exit_code": action.code})

    def failure(self, cause: Cause) -> None:
        """Write the cause of a generation's failure."""
        first = cause.first
        fields = {"ranks": cause.ranks, "rank": first.rank, "role": first.role, "host": cause.host}
        self.write("failure", cause.g, {**fields, "words": first.words, "log": first.log})

    def write(self, what: str, g: int, fields: Mapping[str, Any]) -> None:
        """Append one line."""
        time = datetime.now(UTC).isoformat(timespec="milliseconds")
        document = {"time": time, **self._common, "what": what, "generation": g or None, **fields}
        line = f"{json.dumps(document, ensure_ascii=False, separators=(',', ':'))}\n".encode(errors="replace")
        if len(line) > LINE_BYTES_MAX and "nodes" in fields:
            self.write(what, g, {name: value for name, value in fields.items() if name != "nodes"})
            return
        self._append(line)

    def _log_generation(self, facts: AgentState, taken: Sequence[str]) -> None:
        """Write the changes in etcd."""
        generation, go = facts.generation, facts.view.go
        if "joining: registered" in taken:
            self.write("joined", generation.g if generation else 0, {"again": self._generation > 0})
        if facts.registration.joined_at is None or generation is None:
            return
        if generation.g != self._generation:
            self._generation = generation.g
            fields = {
                "why": generation.why,
                "reason": generation.reason,
                "m_id": generation.index(facts.me.node),
                "world_size": generation.world_size,
                "nodes": [place.node for place in generation.members],
            }
            self.write("generation", generation.g, fields)
        if go is not None and go.value.g == generation.g != self._go:
            self._go = generation.g
            fields = {"master": go.value.master, "restarts": go.value.budget.charged, "note": go.value.note}
            self.write("go", generation.g, fields)
