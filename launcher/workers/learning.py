"""What the scripts of this node import, for a fork server that has it loaded before their next start.

The workers of a generation tell it when their process group stands (`ScriptImports`). A module is loaded if every
worker of the node has imported it. The nursery is told to make its successor; a module that this one must not load is
left out of the next try.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from elastic._text import size_text
from elastic.channel.messages import MODULES_MAX, ScriptImport, ScriptImports, StartedAgain, WorkerMessage
from elastic.channel.shared_memory import available_bytes
from launcher.logs.logger import AgentLog
from launcher.nursery.learned import MEMORY_MAX
from launcher.nursery.preload import stamp
from launcher.nursery.protocol import ModuleToLoad, ModuleUnfit, NurseryReady, PrepareSuccessor
from launcher.workers.nursery_client import NurseryClient
from launcher.workers.reports.states import TrackedProcess

SHARE: Final = 0.2
"""Of a core: what preparing takes from workers that run."""
MEMORY_NEEDED: Final = 2 * MEMORY_MAX
"""Bytes that the machine must have available, or nothing is prepared."""
TRIES_MAX: Final = 20
"""Modules that are left out; a script with more of them is not learned."""


class ImportLearning:
    """Learns from the workers of one node, and has successors of its nursery made."""

    def __init__(self, nursery: Callable[[], NurseryClient], environ: Mapping[str, str], agent_log: AgentLog) -> None:
        """`nursery` is the present one; `environ` is what nurseries are started with."""
        self._nursery = nursery
        self._environ = environ
        self._agent_log = agent_log
        self._workers = 0
        self._heard: dict[int, ScriptImports] = {}
        self.left_out: dict[str, str] = {}
        """Modules that are not to be loaded before a script asks for them, and why."""
        self._changed: set[str] = set()
        """Variables that a script has changed in one run and not in another."""
        self._known: ScriptImports | None = None
        self._said = ""

    def begin(self, workers: int) -> None:
        """So many workers of a new generation start."""
        self._workers, self._heard = workers, {}

    def on_message(self, heard: TrackedProcess, message: WorkerMessage) -> None:
        """Hear a worker."""
        match message:
            case ScriptImports():
                self._heard[heard.spec.local_rank] = message
                if len(self._heard) == self._workers:
                    self._learn(common(tuple(self._heard.values())), heard.spec.env)
            case StartedAgain(variable):
                self._changed.add(variable)
                self._nursery().forget_loaded()
                self._agent_log.info(
                    f"the script sets {variable} this time, which a module that was loaded before it has read: "
                    f"rank {heard.spec.rank} begins anew, and its imports are learned again"
                )

    def _learn(self, imports: ScriptImports, env: Mapping[str, str]) -> None:
        """Have a successor made that has these, too, unless none is to be loaded."""
        modules = [one for one in imports.modules if one.name not in self.left_out]
        if not modules:
            self._agent_log.debug("the script imports nothing that the fork server has not loaded")
            return
        if len(self.left_out) > TRIES_MAX:
            self._tell("too many modules of the script must not be loaded before it; no more is prepared")
            return
        if (available := available_bytes()) < MEMORY_NEEDED:
            self._tell(
                f"no fork server with what the script imports is prepared: {size_text(available)} of memory are "
                f"available, and {size_text(MEMORY_NEEDED)} are needed"
            )
            return

        def ready(report: NurseryReady) -> None:
            also = "".join(f"; {name} is not: it {why}" for name, why in self.left_out.items())
            self._agent_log.info(
                f"the next workers start with what the script imports already loaded: {', '.join(report.loaded)}{also}"
            )

        def ended(unfit: ModuleUnfit) -> None:
            self._agent_log.debug(f"{unfit.name or 'a module'} is not loaded before the script: it {unfit.why}")
            if unfit.name:
                self.left_out[unfit.name] = unfit.why
                self._learn(imports, env)

        differing = [name for name in env if self._environ.get(name) != env[name]]
        order = PrepareSuccessor(
            tuple(ModuleToLoad(one.name, one.file, one.changed) for one in modules),
            (*differing, *self._changed),
            tuple(name for name in imports.changed if name not in self._changed),
            tuple(one.name for one in imports.own),
            SHARE,
        )
        if self._nursery().prepare(order, [stamp(one.file) for one in imports.own], ready, ended):
            names = ", ".join(one.name for one in modules)
            self._agent_log.debug(f"a fork server with what the script imports is being prepared: {names}")

    def _tell(self, text: str) -> None:
        """Say it once."""
        if text != self._said:
            self._said = text
            self._agent_log.info(text)


def common(heard: Sequence[ScriptImports]) -> ScriptImports:
    """What all of these have imported, in the order of the first; with everything that one of them has changed."""
    changed: dict[str, set[str]] = {}
    for imports in heard:
        for module in imports.modules:
            changed.setdefault(module.name, set()).update(module.changed)
    names = set(changed).intersection(*({module.name for module in imports.modules} for imports in heard))
    return ScriptImports(
        tuple(
            ScriptImport(module.name, module.file, tuple(sorted(changed[module.name])))
            for module in heard[0].modules
            if module.name in names
        )[:MODULES_MAX],
        tuple(sorted({name for imports in heard for name in imports.changed})),
        tuple({module.name: module for imports in heard for module in imports.own}.values()),
    )
