"""What the script of this node imports, for a fork server that has it loaded before the next start.

The workers of a generation report it when their process group has formed (`ScriptImports`). A module is loaded if every
worker of the node has imported it. A moment later the fork server forks its successor; a module that the successor must
not load is left out of the next attempt. Starting workers have the node to themselves: a successor that is not ready is
ended. The list stays on this host for the next job with the same command, and a joining node gets the list of the
others: then the first fork server loads it, before the node registers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from elastic._text import size_text
from elastic.channel.messages import (
    MODULES_MAX,
    OWN_FILES_MAX,
    ScriptImport,
    ScriptImports,
    StartedAgain,
    WorkerMessage,
)
from elastic.channel.shared_memory import available_bytes
from launcher.logs.logger import AgentLog
from launcher.nursery.import_closure import valid_name
from launcher.nursery.learned import MEMORY_MAX
from launcher.nursery.preload import stamp
from launcher.nursery.protocol import ModuleToLoad, ModuleUnfit, NurseryReady, PrepareSuccessor
from launcher.nursery.warm_policy import read_early
from launcher.workers.environment import VARIABLES
from launcher.workers.learned_cache import LearnedCache
from launcher.workers.nursery_client import NurseryClient
from launcher.workers.reports.states import TrackedProcess

SHARE: Final = 0.2
"""Share of a core that preparing may take from running workers."""
SETTLE_S: Final = 2.0
"""From the moment their process group has formed, workers have the node to themselves: for their first step."""
ALL: Final = 1.0
MEMORY_NEEDED: Final = 2 * MEMORY_MAX
"""Bytes that the host must have available, otherwise nothing is prepared."""
TRIES_MAX: Final = 20
"""The largest number of modules that are left out; a script with more of them is not learned."""
START_LIMIT_S: Final = 20.0
"""How long a node that has a list loads it before it registers."""
OURS: Final = frozenset(name for row in VARIABLES for name in row.names if not read_early(name))
"""Variables that a worker may have, and a fork server has not."""


class ImportLearning:
    """Learns from the workers of one node, and has successors of its fork server made."""

    def __init__(
        self,
        nursery: Callable[[], NurseryClient],
        environ: Mapping[str, str],
        agent_log: AgentLog,
        cache: LearnedCache,
        command: Sequence[str],
    ) -> None:
        """`nursery` returns the present fork server, `environ` is what it was started with.

        `command` is what a worker runs, after its Python. Must be created within the loop.
        """
        self._nursery = nursery
        self._environ = environ
        self._agent_log = agent_log
        self._cache = cache
        self._command = tuple(command)
        self._advice: asyncio.Future[ScriptImports | None] = asyncio.get_running_loop().create_future()
        self._writing: asyncio.Task[None] | None = None
        self._soon: asyncio.TimerHandle | None = None
        """The next successor will be prepared."""
        self._workers = 0
        self._heard: dict[int, ScriptImports] = {}
        self._imports = ScriptImports(())
        """All that the script imports, as far as is known."""
        self.left_out: dict[str, str] = {}
        """Modules that are only loaded when a script imports them, and why."""
        self._changed: set[str] = set()
        """Variables that the script has changed in one run and not in another."""
        self.proven: ScriptImports | None = None
        """What a fork server has loaded and was fit to fork afterwards."""
        self._said = ""

    @property
    def words(self) -> str:
        """The preloaded modules of the script, and those that were left out, with the reason of each."""
        left_out = [f"{name} ({why})" for name, why in self.left_out.items()]
        parts = (", ".join(self._nursery().loaded), f"left out: {', '.join(left_out)}" if left_out else "")
        return "; ".join(filter(None, parts))

    # Before the node registers.

    def advised(self, imports: ScriptImports | None) -> None:
        """Note what other nodes of the job have loaded; None if no node has said so."""
        if not self._advice.done():
            self._advice.set_result(imports)

    async def load_known(self) -> None:
        """Load what is known of the script from an earlier job or from other nodes, if anything is."""
        loaded: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(START_LIMIT_S):
                within: tuple[str, ...] = ()
                if (learned := await self._cache.read()) is not None:
                    self._imports = learned.imports
                    self.left_out = {unfit.name: unfit.why for unfit in learned.unfit}
                elif (advice := await self._advice) is not None:
                    names = tuple(module for module in advice.modules if valid_name(module.name))
                    self._imports, within = ScriptImports(names, advice.changed), self._command
                else:
                    return
                self._prepare(OURS.difference(self._environ), ALL, within, loaded)
                await loaded
            if within:
                self.left_out = {}  # This node finds out on its own, from its own script.
        except TimeoutError:
            self._nursery().drop_successor()
            self._agent_log.debug(f"the script's imports were not loaded within {START_LIMIT_S:g} s: left to it")

    # While workers run.

    def begin(self, workers: int) -> None:
        """Start a new generation with this number of workers. They report again what a successor should have loaded."""
        self._workers, self._heard = workers, {}
        self._nursery().drop_successor()
        if self._soon is not None:
            self._soon.cancel()

    def on_message(self, heard: TrackedProcess, message: WorkerMessage) -> None:
        """Take a message of a worker."""
        match message:
            case ScriptImports():
                self._heard[heard.spec.local_rank] = message
                if len(self._heard) == self._workers:
                    env = heard.spec.env
                    differing = {name for name in env if self._environ.get(name) != env[name]}
                    held = {*self._nursery().loaded, *self.left_out}
                    self._imports = merged(self._imports, held, common(tuple(self._heard.values())))
                    self._soon = asyncio.get_running_loop().call_later(SETTLE_S, self._prepare, differing, SHARE)
            case StartedAgain(variable):
                self._changed.add(variable)
                self._nursery().forget_loaded()
                self._agent_log.info(
                    f"the script now sets {variable}, but a preloaded module has already read it: rank "
                    f"{heard.spec.rank} starts again without preloading, and its imports are learned again"
                )

    def _prepare(
        self,
        differing: Collection[str],
        share: float,
        within: Sequence[str] = (),
        done: asyncio.Future[None] | None = None,
    ) -> None:
        """Have a successor load what is not loaded yet, without modules that are unfit; then `done` is set."""
        imports, nursery = self._imports, self._nursery()
        modules = [
            module
            for module in imports.modules
            if module.name not in self.left_out and module.name not in nursery.loaded
        ]
        why = self._why_not(modules)
        if why:
            self._tell(why)

        def ready(report: NurseryReady) -> None:
            if not report.loaded:  # The script of this node imports none of the recommended modules.
                nursery.drop_successor()
                end()
                return
            loaded = {*nursery.loaded, *report.loaded}
            fit = tuple(module for module in imports.modules if module.name in loaded)
            self.proven = ScriptImports(fit, imports.changed)
            also = "".join(f"; {name} is not: it {why}" for name, why in self.left_out.items())
            self._agent_log.info(
                f"the next workers start with the script's imports preloaded: {', '.join(report.loaded)}{also}"
            )
            end()

        def unfit(module: ModuleUnfit) -> None:
            self._agent_log.debug(f"{module.name or 'a module'} is not preloaded: it {module.why}")
            if module.name:
                self.left_out[module.name] = module.why
                self._prepare(differing, share, within, done)
            else:
                end()

        def end() -> None:
            if not within and imports.own:
                self._writing = asyncio.create_task(self._cache.write(imports, self.left_out))
            if done is not None and not done.done():
                done.set_result(None)

        order = PrepareSuccessor(
            tuple(ModuleToLoad(module.name, module.file, module.changed) for module in modules),
            tuple(sorted({*differing, *self._changed})),
            tuple(name for name in imports.changed if name not in self._changed),
            tuple(own.name for own in imports.own),
            share,
            tuple(within),
        )
        if why or not nursery.prepare(order, [stamp(own.file) for own in imports.own], ready, unfit):
            end()
            return
        names = ", ".join(module.name for module in modules)
        self._agent_log.debug(f"preparing a fork server with the script's imports: {names}")

    def _why_not(self, modules: Sequence[ScriptImport]) -> str:
        """Return why no successor is made, "" if one is."""
        if not modules:
            return "the script imports nothing that the fork server has not loaded"
        if len(self.left_out) > TRIES_MAX:
            return "too many modules of the script must not be preloaded: no further ones are"
        if (available := available_bytes()) < MEMORY_NEEDED:
            return (
                f"no fork server with the script's imports is prepared: it needs {size_text(MEMORY_NEEDED)} of "
                f"memory, and {size_text(available)} is available"
            )
        return ""

    def _tell(self, text: str) -> None:
        """Log it, unless the last message was the same."""
        if text != self._said:
            self._said = text
            self._agent_log.debug(text)


def common(heard: Sequence[ScriptImports]) -> ScriptImports:
    """Return what all of these have imported, in the order of the first, with everything that any has changed."""
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
        ),
        tuple(sorted({name for imports in heard for name in imports.changed})),
        tuple({module.name: module for imports in heard for module in imports.own}.values())[:OWN_FILES_MAX],
    )


def merged(before: ScriptImports, kept: Collection[str], new: ScriptImports) -> ScriptImports:
    """Return all that a script imports: `new`, and the modules of `before` that are `kept`, so not reported again."""
    modules = {module.name: module for module in before.modules if module.name in kept}
    modules |= {module.name: module for module in new.modules}
    return ScriptImports(tuple(modules.values())[:MODULES_MAX], new.changed, new.own)
