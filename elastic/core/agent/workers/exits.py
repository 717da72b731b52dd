"""What the nursery tells of the workers: exits, hangs, nodes that they do not reach, and their end (pure)."""

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
    """A worker ended. `own`: by itself, before a signal of ours reached it.

    `also`: it had raised an exception by itself before it was signalled, and was about to end.
    """

    g: int
    exit: WorkerExit
    own: bool
    also: bool = False


class WorkersListen(Struct, frozen=True):
    """This node's workers of generation g can all be asked to finish a step and to save before they leave."""

    g: int


class WorkersHung(Struct, frozen=True):
    """These workers hang or cannot continue, the one that is furthest behind first. Nothing was done to them yet."""

    g: int
    exits: tuple[WorkerExit, ...]


class PeersUnreachable(Struct, frozen=True):
    """Workers of generation g wait, and these other nodes of it are not reached from here; () once they are again.

    `exits`: it has lasted too long, and these workers cannot go on with those nodes. Nothing was done to them yet.
    """

    g: int
    nodes: tuple[str, ...]
    exits: tuple[WorkerExit, ...] = ()


class WorkersGone(Struct, frozen=True):
    """Every process of this node's workers of generation g is gone. `step`: the highest that one reported, or -1."""

    g: int
    step: int = -1


def _is_current(agent: AgentState, g: int) -> bool:
    """Tell whether workers of generation g run: what comes later about older ones changes nothing."""
    return g == agent.workers.g and not agent.workers.gone


def on_exit(agent: AgentState, event: WorkerExited) -> None:
    """Note the exit, unless a signal of ours caused it."""
    if _is_current(agent, event.g) and (event.own or event.also):
        (agent.workers.own_exits if event.own else agent.workers.also_exits).append(event.exit)


def on_hung(agent: AgentState, event: WorkersHung) -> None:
    """Workers that hang have failed."""
    if _is_current(agent, event.g):
        agent.workers.own_exits.extend(event.exits)
        agent.workers.hung = True


def on_listen(agent: AgentState, event: WorkersListen) -> None:
    """A planned change costs these workers no step, so that it need not wait."""
    if _is_current(agent, event.g):
        agent.memory = replace(agent.memory, listening=event.g)


def on_gone(agent: AgentState, event: WorkersGone) -> None:
    """No worker of this node runs any more."""
    if event.g == agent.workers.g:
        agent.workers.gone = True
        agent.workers.step = max(agent.workers.step, event.step)


def on_unreachable(agent: AgentState, event: PeersUnreachable) -> None:
    """Workers wait, and other machines are not reached. If that has lasted, and the job can do without, it counts.

    So it is also in a planned stop, where they wait to save together. Which node is left out is judged at the next
    gate, once all have said which nodes they reach. Once they are stopped for a failure or a loss, the last word holds.
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
    """How many nodes the job would have without those that are not reached; spares only the leader sees.

    A leader that reaches no other node is most likely itself the one that is cut off.
    """
    members = [member.node for member in generation.members]
    situation = Situation(agent.view, agent.spec, agent.memory, agent.policy, agent.now)
    spares = len(situation.joining_nodes) if agent.succession.decision is not None else 0
    alone = spares > 0 and set(nodes_to_probe(members, agent.me.node)) <= set(unreached)
    return len(members) - (1 if alone else len(unreached)) + spares


def are_gone(agent: AgentState) -> bool:
    """Its workers are gone."""
    return agent.workers.gone


def have_failed(agent: AgentState) -> bool:
    """One of its workers did not end well."""
    return any(worker.code != 0 for worker in agent.workers.own_exits)


def all_ok(agent: AgentState) -> bool:
    """All of its workers ended well."""
    workers = agent.workers
    return workers.gone and not have_failed(agent) and len(workers.own_exits) == workers.count
