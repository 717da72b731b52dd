"""A nursery forks its successor, which loads what a script has imported and takes the node over when nothing runs."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from elastic.channel.messages import ScriptImport, ScriptImports
from launcher.logs.console import Console
from launcher.logs.logger import AgentLog
from launcher.nursery.learned import MEMORY_MAX
from launcher.nursery.preload import stamp
from launcher.nursery.protocol import (
    ChildExited,
    ChildrenForked,
    GenerationExpired,
    ModuleToLoad,
    NurseryReady,
)
from launcher.nursery.warm_policy import PreloadConfig
from launcher.system import node_lock
from launcher.system.clock import boottime
from launcher.system.processes import adopt_orphans, descendants
from launcher.workers import learning, nursery_successor
from launcher.workers.learned_cache import LearnedCache
from launcher.workers.nursery_client import NurseryDied
from tests.support.nursery_harness import LIMIT_S, Nest, nest, watch_end
from tests.support.stub_torch import bare
from tests.support.succession_harness import PROGRAMS_STARTED, STARTS, WAITS, InstalledModules, SuccessorNews
from tests.support.worker_messages import tracked

pytestmark = pytest.mark.timeout(120)

WARM = PreloadConfig("", (), None, ())
SEES = "import sys; print('wave' in sys.modules, flush=True)"
WAVE = ModuleToLoad("wave", str(getattr(importlib.util.find_spec("wave"), "origin", "")), ())
CRASHED = "ends the process that imports it"
KILL_S = 1.0
SUCCESSIONS = 5


@pytest.fixture
def warm(tmp_path: Path) -> PreloadConfig:
    """What a nursery loads, with a torch that takes no seconds. Its successor is left to this process."""
    adopt_orphans()
    return PreloadConfig("", (), str(bare(tmp_path)), ())


async def runs(it: Nest, g: int, code: str, *, for_s: float = 60) -> str:
    """One worker from its start to its end: the last line that it wrote."""
    it.run_for(for_s)
    it.log().unlink(missing_ok=True)
    it.workers.spawn(g, [it.program(sys.executable, "-c", code, env=dict(os.environ))])
    assert isinstance(event := await it.next(), ChildrenForked)
    assert event.cold == ("",)
    assert isinstance(await it.next(), ChildExited)
    await it.gone()
    return it.log().read_text().splitlines()[-2]


async def begins(it: Nest, g: int) -> int:
    """A worker that runs until it is killed."""
    it.workers.spawn(g, [it.spec(WAITS)])
    (pid,) = await it.spawned()
    return pid


async def ends(it: Nest) -> None:
    """Kill the worker, and see it end."""
    it.workers.kill()
    assert (await it.exited()).stopped
    await it.gone()


async def takes_over(it: Nest) -> None:
    """The successor takes over while nothing runs."""
    async with asyncio.timeout(LIMIT_S):
        while not isinstance(await it.events.get(), NurseryReady):
            pass


def open_files(pid: int) -> int:
    """How many descriptors a process has."""
    return len(os.listdir(f"/proc/{pid}/fd"))


async def succeeds(it: Nest, *modules: ModuleToLoad) -> None:
    """A successor is made with these modules, and takes over."""
    SuccessorNews().prepare(it.workers, *modules)
    await takes_over(it)


def test_workers_find_what_the_successor_has_loaded_and_the_old_nursery_ends(tmp_path: Path) -> None:
    async def story() -> None:
        adopt_orphans()
        lock = tmp_path / "lock"
        async with nest(tmp_path, recipe=WARM, lock=lock) as it:
            old = it.workers.pid
            assert old is not None
            assert await runs(it, 1, SEES) == "False"
            has_ended = watch_end(old)
            SuccessorNews().prepare(it.workers, WAVE)
            await takes_over(it)
            new = it.workers.pid
            assert new not in (None, old)
            assert await asyncio.to_thread(has_ended, LIMIT_S)
            assert lock.exists()
            assert not node_lock.proven_dead(lock), "the successor holds it"
            for g in (2, 3):
                assert await runs(it, g, SEES) == "True"
            has_ended = watch_end(new or 0)
        assert await asyncio.to_thread(has_ended, LIMIT_S)
        assert not lock.exists()

    asyncio.run(story())


def test_a_successor_waits_until_the_workers_of_the_old_nursery_are_gone(tmp_path: Path, warm: PreloadConfig) -> None:
    async def story() -> None:
        async with nest(tmp_path, recipe=warm) as it:
            old = it.workers.pid
            await begins(it, 1)
            (news := SuccessorNews()).prepare(it.workers, WAVE)
            await news.ready()
            assert it.workers.pid == old
            await ends(it)
            assert it.workers.pid != old
            assert await runs(it, 2, SEES) == "True"

    asyncio.run(story())


def test_a_successor_that_must_not_have_loaded_a_module_says_so_and_another_one_can_be_made(
    tmp_path: Path, warm: PreloadConfig
) -> None:
    async def story() -> None:
        async with nest(tmp_path, recipe=warm) as it:
            news = SuccessorNews()
            news.prepare(it.workers, WAVE._replace(file="/another/wave.py"))
            name, why = await news.ended()
            assert name == "wave"
            assert "/another/wave.py" in why
            await succeeds(it, WAVE)
            assert await runs(it, 1, SEES) == "True"

    asyncio.run(story())


def test_a_nursery_that_is_made_anew_drops_its_successor_and_is_warm(
    tmp_path: Path, warm: PreloadConfig, modules: InstalledModules
) -> None:
    async def story() -> None:
        modules.add("watched")
        async with nest(tmp_path, recipe=warm._replace(preload=("watched",))) as it:
            held = modules.hold("held")
            SuccessorNews().prepare(it.workers, held.module)
            successor_ended, old = watch_end(await held.began()), it.workers.pid
            modules.add("watched", "changed = True")
            assert await runs(it, 1, "import watched; print(watched.changed)") == "True"
            assert it.cold == ""
            assert it.workers.pid == old
            assert successor_ended(LIMIT_S)
            await succeeds(it, WAVE)
            assert await runs(it, 2, SEES) == "True"

    asyncio.run(story())


def test_five_successions_leave_no_process_and_no_descriptor(
    tmp_path: Path, warm: PreloadConfig, modules: InstalledModules
) -> None:
    names = [f"module{number}" for number in range(SUCCESSIONS)]
    found = f"import sys; print(all(name in sys.modules for name in {names}))"

    async def story() -> None:
        others = {child.pid for child in descendants(os.getpid())}  # Stores of other tests, perhaps.
        async with nest(tmp_path, recipe=warm) as it:
            assert it.workers.pid is not None
            before = open_files(os.getpid()), open_files(it.workers.pid)
            for g, name in enumerate(names):
                assert await runs(it, g, found) == "False"
                old_ended = watch_end(it.workers.pid)
                await succeeds(it, modules.add(name))
                assert await asyncio.to_thread(old_ended, LIMIT_S)
                del old_ended
            assert await runs(it, SUCCESSIONS, found) == "True"
            assert (open_files(os.getpid()), open_files(it.workers.pid)) == before
            assert {child.pid for child in descendants(os.getpid())} - others == {it.workers.pid}

    asyncio.run(story())


def test_workers_of_a_successor_have_the_variables_that_modules_of_the_user_have_set(
    tmp_path: Path, warm: PreloadConfig, modules: InstalledModules
) -> None:
    async def story() -> None:
        modules.add("first", "import os; os.environ['FIRST'] = '1'")
        second = modules.add("second", "import os; os.environ['SECOND'] = '2'")
        async with nest(tmp_path, recipe=warm._replace(preload=("first",))) as it:
            await succeeds(it, second)
            await succeeds(it, WAVE)
            assert await runs(it, 1, "import os; print(os.environ['FIRST'], os.environ['SECOND'])") == "1 2"

    asyncio.run(story())


def test_a_cold_nursery_prepares_nothing(tmp_path: Path) -> None:
    async def story() -> None:
        async with nest(tmp_path) as it:
            assert not SuccessorNews().order(it.workers, WAVE)
            assert not it.workers.preparing

    asyncio.run(story())


def test_one_successor_is_prepared_at_a_time(tmp_path: Path, warm: PreloadConfig, modules: InstalledModules) -> None:
    async def story() -> None:
        async with nest(tmp_path, recipe=warm) as it:
            (news := SuccessorNews()).prepare(it.workers, modules.hold("held").module)
            assert not SuccessorNews().order(it.workers, WAVE)
            assert it.workers.preparing
            it.workers.forget_loaded()
            assert not it.workers.preparing
            news.prepare(it.workers, WAVE)
            assert (await news.ready()).loaded == ("wave",)

    asyncio.run(story())


class TestWhatWasLoadedIsForgotten:
    def test_when_the_agent_says_so(self, tmp_path: Path, warm: PreloadConfig) -> None:
        async def story() -> None:
            async with nest(tmp_path, recipe=warm) as it:
                await succeeds(it, WAVE)
                assert it.workers.loaded == ("wave",)
                assert await runs(it, 1, SEES) == "True"
                it.workers.forget_loaded()
                assert await runs(it, 2, SEES) == "False"
                assert not it.workers.loaded
                assert it.workers.warm
                await succeeds(it, WAVE)
                assert await runs(it, 3, SEES) == "True"

        asyncio.run(story())

    @pytest.mark.parametrize("change", [lambda path: path.write_text("import math"), Path.unlink])
    def test_when_a_file_of_the_user_has_changed(
        self, tmp_path: Path, warm: PreloadConfig, change: Callable[[Path], object]
    ) -> None:
        script = tmp_path / "train.py"
        script.write_text("import wave")

        async def story() -> None:
            async with nest(tmp_path, recipe=warm) as it:
                SuccessorNews().prepare(it.workers, WAVE, stamps=[stamp(str(script))])
                await takes_over(it)
                assert await runs(it, 1, SEES) == "True"
                change(script)
                for g in (2, 3):
                    assert await runs(it, g, SEES) == "False"
                assert it.workers.loaded == ()

        asyncio.run(story())


def test_workers_that_start_have_the_node_for_themselves(
    tmp_path: Path, warm: PreloadConfig, modules: InstalledModules, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learning, "SETTLE_S", 0.0)

    async def story() -> None:
        async with nest(tmp_path, recipe=warm) as it:
            held, cache = modules.hold("held"), LearnedCache(None, "", print)
            learns = learning.ImportLearning(lambda: it.workers, os.environ, AgentLog("n", Console(2)), cache, ())
            imports = ScriptImports((ScriptImport(held.module.name, held.module.file),))
            learns.begin(1)
            learns.on_message(tracked(0), imports)
            successor_ended = watch_end(await held.began())
            learns.begin(1)
            assert await asyncio.to_thread(successor_ended, LIMIT_S)
            learns.on_message(tracked(0), imports)
            learns.begin(1)  # Before another one was forked.
            for _ in range(3):  # Turns of the loop.
                await asyncio.sleep(0)
            assert not it.workers.preparing
            learns.on_message(tracked(0), imports)
            await held.began()
            held.go_on()
            await takes_over(it)
            assert it.workers.loaded == ("held",)

    asyncio.run(story())


class TestTheSuccessorEnds:
    @pytest.mark.parametrize("text", ["import os; os.abort()", "import os; os._exit(0)", "import os; os.kill(0, 9)"])
    def test_as_a_module_wants_which_is_named(
        self, tmp_path: Path, warm: PreloadConfig, modules: InstalledModules, text: str
    ) -> None:
        async def story() -> None:
            async with nest(tmp_path, recipe=warm) as it:
                news, nursery = SuccessorNews(), it.workers.pid
                news.prepare(it.workers, WAVE, modules.add("crashes", text))
                assert await news.ended() == ("crashes", CRASHED)
                assert it.workers.pid == nursery
                await succeeds(it, WAVE)
                assert await runs(it, 1, SEES) == "True"

        asyncio.run(story())

    def test_in_silence_if_it_is_dropped_before_it_has_said_anything(
        self, tmp_path: Path, warm: PreloadConfig, modules: InstalledModules, capfd: pytest.CaptureFixture[str]
    ) -> None:
        async def story() -> None:
            async with nest(tmp_path, recipe=warm) as it:
                SuccessorNews().prepare(it.workers, WAVE)
                await it.workers.close()

        asyncio.run(story())
        assert capfd.readouterr().err == ""

    @pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
    @pytest.mark.parametrize("busy", [False, True])
    def test_while_it_imports_and_nothing_else_is_touched(
        self, tmp_path: Path, warm: PreloadConfig, modules: InstalledModules, busy: bool, number: signal.Signals
    ) -> None:
        async def story() -> None:
            async with nest(tmp_path, recipe=warm) as it:
                nursery, worker_ended = it.workers.pid, watch_end(await begins(it, 1)) if busy else None
                held, news = modules.hold("held"), SuccessorNews()
                news.prepare(it.workers, held.module)
                os.kill(await held.began(), number)
                assert await news.ended() == ("held", CRASHED)
                if worker_ended is not None:
                    assert not worker_ended(0)
                    await ends(it)
                assert it.workers.pid == nursery
                await succeeds(it, WAVE)
                assert await runs(it, 2, SEES) == "True"

        asyncio.run(story())

    def test_when_it_is_ready_and_the_old_nursery_starts_the_next_workers(
        self, tmp_path: Path, warm: PreloadConfig, modules: InstalledModules
    ) -> None:
        async def story() -> None:
            async with nest(tmp_path, recipe=warm) as it:
                await begins(it, 1)
                nursery, held, news = it.workers.pid, modules.hold("held"), SuccessorNews()
                news.prepare(it.workers, held.module)
                successor = await held.began()
                held.go_on()
                await news.ready()
                os.kill(successor, signal.SIGKILL)
                assert await news.ended() == ("", CRASHED)
                await ends(it)
                assert it.workers.pid == nursery
                assert await runs(it, 2, SEES) == "False"

        asyncio.run(story())

    def test_after_the_hand_over_as_any_nursery(self, tmp_path: Path, warm: PreloadConfig) -> None:
        async def story() -> None:
            async with nest(tmp_path, recipe=warm, lock=tmp_path / "lock") as it:
                old_ended = watch_end(it.workers.pid or 0)
                await succeeds(it, WAVE)
                worker_ended = watch_end(await begins(it, 1))
                os.kill(it.workers.pid or 0, signal.SIGKILL)
                assert isinstance(await it.next(), NurseryDied)
                assert worker_ended(LIMIT_S)
                assert old_ended(LIMIT_S)
                assert node_lock.proven_dead(tmp_path / "lock")

        asyncio.run(story())

    def test_if_an_import_never_ends(
        self, tmp_path: Path, warm: PreloadConfig, modules: InstalledModules, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(nursery_successor, "LOAD_LIMIT_S", 0.5)

        async def story() -> None:
            async with nest(tmp_path, recipe=warm) as it:
                held, news = modules.hold("held"), SuccessorNews()
                news.prepare(it.workers, held.module)
                successor_ended = watch_end(await held.began())
                assert await news.ended() == ("held", "takes longer than 0.5 s")
                assert await asyncio.to_thread(successor_ended, LIMIT_S)
                await succeeds(it, WAVE)
                assert await runs(it, 1, SEES) == "True"

        asyncio.run(story())


class TestWhatImportsStart:
    def test_a_program_that_an_import_waits_for_lives_on_as_workers_end(
        self, tmp_path: Path, warm: PreloadConfig, modules: InstalledModules
    ) -> None:
        async def story() -> None:
            async with nest(tmp_path, recipe=warm) as it:
                await begins(it, 1)
                go_on, code = tmp_path / "go_on", tmp_path / "code"
                os.mkfifo(go_on)
                runs_it = f"program = __import__('subprocess').Popen(['cat', {str(go_on)!r}])\n"
                waits = f"open({str(code)!r}, 'w').write(str(program.wait()))\n"
                held = modules.hold("held", before=runs_it, after=waits)
                SuccessorNews().prepare(it.workers, held.module)
                await held.began()
                await ends(it)
                go_on.open("w").close()
                held.go_on()
                await takes_over(it)
                assert code.read_text() == "0"

        asyncio.run(story())

    def test_it_ends_with_the_successor(self, tmp_path: Path, warm: PreloadConfig, modules: InstalledModules) -> None:
        async def story() -> None:
            async with nest(tmp_path, recipe=warm) as it:
                held, news = modules.hold("held", before=STARTS), SuccessorNews()
                news.prepare(it.workers, held.module)
                successor = await held.began()
                programs = descendants(successor)
                assert len(programs) == PROGRAMS_STARTED
                program_ended = {one.session == successor: watch_end(one.pid) for one in programs}
                os.kill(successor, signal.SIGKILL)
                await news.ended()
                assert await asyncio.to_thread(program_ended[True], LIMIT_S)
                await runs(it, 1, SEES)
                assert await asyncio.to_thread(program_ended[False], LIMIT_S), "with the next workers"

        asyncio.run(story())

    def test_it_ends_with_a_module_that_must_not_be_loaded(
        self, tmp_path: Path, warm: PreloadConfig, modules: InstalledModules
    ) -> None:
        async def story() -> None:
            async with nest(tmp_path, recipe=warm) as it:
                held, news = modules.hold("held", before=STARTS), SuccessorNews()
                news.prepare(it.workers, held.module)
                program_ended = [watch_end(one.pid) for one in descendants(await held.began())]
                assert len(program_ended) == PROGRAMS_STARTED
                held.go_on()
                assert await news.ended() == ("held", "held left a process running")
                for has_ended in program_ended:
                    assert await asyncio.to_thread(has_ended, LIMIT_S)

        asyncio.run(story())


class TestMemory:
    def test_an_import_that_takes_too_much_is_refused_and_workers_have_no_limit(
        self, tmp_path: Path, warm: PreloadConfig, modules: InstalledModules
    ) -> None:
        limit = "import resource; print(resource.getrlimit(resource.RLIMIT_DATA))"

        async def story() -> None:
            async with nest(tmp_path, recipe=warm) as it:
                before, news = await runs(it, 1, limit), SuccessorNews()
                takes = modules.add("takes", f"held = [bytearray({MEMORY_MAX >> 4}) for _ in range(64)]")
                news.prepare(it.workers, takes)
                assert await news.ended() == ("takes", "cannot be imported (MemoryError: )")
                await succeeds(it, WAVE)
                assert await runs(it, 2, limit) == before

        asyncio.run(story())


class TestTheDeadline:
    def test_it_ends_the_workers_and_the_successor_can_take_over(
        self, tmp_path: Path, warm: PreloadConfig, modules: InstalledModules
    ) -> None:
        async def story() -> None:
            async with nest(tmp_path, recipe=warm) as it:
                old, held = it.workers.pid, modules.hold("held")
                await begins(it, 1)
                SuccessorNews().prepare(it.workers, held.module)
                await held.began()
                it.run_for(0.2)
                assert await it.next() == GenerationExpired(1)
                assert (await it.exited()).stopped
                await it.gone()
                held.go_on()
                await takes_over(it)
                assert it.workers.pid != old
                assert await runs(it, 2, "print('ran')") == "ran"

        asyncio.run(story())

    def test_the_successor_starts_nothing_after_the_deadline_that_the_old_nursery_had(
        self, tmp_path: Path, warm: PreloadConfig
    ) -> None:
        async def story() -> None:
            async with nest(tmp_path, recipe=warm) as it:
                it.workers.run_until(boottime())
                await succeeds(it, WAVE)
                it.workers.spawn(1, [it.spec("open('started', 'w')")])
                assert await it.next() == GenerationExpired(1)
                assert (await it.exited()).stopped
                await it.gone()
                assert not (tmp_path / "started").exists()

        asyncio.run(story())

    def test_workers_that_start_just_after_the_hand_over_end_at_the_deadline_from_before(
        self, tmp_path: Path, warm: PreloadConfig
    ) -> None:
        async def story() -> None:
            async with nest(tmp_path, recipe=warm) as it:
                await begins(it, 1)
                (news := SuccessorNews()).prepare(it.workers, WAVE)
                await news.ready()
                until_s = boottime() + 1.5
                it.workers.run_until(until_s)
                await ends(it)
                await begins(it, 2)
                assert await it.next() == GenerationExpired(2)
                assert until_s <= (await it.exited()).at_s < until_s + KILL_S
                await it.gone()

        asyncio.run(story())
