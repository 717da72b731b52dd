"""A warm worker whose script sets a variable that a module loaded before it has read is run again, cold."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from elastic.channel.messages import VARIABLE, StartedAgain, WorkerHello, WorkerMessage
from elastic.channel.server import ChannelServer
from elastic.channel.shared_memory import Segments
from launcher.nursery.protocol import ModuleToLoad
from launcher.nursery.start_again import VariableGuard
from launcher.nursery.warm_policy import PreloadConfig
from launcher.system.processes import adopt_orphans
from launcher.workers.nursery_client import NurseryDied
from tests.support.nursery_harness import LIMIT_S, Nest, nest, watch_end
from tests.support.stub_torch import bare
from tests.support.succession_harness import InstalledModules, SuccessorNews

pytestmark = pytest.mark.timeout(120)

READS = "import os\nlevel = os.environ.get('LEVEL')\nhome = os.environ.get('HOME')\n"
BEGINS = "import os; print('begins', os.getpid(), flush=True)\n"
ENDS = "\nimport reads; print('ends', os.getpid(), reads.level, reads.home, flush=True)\n"
LINE = "elastic-launch: the script now sets {}, but a preloaded module has already read it: "
HOME = os.environ["HOME"]
IN_A_THREAD = (
    "import threading; t = threading.Thread(target=os.environ.update, kwargs={'LEVEL': '1'}, daemon=True); t.start()"
)
FORKS = """
child = os.fork()
if not child:
    os.environ["LEVEL"] = "1"
    os._exit(3)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
"""
GROUP = """
import torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
os.environ["LEVEL"] = "1"
"""
CHANGES_ITS_PROCESS = """
import json, signal
def state():
    mask = os.umask(0)
    os.umask(mask)
    handlers = {number: str(signal.getsignal(number)) for number in signal.valid_signals()}
    blocked = str(signal.pthread_sigmask(signal.SIG_BLOCK, ()))
    return [os.getcwd(), mask, signal.getitimer(signal.ITIMER_REAL), blocked, handlers]
print(json.dumps(state()), flush=True)
os.chdir("/")
os.umask(0o77)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
signal.signal(signal.SIGUSR2, signal.SIG_IGN)
signal.setitimer(signal.ITIMER_REAL, 1000)
os.environ["LEVEL"] = "1"
"""


class Listener:
    """The agent's end of the channel of the worker."""

    def __init__(self, folder: Path) -> None:
        self.heard: list[WorkerMessage] = []
        self.server = ChannelServer(
            folder / "channel",
            lambda _, message: self.heard.append(message),
            segments=Segments(),
            detail=lambda _: None,
        )


@pytest.fixture
def reads(modules: InstalledModules, monkeypatch: pytest.MonkeyPatch) -> ModuleToLoad:
    """An installed module that reads two variables when it is imported."""
    monkeypatch.delenv("LEVEL", raising=False)
    return modules.add("reads", READS)


@asynccontextmanager
async def loaded(
    folder: Path, reads: ModuleToLoad, *, changed: tuple[str, ...] = (), torch: bool = False
) -> AsyncIterator[Nest]:
    """A nursery that has this module loaded, for a script that is known to have `changed` these variables."""
    adopt_orphans()
    async with nest(folder, recipe=PreloadConfig("", (), None if torch else str(bare(folder)), (), learns=True)) as it:
        news = SuccessorNews()
        news.prepare(it.workers, reads, changed=changed)
        await news.ready()
        yield it


async def takes_over(it: Nest) -> None:
    """The nursery that has the module loaded takes over."""
    while not it.workers.loaded:
        await it.prepared()


async def lines(it: Nest, script: str, **environ: str) -> list[str]:
    """What a worker has written from its start to its end, and which process it was."""
    path = it.folder / "script.py"
    path.write_text(BEGINS + script + ENDS)
    await takes_over(it)
    it.workers.spawn(1, [it.program(sys.executable, path.name, env={**os.environ, **environ})])
    (pid,) = await it.spawned()
    assert (await it.exited()).code == 0
    await it.gone()
    return [line.replace(str(pid), "PID") for line in it.log().read_text().splitlines()[1:-1]]


def ends(level: str, home: str = HOME) -> str:
    return f"ends PID {level} {home}"


