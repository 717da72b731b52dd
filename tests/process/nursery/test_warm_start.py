"""Warm workers: a script sees what it sees in a fresh python, and a nursery that is not fit says so and starts cold."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
import zipfile
from pathlib import Path
from typing import Final

import pytest

from launcher.nursery import warm_policy
from launcher.nursery.protocol import ChildExited, ChildrenForked, GenerationExited, NurseryReady
from launcher.nursery.warm_policy import PreloadConfig
from launcher.system import node_lock
from launcher.workers.nursery_client import NurseryClient, NurseryDied
from tests.support.nursery_harness import LIMIT_S, Nest, nest, watch_end
from tests.support.stub_torch import bare
from tests.support.warm_start_scripts import PACKAGED, SCRIPTS

pytestmark = pytest.mark.timeout(300)

Ends = dict[str, tuple[int, str]]
"""How each script ended: its exit code, and all that it wrote."""


def warmly(folder: Path, *preload: str, **wishes: str) -> PreloadConfig:
    return PreloadConfig("", preload, str(folder), tuple(wishes.items()))


async def run(it: Nest, g: int, *argv: str, way: str = "", more: dict[str, str] | None = None) -> tuple[int, str]:
    """One worker from its start to its end: its exit code, and what it wrote."""
    environ = {**os.environ, "PYTHONUNBUFFERED": "1", "RANK": "3", "FOLDER": str(it.folder), "WAY": way, **(more or {})}
    environ.pop("ONLY_AGENT", None)
    it.log().unlink(missing_ok=True)
    it.run_for(200)
    it.workers.spawn(g, [it.program(sys.executable, *argv, env=environ)])
    event = await it.next()
    assert isinstance(event, ChildrenForked)
    assert event.cold == (it.cold,)
    event = await it.next(100)
    assert isinstance(event, ChildExited)
    await it.gone()
    return event.code, "\n".join(it.log().read_text().splitlines()[1:-1])


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Ends, Ends]:
    """Every script, started warm and started cold, with the same words on the command line."""
    folder = tmp_path_factory.mktemp("scripts")
    for name, text in SCRIPTS.items():
        (folder / f"{name}.py").write_text(text, encoding="latin-1" if name == "cookie" else "utf-8")

    packages(folder)

    async def every(way: str, recipe: PreloadConfig | None) -> Ends:
        found: Ends = {}
        async with nest(folder, recipe=recipe) as it:
            assert (it.cold == "") == (way == "warm"), it.cold
            for name in SCRIPTS:
                found[name] = await run(it, len(found), f"{name}.py", "--more", "words", way=way)
            for name in ("sees", "fails", "syntax"):
                found[f"-m {name}"] = await run(it, len(found), "-m", name, "--more", way=way)
                found[f"-c {name}"] = await run(it, len(found), "-c", SCRIPTS[name], "--more", way=way)
            for words in PACKAGES:
                found[words] = await run(it, len(found), *words.split(), "--more", way=way)
            found["missing"] = await run(it, len(found), "not-there.py", way=way)
            found["left open"] = 0, (folder / f"left.{way}").read_text()
            if way == "warm":
                for again in ("first", "second"):
                    found[f"{again} numbers"] = await run(it, len(found), "-c", NUMBERS)
                for threads in ("3", "2"):
                    found[f"{threads} threads"] = await run(
                        it, len(found), "-c", THREADS, more={"OMP_NUM_THREADS": threads}
                    )
        return found

    os.environ["ONLY_AGENT"] = "1"
    try:
        return asyncio.run(every("warm", warmly(folder, PYTHONUNBUFFERED="1"))), asyncio.run(every("cold", None))
    finally:
        del os.environ["ONLY_AGENT"]


NUMBERS = "import random, numpy, torch; print(random.random(), numpy.random.rand(), torch.rand(1).item())"
THREADS = "import torch; print(torch.get_num_threads())"
PACKAGES = ("packed", "./packed/", "packed.zip", "-m packed", "-m packed.nothing", "empty", "link.py")
"""What python can run beside a plain script; the last is a link to a script in another folder."""


def packages(folder: Path) -> None:
    """Write what `PACKAGES` names, and what a script imports."""
    (folder / "packed").mkdir()
    (folder / "packed" / "__main__.py").write_text(PACKAGED)
    (folder / "empty").mkdir()
    (folder / "launcher.py").write_text("mine = True")
    with zipfile.ZipFile(folder / "packed.zip", "w") as archive:
        archive.writestr("__main__.py", PACKAGED)
    (folder / "other").mkdir()
    (folder / "other" / "beside.py").write_text("word = 'of the other folder'")
    (folder / "other" / "real.py").write_text("import beside\nprint(beside.word, __file__)")
    (folder / "link.py").symlink_to(folder / "other" / "real.py")


@pytest.mark.parametrize("name", [name for name in SCRIPTS if name != "sees"])
def test_a_script_ends_warm_as_it_ends_cold_and_writes_the_same(both: tuple[Ends, Ends], name: str) -> None:
    assert_same(both, name)


@pytest.mark.parametrize("name", ["-m fails", "-m syntax", "-c fails", "-c syntax", *PACKAGES, "missing"])
def test_a_module_a_text_a_package_and_a_script_that_is_not_there_too(both: tuple[Ends, Ends], name: str) -> None:
    assert_same(both, name)


@pytest.mark.parametrize("name", ["sees", "-m sees", "-c sees"])
def test_a_script_sees_warm_what_it_sees_cold(both: tuple[Ends, Ends], name: str) -> None:
    warm_, cold = (json.loads(ends[name][1]) for ends in both)
    for seen in (warm_, cold):
        seen["environ"].pop("WAY")
    for key in cold:
        assert warm_[key] == cold[key], key


def test_what_a_script_left_in_an_open_file_is_written(both: tuple[Ends, Ends]) -> None:
    assert both[0]["left open"] == both[1]["left open"] == (0, "kept")


REWORDED: Final = {"huge": (3, 12), "own_stream": (3, 13), "detached": (3, 13), "-c fails": (3, 13)}
"""From these versions of Python on, a cold start words its own errors differently; a warm one words them as 3.11."""


def assert_same(both: tuple[Ends, Ends], name: str) -> None:
    warm_, cold = (plain(ends[name]) for ends in both)
    if sys.version_info >= REWORDED.get(name, (4,)):
        assert warm_[0] == cold[0]
    else:
        assert warm_ == cold


def plain(end: tuple[int, str]) -> tuple[int, str]:
    """Without addresses, what faulthandler says of loaded modules, and the frames that only a stack of this way has."""
    text = re.sub(r"0x[0-9a-f]+", "0x", end[1].partition("\n\nExtension modules: ")[0])
    return end[0], re.sub(r'(?m)^  File "(<string>|.*/launcher/.*)", line \d+ in (<module>|run)\n?', "", text).rstrip()


class TestTheStateOfAFork:
    def test_random_numbers_differ_between_workers_and_starts(self, both: tuple[Ends, Ends]) -> None:
        drawn = [both[0][f"{again} numbers"][1].split() for again in ("first", "second")]
        assert len({number for numbers in drawn for number in numbers}) == 6

    def test_what_imports_write_is_in_no_workers_log_and_the_nursery_says_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PYTHONUNBUFFERED", "")
        (tmp_path / "loud.py").write_text(
            "import ctypes, sys\n"
            "ctypes.CDLL(None).printf(b'from C\\n'), print('to stdout'), print('to stderr', file=sys.stderr)"
        )

        async def main() -> None:
            events: asyncio.Queue[object] = asyncio.Queue()
            workers = NurseryClient(events.put_nowait, recipe=warmly(bare(tmp_path), "loud"))
            await workers.start()
            it = Nest(workers, events, tmp_path, [])  # type: ignore[arg-type]
            said = (await it.prepared()).said
            assert sorted(said.splitlines()) == ["from C", "to stderr", "to stdout"]
            assert await run(it, 1, "-c", "print('mine')", more={"PYTHONUNBUFFERED": ""}) == (0, "mine")
            await workers.close()

        asyncio.run(main())

    def test_a_worker_may_have_another_number_of_threads(self, both: tuple[Ends, Ends]) -> None:
        assert [both[0][f"{threads} threads"] for threads in ("3", "2")] == [(0, "3"), (0, "2")]

    def test_openblas_has_the_threads_of_a_fresh_process(self, tmp_path: Path) -> None:
        code = (
            "import numpy; from threadpoolctl import threadpool_info as look;"
            "print([(one['internal_api'], one['num_threads']) for one in look()])"
        )
        environ = {name: text for name, text in os.environ.items() if not name.endswith("_NUM_THREADS")}

        async def main(recipe: PreloadConfig | None) -> str:
            async with nest(tmp_path, recipe=recipe) as it:
                return (await run(it, 1, "-c", code))[1]

        before = dict(os.environ)
        try:
            os.environ.clear()
            os.environ.update(environ)
            recipes = (warmly(bare(tmp_path), "numpy", PYTHONUNBUFFERED="1"), None)
            found = [asyncio.run(main(recipe)) for recipe in recipes]
        finally:
            os.environ.clear()
            os.environ.update(before)
        assert "openblas" in found[0]
        assert all(one in found[0] for one in re.findall(r"\('openblas', \d+\)", found[1]))

    def test_numpy_pandas_and_scikit_learn_can_be_loaded_before_and_leave_it_warm(self, tmp_path: Path) -> None:
        (tmp_path / "science.py").write_text(SCRIPTS["science"])

        async def main() -> None:
            async with nest(tmp_path, recipe=warmly(tmp_path, "numpy", *SCIENCE, PYTHONUNBUFFERED="1")) as it:
                assert it.cold == ""
                assert (await run(it, 1, "science.py"))[0] == 0

        asyncio.run(main())


def installed(*names: str) -> tuple[str, ...]:
    from importlib.util import find_spec

    return tuple(name for name in names if find_spec(name) is not None)


SCIENCE = installed("pandas", "sklearn.linear_model")


UNNAMED = """
import _thread

