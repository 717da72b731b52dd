"""What the nursery promises when somebody dies, freezes or stays too long."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from elastic.core.run_deadline import KILL_S
from launcher.nursery.protocol import GenerationExited, GenerationExpired
from launcher.system import node_lock
from launcher.system.clock import boottime
from launcher.system.processes import descendants
from launcher.workers.nursery_client import NurseryDied
from launcher.workers.nursery_process import ANSWER_LIMIT_S
from tests.support.nursery_harness import LIMIT_S, LONG_S, nest, pids, watch_end

SUSPENDED_S = 3.0
"""Longer than each limit that the agent gives its nursery."""

FAMILY = """
import os, subprocess, sys, time
sleep = [sys.executable, "-c", "import time; time.sleep(100)"]
child = subprocess.Popen(sleep)
alone = subprocess.Popen(sleep, start_new_session=True)
nested = subprocess.Popen(
    [sys.executable, "-c", "import subprocess, sys; print('pid', subprocess.Popen(sys.argv[1:],"
     " start_new_session=True).pid, flush=True)", *sleep])
nested.wait()
print("pid", os.getpid()); print("pid", child.pid); print("pid", alone.pid); print("ready", flush=True)
time.sleep(100)
"""

PARENT = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"])
print("pid", child.pid); print("ready", flush=True)
time.sleep(100)
"""

AGENT = """
import asyncio, json, os, signal, subprocess, sys
from pathlib import Path
from launcher.system.clock import boottime
from launcher.workers.nursery_client import NurseryClient
from launcher.workers.spec import WorkerSpec

def shorten(workers):
    workers.run_until(boottime() + 0.5)
    print("shortened", flush=True)

async def main():
    folder, code = Path(sys.argv[1]), sys.argv[2]
    events = asyncio.Queue()
    other = subprocess.Popen(["cat"], stdin=subprocess.PIPE)  # It ends with this process.
    print("other", other.pid, flush=True)
    workers = NurseryClient(events.put_nowait, lock=folder / "job.node.lock", adopts=True)
    await workers.start()
    workers.run_until(boottime() + 60)
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, shorten, workers)
    workers.spawn(1, [WorkerSpec(r, r, (sys.executable, "-c", code), dict(os.environ), str(folder),
        folder / f"workerlog.{r}", r == 0, "==== start ====") for r in range(2)])
    while True:
        event = await events.get()
        print(json.dumps([type(event).__name__, workers.pid]), flush=True)

asyncio.run(main())
"""


def agent(folder: Path, code: str) -> subprocess.Popen[str]:
    """An agent whose workers may run for a minute; after SIGUSR1 for half a second."""
    return subprocess.Popen([sys.executable, "-c", AGENT, str(folder), code], stdout=subprocess.PIPE, text=True)


def lines_until(process: subprocess.Popen[str], word: str, count: int = 1) -> list[str]:
    assert process.stdout is not None
    found: list[str] = []
    while count:
        line = process.stdout.readline()
        assert line, found
        found.append(line.rstrip("\n"))
        count -= word in line
    return found


class TestTheAgentIsKilled:
    def test_workers_and_every_descendant_end_and_the_lock_proves_it(self, tmp_path: Path) -> None:
        lock = tmp_path / "job.node.lock"
        with agent(tmp_path, FAMILY) as process:
            found = pids(lines_until(process, "ready"))
            assert len(found) == 4
            ends = [watch_end(pid) for pid in found]
            assert lock.exists()
            assert not node_lock.proven_dead(lock)
            process.kill()
            assert all(ended(LIMIT_S) for ended in ends)
        assert _becomes_proof(lock)

    def test_also_in_the_moment_of_the_start(self, tmp_path: Path) -> None:
        with agent(tmp_path, "import time; time.sleep(100)") as process:
            nursery = json.loads(lines_until(process, "ChildrenForked")[-1])[1]
            ended = watch_end(nursery)
            process.kill()
            assert ended(LIMIT_S)
        assert _becomes_proof(tmp_path / "job.node.lock")

    def test_a_nursery_that_was_stopped_wakes_up_to_end_the_workers_and_itself(self, tmp_path: Path) -> None:
        with agent(tmp_path, FAMILY) as process:
            found = lines_until(process, "ready")
            nursery = next(json.loads(line)[1] for line in found if line.startswith("["))
            ends = [watch_end(pid) for pid in (nursery, *pids(found))]
            os.kill(nursery, signal.SIGSTOP)
            process.kill()
            assert all(ended(LIMIT_S) for ended in ends)


class TestTheAgentIsFrozen:
    def test_the_workers_are_killed_at_the_time_and_the_agent_hears_of_it_when_it_wakes(self, tmp_path: Path) -> None:
        with agent(tmp_path, FAMILY) as process:
            ends = [watch_end(pid) for pid in pids(lines_until(process, "ready"))]
            process.send_signal(signal.SIGUSR1)
            lines_until(process, "shortened")
            process.send_signal(signal.SIGSTOP)
            assert all(ended(LIMIT_S) for ended in ends)
            process.send_signal(signal.SIGCONT)
            told = lines_until(process, '"GenerationExited"')
            assert [json.loads(line)[0] for line in told if line.startswith("[")][-4:] == [
                "GenerationExpired",
                "ChildExited",
                "ChildExited",
                "GenerationExited",
            ]
            process.kill()


