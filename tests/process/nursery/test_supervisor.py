"""How the nursery starts workers, ends them, and tells of it."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from pathlib import Path

import pytest

from elastic.errors import NurseryLost
from launcher.nursery.protocol import GenerationExited
from launcher.system import node_lock
from launcher.system.clock import boottime
from tests.support.nursery_harness import LIMIT_S, nest, pids, watch_end

STUBBORN = """
import signal, time
signal.signal(signal.SIGTERM, lambda *_: print("asked", flush=True))
print("up", flush=True)
while True: time.sleep(100)
"""


class TestStarting:
    def test_a_worker_has_its_own_session_clean_signals_and_no_foreign_descriptors(self, tmp_path: Path) -> None:
        look = (
            "import os, signal; print(os.getsid(0) == os.getpid() == os.getpgid(0));"
            "print(signal.pthread_sigmask(signal.SIG_BLOCK, ()));"
            "print([line.split()[1] for line in open('/proc/self/status') if line.startswith(('SigIgn', 'SigBlk'))]);"
            "print([os.stat(f'/proc/self/fd/{fd}').st_ino for fd in os.listdir('/proc/self/fd') if int(fd) > 2"
            " and os.path.exists(f'/proc/self/fd/{fd}')]);"
            "print(os.read(0, 1), os.getcwd())"
        )

        async def main() -> None:
            async with nest(tmp_path, lock=tmp_path / "n.lock") as it:
                it.workers.spawn(1, [it.spec(look)])
                await it.spawned()
                assert (await it.exited()).code == 0
                _, group, mask, ignored, fds, rest, _ = it.log().read_text().splitlines()
                assert group == "True"
                assert mask == "set()"
                # Python ignores SIGPIPE (13) and SIGXFSZ (25) by itself; 32 and 33 are glibc's, and are inherited.
                blocked_mask, ignored_mask = (
                    int(found, 16) & ~(3 << 31) for found in re.findall("[0-9a-f]{16}", ignored)
                )
                assert (blocked_mask, ignored_mask) == (0, 1 << 12 | 1 << 24)
                assert fds == str([(tmp_path / "n.lock").stat().st_ino])
                assert rest == f"b'' {tmp_path}"

        asyncio.run(main())

    @pytest.mark.parametrize(
        ("argv", "why"),
        [
            (("no-such-program",), "cannot start no-such-program: No such file or directory"),
            (("./no-such",), "cannot start ./no-such: No such file or directory"),
            (("./lame",), "cannot start ./lame: the interpreter in its first line does not exist"),
            (
                ("./bare",),
                "cannot start ./bare: Exec format error; does its first line name an interpreter, such as #!",
            ),
            (("./closed",), "cannot start ./closed: Permission denied"),
            (("a\0b",), "cannot start a\0b: "),
            (("./busy",), "could not start ./busy: Text file busy"),
        ],
    )
    def test_a_program_that_cannot_start_is_exit_127_and_its_log_says_why(
        self, tmp_path: Path, argv: tuple[str, ...], why: str
    ) -> None:
        (tmp_path / "lame").write_text("#!/no/such/python\n")
        (tmp_path / "lame").chmod(0o755)
        (tmp_path / "bare").write_text("echo\n")
        (tmp_path / "bare").chmod(0o755)
        (tmp_path / "closed").write_text("#!/bin/sh\n")
        (tmp_path / "busy").touch(0o755)

        async def main() -> None:
            async with nest(tmp_path) as it:
                with (tmp_path / "busy").open("wb"):
                    it.workers.spawn(1, [it.program(*argv), it.spec("", rank=1)])
                    await it.spawned()
                    codes = {(event := await it.exited()).local_rank: event.code for _ in range(2)}
                assert codes == {0: 127, 1: 0}
                await it.gone()
                assert why in it.log().read_text()

        asyncio.run(main())

    def test_a_missing_working_folder_is_named(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with nest(tmp_path) as it:
                it.workers.spawn(1, [it.program("true", cwd=tmp_path / "away")])
                await it.spawned()
                assert (await it.exited()).code == 127
                assert f"cannot start true: No such file or directory: {tmp_path / 'away'}" in it.log().read_text()

        asyncio.run(main())

    def test_an_environment_that_is_no_text_arrives_unchanged(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with nest(tmp_path) as it:
                env = {"PATH": os.environ["PATH"], "ODD": os.fsdecode(b"\xff\xfe \xc3\xa4"), "BIG": "x" * 120_000}
                it.workers.spawn(1, [it.program("sh", "-c", 'printf "%s" "$ODD"; printf "%s" "$BIG" | wc -c', env=env)])
                await it.spawned()
                assert (await it.exited()).code == 0
                assert b"\xff\xfe \xc3\xa4120000\n" in it.log().read_bytes()

        asyncio.run(main())

    def test_more_workers_than_one_message_can_carry_descriptors_for(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with nest(tmp_path) as it:
                it.workers.spawn(1, [it.program("true", rank=rank) for rank in range(130)])
                assert len(set(await it.spawned())) == 130
                assert {(await it.exited()).local_rank for _ in range(130)} == set(range(130))
                await it.gone()

        asyncio.run(main())

    def test_a_folder_with_names_of_the_standard_library_does_not_confuse_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("json.py", "select.py", "launcher.py"):
            (tmp_path / name).write_text("raise SystemExit('shadowed')")
        monkeypatch.chdir(tmp_path)

        async def main() -> None:
            async with nest(tmp_path) as it:
                it.workers.spawn(1, [it.program("true")])
                await it.spawned()
                assert (await it.exited()).code == 0

        asyncio.run(main())

    def test_one_generation_at_a_time(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with nest(tmp_path) as it:
                it.workers.spawn(1, [it.program("true")])
                with pytest.raises(RuntimeError, match="generation 1 still runs"):
                    it.workers.spawn(2, [it.program("true")])
                await it.spawned()
                await it.exited()
                await it.gone()
                it.workers.spawn(2, [it.program("true")])
                await it.spawned()
                await it.exited()
                assert (await it.gone()).g == 2
                await it.workers.close()
                with pytest.raises(NurseryLost):
                    it.workers.spawn(3, [it.program("true")])

        asyncio.run(main())

    def test_the_nursery_imports_no_more_than_it_needs(self) -> None:
        code = (
            "import sys, launcher.nursery.main; print(sorted(m for m in sys.modules if m.split('.')[0] not in"
            " sys.stdlib_module_names and not m.startswith(('_', 'sitecustomize'))))"
        )

        async def main() -> str:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-P", "-c", code, stdout=asyncio.subprocess.PIPE
            )
            return (await process.communicate())[0].decode()

        found = eval(asyncio.run(main()))
        assert {name.split(".")[0] for name in found} <= {"elastic", "launcher"}
        assert [name for name in found if name.startswith("elastic")] == ["elastic", "elastic.errors"]


class TestEnding:
    def test_an_exit_is_told_at_once(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with nest(tmp_path) as it:
                waits = []
                for g in range(5):
                    it.workers.spawn(g, [it.program("true")])
                    await it.spawned()
                    exited = await it.exited()
                    waits.append(boottime() - exited.at_s)
                    await it.gone()
                assert min(waits) < 0.02

        asyncio.run(main())

    def test_codes_and_signals_are_told_apart(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with nest(tmp_path) as it:
                codes = ("exit 3", "kill -SEGV $$", "kill -KILL $$", "exit 143")
                it.workers.spawn(1, [it.program("sh", "-c", code, rank=rank) for rank, code in enumerate(codes)])
                await it.spawned()
                found = {(event := await it.exited()).local_rank: (event.code, event.stopped) for _ in codes}
                assert found == {0: (3, False), 1: (-11, False), 2: (-9, False), 3: (143, False)}
                assert isinstance(await it.next(), GenerationExited)

        asyncio.run(main())

    def test_a_worker_that_ignores_sigterm_is_killed_after_the_grace(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with nest(tmp_path) as it:
                it.workers.spawn(1, [it.spec(STUBBORN), it.spec("import time; time.sleep(100)", rank=1)])
                await it.spawned()
                await it.says("up")
                began = boottime()
                it.workers.stop(0.4)
                first, second = await it.exited(), await it.exited()
                assert (first.local_rank, first.code, first.stopped) == (1, -signal.SIGTERM, True)
                assert (second.local_rank, second.code, second.stopped) == (0, -signal.SIGKILL, True)
                assert second.at_s - began >= 0.4
                await it.gone()

        asyncio.run(main())

    def test_a_second_stop_shortens_the_grace_and_sends_no_second_sigterm(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with nest(tmp_path) as it:
                it.workers.spawn(1, [it.spec(STUBBORN)])
                await it.spawned()
                await it.says("up")
                it.workers.stop(50)
                await it.says("asked")
                it.workers.stop(0.1)
                assert (await it.exited()).code == -signal.SIGKILL
                assert it.log().read_text().count("asked") == 1

        asyncio.run(main())

    def test_one_worker_is_stopped_and_killed_after_its_grace_while_another_runs_on_until_all_are_stopped(
        self, tmp_path: Path
    ) -> None:
        async def main() -> None:
            async with nest(tmp_path) as it:
                it.workers.spawn(1, [it.spec(STUBBORN, rank=rank) for rank in range(2)])
                await it.spawned()
                await it.says("up", rank=0)
                await it.says("up", rank=1)
                it.workers.stop(0.1, "", [1])
                first = await it.exited()
                assert (first.local_rank, first.code, first.stopped) == (1, -signal.SIGKILL, True)
                assert "asked" not in it.log(0).read_text()
                it.workers.stop(50)
                await it.says("asked", rank=0)
                it.workers.stop(0.1)
                second = await it.exited()
                assert (second.local_rank, second.code, second.stopped) == (0, -signal.SIGKILL, True)
                await it.gone()

        asyncio.run(main())

    def test_143_after_the_word_is_stopped_and_another_code_is_the_workers_own(self, tmp_path: Path) -> None:
        leave = "import sys; open(sys.argv[2]).read(); sys.exit(int(sys.argv[1]))"

        async def main() -> None:
            async with nest(tmp_path) as it:
                words = [tmp_path / f"word.{rank}" for rank in range(2)]
                for word in words:
                    os.mkfifo(word)
                it.workers.spawn(1, [it.spec(leave, str(143 + rank), str(words[rank]), rank=rank) for rank in range(2)])
                await it.spawned()
                for worker in it.workers.workers.values():
                    worker.asked_to_leave("==== asked ====")
                for rank, expected in enumerate([(143, True, True), (144, False, False)]):
                    await asyncio.to_thread(words[rank].write_text, "leave")
                    event = await it.exited()
                    assert (event.code, event.stopped, it.workers.workers[rank].asked) == expected
                    assert it.log(rank).read_text().count("==== asked ====") == 1
                    assert "SignalInfo" not in it.log(rank).read_text()
                await it.gone()

        asyncio.run(main())

    def test_a_sigterm_right_after_the_fork_is_not_lost(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with nest(tmp_path) as it:
                for g in range(10):
                    it.workers.spawn(g, [it.program("sleep", "100", rank=rank) for rank in range(2)])
                    it.workers.stop(50)
                    await it.spawned()
                    for _ in range(2):
                        assert (await it.exited()).code == -signal.SIGTERM
                    await it.gone()

        asyncio.run(main())

    def test_who_failed_before_the_stop_was_not_stopped_by_us(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with nest(tmp_path) as it:
                it.workers.spawn(1, [it.program("sh", "-c", "exit 5"), it.program("sleep", "100", rank=1)])
                await it.spawned()
                first = await it.exited()
                it.workers.stop(50)
                second = await it.exited()
                assert (first.code, first.stopped) == (5, False)
                assert (second.code, second.stopped) == (-signal.SIGTERM, True)

        asyncio.run(main())

    def test_the_log_of_a_stopped_worker_says_that_the_cause_is_elsewhere(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with nest(tmp_path) as it:
                it.workers.spawn(1, [it.program("sleep", "100")])
                (pid,) = await it.spawned()
                it.workers.stop(5, "==== stopped because rank=[4] failed on host h, see workerlog.4 there ====")
                await it.exited()
                nursery = it.workers.pid
                assert it.log().read_text().splitlines()[1:] == [
                    f"[SignalInfo: *** SIGTERM (@0x{nursery:x}) received by PID {pid} (TID 0x{pid:x})"
                    f" from PID {nursery} ***]",
                    "==== stopped because rank=[4] failed on host h, see workerlog.4 there ====",
                    "==== rank 0 gen 1 ended: stopped by the launcher (SIGTERM) ====",
                ]

        asyncio.run(main())

    def test_kill_ends_everything_at_once_and_close_while_they_run_tells_all(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with nest(tmp_path, lock=tmp_path / "n.lock") as it:
                it.workers.spawn(1, [it.spec(STUBBORN)])
                await it.spawned()
                await it.says("up")
                it.workers.kill()
                assert (await it.exited()).code == -signal.SIGKILL
                await it.gone()
                it.workers.spawn(2, [it.spec(STUBBORN)])
                await it.spawned()
                await it.workers.close()
                assert (await it.exited()).code == -signal.SIGKILL
                await it.gone()
                assert it.events.empty()
                assert not (tmp_path / "n.lock").exists()
                assert not node_lock.proven_dead(tmp_path / "n.lock")

        asyncio.run(main())


class TestWhatAWorkerLeavesBehind:
    def test_its_group_is_killed_when_it_exits_while_others_run_on(self, tmp_path: Path) -> None:
        leaves = "import subprocess, sys; print('pid', subprocess.Popen(['sleep', '100']).pid, flush=True); sys.exit(1)"

        async def main() -> None:
            async with nest(tmp_path) as it:
                it.workers.spawn(1, [it.spec(leaves), it.program("sleep", "100", rank=1)])
                _, other = await it.spawned()
                assert (await it.exited()).code == 1
                (left,) = pids(await it.says("pid"))
                assert watch_end(left)(LIMIT_S)
                os.kill(other, 0)

        asyncio.run(main())

    def test_a_process_with_its_own_session_is_gone_before_the_generation_is(self, tmp_path: Path) -> None:
        leaves = (
            "import subprocess as s; print('pid', s.Popen(['sleep', '100'], start_new_session=True).pid, flush=True)"
        )

        async def main() -> None:
            async with nest(tmp_path) as it:
                it.workers.spawn(1, [it.spec(leaves), it.spec(leaves, rank=1)])
                await it.spawned()
                for _ in range(2):
                    assert (await it.exited()).code == 0
                await it.gone()
                for rank in range(2):
                    (left,) = pids(await it.says("pid", rank=rank))
                    with pytest.raises(ProcessLookupError):
                        os.kill(left, 0)

        asyncio.run(main())

    def test_a_daemon_of_a_worker_that_runs_is_left_alone_until_the_end(self, tmp_path: Path) -> None:
        daemon = (
            "import subprocess as s; s.run(['sh', '-c', 'setsid sleep 100 & echo pid $!']); print('up', flush=True);"
            "input() if False else __import__('time').sleep(100)"
        )

        async def main() -> None:
            async with nest(tmp_path) as it:
                it.workers.spawn(1, [it.spec(daemon), it.program("true", rank=1)])
                await it.spawned()
                assert (await it.exited()).local_rank == 1
                (left,) = pids(await it.says("pid", "up"))
                ended = watch_end(left)
                assert not watch_end(left)(0.4)
                it.workers.stop(5)
                await it.exited()
                await it.gone()
                assert ended(0)

        asyncio.run(main())
