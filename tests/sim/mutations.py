"""What can be broken in the core, one rule at a time, and the rule that this is.

A rule is named by its object: a function that decides nothing any more or gives another answer, a row or a compare that
is left out, rules that change places, a constant with another value. `python -m tests.sim.mutate` breaks each in a
process of its own and runs seeds until one breaks a guarantee; `--write` notes that seed in tests/sim/mutations.json.
Seeds belong to the simulation as it is: when that changes, they are looked for anew.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection
from typing import Any, Final

import msgspec

from elastic.core import decide, model, operator_stop, partition, quarantine, restart_policy, transactions
from elastic.core.agent import leaving, registration, store, succession
from elastic.core.agent.actions import RevokeLease
from elastic.core.agent.links import deaths, eviction, inbound, silence, vouching, watch
from elastic.core.agent.state import AgentState, Phase
from elastic.core.agent.table import DUTIES, REPORTS, TABLE
from elastic.core.agent.workers import exits, outcome, stop
from elastic.core.failure_class import FailureClass
from elastic.core.kv import Compare, CompareTarget, Delete, Operation, Put
from elastic.core.membership import (
    conclusion,
    evictions,
    first_start,
    gate,
    next_generation,
    opening,
    planned_changes,
    reform,
    running,
    settling,
)
from elastic.core.membership import situation as situations
from elastic.core.membership.situation import Situation
from elastic.core.model import ChangeReason, Outcome, OutcomeKind
from elastic.core.ps import cluster_spec, presence
from elastic.core.ps.revision import RevisionBuilder
from elastic.core.restart_policy import Evidence
from elastic.core.run_deadline import CLOCK_ERROR
from launcher.peers import doubt
from launcher.peers.doubt import LinkDoubt
from launcher.peers.silence_detector import SilenceDetector
from tests.sim.heartbeats import Heartbeats
from tests.sim.mutant import (
    Mutation,
    becomes,
    compare_out,
    constant,
    duty_out,
    gives,
    never,
    operation_out,
    row_out,
    swapped,
)
from tests.sim.nodes import KEYS


def about(*keys: str, target: CompareTarget | None = None) -> Any:
    """Tell whether a compare, or an operation, is about one of these keys."""

    def dropped(part: Compare | Operation) -> bool:
        start = part.key if isinstance(part, Put) else part.range.start
        return start in keys and (target is None or (isinstance(part, Compare) and part.target is target))

    return dropped


def below(prefix: str) -> Any:
    """Tell whether a compare, or an operation, is about keys below this prefix."""
    return lambda part: (part.key if isinstance(part, Put) else part.range.start).startswith(prefix)


def _own_key(compare: Compare) -> bool:
    """The compare by which a proposal holds only for the member that its writer is."""
    own = compare.range.start.startswith(KEYS.members) and compare.target is CompareTarget.CREATE
    return own and compare.operand != 0


def _key_of_another(compare: Compare) -> bool:
    return compare.range.start.startswith(KEYS.members) and not _own_key(compare)


def _with_np_high(s: Situation, high: int) -> Situation:
    spec = msgspec.structs.replace(s.spec, np=msgspec.structs.replace(s.spec.np, high=high))
    return dataclasses.replace(s, spec=spec)


def _never_heard(s: Situation) -> Situation:
    return dataclasses.replace(s, memory=msgspec.structs.replace(s.memory, unheard=frozenset()))


def _vouched_for(agent: AgentState, event: vouching.Vouched) -> None:
    if event.g == agent.workers.g and not agent.workers.gone:
        agent.workers.run_deadline = agent.workers.run_deadline.vouched(event.asked_at + event.seconds)


def _once(agent: AgentState) -> None:
    """A node is prepared once; the next time it is not any more."""
    agent.registration.prepared = not agent.registration.prepared


def _as_seen(agent: AgentState, event: registration.LeaseRefreshed) -> registration.LeaseRefreshed:
    own = agent.view.members.get(agent.me.node)
    seen = own.mod_revision if own is not None else agent.registration.create_revision
    return msgspec.structs.replace(event, key_revision=seen)


def _closed_whoever_it_is(
    original: Callable[[AgentState, inbound.NodeLookedUp], None], agent: AgentState, event: inbound.NodeLookedUp
) -> None:
    if event.registered is False and event.node in agent.links.inbound:
        agent.links.looking_up = ""
        inbound._close(agent, [event.node], "no such node")
    else:
        original(agent, event)


def _lease_and_right_lost(original: Callable[[AgentState], None], agent: AgentState) -> None:
    original(agent)
    agent.workers.run_deadline = agent.workers.run_deadline.lost()


def _links_changed(links: LinkDoubt, up: Collection[str]) -> None:
    links._up = frozenset(up)
    links._asked &= links._up
    links._tell(links._up - links._silent, links._heard_at)


def _any_registration(original: Callable[..., transactions.Transaction], *args: Any) -> transactions.Transaction:
    made, node = original(*args), args[-1]
    kept = tuple(compare for compare in made.compares if compare.range.start != KEYS.member(node))
    return dataclasses.replace(made, compares=kept)


def _tried_alone(original: Callable[..., None], agent: AgentState, event: silence.PeerTried) -> None:
    own = tuple(node for node in event.reached_by if node == agent.me.node)
    original(agent, msgspec.structs.replace(event, reached_by=own, unreached_by=event.unreached_by or event.reached_by))


def _revoked_in_any_case(
    original: Callable[[AgentState, store.TransactionAnswered], None],
    agent: AgentState,
    event: store.TransactionAnswered,
) -> None:
    pending = agent.silence.evicting
    original(agent, event)
    if pending is not None and not event.succeeded:
        agent.act(RevokeLease(pending.lease))


def _only_silent_are_many(_: Callable[..., bool], agent: AgentState, unheard: frozenset[str] = frozenset()) -> bool:
    generation, quiet = agent.generation, agent.memory.silent | unheard
    assert generation is not None
    silent = sum(member.node in quiet for member in generation.members)
    return silent > 1 and silence.MANY * silent > len(generation.members)


def _vacant_unless_silent(original: Callable[[AgentState], bool], agent: AgentState) -> bool:
    return original(agent) and not silence.leader_is_silent(agent)


def _heard_by_the_kernel(original: Callable[[AgentState], None], agent: AgentState) -> None:
    silent = agent.memory.silent
    agent.memory = msgspec.structs.replace(agent.memory, silent=frozenset())
    original(agent)
    agent.memory = msgspec.structs.replace(agent.memory, silent=silent)


def _checked_without_steps(
    original: Callable[[SilenceDetector, float], tuple[bool, float]], detector: SilenceDetector, now: float
) -> tuple[bool, float]:
    detector._heard_otherwise_at = lambda _: float("-inf")
    return original(detector, now)


def _joins_though_silent(original: Callable[[Situation], list[str]], s: Situation) -> list[str]:
    memory = msgspec.structs.replace(s.memory, silent=frozenset())
    return original(dataclasses.replace(s, memory=memory))


def _forced(original: Callable[..., Outcome], agent: AgentState, *, over: bool) -> Outcome:
    return msgspec.structs.replace(original(agent, over=over), forced=agent.workers.forced)


PRECONDITIONS: Final = (
    Mutation("verdict", "a verdict ends everything", never(decide.ended)),
    Mutation("unreadable", "an unreadable document stops everything", never(decide.unreadable)),
    Mutation("incarnation deleted", "nothing is decided without the incarnation", never(decide.no_incarnation)),
    Mutation("no spec", "nothing is decided without a spec", never(decide.no_spec)),
)

FIRST_START: Final = (
    Mutation("first: missing", "the first start waits for np", never(first_start.missing)),
    Mutation("first: settling", "the first start waits for the settling window", never(first_start.settling)),
    Mutation(
        "first: as many as before",
        "in an empty store the first node waits for as many as before",
        becomes(first_start._expected, lambda _, s: settling.expected_nodes(s, len(s.joining_nodes))),
    ),
)


RUNNING: Final = (
    Mutation(
        "completed by one",
        "only ok of every member completes the job",
        becomes(
            situations.all_completed,
            lambda _, nodes, ends: any(end.ended is OutcomeKind.OK and end.over for end in ends.values()),
        ),
    ),
    Mutation("never completed", "ok of every member completes the job", never(conclusion.completed)),
    Mutation("nobody is lost", "a member that is gone is replaced", gives(Situation.lost, [])),
    Mutation(
        "lost with its key",
        "a member that works on without the store is not lost",
        becomes(Situation.working, lambda _, s, node: s.member(node) is not None),
    ),
    Mutation(
        "lost after ok",
        "a member that recorded ok cannot be lost",
        becomes(Situation.lost, lambda _, s: [node for node in s.nodes if not s.working(node)]),
    ),
    Mutation(
        "nobody returns",
        "after an outage members have a lease's time to register again",
        gives(Situation.returns_until, None),
    ),
    Mutation("nobody stays", "a generation of which nobody remains is formed anew", never(reform.nobody_left)),
    Mutation("lost is a failure", "a loss is told apart from a failure", never(running.lost)),
    Mutation("loss after failure", "a loss counts before a failure", swapped(running.lost, running.failed)),
    Mutation("secondary: at once", "a consequence of a loss is not charged as a failure", never(running.secondary)),
    Mutation("secondary: for ever", "its cause is waited for only a moment", constant(running, "CAUSE_S", 1e9)),
    Mutation("no failure", "a failure is acted on", never(running.failed)),
    Mutation("stop unheard", "workers that had to be stopped are started again", never(running.stopped)),
    Mutation("no returning", "members that return are waited for", never(running.returning)),
    Mutation("planned after ok", "nothing planned after the first ok", never(running.finishing)),
)

PLANNED: Final = (
    Mutation("drain unseen", "a drain is acted on", never(planned_changes.drained)),
    Mutation("drains one by one", "drains are collected", never(planned_changes.drain_batch)),
    Mutation(
        "no room",
        "nobody joins where there is no room",
        becomes(Situation.admissible, lambda _, s: s.joining_nodes),
    ),
    Mutation(
        "out of reach",
        "no planned change while a member that works on does not reach the store",
        never(planned_changes.out_of_reach),
    ),
    Mutation("no shrink", "fewer nodes wanted are fewer", never(planned_changes.scaled_down)),
    Mutation("no growth", "the job grows", never(planned_changes.scaled_up)),
    Mutation("growth: settling", "joining nodes settle", never(planned_changes.scale_up_settling)),
    Mutation(
        "growth: too soon", "a job grows at most once in --scale-up-interval", never(planned_changes.scale_up_later)
    ),
    Mutation(
        "growth: as asked",
        "--scale-up-interval counts",
        becomes(
            planned_changes._scale_up_interval_s,
            lambda _, s: 0.0 if s.memory.listening == s.current.g else planned_changes.SCALE_UP_INTERVAL_S,
        ),
    ),
    Mutation(
        "growth: listening",
        "workers that save before they leave need no pause",
        becomes(
            planned_changes._scale_up_interval_s,
            lambda _, s: (
                planned_changes.SCALE_UP_INTERVAL_S
                if s.spec.scale_up_interval_s is None
                else s.spec.scale_up_interval_s
            ),
        ),
    ),
    Mutation(
        "growth: unheard",
        "workers that lose what they have not saved are given a pause",
        becomes(planned_changes._scale_up_interval_s, lambda _, s: s.spec.scale_up_interval_s or 0.0),
    ),
)

GATE: Final = (
    Mutation("gate: all done", "nothing starts when every worker has ended well", never(conclusion.completed_before)),
    Mutation("gate: lost", "no go for a member that is gone", never(gate.gate_lost)),
    Mutation("gate: failed", "a failure ends a planned stop", never(gate.gate_failed)),
    Mutation("gate: stopped", "a member that had to end its workers ends a planned stop", never(gate.gate_stopped)),
    Mutation(
        "gate: aborted", "a planned stop that goes wrong is no plan any more", gives(gate._in_planned_stop, False)
    ),
    Mutation(
        "aborted: any",
        "only a plan can be aborted",
        becomes(
            gate._in_planned_stop,
            lambda _, s: any(
                s.here(node) and not s.stopped(node) for node in (s.previous.nodes if s.previous is not None else ())
            ),
        ),
    ),
    Mutation(
        "aborted: idle",
        "a plan is aborted only for those that still stop",
        becomes(gate._in_planned_stop, lambda _, s: s.previous is not None and s.current.planned),
    ),
    Mutation("gate: drain", "no go for a member that drains", never(gate.gate_drained)),
    Mutation("gate: newcomers", "joining nodes are taken in at the gate", never(gate.gate_joined)),
    Mutation(
        "gate: one by one",
        "joining nodes at the gate are collected",
        becomes(Situation.joined_until, lambda _, s: s.now if s.admissible else None),
    ),
    Mutation(
        "gate: back from the dead",
        "who was falsely taken for dead is back at once",
        gives(gate._was_falsely_dead, False),
    ),
    Mutation("gate: below np", "no go below the minimum", never(gate.below_min)),
    Mutation("gate: open", "the gate waits for the old workers", never(gate.stopping)),
    Mutation("gate: unproven", "without a survivor the old workers may still run", never(gate.unproven)),
    Mutation(
        "gate: not over",
        "the first word about a failure does not open the gate",
        becomes(Situation.stopped, lambda _, s, node: node in s.previous_outcomes),
    ),
    Mutation("gate: no survivor", "a survivor that has stopped is enough", gives(gate._survivor_stopped, False)),
    Mutation(
        "gate: outage",
        "the old workers may run as long as an outage may last",
        becomes(gate._longest_run_s, lambda _, s: s.spec.lease_ttl_s * (1 + CLOCK_ERROR) + s.policy.kill_s),
    ),
    Mutation(
        "gate: clocks",
        "clocks differ, and a SIGKILL takes time",
        becomes(
            gate._longest_run_s,
            lambda _, s: (s.spec.etcd_outage_timeout_s + s.spec.lease_ttl_s) * (1 - CLOCK_ERROR) - s.policy.kill_s,
        ),
    ),
    Mutation("gate: left", "no go for a member that is gone", never(gate.gate_left)),
    Mutation("gate: all broke", "who has no old workers hurries nobody who saves", gives(gate._may_have_workers, True)),
    Mutation(
        "plan: joined",
        "who comes while others save hurries nobody",
        constant(model, "PLANNED", tuple(why for why in model.PLANNED if why is not ChangeReason.JOINED)),
    ),
    Mutation(
        "plan: broken",
        "a plan that was broken is none again when somebody comes",
        becomes(next_generation._broken, lambda _, before: before),
    ),
)

OPENING: Final = (
    Mutation(
        "opening: free",
        "a failure is judged",
        becomes(Situation.judgement, lambda _, s: restart_policy.Judgement(s.current.budget)),
    ),
    Mutation("opening: suspects", "a host whose workers keep failing is left out", never(opening.quarantined)),
    Mutation("opening: fatal", "a judgement can end the job", never(opening.exhausted)),
    Mutation("opening: pause", "failures in a row cost a pause", never(opening.backoff)),
    Mutation("opening: nowhere", "no go before it is known where workers meet", never(opening.no_master)),
)

SITUATION: Final = (
    Mutation(
        "own go", "a generation runs only with its own go", becomes(Situation.started, lambda _, s: bool(s.view.go))
    ),
    Mutation(
        "run",
        "a generation of an older run is none",
        becomes(Situation.generation, lambda _, s: s.view.generation.value if s.view.generation is not None else None),
    ),
    Mutation(
        "link patience", "who cannot be linked is taken without a link in the end", gives(Situation.next_deadline, None)
    ),
    Mutation(
        "proof", "who is proven dead is lost", becomes(Situation.member, lambda _, s, node: s.view.members.get(node))
    ),
    Mutation(
        "vouched for ever",
        "a member that is away has a limited time at the gate",
        becomes(Situation.vouched, lambda _, s, node: node in s.memory.absent_since and node in s.memory.linked),
    ),
    Mutation("never vouched", "a member that is heard is not lost at the gate", gives(Situation.vouched, False)),
    Mutation(
        "works for ever",
        "who is away for longer than the outage limit is lost",
        becomes(
            Situation.working,
            lambda _, s, node: s.member(node) is not None or node in s.memory.linked,
        ),
    ),
    Mutation(
        "works unheard",
        "who is not heard is lost",
        becomes(
            Situation.working,
            lambda _, s, node: (
                s.member(node) is not None
                or s.now < s.memory.absent_since.get(node, float("-inf")) + s.spec.etcd_outage_timeout_s
            ),
        ),
    ),
    Mutation(
        "late: lost",
        "a member without a key that answered the question before may miss one",
        constant(doubt, "RECENT_ROUNDS", -1),
    ),
    Mutation("order", "the oldest come first", becomes(Situation.ready, lambda original, s: original(s)[::-1])),
    Mutation("leavers stay", "who drains does not stay", gives(Situation.is_draining, False)),
    Mutation(
        "returns: a moment",
        "a member that was never heard has a moment to register again",
        constant(situations, "RETURN_S", 0.0),
    ),
    Mutation(
        "returns: heard once",
        "a member that was heard and is not any more has none",
        becomes(Situation.returns_until, lambda original, s, node: original(_never_heard(s), node)),
    ),
    Mutation(
        "split: back too soon",
        "nobody joins whom the leader does not reach",
        gives(Situation.out_of_reach, frozenset()),
    ),
)


NEXT_GENERATION: Final = (
    Mutation(
        "above np",
        "not more than np",
        becomes(next_generation.member_order, lambda original, s, staying: original(_with_np_high(s, 100), staying)),
    ),
    Mutation(
        "survivors first",
        "survivors keep their order",
        becomes(next_generation.member_order, lambda original, s, staying: original(s, staying[::-1])),
    ),
    Mutation(
        "before",
        "the generation before is the newest that had its go",
        becomes(
            next_generation._predecessor,
            lambda _, s, why: (
                s.generation and model.Predecessor(s.generation.g, tuple(s.nodes), why, (), why not in model.PLANNED)
            ),
        ),
    ),
    Mutation("reform: below np", "the minimum is awaited", never(reform.below_min)),
    Mutation("reform: settling", "a generation that is formed anew settles", never(reform.settling)),
    Mutation("reform: no empty world", "an empty generation tells everybody to stop", never(reform.emptied)),
)

SPLIT: Final = (
    Mutation(
        "split: the first goes",
        "of two that are apart the later one goes",
        becomes(
            partition.nodes_to_exclude,
            lambda original, nodes, unreached, lost=(): original(list(nodes)[::-1], unreached, lost),
        ),
    ),
    Mutation(
        "split: not the largest part",
        "the largest part of a generation goes on, also without the first",
        becomes(
            partition._largest_part,
            lambda original, nodes, order, ways: {
                node for node in order if node not in ways.get(next(iter(order)), ())
            },
        ),
    ),
    Mutation(
        "split: charged", "a split network is free, and leaves a machine out", never(restart_policy.network_split)
    ),
)

STOP: Final = (
    Mutation("halt: waits", "workers save before the end", never(operator_stop.stopping)),
    Mutation("halt: away", "all are asked to save at once", never(operator_stop.returning)),
    Mutation("halt: asked", "an operator can stop a job", gives(Situation.stop_order, None)),
    Mutation("halt: broken", "a loss or a failure ends the plan", gives(operator_stop._broken, False)),
)

COMPARES: Final = (
    Mutation(
        "compare: the proposer", "the leader is registered as it believes", compare_out(transactions.propose, _own_key)
    ),
    Mutation("compare: the store", "the store is the same", compare_out(transactions.propose, about(KEYS.incarnation))),
    Mutation(
        "compare: generation", "nobody else has proposed", compare_out(transactions.propose, about(*KEYS.generations))
    ),
    Mutation("compare: go", "nobody else gave the go", compare_out(transactions.propose, about(KEYS.go))),
    Mutation("compare: spec", "np is what it was", compare_out(transactions.propose, about(KEYS.spec))),
    Mutation("compare: halt", "nobody has stopped the job", compare_out(transactions.propose, about(KEYS.halt))),
    Mutation("compare: verdict", "the job has not ended", compare_out(transactions.propose, about(KEYS.verdict))),
    Mutation(
        "compare: outcomes",
        "nothing planned once somebody has recorded an outcome, and the lost have recorded nothing",
        compare_out(transactions.propose, below(KEYS.outcomes)),
    ),
    Mutation(
        "compare: lost keys",
        "who is lost, passed over or loses its tasks is not registered",
        compare_out(transactions.propose, _key_of_another),
    ),
    Mutation(
        "old outcomes",
        "outcomes of older generations are deleted",
        operation_out(transactions.propose, lambda step: isinstance(step, Delete) and below(KEYS.outcomes)(step)),
    ),
    Mutation(
        "a go left over",
        "a go of a generation that somebody deleted is taken away",
        operation_out(transactions.propose, lambda step: isinstance(step, Delete) and about(KEYS.go)(step)),
    ),
    Mutation(
        "register: verdict",
        "nobody registers once the job has ended",
        compare_out(transactions.register, about(KEYS.verdict)),
    ),
    Mutation(
        "register: newest generation",
        "a node with workers registers only if it knows the newest generation",
        compare_out(transactions.unless_superseded, about(KEYS.generation)),
    ),
    Mutation("register: own key", "nobody registers twice", compare_out(transactions.register, below(KEYS.members))),
    Mutation(
        "register: spec",
        "the spec is what this node has accepted",
        compare_out(transactions.register, about(KEYS.spec)),
    ),
    Mutation(
        "register: store",
        "the store is the one that this node has seen",
        compare_out(transactions.register, about(KEYS.incarnation)),
    ),
    Mutation(
        "say: registered", "a member speaks for its own registration", compare_out(transactions.update_member, _own_key)
    ),
    Mutation(
        "record: once",
        "the first word is not written over the last",
        compare_out(transactions.record_outcome, below(KEYS.outcomes)),
    ),
    Mutation(
        "record: store",
        "an outcome belongs to its store",
        compare_out(transactions.record_outcome, about(KEYS.incarnation)),
    ),
    Mutation(
        "leave: registered",
        "a node takes back its own registration only",
        compare_out(transactions.deregister, below(KEYS.members)),
    ),
)

ROSTERS: Final = (
    Mutation(
        "roster: completed by one",
        "only workers of every node complete the job",
        becomes(
            cluster_spec.completed,
            lambda original, s: (
                original(s) or (conclusion.completed_by(s, s.current.g) if s.ended(OutcomeKind.OK) else None)
            ),
        ),
    ),
    Mutation("roster: never completed", "workers of every node complete the job", never(cluster_spec.completed)),
    Mutation("roster: nobody left", "a roster of which nobody remains is formed anew", never(cluster_spec.reformed)),
    Mutation(
        "roster: too few",
        "a roster at the gate is formed anew when more workers are wanted",
        never(cluster_spec.gate_reformed),
    ),
    Mutation(
        "roster: nobody stays",
        "a roster that is formed anew at the gate has those who wait there, too",
        gives(cluster_spec.staying_at_gate, frozenset()),
    ),
    Mutation("roster: gate open", "the next generation waits for the old processes", never(cluster_spec.stopping)),
    Mutation("roster: vanished", "and for those that nobody can have stopped yet", never(cluster_spec.unproven)),
    Mutation(
        "roster: free at once",
        "the tasks of a lost node are kept for a lease",
        becomes(presence.tasks_free_at, lambda _, s, node: s.now),
    ),
    Mutation(
        "roster: old words",
        "what an older start said does not count",
        becomes(presence.current_outcomes, lambda _, s: dict(s.outcomes)),
    ),
    Mutation(
        "roster: stays ended",
        "whose processes failed starts again",
        becomes(RevisionBuilder._restart_place, lambda _, builder, place: builder.places.append(place)),
    ),
    Mutation("roster: late to join", "nobody joins once a worker has ended well", gives(RevisionBuilder.room, 1 << 30)),
    Mutation("roster: drain unseen", "a drain is acted on", gives(RevisionBuilder.request_departures, None)),
    Mutation(
        "roster: servers stay ended",
        "servers start again with the workers that need them",
        gives(RevisionBuilder.restart_servers, None),
    ),
)

BUDGET: Final = (
    Mutation("budget: progress", "progress makes failures fruitful", gives(Evidence.progress, False)),
    Mutation("budget: always progress", "failures without progress are counted", gives(Evidence.progress, True)),
    Mutation("budget: fatal code", "a fatal exit code ends the job", never(restart_policy.fatal_exit_code)),
    Mutation("budget: hopeless", "what no restart mends ends the job", never(restart_policy.unrecoverable)),
    Mutation(
        "budget: cannot start", "a script that cannot start ends the job", never(restart_policy.script_cannot_start)
    ),
    Mutation(
        "budget: nowhere", "a program that no host can start ends the job", never(restart_policy.no_host_can_start)
    ),
    Mutation("budget: lost", "a failure beside a loss is free", never(restart_policy.node_lost)),
    Mutation("budget: forced", "the echo of a node that had to stop is free", never(restart_policy.forced_stop)),
    Mutation("budget: stopped", "the echo of a stop is free", never(restart_policy.being_stopped)),
    Mutation("budget: infra", "a failure of the machine is free", gives(Evidence.free, False)),
    Mutation(
        "budget: infra for ever", "three in a row are free", constant(restart_policy, "MACHINE_FAULTS_MAX", 1 << 20)
    ),
    Mutation(
        "budget: asked", "a restart that was asked for after progress is free", never(restart_policy.restart_requested)
    ),
    Mutation(
        "budget: asked without progress",
        "without progress it is not",
        becomes(
            restart_policy.restart_requested,
            lambda _, e: (
                e.excused("asked")
                if e.own and all(worker.failure is FailureClass.RESTART_REQUESTED for worker in e.own)
                else None
            ),
        ),
    ),
    Mutation("budget: no limit", "the restarts are limited", never(restart_policy.exhausted)),
    Mutation(
        "budget: kept out is charged",
        "a failure for which a host was quarantined is charged once",
        never(restart_policy.already_judged),
    ),
    Mutation("budget: crash loop", "a crash loop ends the job", constant(restart_policy, "CRASH_LOOP_MAX", 1 << 20)),
    Mutation("quarantine: at once", "one failure keeps no host out", constant(quarantine, "QUARANTINE_AFTER", 1)),
    Mutation(
        "quarantine: not reached counts",
        "that others did not reach a host is no failure of its workers",
        becomes(
            quarantine._with_failure,
            lambda _, entry, words: msgspec.structs.replace(
                entry, failures=entry.failures + 1, words=words, unreachable=False
            ),
        ),
    ),
    Mutation("quarantine: never", "a broken host is kept out", constant(quarantine, "QUARANTINE_AFTER", 9)),
    Mutation("budget: no pause", "failures in a row cost a pause", constant(restart_policy, "BACKOFF_MAX_S", 0.0)),
    Mutation(
        "budget: nothing charged",
        "a failure is charged",
        becomes(Evidence.charged, lambda _, e: e.uncharged.charged),
    ),
)

AGENT: Final = (
    Mutation(
        "grant: from anybody", "only a member or the leader grants the right to run", gives(vouching._may_grant, True)
    ),
    Mutation(
        "grant: for a day",
        "no grant is longer than a lease",
        becomes(vouching.on_vouched, lambda original, agent, event: _vouched_for(agent, event)),
    ),
    Mutation(
        "inbound: strangers stay",
        "the link of a node that does not belong to the job is closed",
        gives(inbound._close, None),
    ),
    Mutation(
        "inbound: closed unread",
        "links stay while the store does not answer",
        becomes(
            inbound.on_looked_up,
            lambda original, agent, event: original(
                agent, msgspec.structs.replace(event, registered=bool(event.registered))
            ),
        ),
    ),
    Mutation(
        "inbound: late answer",
        "a node that has become known meanwhile keeps its link",
        becomes(inbound.on_looked_up, _closed_whoever_it_is),
    ),
    Mutation(
        "inbound: registered only",
        "the link of a member stays while it is not registered",
        gives(watch.recent_members, frozenset()),
    ),
    Mutation(
        "vouch: at work only",
        "whose workers have ended well gives its word until those of the others have",
        becomes(vouching.in_world, lambda _, agent: agent.phase is Phase.RUNNING),
    ),
    Mutation("vouch: nobody holds", "the leader runs on while it hears all members", gives(vouching.may_hold, False)),
    Mutation("vouch: nobody grants", "members run on by the leader's word", gives(vouching.grantable_seconds, 0.0)),
    Mutation(
        "prepared: once more",
        "a node whose nursery has a successor stays prepared",
        becomes(registration.on_prepared, lambda _, agent, event: _once(agent)),
    ),
    Mutation(
        "right: deaf",
        "a key that is not there as the watch has shown it gives no right",
        becomes(registration.on_refreshed, lambda original, agent, event: original(agent, _as_seen(agent, event))),
    ),
    Mutation(
        "right: lost with the lease",
        "a lease that ends before its time has given the right for its time",
        becomes(AgentState.drop_lease, _lease_and_right_lost),
    ),
    Mutation(
        "silent: for ever",
        "a node whose link is new is heard, whatever it has missed before",
        becomes(LinkDoubt.links_changed, lambda _, links, up: _links_changed(links, up)),
    ),
    Mutation(
        "late: long ago",
        "an answer from long before does not excuse a missed question",
        constant(doubt, "RECENT_ROUNDS", 1 << 20),
    ),
    Mutation("outcome: forced", "workers that ended well were not stopped", becomes(outcome.own_outcome, _forced)),
    Mutation(
        "split: below np",
        "where all are needed they wait until the way is open",
        becomes(exits._remaining_without, lambda *_: 1 << 20),
    ),
    Mutation(
        "split: no spare",
        "where all are needed a spare takes the place of a machine that is cut off",
        becomes(
            exits._remaining_without, lambda _, agent, generation, unreached: len(generation.members) - len(unreached)
        ),
    ),
    Mutation(
        "saves: not at all",
        "whose lease ends while its workers save has another one, and they do not wait in vain",
        gives(AgentState.saves, False),
    ),
    Mutation(
        "planned: ready again",
        "who drains and registers again drains",
        becomes(leaving.draining_member, lambda _, agent: agent.me.member),
    ),
    Mutation("halt: at once", "who waits no longer for what is saved stops it", gives(stop.is_stopped_now, False)),
    Mutation(
        "stopping: faster", "workers that save are stopped when the others have gone on", gives(stop.must_hurry, False)
    ),
    Mutation(
        "drain: said in time only",
        "who saves without the others because nobody heard of its drain tells them as soon as it can",
        becomes(leaving.may_announce, lambda original, agent: agent.phase is Phase.RUNNING and original(agent)),
    ),
    Mutation("told to leave", "an operator can tell a node to leave", gives(leaving.read_order, None)),
    Mutation("distrust", "a host whose proof was wrong is not believed again", gives(deaths.distrust_hosts, None)),
    Mutation(
        "late: no other store",
        "a listing older than what this node wrote is of another store",
        gives(store._shows_another_store, False),
    ),
    Mutation(
        "winner: not awaited", "who came second waits until it sees what came first", gives(store._awaits_winner, False)
    ),
)

LEADER: Final = (
    Mutation("leader: dead for ever", "a leader that is proven dead is replaced", gives(deaths.is_proven_dead, False)),
    Mutation("leader: never vacant", "another leads when the leader's key is gone", gives(succession.is_vacant, False)),
    Mutation("leader: anybody", "only the node with the leader's key leads", gives(AgentState.leads, True)),
    Mutation(
        "leader: of its last lease",
        "a key under the last lease is not the leader's",
        becomes(
            AgentState.leads,
            lambda _, agent: agent.view.leader is not None and agent.view.leader.value.node == agent.me.node,
        ),
    ),
    Mutation("leader: takes all", "a living leader is not replaced", gives(succession.is_vacant, True)),
    Mutation(
        "lead: compare leader",
        "nobody else has taken the lead",
        compare_out(transactions.take_lead, about(KEYS.leader)),
    ),
    Mutation("lead: compare member", "the candidate is registered", compare_out(transactions.take_lead, _own_key)),
    Mutation(
        "lead: compare store", "the store is the same", compare_out(transactions.take_lead, about(KEYS.incarnation))
    ),
    Mutation("compare: leader", "nobody else leads", compare_out(transactions.propose, about(KEYS.leader))),
    Mutation(
        "leader: leaves with its key",
        "a leader that leaves its generation gives up the lead",
        operation_out(transactions.propose, about(KEYS.leader)),
    ),
    Mutation(
        "leave: keeps the lead",
        "a leader that leaves the job gives up the lead",
        operation_out(transactions.deregister, about(KEYS.leader)),
    ),
)

SILENCE: Final = (
    Mutation(
        "silence: no confirmation",
        "a silent node is tried by others before it is evicted",
        becomes(silence.is_confirmed, lambda _, agent, node: node in agent.silence.trials),
    ),
    Mutation(
        "silence: no word of others", "a node that others reach is not evicted", becomes(silence.on_tried, _tried_alone)
    ),
    Mutation(
        "silence: no local health",
        "an agent that was held up suspects nobody for that",
        gives(SilenceDetector.notice_held_up, False),
    ),
    Mutation(
        "silence: timeout halved",
        "a node is silent after the silence timeout",
        becomes(SilenceDetector.set_timeout, lambda original, detector, seconds: original(detector, seconds / 2)),
    ),
    Mutation(
        "silence: unheard heartbeats count",
        "a heartbeat of a leader that does not hear the node does not count",
        gives(Heartbeats.counts_as_heard, True),
    ),
    Mutation("silence: no survivor", "a survivor of the generation remains", gives(eviction._survives, True)),
    Mutation(
        "silence: below np", "nobody is evicted whom the job needs in any case", gives(eviction._enough_remain, True)
    ),
    Mutation(
        "silence: many", "many that are silent at once are left to their leases", gives(silence.many_are_silent, False)
    ),
    Mutation(
        "silence: many without links",
        "a new leader counts members to which it has no link as silent",
        becomes(silence.many_are_silent, _only_silent_are_many),
    ),
    Mutation(
        "silence: heard by its new link",
        "a node whose first heartbeat does not come is unheard",
        gives(SilenceDetector.expect_beats, None),
    ),
    Mutation(
        "silence: revoked in any case",
        "a lease is revoked only after the eviction was carried out",
        becomes(eviction.on_evicted, _revoked_in_any_case),
    ),
    Mutation(
        "silence: compare registration",
        "the registration that was silent is evicted, and no later one",
        becomes(transactions.evict, _any_registration),
    ),
    Mutation("silence: compare leader", "only the leader evicts", compare_out(transactions.evict, about(KEYS.leader))),
    Mutation(
        "silence: again and again",
        "a host that was evicted is not evicted again for a while",
        constant(evictions, "SILENCE_COUNTS_AFTER_S", 0.0),
    ),
    Mutation(
        "silence: joins unheard",
        "an evicted host joins once it is heard without a break",
        gives(Situation.unsteady, frozenset()),
    ),
    Mutation(
        "silence: another on its host",
        "workers of an evicted node are gone before another node starts on its host",
        gives(Situation._may_meet_workers, False),
    ),
    Mutation(
        "silence: heard by the kernel",
        "a silent node is not heard, though its link is up",
        becomes(watch.note_heard, _heard_by_the_kernel),
    ),
    Mutation(
        "silence: counts in an outage",
        "after an outage of the store every silence begins again",
        gives(silence.on_refreshed, None),
    ),
    Mutation("silence: leader", "a silent leader is replaced", becomes(succession.is_vacant, _vacant_unless_silent)),
    Mutation(
        "silence: lead taken back",
        "only a member that has heard the leader since it leads replaces it",
        gives(silence.note_leader, None),
    ),
    Mutation(
        "silence: few answer",
        "a leader keeps the lead where many that are asked do not answer",
        gives(silence._most_answer, True),
    ),
    Mutation(
        "silence: spare is taken",
        "a silent node does not join",
        becomes(Situation.joining_nodes, _joins_though_silent),
    ),
    Mutation(
        "silence: back at once",
        "an evicted member that registers again before the next generation is lost",
        becomes(Situation.evicted_members, lambda _, s: frozenset()),
    ),
    Mutation("silence: vouched", "a node that was evicted gets no vouch", gives(vouching._is_evicted, False)),
    Mutation(
        "silence: no steps",
        "a step counts as heard from all members",
        becomes(SilenceDetector.check, _checked_without_steps),
    ),
)


ROWS: Final = tuple(Mutation(f"row {row.name}", "the row is taken out", row_out(row.name)) for row in TABLE)
ROUTINE: Final = tuple(
    Mutation(f"duty {duty.name}", "the duty is not done", duty_out(duty.name)) for duty in (*REPORTS, *DUTIES)
)

OF_ROSTERS: Final = ROSTERS
MUTATIONS: Final = (
    *ROWS, *ROUTINE, *AGENT, *LEADER, *PRECONDITIONS, *FIRST_START, *RUNNING, *PLANNED, *GATE, *OPENING, *SITUATION,
    *NEXT_GENERATION, *SPLIT, *STOP, *COMPARES, *ROSTERS, *BUDGET, *SILENCE,
)  # fmt: skip

OPEN: Final[dict[str, str]] = {
    "row running: ok": "the row for workers that are gone takes it then, and what is recorded is the same",
    "duty say why a generation failed": "it only reports to people",
    "duty report why a cluster spec was revised": "it only reports to people",
    "duty pass the revision to the workers": "the simulation's workers do not read the revision",
    "duty say why it is a spare": "it only reports to people",
    "duty adopt np": "no play begins a job without a maximum in an empty store anew with a node that named no np",
    "duty deregister": "the lease of a node that ends is revoked, and its key goes with it",
    "gate: stopped": "the others end by themselves after --save-timeout, which no guarantee of the simulation bounds",
    "a go left over": "the first generation is written with its go, which takes the place of one that is left over",
    "roster: gate open": "the tasks of a registered node are not free either, so that it is waited for all the same",
    "register: store": "its lease is not one of another store, which therefore refuses it in any case",
    "budget: nowhere": "no machine of the simulation lacks the program; unit tests have it",
    "lead: compare leader": "two nodes that lead in turn cannot both write: a proposal compares the generation, too",
    "lead: compare member": "the lease that the key hangs on is gone with the member's key, or the node is still there",
    "lead: compare store": "its lease is not one of another store, which therefore refuses it in any case",
    "compare: leader": "a proposal compares everything that it rests on; two leaders cannot both write",
    "leave: keeps the lead": "the lease of a node that leaves is revoked, and the leader's key goes with it",
    "leader: of its last lease": "the key under the last lease goes with that lease: what is left is a lease's time",
    "duty a generation runs": "a spare that times out too early breaks no guarantee here; unit tests have it",
    "duty keep up with the store": "the mirrors of the simulation list again by themselves after a while",
    "silent: for ever": "the node answers the next question, a quarter of a lease's time later",
    "halt: at once": "workers then get the time of any stop, which no guarantee of the simulation bounds",
    "winner: not awaited": "a node that tries again at once is refused again, and no guarantee counts registrations",
    "halt: away": "members that come back see the empty generation, and save then",
    "compare: the proposer": "the leader's key hangs on the same lease",
    "register: newest generation": "a watch must lose the next generation and show its go as a lease is revoked",
    "silence: counts in an outage": "a trial shows what is there; unit tests have it",
    "silence: heard by the kernel": "an evicted node is lost whether it is linked or not; another silent one when the "
    "kernel gives its link up, some seconds after its lease has ended, and no guarantee bounds that (unit tests do)",
    "silence: vouched": "the next generation, of which it is no member, is there a moment later",
    "silence: compare leader": "a leader that was replaced was evicted, and compares its own registration, too",
    "compare: halt": "the next decision follows the order, and replaces what was published",
}
"""Mutations that no seed finds, and why: the rule is kept twice, or nearly."""