class TestTheRightToRun:
    def test_without_a_time_nothing_starts(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with nest(tmp_path) as it:
                it.workers.run_until(0.0)
                it.workers.spawn(1, [it.spec("open('started', 'w')"), it.spec("open('started', 'w')", rank=1)])
                assert await it.next() == GenerationExpired(1)
                for _ in range(2):
                    exited = await it.exited()
                    assert (exited.code, exited.stopped) == (-signal.SIGKILL, True)
                await it.gone()
                assert not (tmp_path / "started").exists()

        asyncio.run(main())

    def test_a_later_word_prolongs_it(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with nest(tmp_path) as it:
                it.workers.spawn(1, [it.spec("import time; time.sleep(1.2)")])
                await it.spawned()
                it.run_for(1.0)
                it.run_for(30)
                assert (await it.exited()).code == 0

        asyncio.run(main())

    def test_at_its_end_all_are_killed_within_the_time_that_a_kill_may_take(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with nest(tmp_path) as it:
                it.workers.spawn(1, [it.spec("import time; time.sleep(100)", rank=rank) for rank in range(2)])
                await it.spawned()
                until_s = boottime() + 0.4
                it.workers.run_until(until_s)
                assert await it.next() == GenerationExpired(1)
                for _ in range(2):
                    exited = await it.exited()
                    assert exited.code == -signal.SIGKILL
                    assert until_s <= exited.at_s < until_s + KILL_S
                await it.gone()
                it.run_for(30)
                it.workers.spawn(2, [it.spec("")])
                await it.spawned()
                assert (await it.exited()).code == 0

        asyncio.run(main())

    @pytest.mark.parametrize("suspended_s", [0.0, SUSPENDED_S])
    def test_a_frozen_nursery_is_ended_by_the_agent_even_if_that_was_suspended_meanwhile(
        self, tmp_path: Path, suspended_s: float
    ) -> None:
        async def main() -> None:
            async with nest(tmp_path) as it:
                it.workers.spawn(1, [it.spec("import time; time.sleep(100)")])
                (pid,) = await it.spawned()
                ended = watch_end(pid)
                assert it.workers.pid is not None
                it.run_for(0.5)
                os.kill(it.workers.pid, signal.SIGSTOP)
                time.sleep(suspended_s)  # noqa: ASYNC251  # The agent is this process.
                assert isinstance(await it.next(), NurseryDied)
                assert ended(0)
                assert it.complaints == [], "it had no time left to answer"

        asyncio.run(main())

    def test_a_nursery_that_was_suspended_with_the_agent_kills_the_workers_itself_and_lives(
        self, tmp_path: Path
    ) -> None:
        async def main() -> None:
            async with nest(tmp_path) as it:
                it.workers.spawn(1, [it.spec("import time; time.sleep(100)")])
                await it.spawned()
                nursery = it.workers.pid
                assert nursery is not None
                it.run_for(0.5)
                os.kill(nursery, signal.SIGSTOP)
                time.sleep(SUSPENDED_S)  # noqa: ASYNC251  # The agent is this process.
                os.kill(nursery, signal.SIGCONT)
                assert await it.next() == GenerationExpired(1)
                assert (await it.exited()).stopped
                await it.gone()
                it.run_for(LONG_S)
                it.workers.spawn(2, [it.spec("")])
                await it.spawned()
                assert (await it.exited()).code == 0
                assert it.workers.pid == nursery

        asyncio.run(main())


class TestTheNurseryIsFrozen:
    @pytest.mark.parametrize("order", ["until", "stop"])
    def test_an_order_without_an_answer_ends_it_with_its_workers(self, tmp_path: Path, order: str) -> None:
        async def main() -> None:
            async with nest(tmp_path) as it:
                it.workers.spawn(1, [it.spec("import time; time.sleep(100)", rank=rank) for rank in range(2)])
                ends = [watch_end(pid) for pid in await it.spawned()]
                assert it.workers.pid is not None
                os.kill(it.workers.pid, signal.SIGSTOP)
                it.run_for(LONG_S) if order == "until" else it.workers.stop(30)
                assert isinstance(await it.next(), NurseryDied)
                assert all(ended(0) for ended in ends)
                assert len(it.complaints) == 1
                assert "has not answered for 2 s" in it.complaints[0]

        asyncio.run(main())

    @pytest.mark.parametrize("suspended_s", [ANSWER_LIMIT_S + 0.2, SUSPENDED_S])
    def test_one_that_was_suspended_with_the_agent_after_an_order_gets_its_time_once_more(
        self, tmp_path: Path, suspended_s: float
    ) -> None:
        async def main() -> None:
            async with nest(tmp_path) as it:
                it.workers.spawn(1, [it.spec("import time; time.sleep(100)")])
                await it.spawned()
                nursery = it.workers.pid
                assert nursery is not None
                os.kill(nursery, signal.SIGSTOP)
                it.run_for(LONG_S)
                time.sleep(suspended_s)  # noqa: ASYNC251  # The agent is this process.
                asyncio.get_running_loop().call_later(0.1, os.kill, nursery, signal.SIGCONT)  # It wakes a bit later.
                it.workers.stop(0.1)
                assert (await it.exited()).stopped
                await it.gone()
                assert it.complaints == []
                assert it.workers.pid == nursery

        asyncio.run(main())

    def test_for_less_than_the_limit_costs_nothing(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with nest(tmp_path) as it:
                it.workers.spawn(1, [it.spec("import time; time.sleep(2.5)")])
                await it.spawned()
                assert it.workers.pid is not None
                os.kill(it.workers.pid, signal.SIGSTOP)
                it.run_for(LONG_S)
                thaw = asyncio.get_running_loop().call_later(0.5, os.kill, it.workers.pid, signal.SIGCONT)
                assert (await it.exited()).code == 0
                assert thaw.when() < asyncio.get_running_loop().time()
                assert it.complaints == []

        asyncio.run(main())


class TestTheNurseryIsKilled:
    def test_workers_and_their_sessions_end_and_the_agent_hears_once(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with nest(tmp_path, lock=tmp_path / "n.lock") as it:
                it.workers.spawn(1, [it.spec(PARENT, shown=True), it.spec("import time; time.sleep(100)", rank=1)])
                workers = await it.spawned()
                ends = [watch_end(pid) for pid in (*workers, *pids(await it.says("ready")))]
                assert it.workers.pid is not None
                os.kill(it.workers.pid, signal.SIGKILL)
                died = await it.next()
                assert isinstance(died, NurseryDied)
                assert died.left == ()
                said = [b"ready" in worker.log.ending.data for worker in it.workers.workers.values()]
                assert said == [True, False]
                assert all(ended(0) for ended in ends)
                assert it.events.empty()
                assert it.log(1).read_text().endswith("==== rank 1 gen 1 ended: killed, its fork server died ====\n")
                assert node_lock.proven_dead(tmp_path / "n.lock")
                it.run_for(10)
                it.workers.stop(1)

        asyncio.run(main())

    def test_what_made_sessions_of_its_own_ends_too_and_what_is_not_the_workers_stays(self, tmp_path: Path) -> None:
        """An agent is told so at its start; here another process does as an agent."""
        with agent(tmp_path, FAMILY) as process:
            found = lines_until(process, "ready")
            nursery = next(json.loads(line)[1] for line in found if line.startswith("["))
            ends = [watch_end(pid) for pid in pids(found)]
            other = next(int(line.split()[1]) for line in found if line.startswith("other"))
            os.kill(nursery, signal.SIGKILL)
            told = lines_until(process, '"NurseryDied"')
            assert told
            assert all(ended(0) for ended in ends)
            assert not watch_end(other)(0)
            assert not [child for child in descendants(process.pid) if child.pid != other], "and the dead are reaped"
            process.kill()

    def test_signals_of_a_terminal_do_not_touch_it(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with nest(tmp_path) as it:
                it.workers.spawn(1, [it.spec("import time; print('up', flush=True); time.sleep(0.2)")])
                await it.spawned()
                await it.says("up")
                assert it.workers.pid is not None
                assert os.getsid(it.workers.pid) == it.workers.pid
                for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                    os.kill(it.workers.pid, number)
                assert (await it.exited()).code == 0
                assert isinstance(await it.next(), GenerationExited)

        asyncio.run(main())


class TestLocks:
    def test_an_orderly_end_removes_the_file(self, tmp_path: Path) -> None:
        lock = tmp_path / "job.node.lock"

        async def main() -> None:
            async with nest(tmp_path, lock=lock):
                assert not node_lock.proven_dead(lock)
                assert lock.exists()

        asyncio.run(main())
        assert not lock.exists()
        assert not node_lock.proven_dead(lock)

    def test_a_descendant_that_inherited_the_descriptor_holds_it(self, tmp_path: Path) -> None:
        held = node_lock.hold(tmp_path / "n.lock")
        with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=(held.fd,)) as heir:
            os.close(held.fd)
            assert not node_lock.proven_dead(tmp_path / "n.lock")
            heir.kill()
            heir.wait()
        assert node_lock.proven_dead(tmp_path / "n.lock")

    def test_a_lock_that_is_held_stops_a_second_nursery_with_one_line(
        self, tmp_path: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        from elastic.errors import NurseryLost

        held = node_lock.hold(tmp_path / "n.lock")

        async def main() -> None:
            async with nest(tmp_path, lock=tmp_path / "n.lock"):
                pytest.fail("it started")

        with pytest.raises(NurseryLost):
            asyncio.run(main())
        os.close(held.fd)
        assert "another process holds the lock" in capfd.readouterr().err


def _becomes_proof(lock: Path) -> bool:
    """The descriptor closes with the last process, an instant after its end can be seen."""
    until = time.monotonic() + LIMIT_S
    while not node_lock.proven_dead(lock):
        if time.monotonic() > until:
            return False
    return lock.exists()