@pytest.mark.parametrize(
    ("sets", "variable", "end"),
    [
        ("os.environ['LEVEL'] = '1'", "LEVEL", ends("1")),
        ("os.environ.setdefault('LEVEL', '1')", "LEVEL", ends("1")),
        ("os.environ.update(A='2', LEVEL='1')", "LEVEL", ends("1")),
        ("os.environb[b'LEVEL'] = b'1'", "LEVEL", ends("1")),
        ("os.environ['HOME'] = '/'", "HOME", ends("None", "/")),
        ("del os.environ['HOME']", "HOME", ends("None", "None")),
        ("os.environ.pop('HOME')", "HOME", ends("None", "None")),
        (f"{IN_A_THREAD}; t.join()", "LEVEL", ends("1")),
    ],
)
def test_the_same_process_runs_the_script_again_and_the_module_knows_the_variable(
    tmp_path: Path, reads: ModuleToLoad, sets: str, variable: str, end: str
) -> None:
    async def story() -> None:
        async with loaded(tmp_path, reads) as it:
            found = await lines(it, sets)
            again = f"{LINE.format(variable)}starting the script again without preloading"
            assert found == ["begins PID", again, "begins PID", end]

    asyncio.run(story())


@pytest.mark.parametrize(
    "sets",
    [
        "os.environ['OTHER'] = '1'",
        "os.environ['HOME'] = os.environ['HOME']",
        "os.environ.pop('LEVEL', None)",
        FORKS,
    ],
    ids=["another variable", "its value", "not set before or after", "a process that the script forks"],
)
def test_it_runs_on_if_the_module_would_have_read_the_same(tmp_path: Path, reads: ModuleToLoad, sets: str) -> None:
    async def story() -> None:
        async with loaded(tmp_path, reads) as it:
            assert await lines(it, sets) == ["begins PID", ends("None")]

    asyncio.run(story())


def test_it_runs_on_if_the_script_is_known_to_set_this_variable(tmp_path: Path, reads: ModuleToLoad) -> None:
    """The script has imported the module before it has set the variable: else the module would not be loaded."""

    async def story() -> None:
        async with loaded(tmp_path, reads, changed=("LEVEL",)) as it:
            assert await lines(it, "os.environ['LEVEL'] = '1'") == ["begins PID", ends("None")]

    asyncio.run(story())


def test_it_runs_on_once_its_process_group_stands(tmp_path: Path, reads: ModuleToLoad) -> None:
    async def story() -> None:
        listener = Listener(tmp_path)
        async with loaded(tmp_path, reads, torch=True) as it:
            worker = {VARIABLE: listener.server.path, "RANK": "0", "LOCAL_RANK": "0", "ELASTIC_GENERATION": "1"}
            assert await lines(it, GROUP, **worker) == ["begins PID", ends("None")]
        listener.server.close()

    asyncio.run(story())


def test_the_agent_is_told_of_the_variable(tmp_path: Path, reads: ModuleToLoad) -> None:
    async def story() -> None:
        listener = Listener(tmp_path)
        loop = asyncio.get_running_loop()
        loop.add_reader(listener.server.fileno(), listener.server.serve)
        async with loaded(tmp_path, reads) as it:
            worker = {VARIABLE: listener.server.path, "RANK": "0", "LOCAL_RANK": "0", "ELASTIC_GENERATION": "1"}
            assert (await lines(it, "os.environ['LEVEL'] = '1'", **worker))[-1] == ends("1")
            listener.server.catch_up()
        loop.remove_reader(listener.server.fileno())
        listener.server.close()
        hello, again = listener.heard
        assert isinstance(hello, WorkerHello)
        assert again == StartedAgain("LEVEL")

    asyncio.run(story())


def test_what_the_script_has_changed_of_its_process_is_as_at_the_first_start(
    tmp_path: Path, reads: ModuleToLoad
) -> None:
    async def story() -> None:
        async with loaded(tmp_path, reads) as it:
            _, first, _, _, second, end = await lines(it, CHANGES_ITS_PROCESS)
            assert first == second
            assert end == ends("1")

    asyncio.run(story())


def test_it_still_ends_with_its_nursery_also_if_a_thread_has_set_the_variable(
    tmp_path: Path, reads: ModuleToLoad
) -> None:
    async def story() -> None:
        async with loaded(tmp_path, reads) as it:
            await takes_over(it)
            it.workers.spawn(1, [it.spec(f"{BEGINS}{IN_A_THREAD}; t.join(); print('waits'); threading.Event().wait()")])
            (pid,) = await it.spawned()
            ended = watch_end(pid)
            await it.says("starting the script again", "waits")
            os.kill(it.workers.pid or 0, signal.SIGKILL)
            assert ended(LIMIT_S), "the agent, which is this process, has not heard of it yet"
            assert isinstance(await it.next(), NurseryDied)

    asyncio.run(story())


def test_a_name_with_a_star_stands_for_all_that_begin_so(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[str] = []
    guard = VariableGuard(("A_*", "LEVEL"), ("A_KNOWN",))
    guard.start(heard.append)
    try:
        for name in ("A_KNOWN", "A_NEW", "A", "B_A_", "LEVEL", "LEVELS"):
            monkeypatch.setenv(name, "1")
    finally:
        guard.stop()
    monkeypatch.setenv("LEVEL", "2")
    assert heard == ["A_NEW", "LEVEL"]
