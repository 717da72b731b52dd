"""The nursery's reports about the workers: exits, hangs, nodes that cannot be reached, and their end (pure)."""

from __future__ import annotations

from collections.abc import Collection

from msgspec import Struct
from msgspec.structs import replace

from elastic.core.agent.actions import LogLine
from elastic.core.agent.state import AgentState, Phase
from elastic.core.membership.situation import Situation
from elastic.core.model import Generation, WorkerExit
from elastic.core.partition import cannot_reach, nodes_to_probe


class WorkerExited(Struct, frozen=True):
    """A worker ended. `own`: it ended on its own, before a signal of this agent reached it.

    `also`: it had raised an exception on its own before the signal, and was about to end.
    """

    g: int
    exit: WorkerExit
    own: bool
    also: bool = False


class WorkersListen(Struct, frozen=True):
    """All workers of this node in generation g accept a request to finish a step and to save before they exit."""

    g: int


class WorkersHung(Struct, frozen=True):
    """These workers hang or cannot continue; the one that is furthest behind comes first. They still run."""

    g: int
    exits: tuple[WorkerExit, ...]


class PeersUnreachable(Struct, frozen=True):
    """Workers of generation g wait, and this node cannot reach these members; () once it can again.

    `exits`: this has lasted too long, and these workers cannot continue with those nodes. They still run.
    """

    g: int
    nodes: tuple[str, ...]
    exits: tuple[WorkerExit, ...] = ()


class WorkersGone(Struct, frozen=True):
    """Every process of this node's workers of generation g is gone. `step`: their highest reported step, or -1."""

    g: int
    step: int = -1


def _is_current(agent: AgentState, g: int) -> bool:
    """Return whether workers of generation g run: later reports about older ones change nothing."""
    return g == agent.workers.g and not agent.workers.gone


def on_exit(agent: AgentState, event: WorkerExited) -> None:
    """Note the exit, unless a signal of ours caused it."""
    if _is_current(agent, event.g) and (event.own or event.also):
        (agent.workers.own_exits if event.own else agent.workers.also_exits).append(event.exit)


def on_hung(agent: AgentState, event: WorkersHung) -> None:
    """Treat workers that hang as failed."""
    if _is_current(agent, event.g):
        agent.workers.own_exits.extend(event.exits)
        agent.workers.hung = True


def on_listen(agent: AgentState, event: WorkersListen) -> None:
    """Note that a planned change costs these workers no steps, so that it need not wait."""
    if _is_current(agent, event.g):
        agent.memory = replace(agent.memory, listening=event.g)


def on_gone(agent: AgentState, event: WorkersGone) -> None:
    """Note that all workers of this node have ended."""
    if event.g == agent.workers.g:
        agent.workers.gone = True
        agent.workers.step = max(agent.workers.step, event.step)


def on_unreachable(agent: AgentState, event: PeersUnreachable) -> None:
    """Note which nodes cannot be reached while workers wait; if this lasts, count it as a failure of the workers.

    It counts only if the job can run without these nodes, and also in a planned stop, where workers wait to save
    together. The next gate decides which node is left out, once all nodes have recorded which nodes they cannot reach.
    Once the workers are stopped for a failure, the last report remains.
    """
    workers, generation, spec = agent.workers, agent.generation, agent.spec
    if not _is_current(agent, event.g) or not (agent.phase is Phase.RUNNING or agent.saves):
        return
    left = _remaining_without(agent, generation, event.nodes) if generation is not None else 0
    can = spec.host_cooldown_s > 0 and left >= spec.np.low
    if event.nodes != workers.unreached:
        workers.unreached = event.nodes
        agent.act(LogLine(cannot_reach(event.nodes, spec, can=can)))
    if event.exits and can and workers.one_world and not workers.own_exits:
        workers.own_exits.extend(event.exits)
        workers.hung = True


def _remaining_without(agent: AgentState, generation: Generation, unreached: Collection[str]) -> int:
    """The number of nodes without those that cannot be reached; only the leader knows of spares.

    A leader that reaches no other node is most likely cut off itself.
    """
    members = [member.node for member in generation.members]
    situation = Situation(agent.view, agent.spec, agent.memory, agent.policy, agent.now)
    spares = len(situation.joining_nodes) if agent.succession.decision is not None else 0
    alone = spares > 0 and set(nodes_to_probe(members, agent.me.node)) <= set(unreached)
    return len(members) - (1 if alone else len(unreached)) + spares


def are_gone(agent: AgentState) -> bool:
    """The workers of this node are gone."""
    return agent.workers.gone


def have_failed(agent: AgentState) -> bool:
    """A worker of this node ended with an exit code other than 0."""
    return any(worker.code != 0 for worker in agent.workers.own_exits)


def all_ok(agent: AgentState) -> bool:
    """All workers of this node ended with exit code 0."""
    workers = agent.workers
    return workers.gone and not have_failed(agent) and len(workers.own_exits) == workers.count
