"""The content of the status block, as values and text (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from elastic._text import counted
from elastic.core.agent.state import AgentState, Phase
from elastic.core.model import NP_UNLIMITED, Generation
from elastic.core.text import NAMED_MAX
from launcher.workers.reports.progress_text import metric_words, rate_words, step_words
from launcher.workers.reports.states import TrackedProcess


@dataclass(frozen=True, slots=True)
class BlockContent:
    """The content of the block: the job, its nodes, its state, and the training progress (None: not reported)."""

    job: str
    world: str
    state: str
    step: str = ""
    done: float | None = None
    rest: str = ""


def block_content(facts: AgentState, workers: Mapping[int, TrackedProcess], *, said: str) -> BlockContent:
    """Return the status of a job as one node sees it, with the steps of its first worker.

    `workers` are by local rank. `said` is the node's last message about what it waits for.
    """
    generation, spec = facts.generation, facts.view.spec
    parts = []
    if generation is not None:
        count = len(generation.members)
        np = spec.value.np.high if spec is not None else count
        parts.append(f"generation {generation.g}")
        nodes = counted(count, "node") if np == NP_UNLIMITED else f"{count} of {counted(np, 'node')}"
        parts.append(nodes + _others(facts, generation))
        parts.append(f"world {generation.world_size}")
        if spec is not None and generation.budget.charged:
            parts.append(f"{generation.budget.charged} of {spec.value.restarts_max} restarts")
    state = _state(facts, generation, said)
    pace = workers[min(workers)].report.steps if workers and facts.phase is Phase.RUNNING else None
    if pace is None or pace.step is None:
        return BlockContent(facts.keys.job_id, " · ".join(parts), state)
    step, total, rate = pace.step, pace.total, pace.rate
    done = step / total if total >= step and total else None
    rest = [rate_words(rate), _left(total - step, rate) if total else "", *metric_words(pace.metrics)]
    world, rest_words = " · ".join(parts), " · ".join(filter(None, rest))
    return BlockContent(facts.keys.job_id, world, state, step_words(step, total), done, rest_words)


def _others(facts: AgentState, generation: Generation) -> str:
    """Return the spare nodes; only the leader knows all registered nodes."""
    spares = facts.view.members.keys() - {place.node for place in generation.members}
    spares -= {facts.me.node} if facts.phase is not Phase.SPARE else set()
    names = sorted(spares)[:NAMED_MAX]
    return f" (spare: {', '.join(names)})" if names else ""


def _state(facts: AgentState, generation: Generation | None, said: str) -> str:
    match facts.phase:
        case Phase.RUNNING if generation is not None:
            return f"training: {generation.reason}" if generation.g > 1 else "training"
        case Phase.STOPPING:
            return "stopping the workers" + (f": {generation.reason}" if generation is not None else "")
        case Phase.GATED if generation is not None:
            return f"starting: {generation.reason}"
        case Phase.LEAVING | Phase.ENDED:
            return "leaving"
        case Phase.DONE:
            return said or "this node's workers are done; waiting for the others"
    if not facts.registration.prepared:
        return "importing torch for workers"
    return said or facts.phase.value


def _left(steps: int, rate: float | None) -> str:
    """Format the remaining time: "3:21 left"."""
    if not rate or steps <= 0:
        return ""
    seconds = int(steps / rate)
    hours, minutes = seconds // 3600, seconds // 60 % 60
    clock = f"{hours}:{minutes:02}:{seconds % 60:02}" if hours else f"{minutes}:{seconds % 60:02}"
    return f"{clock} left"
