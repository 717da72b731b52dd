"""What can be broken in the core, one place at a time, and the seed of the simulation that finds it.

Each mutation takes a rule out, or turns it round, in the text of one file. `python -m tests.sim.mutate` compiles the
broken text in a process of its own (the files stay as they are) and runs seeds until one breaks a promise; `--write`
notes that seed here. Seeds belong to the simulation as it is: when that changes, they are looked for anew.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Mutation(NamedTuple):
    """`text`, which `file` has once, becomes `instead`; `breaks` says which rule that is."""

    name: str
    file: str
    text: str
    instead: str
    breaks: str


TABLE: Final = "elastic/core/agent/table.py"
EVENTS: Final = "elastic/core/agent/events.py"
STATE: Final = "elastic/core/agent/state.py"
STORE: Final = "elastic/core/agent/store.py"
REGISTRATION: Final = "elastic/core/agent/registration.py"
LEAVING: Final = "elastic/core/agent/leaving.py"
EXITS: Final = "elastic/core/agent/workers/exits.py"
STOP: Final = "elastic/core/agent/workers/stop.py"
OUTCOME: Final = "elastic/core/agent/workers/outcome.py"
WATCH: Final = "elastic/core/agent/links/watch.py"
QUESTIONS: Final = "elastic/core/agent/links/questions.py"
VOUCHING: Final = "elastic/core/agent/links/vouching.py"
INBOUND: Final = "elastic/core/agent/links/inbound.py"
DECIDE: Final = "elastic/core/decide.py"
FIRST_START: Final = "elastic/core/membership/first_start.py"
RUNNING: Final = "elastic/core/membership/running.py"
PLANNED_CHANGES: Final = "elastic/core/membership/planned_changes.py"
GATE: Final = "elastic/core/membership/gate.py"
NEXT_GENERATION: Final = "elastic/core/membership/next_generation.py"
SITUATION: Final = "elastic/core/membership/situation.py"
TRANSACTIONS: Final = "elastic/core/transactions.py"
RESTART_POLICY: Final = "elastic/core/restart_policy.py"
REVISION: Final = "elastic/core/ps/revision.py"
CLUSTER_SPEC: Final = "elastic/core/ps/cluster_spec.py"
PS_RESTART: Final = "elastic/core/ps/restart.py"
PARTITION: Final = "elastic/core/partition.py"
OPERATOR_STOP: Final = "elastic/core/operator_stop.py"


def _row(row: str, phase: str, guard: str) -> Mutation:
    """A row of the agent's table that is never taken."""
    text = f'Row("{row}", {phase}, {guard},'
    return Mutation(f"row {row}", TABLE, text, f'Row("{row}", {phase}, lambda _: False,', "the row is taken out")


ROWS: Final = (
    ("joining: the job has ended", "JOINING", "leaving.job_ended"),
    ("joining: refused", "JOINING", "registration.is_refused"),
    ("joining: drain", "JOINING", "leaving.drain_recorded"),
    ("joining: gave up", "JOINING", "leaving.timed_out"),
    ("joining: registered", "JOINING", "registration.is_registered"),
    ("spare: verdict", "SPARE", "leaving.job_ended"),
    ("spare: drain", "SPARE", "leaving.drains"),
    ("spare: registration lost", "SPARE", "registration.is_unregistered"),
    ("spare: chosen", "SPARE", "assignment.is_chosen"),
    ("spare: gave up", "SPARE", "leaving.timed_out"),
    ("gated: verdict", "GATED", "leaving.job_ended"),
    ("gated: drain", "GATED", "leaving.drains"),
    ("gated: registration lost", "GATED", "registration.is_unregistered"),
    ("gated: passed over", "GATED", "assignment.is_passed_over"),
    ("gated: newer generation", "GATED", "assignment.has_newer_target"),
    ("gated: go", "GATED", "assignment.may_start"),
    ("gated: gave up", "GATED", "leaving.timed_out"),
    ("running: right ended", "RUNNING", "stop.is_overdue"),
    ("running: failed", "RUNNING", "exits.have_failed"),
    ("running: ok", "RUNNING", "exits.all_ok"),
    ("running: only servers left", "RUNNING", "exits.only_servers_left"),
    ("running: superseded", "RUNNING", "stop.is_superseded"),
    ("running: verdict", "RUNNING", "leaving.job_ended"),
    ("running: killed", "RUNNING", "exits.are_gone"),
    ("running: drain unheard", "RUNNING", "leaving.unanswered"),
    ("stopping: out of time", "STOPPING", "leaving.out_of_time"),
    ("stopping: a loss", "STOPPING", "stop.must_hurry"),
    ("stopping: failed", "STOPPING", "stop.failed_in_plan"),
    ("stopping: gone", "STOPPING", "exits.are_gone"),
    ("done: verdict", "DONE", "leaving.job_ended"),
    ("done: drained", "DONE", "leaving.drain_recorded"),
    ("done: registration lost", "DONE", "registration.is_unregistered"),
    ("done: chosen", "DONE", "assignment.is_chosen"),
    ("done: passed over", "DONE", "assignment.is_passed_over"),
    ("leaving: left", "LEAVING", "leaving.has_left"),
)
"""Every row of `elastic.core.agent.table.TABLE`: its name, its phase and its guard."""