def run():
    with open("/proc/thread-self/comm", "wb") as name:
        name.write(b"pump\\xff")
    named.release()
    forever.acquire()

named, forever = _thread.allocate_lock(), _thread.allocate_lock()
named.acquire()
forever.acquire()
_thread.start_new_thread(run, ())
named.acquire()
"""
"""A thread as libraries start them, which Python does not know; its name is no text."""


class TestUnfit:
    @pytest.mark.parametrize(
        ("text", "why", "real"),
        [
            (
                "import threading; threading.Thread(target=threading.Event().wait, name='pump', daemon=True).start()",
                r"--preload mine left a thread running \(pump\)",
                True,
            ),
            (UNNAMED, r"--preload mine left a thread running \(pump\ufffd\)", False),
            ("import subprocess; subprocess.Popen(['sleep', '100'])", "--preload mine left a process running", False),
            ("raise ValueError('a\\nb')", r"--preload mine cannot be imported \(ValueError: a b\)", False),
            ("raise SystemExit(3)", r"--preload mine cannot be imported \(SystemExit: 3\)", False),
        ],
    )
    def test_a_nursery_that_must_not_fork_says_why_and_starts_cold_in_the_same_process(
        self, tmp_path: Path, text: str, why: str, real: bool
    ) -> None:
        """With torch itself, and, for the other reasons, without what its import takes."""
        (tmp_path / "mine.py").write_text(text)
        if not real:
            bare(tmp_path)
        lock = tmp_path / "n.lock"

        async def main() -> None:
            async with nest(tmp_path, recipe=warmly(tmp_path, "mine"), lock=lock) as it:
                assert re.fullmatch(why, it.cold), it.cold
                assert not node_lock.proven_dead(lock)
                code, text = await run(it, 1, "-c", "import os; print(os.getppid())")
                assert (code, text) == (0, str(it.workers.pid))
            assert not lock.exists()

        asyncio.run(main())

    def test_a_file_beside_the_script_with_the_name_of_a_loaded_module_is_the_scripts(
        self, tmp_path: Path, both: tuple[Ends, Ends]
    ) -> None:
        assert both[0]["beside"] == (0, "True"), "our own modules are in nobody's way"
        (tmp_path / "signal.py").write_text("mine = True")

        async def main() -> None:
            async with nest(tmp_path, recipe=warmly(tmp_path)) as it:
                assert "signal.py has the name of a module that the launcher uses" in it.cold

        asyncio.run(main())

    def test_a_program_that_is_not_this_python_and_one_with_other_variables_are_executed(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with nest(tmp_path, recipe=warmly(bare(tmp_path))) as it:
                assert it.cold == ""
                for argv, env, why in (
                    (("sh", "-c", "echo ran"), {}, "sh is not run by this Python"),
                    ((sys.executable, "-u", "-c", "print('ran')"), {}, "Python has command-line flags"),
                    (
                        (sys.executable, "-c", "print('ran')"),
                        {"TORCH_LOGS": "+dynamo"},
                        "TORCH_LOGS differs from its value at the start of the fork server",
                    ),
                    ((sys.executable, "-c", "print('ran')"), {"PYTHONVERBOSE": "1"}, "PYTHONVERBOSE is set"),
                ):
                    it.workers.spawn(1, [it.program(*argv, env={**os.environ, **env})])
                    event = await it.next()
                    assert event.cold == (why,)  # type: ignore[union-attr]
                    assert (await it.exited()).code == 0
                    await it.gone()
                    assert "ran" in it.log().read_text()

        asyncio.run(main())

    def test_without_torch_nothing_is_warm(self, tmp_path: Path) -> None:
        (tmp_path / "torch.py").write_text("raise ModuleNotFoundError('no torch', name='torch')")

        async def main() -> None:
            async with nest(tmp_path, recipe=warmly(tmp_path)) as it:
                assert it.cold == warm_policy.NO_TORCH

        asyncio.run(main())


class TestTheNurserysOwnLife:
    def test_it_is_made_anew_in_the_same_process_when_a_preloaded_file_has_changed(self, tmp_path: Path) -> None:
        mine = tmp_path / "mine.py"
        mine.write_text("word = 'old'")
        (tmp_path / "below.py").write_text("")

        async def main() -> None:
            async with nest(tmp_path, recipe=warmly(bare(tmp_path), "mine"), lock=tmp_path / "n.lock") as it:
                assert it.cold == ""
                before = it.workers.pid
                assert await run(it, 1, "-c", "import mine; print(mine.word)") == (0, "old")
                mine.write_text("word = 'newer'")
                it.workers.spawn(2, [it.spec("import mine; print(mine.word)")])
                event = await it.next(100)
                assert event.cold == ("",)  # type: ignore[union-attr]
                assert (await it.exited()).code == 0
                await it.gone()
                assert "newer" in it.log().read_text()
                assert it.workers.pid == before
                assert await run(it, 3, "-c", "import mine; print(mine.word)") == (0, "newer")
                mine.write_text("word = 'newest'")
                it.workers.spawn(4, [it.spec("")])
                it.workers.stop(5, "==== called off ====")
                exited = await it.exited()
                assert (exited.code, exited.stopped) == (-signal.SIGKILL, True)
                await it.gone()

        asyncio.run(main())

    @pytest.mark.parametrize("end", ["close", "agent"])
    def test_while_it_imports_it_can_be_ended_at_once_and_leaves_no_lock_behind(self, tmp_path: Path, end: str) -> None:
        os.mkfifo(tmp_path / "gate")
        (tmp_path / "mine.py").write_text("open('gate').read()")
        lock = tmp_path / "n.lock"

        async def main() -> None:
            events: asyncio.Queue[object] = asyncio.Queue()
            os.chdir(tmp_path)
            workers = NurseryClient(events.put_nowait, lock=lock, recipe=warmly(bare(tmp_path), "mine"))
            await workers.start()
            assert workers.pid is not None
            ended = watch_end(workers.pid)
            if end == "close":
                await workers.close()
                assert not lock.exists()
                assert events.empty()
            else:
                os.kill(workers.pid, signal.SIGKILL)
                assert isinstance(await events.get(), NurseryDied)
                assert not workers.prepared
            assert ended(LIMIT_S)

        before = Path.cwd()
        try:
            asyncio.run(main())
        finally:
            os.chdir(before)

    def test_what_is_ordered_before_it_is_prepared_waits(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "gate")
        (tmp_path / "mine.py").write_text(f"open({str(tmp_path / 'gate')!r}).read()")

        async def main() -> None:
            events: asyncio.Queue[object] = asyncio.Queue()
            workers = NurseryClient(events.put_nowait, recipe=warmly(bare(tmp_path), "mine"))
            await workers.start()
            it = Nest(workers, events, tmp_path, [])  # type: ignore[arg-type]
            it.run_for(100)
            workers.spawn(1, [it.spec("print('ran')")])
            workers.stop(1)
            exited = await it.exited()
            assert exited.stopped
            assert await it.next() == GenerationExited(1, ())
            workers.spawn(2, [it.spec("print('ran')")])
            await asyncio.to_thread((tmp_path / "gate").write_text, "go")
            assert isinstance(await asyncio.wait_for(events.get(), 100), NurseryReady)
            await it.spawned()
            assert (await it.exited()).code == 0
            await it.gone()
            await workers.close()

        asyncio.run(main())