MUTATIONS: Final = (
    *(_row(*row) for row in ROWS),
    # membership: decide
    Mutation("verdict", DECIDE, "if view.verdict is not None:", "if False:", "a verdict ends everything"),
    Mutation("unreadable", DECIDE, "if view.unreadable:", "if False:", "an unreadable document stops everything"),
    Mutation(
        "incarnation deleted",
        DECIDE,
        "if view.incarnation is None and (view.spec is not None or view.generation is not None):",
        "if False:",
        "nothing is decided without the incarnation",
    ),
    Mutation(
        "incarnation and spec deleted",
        STORE,
        "empty = event.view.spec is None and event.view.generation is None",
        "empty = event.view.spec is None",
        "a store in which a generation stands is no empty one",
    ),
    Mutation(
        "record: no incarnation",
        OUTCOME,
        "readable = agent.view.incarnation is not None",
        "readable = agent.keys.incarnation not in agent.view.damaged",
        "nothing is recorded while nobody knows whether it is the store of those workers",
    ),
    Mutation(
        "stopping: others went",
        STOP,
        "went = go is not None and go.value.g > workers.g",
        "went = False",
        "workers that save are stopped when the others have gone on without them",
    ),
    Mutation(
        "register: others went",
        REGISTRATION,
        "plan.transaction if alone else unless_superseded(agent.keys, agent.view, plan.transaction)",
        "plan.transaction",
        "the transaction of a node with workers compares that no world has started meanwhile",
    ),
    Mutation(
        "form: left over",
        TRANSACTIONS,
        "        if not generation.rev and any(written == generation.g for written, _ in view.outcomes):\n",
        "        if False:\n",
        "a generation begins without a word about it",
    ),
    Mutation("no spec", DECIDE, "if view.spec is None:\n", "if False:\n", "nothing is decided without a spec"),
    Mutation(
        "link patience",
        DECIDE,
        "        isinstance(decision, WaitDecision) and memory.seen_since\n",
        "        False\n",
        "who cannot be linked is taken without a link in the end",
    ),
    Mutation(
        "own go",
        DECIDE,
        "if q.view.go is not None and q.view.go.value.g == q.generation.g:",
        "if q.view.go is not None:",
        "a generation runs only with its own go",
    ),
    # membership: the first generation
    Mutation("first: missing", FIRST_START, "if len(nodes) < need:", "if not nodes:", "the first start waits for np"),
    Mutation(
        "first: settling",
        FIRST_START,
        "    if len(nodes) < expected and q.now < until:\n        whom",
        "    if False:\n        whom",
        "the first start waits for the settling window",
    ),
    # membership: a generation runs
    Mutation(
        "completed by one",
        RUNNING,
        "if nodes and len(done) == len(nodes):",
        "if done:",
        "only ok of every member completes the job",
    ),
    Mutation(
        "never completed",
        RUNNING,
        "if nodes and len(done) == len(nodes):",
        "if False:",
        "ok of every member completes the job",
    ),
    Mutation(
        "nobody is lost",
        RUNNING,
        "away = [node for node in nodes if node not in outcomes and not q.working(node)]",
        "away: list[str] = []",
        "a member that is gone is replaced",
    ),
    Mutation(
        "lost with its key",
        RUNNING,
        "away = [node for node in nodes if node not in outcomes and not q.working(node)]",
        "away = [node for node in nodes if node not in outcomes and q.member(node) is None]",
        "a member that works on without the store is not lost",
    ),
    Mutation(
        "lost after ok",
        RUNNING,
        "away = [node for node in nodes if node not in outcomes and not q.working(node)]",
        "away = [node for node in nodes if not q.working(node)]",
        "a member that recorded ok cannot be lost",
    ),
    Mutation(
        "nobody returns",
        RUNNING,
        "if (until := q.returns_until(node)) is not None}",
        "if (until := q.returns_until(node)) is not None and False}",
        "after an outage members have a lease's time to register again",
    ),
    Mutation(
        "nobody stays",
        RUNNING,
        "        if not staying:\n            gone",
        "        if False:\n            gone",
        "a world of which nobody remains is formed anew",
    ),
    Mutation(
        "lost is a failure",
        RUNNING,
        "        if lost:\n",
        "        if False:\n",
        "a loss is told apart from a failure",
    ),
    Mutation(
        "lost unwatched",
        RUNNING,
        "lost_words(q, lost), staying), lost=tuple(lost)\n",
        "lost_words(q, lost), staying)\n",
        "the transaction compares that the lost have recorded nothing",
    ),
    Mutation(
        "not asked",
        RUNNING,
        "if asked and q.memory.answered_g < generation.g",
        "if False and q.memory.answered_g < generation.g",
        "after an echo the others are asked whether they are there",
    ),
    Mutation(
        "asked for ever",
        RUNNING,
        "if asked and q.memory.answered_g < generation.g and",
        "if asked and",
        "they are asked once",
    ),
    Mutation("no failure", RUNNING, "        if failed:\n", "        if False:\n", "a failure is told as one"),
    Mutation(
        "failure unheard",
        RUNNING,
        "failed = [node for node, outcome in outcomes.items() if outcome.ended is OutcomeKind.FAILED]",
        "failed: list[str] = []",
        "a failure is acted on",
    ),
    Mutation(
        "stop unheard",
        RUNNING,
        "stopped = [node for node, outcome in outcomes.items() if outcome.ended is OutcomeKind.STOPPED]",
        "stopped: list[str] = []",
        "workers that had to be stopped are started again",
    ),
    Mutation(
        "planned after ok",
        RUNNING,
        "    if done:\n        return WaitDecision(\n            Reason.FINISHING",
        "    if False:\n        return WaitDecision(\n            Reason.FINISHING",
        "nothing planned after the first ok",
    ),
    # membership: changes that can wait
    Mutation("drain unseen", PLANNED_CHANGES, "    if draining:\n", "    if False:\n", "a drain is acted on"),
    Mutation(
        "drains one by one",
        PLANNED_CHANGES,
        "        if q.now < until:\n            return WaitDecision(Reason.DRAIN_BATCH",
        "        if False:\n            return WaitDecision(Reason.DRAIN_BATCH",
        "drains are collected",
    ),
    Mutation(
        "no room",
        PLANNED_CHANGES,
        "joining_nodes = q.joining_nodes()[: max(0, high - len(nodes))]",
        "joining_nodes = q.joining_nodes()",
        "nobody joins where there is no room",
    ),
    Mutation(
        "out of reach",
        PLANNED_CHANGES,
        "if out_of_reach and (joining_nodes or len(nodes) > high):",
        "if False:",
        "no planned change while a member that works on does not reach the store",
    ),
    Mutation(
        "astray",
        PLANNED_CHANGES,
        "if q.member(node) is None or node in q.memory.astray]",
        "if q.member(node) is None]",
        "the same for one that has said so a moment ago",
    ),
    Mutation(
        "no shrink", PLANNED_CHANGES, "    if len(nodes) > high:\n", "    if False:\n", "fewer nodes wanted are fewer"
    ),
    Mutation(
        "no growth",
        PLANNED_CHANGES,
        "    if joining_nodes:\n        until",
        "    if False:\n        until",
        "the job grows",
    ),
    Mutation(
        "growth: settling",
        PLANNED_CHANGES,
        "if len(nodes) + len(joining_nodes) < high and q.now < until:",
        "if False:",
        "newcomers settle",
    ),
    Mutation(
        "growth: too soon",
        PLANNED_CHANGES,
        "if grown_at is not None and q.now < grown_at + every_s:",
        "if False:",
        "a job grows at most once in --grow_every",
    ),
    Mutation(
        "growth: as asked",
        PLANNED_CHANGES,
        "if q.spec.grow_every_s is not None:",
        "if False:",
        "--grow_every counts",
    ),
    Mutation(
        "growth: listening",
        PLANNED_CHANGES,
        "return 0.0 if q.memory.listening == generation.g else GROW_EVERY_S",
        "return GROW_EVERY_S",
        "workers that save before they leave need no pause",
    ),
    Mutation(
        "growth: unheard",
        PLANNED_CHANGES,
        "return 0.0 if q.memory.listening == generation.g else GROW_EVERY_S",
        "return 0.0",
        "workers that lose what they have not saved are given a pause",
    ),
    # the gate
    Mutation(
        "gate: all done",
        GATE,
        "if outcomes and all(o is not None and o.ended is OutcomeKind.OK and o.over for o in outcomes.values()) "
        "and before:",
        "if False:",
        "nothing starts when every worker has ended well",
    ),
    Mutation(
        "gate: nobody", GATE, "    if not staying:\n", "    if False:\n", "a world that nobody is in is formed anew"
    ),
    Mutation(
        "gate: lost",
        GATE,
        "    if broke:\n",
        "    if False:\n",
        "no go for a member that is gone",
    ),
    Mutation(
        "gate: aborted",
        GATE,
        "if before is not None and (aborted :=",
        "if False and (aborted :=",
        "a planned stop that goes wrong is no plan any more",
    ),
    Mutation("gate: drain", GATE, "    if draining:\n", "    if False:\n", "no go for a member that drains"),
    Mutation(
        "gate: newcomers",
        GATE,
        "    if joining_nodes:\n        until = max",
        "    if False:\n        until = max",
        "newcomers are taken in at the gate",
    ),
    Mutation(
        "gate: one by one",
        GATE,
        "if q.now >= until or was_falsely_dead(q, before, joining_nodes):",
        "if True:",
        "newcomers at the gate are collected",
    ),
    Mutation(
        "gate: back from the dead",
        GATE,
        "if q.now >= until or was_falsely_dead(q, before, joining_nodes):",
        "if q.now >= until:",
        "who was falsely taken for dead is back at once",
    ),
    Mutation("gate: below np", GATE, "if len(nodes) < q.spec.np.low:", "if False:", "no go below the minimum"),
    Mutation(
        "gate: open",
        GATE,
        "    closed = _gate_wait(q, generation, before, outcomes)\n",
        "    closed = None\n",
        "the gate waits for the old world",
    ),
    Mutation(
        "gate: unregistered",
        GATE,
        "(node in q.view.members or q.vouched(node))]",
        "node in q.view.members]",
        "the gate waits for who is vouched for",
    ),
    Mutation(
        "gate: vouched only",
        GATE,
        "(node in q.view.members or q.vouched(node))]",
        "q.vouched(node)]",
        "the gate waits for who is registered",
    ),
    Mutation(
        "gate: not over",
        GATE,
        "ended = {node for node, outcome in outcomes.items() if outcome is not None and outcome.over}",
        "ended = {node for node, outcome in outcomes.items() if outcome is not None}",
        "the first word about a failure does not open the gate",
    ),
    Mutation(
        "gate: no survivor",
        GATE,
        "if any(place.node in ended for place in generation.members):",
        "if False:",
        "a survivor that has stopped is enough",
    ),
    Mutation(
        "gate: unproven",
        GATE,
        "if any(place.node in ended for place in generation.members):",
        "if True:",
        "without a survivor the old world may still run",
    ),
    Mutation(
        "gate: the dead",
        GATE,
        "if node not in ended and node not in q.memory.dead]",
        "if node not in ended]",
        "the dead are not waited for",
    ),
    Mutation(
        "gate: outage",
        GATE,
        "longest = q.spec.store_outage_limit_s + q.spec.lease_ttl_s",
        "longest = q.spec.lease_ttl_s",
        "the old world may run as long as an outage may last",
    ),
    Mutation(
        "gate: clocks",
        GATE,
        "until = since + longest * (1 + CLOCK_ERROR) + q.policy.kill_s",
        "until = since + longest * (1 - CLOCK_ERROR) - q.policy.kill_s",
        "clocks differ, and a SIGKILL takes time",
    ),
    Mutation(
        "gate: left",
        GATE,
        "    if lost:\n        return form(q, Reason.GATE_LEFT",
        "    if False:\n        return form(q, Reason.GATE_LEFT",
        "no go for a member that is gone",
    ),
    Mutation(
        "gate: all broke",
        GATE,
        "before is None or (node in outcomes and not _is_over(outcomes[node]))]",
        "True]",
        "who has no old workers hurries nobody who saves",
    ),
    Mutation(
        "plan: joined",
        "elastic/core/model.py",
        "    ChangeReason.JOINED,\n    ChangeReason.LEFT,\n",
        "    ChangeReason.LEFT,\n",
        "who comes while others save hurries nobody",
    ),
    Mutation(
        "plan: broken",
        NEXT_GENERATION,
        "msgspec.structs.replace(before, broken=True)",
        "before",
        "a plan that was broken is none again when somebody comes",
    ),
    Mutation("aborted: any", GATE, "    if not generation.planned:\n", "    if False:\n", "only a plan can be aborted"),
    Mutation(
        "aborted: idle",
        GATE,
        "    if not busy:\n",
        "    if False:\n",
        "a plan is aborted only for those that still stop",
    ),
    Mutation(
        "aborted: lost",
        GATE,
        "    if lost:\n        return form(\n"
        '            q, Reason.GATE_LOST, ChangeReason.LOSS, lost_words(q, lost) + " while',
        "    if False:\n        return form(\n"
        '            q, Reason.GATE_LOST, ChangeReason.LOSS, lost_words(q, lost) + " while',
        "a loss aborts a plan",
    ),
    Mutation("aborted: failed", GATE, "    if failed:\n", "    if False:\n", "a failure aborts a plan"),
    Mutation("opening: free", GATE, "if before is not None and charge:", "if False:", "a failure is judged"),
    Mutation(
        "opening: lost",
        GATE,
        "lost = frozenset(node for node in before.nodes if node not in known)",
        "lost: frozenset[str] = frozenset()",
        "the echo of a loss is free",
    ),
    Mutation("opening: fatal", GATE, "    if judgement.fatal:\n", "    if False:\n", "a judgement can end the job"),
    Mutation(
        "opening: absent",
        GATE,
        "absent = tuple(node for node in before.nodes if node not in q.view.members)",
        "absent = ()",
        "who is passed over is compared",
    ),
    Mutation("opening: pause", GATE, "    if q.now < opens_at:\n", "    if False:\n", "failures in a row cost a pause"),
    Mutation(
        "opening: nowhere",
        GATE,
        "    if master is None:\n",
        "    if False:\n",
        "no go before it is known where workers meet",
    ),
    # what several rules ask
    Mutation(
        "run",
        SITUATION,
        "if stored is not None and stored.value.run == self.spec.run else None",
        "if stored is not None else None",
        "a generation of an older run is none",
    ),
    Mutation(
        "proof",
        SITUATION,
        "return None if (node, stored.create_revision) in memory.gone or node in memory.dead else stored",
        "return stored",
        "who is proven dead is lost",
    ),
    Mutation(
        "vouched for ever",
        SITUATION,
        "and self.now < absent + 2 * self.spec.lease_ttl_s",
        "",
        "a member that is away has a limited time at the gate",
    ),
    Mutation(
        "never vouched",
        SITUATION,
        "return absent is not None and node in self.memory.linked and self.now < absent + 2 * self.spec.lease_ttl_s",
        "return False",
        "a member that is heard is not lost at the gate",
    ),
    Mutation(
        "works for ever",
        SITUATION,
        "return in_time and node in self.memory.linked",
        "return node in self.memory.linked",
        "who is away for longer than the outage limit is lost",
    ),
    Mutation(
        "works unheard",
        SITUATION,
        "return in_time and node in self.memory.linked",
        "return in_time",
        "who is not heard is lost",
    ),
    Mutation(
        "order",
        SITUATION,
        "return [node for _, node in sorted(ready)]",
        "return [node for _, node in sorted(ready, reverse=True)]",
        "the oldest come first",
    ),
    Mutation(
        "leavers stay",
        SITUATION,
        "if self.here(place.node) and not self.draining(place.node)]",
        "if self.here(place.node)]",
        "who drains does not stay",
    ),
    Mutation(
        "before",
        NEXT_GENERATION,
        "if go is not None and go.g == newest.g:",
        "if go is not None:",
        "the world before is the newest that had its go",
    ),
    # who never was heard, leases that end early, links that come and go
    Mutation(
        "returns: a moment",
        SITUATION,
        "absent = NEVER if node in memory.unheard else memory.absent_since.get(node, NEVER)",
        "absent = NEVER",
        "a member that was never heard has a moment to register again",
    ),
    Mutation(
        "returns: heard once",
        SITUATION,
        "absent = NEVER if node in memory.unheard else memory.absent_since.get(node, NEVER)",
        "absent = memory.absent_since.get(node, NEVER)",
        "a member that was heard and is not any more has none",
    ),
    Mutation(
        "grant: from anybody",
        VOUCHING,
        "    return node != agent.me.node and generation.index(node) is not None",
        "    return True",
        "only a member of the generation grants the right to run it",
    ),
    Mutation(
        "grant: for a day",
        VOUCHING,
        "event.asked_at + min(event.seconds, deadline.ttl_s)",
        "event.asked_at + event.seconds",
        "no grant is longer than a lease",
    ),
    Mutation(
        "inbound: strangers stay",
        INBOUND,
        '_close(agent, [event.node], f"the link of {event.node} is closed: no such node is registered in this job")',
        "pass",
        "the link of a node that does not belong to the job is closed",
    ),
    Mutation(
        "inbound: closed unread",
        INBOUND,
        "    if event.registered is None:",
        "    if False:",
        "links stay while the store does not answer",
    ),
    Mutation(
        "inbound: registered only",
        INBOUND,
        "recent_members(agent).union(agent.view.members)",
        "frozenset(agent.view.members)",
        "the link of a member stays while it is not registered",
    ),
    Mutation(
        "vouch: at work only",
        VOUCHING,
        "return agent.phase is Phase.RUNNING or (agent.phase is Phase.DONE and ended)",
        "return agent.phase is Phase.RUNNING",
        "whose workers have ended well gives its word until those of the others have",
    ),
    Mutation(
        "right: deaf",
        REGISTRATION,
        "if event.key_revision == (own.mod_revision if own is not None else registration.create_revision):",
        "if True:",
        "a key that is not there as the watch has shown it gives no right",
    ),
    Mutation(
        "right: without its key",
        REGISTRATION,
        "    registration.unproven_refresh = (event.sent_at, event.ttl_s)\n\n\ndef on_grant_failed",
        "    _extend_right(agent, event.sent_at, event.ttl_s)\n\n\ndef on_grant_failed",
        "a lease gives the right only while it holds the key",
    ),
    Mutation(
        "right: lost with the lease",
        STATE,
        '        self.registration.step("lease gone")\n',
        '        self.registration.step("lease gone")\n'
        "        self.workers.run_deadline = self.workers.run_deadline.lost()\n",
        "a lease that ends before its time has given the right for its time",
    ),
    Mutation(
        "silent: not asked",
        QUESTIONS,
        "links.silent = (links.asked_whom & links.up) - event.nodes",
        "links.silent = links.up - event.nodes",
        "a link that comes up while others are asked is not silent",
    ),
    Mutation(
        "late: lost",
        SITUATION,
        "node in self.memory.linked | self.memory.late",
        "node in self.memory.linked",
        "a member without a key that answered the question before may miss one",
    ),
    Mutation(
        "late: for ever",
        QUESTIONS,
        "links.heard_at, links.answered = links.asked_at, event.nodes",
        "links.heard_at, links.answered = links.asked_at, event.nodes | links.answered",
        "a member without a key that misses two questions in a row is lost",
    ),
    Mutation(
        "late: long ago",
        QUESTIONS,
        "recent = links.asked_at <= links.heard_at + RECENT_ASKS * interval_s(agent)",
        "recent = True",
        "an answer from long before does not excuse a missed question",
    ),
    Mutation(
        "watch: too early",
        WATCH,
        "        return False  # It leads from now on",
        "        agent.links.targets = {}\n        agent.act(WatchLinks({}))\n        return False  #",
        "who begins to propose keeps the link to the one before it",
    ),
    Mutation(
        "outcome: forced",
        OUTCOME,
        "forced=workers.forced and ended is not OutcomeKind.OK,",
        "forced=workers.forced,",
        "workers that ended well were not stopped",
    ),
    Mutation(
        "roster: too few",
        DECIDE,
        "if not cluster_spec.any_member_present(q, generation) or cluster_spec.below_np(q, roles, generation):",
        "if not cluster_spec.any_member_present(q, generation):",
        "a roster at the gate is formed anew when more workers are wanted",
    ),
    Mutation(
        "roster: nobody stays",
        CLUSTER_SPEC,
        "{place.node for place in generation.members if is_present(q, place.node) and not q.draining(place.node)}",
        "set[str]()",
        "a roster that is formed anew at the gate has those who wait there, too",
    ),
    Mutation(
        "roster: gone unwatched",
        TRANSACTIONS,
        "gone = [other for other in decision.gone if other not in view.members]",
        "gone: list[str] = []",
        "the transaction compares that who loses its seats is not registered",
    ),
    # a split network
    Mutation(
        "split: the first goes",
        PARTITION,
        "(len(left[node]) / tried[node], order[node])",
        "(len(left[node]) / tried[node], -order[node])",
        "of two that are apart the later one goes",
    ),
    Mutation(
        "split: the last goes",
        PARTITION,
        "(len(left[node]) / tried[node], order[node])",
        "(bool(left[node]), order[node])",
        "who is apart from most goes first",
    ),
    Mutation(
        "split: not the largest part",
        PARTITION,
        "    return max(parts, key=len)\n",
        "    return parts[0]\n",
        "the largest part of a world goes on, also without the first",
    ),
    Mutation(
        "split: charged",
        RESTART_POLICY,
        "    if split and all(worker.machine_fault == SPLIT for worker in own):\n",
        "    if False:\n",
        "a split network is free, and leaves a machine out",
    ),
    Mutation(
        "split: excuses all",
        RESTART_POLICY,
        "    if split and all(worker.machine_fault == SPLIT for worker in own):\n",
        "    if split:\n",
        "a script that fails in a split network is charged",
    ),
    Mutation(
        "split: back too soon",
        SITUATION,
        "avoided = self.quarantined() | self.out_of_reach()",
        "avoided = self.quarantined()",
        "nobody joins whom the proposer does not reach",
    ),
    Mutation(
        "split: below np",
        EXITS,
        "can = spec.host_cooldown_s > 0 and left >= spec.np.low",
        "can = spec.host_cooldown_s > 0",
        "where all are needed they wait until the way is open",
    ),
    Mutation(
        "split: in a planned stop",
        EXITS,
        "agent.phase is Phase.RUNNING or agent.saves",
        "agent.phase is Phase.RUNNING",
        "who waits to save together is not kept waiting by a split network",
    ),
    Mutation(
        "split: no spare",
        EXITS,
        "return len(members) - (1 if alone else len(unreached)) + spares",
        "return len(members) - (1 if alone else len(unreached))",
        "where all are needed a spare takes the place of a machine that is cut off",
    ),
    Mutation(
        "split: not alone",
        EXITS,
        "alone = spares > 0 and ",
        "alone = False and ",
        "a proposer that reaches nobody leaves its place to a spare",
    ),
    Mutation(
        "split: forgotten",
        EXITS,
        "if not _is_current(agent, event.g) or not (agent.phase is Phase.RUNNING or agent.saves):",
        "if not _is_current(agent, event.g):",
        "what is said of workers that are being stopped does not open a way",
    ),
    Mutation(
        "planned: no key again",
        REGISTRATION,
        "or (agent.saves and agent.view.verdict is None)",
        "",
        "whose lease ends while its workers save has another one",
    ),
    Mutation(
        "planned: ready again",
        REGISTRATION,
        "leaves = agent.leaving.drain is not None and agent.phase is Phase.STOPPING",
        "leaves = False",
        "who drains and registers again drains",
    ),
    # the next generation
    Mutation(
        "above np", NEXT_GENERATION, "        if len(members) >= high:\n            break\n", "", "not more than np"
    ),
    Mutation(
        "survivors first",
        NEXT_GENERATION,
        "members = staying[:high]",
        "members = staying[:high][::-1]",
        "survivors keep their order",
    ),
    Mutation(
        "too many stay", NEXT_GENERATION, "members = staying[:high]", "members = list(staying)", "not more than np stay"
    ),
    Mutation(
        "reform: below np",
        NEXT_GENERATION,
        "    if len(nodes) < q.spec.np.low:\n",
        "    if False:\n",
        "the minimum is awaited",
    ),
    Mutation(
        "first: as many as before",
        FIRST_START,
        "expected_nodes(q, max(len(nodes), q.memory.size_before))",
        "expected_nodes(q, len(nodes))",
        "in an empty store the first node waits for as many as before",
    ),
    Mutation(
        "reform: settling",
        NEXT_GENERATION,
        "if len(nodes) < expected and q.now < until:",
        "if False:",
        "a world that is formed anew settles",
    ),
    Mutation(
        "reform: no empty world",
        NEXT_GENERATION,
        "if q.generation is not None and q.generation.members:",
        "if False:",
        "an empty world tells everybody to stop",
    ),
    # proposals
    Mutation(
        "compare: the proposer",
        TRANSACTIONS,
        "        Compare.created(keys.member(node), created),\n        *_same_store(keys, view),\n        "
        "Compare.modified(keys.generation",
        "        *_same_store(keys, view),\n        Compare.modified(keys.generation",
        "the proposer is registered as it believes",
    ),
    Mutation(
        "compare: the store",
        TRANSACTIONS,
        "        *_same_store(keys, view),\n        Compare.modified(keys.generation",
        "        Compare.modified(keys.generation",
        "the store is the same",
    ),
    Mutation(
        "compare: generation",
        TRANSACTIONS,
        "        Compare.modified(keys.generation, view.generation.mod_revision if view.generation else 0),\n",
        "",
        "nobody else has proposed",
    ),
    Mutation(
        "compare: go",
        TRANSACTIONS,
        "        Compare.modified(keys.go, view.go.mod_revision if view.go else 0),\n",
        "",
        "nobody else gave the go",
    ),
    Mutation(
        "halt: waits", OPERATOR_STOP, "if not waited or (broken", "if True or (broken", "workers save before the end"
    ),
    Mutation(
        "halt: lost meanwhile",
        OPERATOR_STOP,
        "broken = len(waited) < len(busy) or _has_failure",
        "broken = _broken",
        "a loss ends the plan",
    ),
    Mutation(
        "halt: away", OPERATOR_STOP, "    if away and None", "    if False and None", "all are asked to save at once"
    ),
    Mutation(
        "halt: returns",
        OPERATOR_STOP,
        "if q.here(node) or q.returns_until(node) is not None]",
        "if q.here(node)]",
        "who returns is waited for",
    ),
    Mutation(
        "halt: failed meanwhile",
        OPERATOR_STOP,
        "any(one.ended is OutcomeKind.FAILED or one.forced for one in outcomes.values())",
        "False",
        "a failure ends the plan",
    ),
    Mutation(
        "halt: completed",
        OPERATOR_STOP,
        "    if _all_ok(outcomes, before.nodes):\n        return completed(q, before.g)\n",
        "",
        "who ended well has completed the job",
    ),
    Mutation("halt: at once", STOP, "    if is_stopped_now(agent):\n        return True\n", "", "who waits no longer"),
    Mutation(
        "halt: asked",
        DECIDE,
        "    if halt is not None:\n        return operator_stop.decide_stop(q, halt), q.memory\n",
        "",
        "an operator can stop a job",
    ),
    Mutation("told to leave", EVENTS, "        leaving.read_order,\n", "", "an operator can drain a node"),
    Mutation(
        "compare: spec",
        TRANSACTIONS,
        "        Compare.modified(keys.spec, view.spec.mod_revision if view.spec else 0),\n"
        "        Compare.modified(keys.halt,",
        "        Compare.modified(keys.halt,",
        "np is what it was",
    ),
    Mutation(
        "compare: halt",
        TRANSACTIONS,
        "        Compare.modified(keys.halt, view.halt.mod_revision if view.halt else "
        "view.damaged_at.get(keys.halt, 0)),\n",
        "",
        "nobody has stopped the job",
    ),
    Mutation(
        "compare: verdict",
        TRANSACTIONS,
        "view.damaged_at.get(keys.halt, 0)),\n        Compare.absent(keys.verdict),\n    ]",
        "view.damaged_at.get(keys.halt, 0)),\n    ]",
        "the job has not ended",
    ),
    Mutation(
        "compare: nothing recorded",
        TRANSACTIONS,
        "        if decision.planned:\n",
        "        if False:\n",
        "nothing planned once somebody has recorded an outcome",
    ),
    Mutation(
        "compare: lost ones",
        TRANSACTIONS,
        "            compares.append(_nothing_readable(view, keys.outcome(g, lost, since.get(lost, 0))))\n",
        "",
        "the lost have recorded nothing",
    ),
    Mutation(
        "compare: lost keys",
        TRANSACTIONS,
        "            if lost not in view.members:\n"
        "                compares.append(_nothing_readable(view, keys.member(lost)))\n",
        "",
        "the lost are not registered",
    ),
    Mutation(
        "compare: unfinished",
        TRANSACTIONS,
        "        compares += [_nothing_readable(view, keys.outcome(g, other, since.get(other, 0))) "
        "for other in at_work]\n",
        "",
        "nobody joins a roster once workers ended well",
    ),
    Mutation(
        "compare: passed over",
        TRANSACTIONS,
        "        compares += [_nothing_readable(view, keys.member(node)) for node in decision.absent"
        "[:ABSENT_COMPARED_MAX]]\n",
        "",
        "who is passed over is not registered",
    ),
    Mutation(
        "old outcomes",
        TRANSACTIONS,
        "            Delete(keys.outcomes_below(oldest)),\n",
        "",
        "outcomes of older worlds are deleted",
    ),
    Mutation(
        "a go left over",
        TRANSACTIONS,
        "elif view.go is not None and view.go.value.g >= generation.g and not generation.rev:",
        "elif False:",
        "a go of a generation that somebody deleted is taken away",
    ),
    Mutation(
        "register: verdict",
        TRANSACTIONS,
        "fits = (Compare.absent(keys.verdict), Compare.modified(",
        "fits = (Compare.modified(",
        "nobody registers once the job has ended",
    ),
    Mutation(
        "register: own key",
        TRANSACTIONS,
        "fits = (Compare.absent(keys.verdict), Compare.modified(keys.member(node), at))",
        "fits = (Compare.absent(keys.verdict),)",
        "nobody registers twice",
    ),
    Mutation(
        "register: spec",
        TRANSACTIONS,
        "        Compare.modified(keys.spec, view.spec.mod_revision if view.spec else 0),\n        *fits,\n",
        "        *fits,\n",
        "the spec is what this node has accepted",
    ),
    Mutation(
        "register: store",
        TRANSACTIONS,
        "        *fits,\n        *_same_store(keys, view),\n",
        "        *fits,\n",
        "the store is the one that this node has seen",
    ),
    Mutation(
        "register: somebody lives",
        TRANSACTIONS,
        "        compares.append(Compare.empty(keys.members))\n",
        "        pass\n",
        "the spec is written anew only when nobody lives",
    ),
    Mutation(
        "say: registered",
        TRANSACTIONS,
        "compares = (Compare.created(keys.member(node), created), *_same_store(keys, view))",
        "compares = _same_store(keys, view)",
        "a member speaks for its own registration",
    ),
    Mutation(
        "record: once",
        TRANSACTIONS,
        "(*_same_store(keys, view), Compare.absent(key))",
        "_same_store(keys, view)",
        "the first word is not written over the last",
    ),
    Mutation(
        "record: store",
        TRANSACTIONS,
        "compares = _same_store(keys, view) if outcome.over else",
        "compares = () if outcome.over else",
        "an outcome belongs to its store",
    ),
    Mutation(
        "leave: registered",
        TRANSACTIONS,
        'Transaction("leave", (Compare.created(key, created),), then)',
        'Transaction("leave", (), then)',
        "a node takes back its own registration only",
    ),
    # parameter-server jobs
    Mutation(
        "roster: completed by one",
        CLUSTER_SPEC,
        "    if at_work and len(finished) == len(at_work):\n",
        "    if finished:\n",
        "only workers of every node complete the job",
    ),
    Mutation(
        "roster: never completed",
        CLUSTER_SPEC,
        "    if at_work and len(finished) == len(at_work):\n",
        "    if False:\n",
        "workers of every node complete the job",
    ),
    Mutation(
        "roster: nobody left",
        CLUSTER_SPEC,
        "    if not any_member_present(q, generation):\n        gone",
        "    if False:\n        gone",
        "a roster of which nobody remains is formed anew",
    ),
    Mutation(
        "roster: gate open",
        CLUSTER_SPEC,
        "busy = [node for node in open_ends if node in q.view.members]",
        "busy: list[str] = []",
        "the next generation waits for the old processes",
    ),
    Mutation(
        "roster: vanished",
        CLUSTER_SPEC,
        "    if q.now < freed_at:\n",
        "    if False:\n",
        "and for those that nobody can have stopped yet",
    ),
    Mutation(
        "roster: free at once",
        REVISION,
        "return q.memory.absent_since.get(node, q.now) + q.spec.lease_ttl_s * (1 + CLOCK_ERROR) + q.policy.kill_s",
        "return q.now",
        "the seats of a lost node are kept for a lease",
    ),
    Mutation(
        "roster: old words",
        REVISION,
        "if end is not None and end.since == place.since:",
        "if end is not None:",
        "what an older start said does not count",
    ),
    Mutation(
        "roster: stays ended",
        REVISION,
        "        self.places.append(msgspec.structs.replace(place, since=self.rev))\n",
        "        self.places.append(place)\n",
        "whose processes failed starts again",
    ),
    Mutation(
        "roster: late to join",
        REVISION,
        "        if self.finished:\n            room = 0\n",
        "",
        "nobody joins once a worker has ended well",
    ),
    Mutation(
        "roster: drain unseen",
        REVISION,
        "if q.draining(place.node) and not place.leaving:",
        "if False:",
        "a drain is acted on",
    ),
    Mutation(
        "roster: servers stay ended",
        REVISION,
        "again = self._servers_of(place) if starts or not has_servers(place) else None",
        "again = None",
        "servers start again with the workers that need them",
    ),
    # the budget
    Mutation(
        "budget: progress",
        RESTART_POLICY,
        "progress = step > budget.step or (step < 0 and ran_s >= PROGRESS_RUN_S and not waited)",
        "progress = False",
        "progress makes failures fruitful",
    ),
    Mutation(
        "budget: always progress",
        RESTART_POLICY,
        "progress = step > budget.step or (step < 0 and ran_s >= PROGRESS_RUN_S and not waited)",
        "progress = True",
        "failures without progress are counted",
    ),
    Mutation(
        "budget: fatal code",
        RESTART_POLICY,
        "    if fatal is not None:\n",
        "    if False:\n",
        "a fatal exit code ends the job",
    ),
    Mutation(
        "budget: hopeless",
        RESTART_POLICY,
        "    if unrecoverable is not None:\n",
        "    if False:\n",
        "what no restart mends ends the job",
    ),
    Mutation(
        "budget: cannot start",
        RESTART_POLICY,
        "    if cause is not None and ran_s < PROGRESS_RUN_S and own and all(worker.startup for worker in own):\n",
        "    if False:\n",
        "a script that cannot start ends the job",
    ),
    Mutation(
        "budget: one cannot start",
        RESTART_POLICY,
        "own and all(worker.startup for worker in own)",
        "own and any(worker.startup for worker in own)",
        "a failure of another kind beside it is one",
    ),
    Mutation("budget: lost", RESTART_POLICY, "    if lost:\n", "    if False:\n", "a failure beside a loss is free"),
    Mutation(
        "budget: forced",
        RESTART_POLICY,
        "    if forced and not own:\n",
        "    if False:\n",
        "the echo of a node that had to stop is free",
    ),
    Mutation(
        "budget: stopped",
        RESTART_POLICY,
        "    if before.why is not ChangeReason.FAILURE and not own:\n",
        "    if False:\n",
        "the echo of a stop is free",
    ),
    Mutation(
        "budget: infra",
        RESTART_POLICY,
        "free = bool(own) and all(",
        "free = False and all(",
        "a failure of the machine is free",
    ),
    Mutation(
        "budget: infra for ever",
        RESTART_POLICY,
        " and uncharged.machine_faults < MACHINE_FAULTS_MAX",
        "",
        "three in a row are free",
    ),
    Mutation(
        "budget: asked",
        RESTART_POLICY,
        "if progress and own and all(worker.code == RESTART_ASKED for worker in own):",
        "if False:",
        "a restart that was asked for after progress is free",
    ),
    Mutation(
        "budget: asked without progress",
        RESTART_POLICY,
        "if progress and own and all(worker.code == RESTART_ASKED for worker in own):",
        "if own and all(worker.code == RESTART_ASKED for worker in own):",
        "without progress it is not",
    ),
    Mutation(
        "budget: no limit",
        RESTART_POLICY,
        "    if charged > spec.restarts_max:",
        "    if False:",
        "the restarts are limited",
    ),
    Mutation(
        "budget: one more",
        RESTART_POLICY,
        "    if charged > spec.restarts_max:",
        "    if charged > spec.restarts_max + 1:",
        "exactly as many as were given",
    ),
    Mutation(
        "budget: kept out is charged",
        RESTART_POLICY,
        "    if judged := quarantined_by(budget, before.g):",
        "    if judged := ():",
        "the budget does not pay for a host that is kept out",
    ),
    Mutation(
        "budget: nobody is suspect",
        RESTART_POLICY,
        "suspects = () if progress or fruitless >= CRASH_LOOP_MAX else blamed.suspects",
        "suspects: tuple[str, ...] = ()",
        "a host that keeps failing is kept out",
    ),
    Mutation(
        "budget: crash loop",
        RESTART_POLICY,
        "if fruitless >= CRASH_LOOP_MAX:",
        "if False:",
        "a crash loop ends the job",
    ),
    Mutation(
        "budget: no pause",
        RESTART_POLICY,
        "pause_s = min(2.0 ** (fruitless - 2), BACKOFF_MAX_S) if fruitless > 1 else 0.0",
        "pause_s = 0.0",
        "failures in a row cost a pause",
    ),
    Mutation(
        "budget: nothing charged",
        RESTART_POLICY,
        "spent = Budget(charged, fruitless, uncharged.step, machine_faults, blamed.hosts)",
        "spent = Budget(uncharged.charged, fruitless, uncharged.step, machine_faults, blamed.hosts)",
        "a failure is charged",
    ),
)
"""Every mutation."""

OF_ROSTERS: Final = tuple(
    one for one in MUTATIONS if one.file in (REVISION, CLUSTER_SPEC, PS_RESTART) or one.name.startswith("roster: ")
)
"""Those that only a parameter-server job meets."""

OPEN: Final[dict[str, str]] = {
    "incarnation and spec deleted": "no job begins where a generation stands: who forgets the store waits there",
    "record: no incarnation": "what is left over of a generation's number is deleted when that generation is formed",
    "form: left over": "nobody writes it; that somebody deletes the key of a generation is not simulated",
    "right: without its key": "a refresh that does not find the key gives none either; what is left is one lease",
    "halt: returns": "who is heard over a link is waited for anyway: what is left is a new proposer's first second",
    "row running: ok": "the row for workers that are gone takes it then, and what is recorded is the same",
    "a go left over": "the first generation is written with its go, which takes the place of one that is left over",
    "register: store": "its lease is not one of another store, which therefore refuses it in any case",
    "register: others went": "whoever sees the go stops its workers at once: what is left is a race of milliseconds",
    "roster: nobody left": "the roster gets a revision with those who come, in the place of a next generation",
    "roster: gate open": "the seats of a registered node are not free either, so that it is waited for all the same",
    "roster: late to join": "whoever would only work is turned away a second time when the seats are given",
}
"""Mutations that no seed finds, and why: the rule is kept twice, or nearly."""
