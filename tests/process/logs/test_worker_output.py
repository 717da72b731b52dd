"""Where the output of workers goes."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.logs.console import Console
from launcher.logs.writer import SyncSink
from launcher.logs.writer_protocol import AnyLogOrder, CloseLog
from launcher.nursery.protocol import ChildExited, GenerationExited
from launcher.text.sanitize import tail_lines
from tests.support import full_on_close
from tests.support.nursery_harness import LIMIT_S, nest

ENDLESS = "import os\nwhile True: os.write(1, os.urandom(4096))"


class Pipe:
    """A console that the test reads, and can leave unread."""

    def __init__(self, give_back: Callable[[], None] | None = None) -> None:
        self.reader, writer = os.pipe()
        self.console = Console(writer, give_back)
        os.close(writer)
        os.set_blocking(self.reader, False)

    def read(self) -> bytes:
        data = b""
        while True:
            try:
                piece = os.read(self.reader, 1 << 16)
            except BlockingIOError:
                return data
            if not piece:
                return data
            data += piece


class TestAShownWorker:
    def test_its_stdout_and_stderr_stay_apart_and_both_are_in_the_log_between_its_frame(self, tmp_path: Path) -> None:
        async def main() -> None:
            out, err = Pipe(), Pipe()
            async with nest(tmp_path, stdout=out.console, stderr=err.console) as it:
                code = "import sys; print('to out'); print('to err', file=sys.stderr)"
                it.workers.spawn(3, [it.spec(code, shown=True), it.spec(code, rank=1)])
                await it.spawned()
                await it.exited()
                await it.exited()
                assert (out.read(), err.read()) == (b"to out\n", b"to err\n")
                for rank in range(2):
                    lines = it.log(rank).read_text().splitlines()
                    assert lines[0] == f"==== rank {rank} ===="
                    assert sorted(lines[1:3]) == ["to err", "to out"]
                    assert lines[3:] == [f"==== rank {rank} gen 3 ended: exit 0 ===="]

        asyncio.run(main())

    def test_unfinished_lines_pass_at_once(self, tmp_path: Path) -> None:
        async def main() -> None:
            out = Pipe()
            async with nest(tmp_path, stdout=out.console) as it:
                code = "import os, time; os.write(1, b'50%\\r'); time.sleep(100)"
                it.workers.spawn(1, [it.spec(code, shown=True)])
                await it.spawned()
                readable = asyncio.Event()
                asyncio.get_running_loop().add_reader(out.reader, readable.set)
                async with asyncio.timeout(LIMIT_S):
                    await readable.wait()
                asyncio.get_running_loop().remove_reader(out.reader)
                assert out.read() == b"50%\r"
                it.workers.kill()
                await it.exited()
                assert (
                    it.log()
                    .read_bytes()
                    .endswith(b"50%\r\n==== rank 0 gen 1 ended: stopped by the launcher (SIGKILL) ====\n")
                )

        asyncio.run(main())

    def test_all_it_wrote_is_in_the_log_before_its_exit_is_told(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with nest(tmp_path) as it:
                for g in range(5):
                    it.workers.spawn(
                        g, [it.spec("print('x' * 50_000 + 'end', flush=True); import os; os._exit(1)", shown=True)]
                    )
                    await it.spawned()
                    await it.exited()
                    text = b"x" * 50_000 + b"end\n==== rank 0 gen %d ended: exit 1 ====\n" % g
                    assert it.workers.workers[0].log.ending.data == text
                    assert it.log().read_bytes().endswith(text)
                    assert len(tail_lines(it.workers.workers[0].log.ending)) == 1
                    await it.gone()

        asyncio.run(main())

    def test_a_grandchild_that_keeps_the_pipe_open_delays_nothing(self, tmp_path: Path) -> None:
        code = "import subprocess as s; s.Popen(['sleep', '100'], start_new_session=True); print('bye', flush=True)"

        async def main() -> None:
            async with nest(tmp_path) as it:
                it.workers.spawn(1, [it.spec(code, shown=True), it.program("sleep", "100", rank=1)])
                await it.spawned()
                async with asyncio.timeout(LIMIT_S):
                    exited = await it.exited()
                assert exited.local_rank == 0
                assert "bye\n" in it.log().read_text()

        asyncio.run(main())

    def test_two_shown_workers_are_told_apart_by_their_prefix_on_the_console_only(self, tmp_path: Path) -> None:
        async def main() -> None:
            out = Pipe()
            async with nest(tmp_path, stdout=out.console) as it:
                it.workers.spawn(
                    1, [it.spec(f"print('a\\n{rank}')", rank=rank, shown=True, shared=True) for rank in (0, 1)]
                )
                await it.spawned()
                await it.exited()
                await it.exited()
                await it.gone()
                shown = sorted(out.read().splitlines())
                alone = [b"rank 0: 0", b"rank 0: a", b"rank 1: 1", b"rank 1: a"]  # One was late by the window.
                assert shown in ([b"rank 0: 0", b"rank 1: 1", b"ranks 0-1: a"], alone)
                assert it.log().read_text().splitlines()[1:3] == ["a", "0"]

        asyncio.run(main())


class TestABlockedConsole:
    def test_neither_stops_the_loop_nor_the_log_and_says_what_it_left_out(self, tmp_path: Path) -> None:
        async def main() -> None:
            out = Pipe()
            async with nest(tmp_path, stdout=out.console) as it:
                code = "for i in range(40): print(f'{i:02}' * 32_000, flush=True)"
                it.workers.spawn(1, [it.spec(code, shown=True)])
                await it.spawned()
                assert (await it.exited()).code == 0
                assert it.log().stat().st_size > 40 * 64_000
                shown = b""
                async with asyncio.timeout(LIMIT_S):
                    while b"the console was blocked" not in shown:
                        shown += out.read()
                        await asyncio.sleep(0)
                assert len(shown) < it.log().stat().st_size

        asyncio.run(main())

    def test_a_process_that_writes_it_and_is_stopped_stops_no_worker(self, tmp_path: Path) -> None:
        """As long as it reads it is waited for: it is to have everything."""

        async def main() -> None:
            out = Pipe(lambda: None)
            async with nest(tmp_path, stdout=out.console) as it:
                code = "for i in range(400): print(f'{i:03}' * 16_000, flush=True)"
                it.workers.spawn(1, [it.spec(code, shown=True)])
                await it.spawned()
                shown = b""
                async with asyncio.timeout(LIMIT_S):
                    while len(shown) < 5_000_000:
                        shown += out.read()
                        await asyncio.sleep(0)
                assert (await it.exited()).code == 0
                async with asyncio.timeout(LIMIT_S):
                    while b"the console was blocked" not in shown:
                        shown += out.read()
                        await asyncio.sleep(0)
                said = it.log().read_bytes().partition(b"\n")[2]
                assert said.startswith(shown.partition(b"\n[elastic-launch]")[0])

        asyncio.run(main())

    def test_a_console_whose_reader_is_gone_is_given_up(self, tmp_path: Path) -> None:
        async def main() -> None:
            out = Pipe()
            os.close(out.reader)
            async with nest(tmp_path, stdout=out.console) as it:
                it.workers.spawn(1, [it.spec("print('one'); print('two')", shown=True)])
                await it.spawned()
                assert (await it.exited()).code == 0
                assert "one\ntwo\n" in it.log().read_text()

        asyncio.run(main())


class TestOutputOfAnyKind:
    @pytest.mark.parametrize("shown", [True, False])
    def test_endless_binary_output_stops_nothing(self, tmp_path: Path, shown: bool) -> None:
        async def main() -> None:
            async with nest(tmp_path) as it:
                it.workers.spawn(1, [it.spec(ENDLESS, shown=shown)])
                await it.spawned()
                await it.grows(1 << 20)
                it.workers.stop(5)
                async with asyncio.timeout(LIMIT_S):
                    exited, gone = await it.exited(), await it.gone()
                assert isinstance(exited, ChildExited)
                assert isinstance(gone, GenerationExited)
                for line in tail_lines(it.workers.workers[0].log.ending):
                    assert line.isprintable()
                    assert len(line) <= 500

        asyncio.run(main())

    @pytest.mark.parametrize("shown", [True, False])
    def test_a_full_disk_costs_the_log_and_not_the_worker(self, tmp_path: Path, shown: bool) -> None:
        async def main() -> None:
            out = Pipe()
            async with nest(tmp_path, stdout=out.console) as it:
                it.log().symlink_to("/dev/full")
                it.workers.spawn(1, [it.spec("print('hello')", shown=shown)])
                await it.spawned()
                assert (await it.exited()).code == 0
                assert out.read() == b"hello\n" * shown
                assert it.complaints == [
                    f"cannot write {it.log()} (No space left on device); its worker's output is not logged"
                ]

        asyncio.run(main())

    def test_a_disk_that_says_at_the_end_that_it_has_no_room_does_not_keep_it_back_that_they_are_gone(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(os, "close", full_on_close.refuses("/workerlog."))

        async def main() -> None:
            async with nest(tmp_path) as it:
                it.workers.spawn(1, [it.program("true", rank=rank) for rank in (0, 1)])
                await it.spawned()
                assert [(await it.exited()).code for _ in range(2)] == [0, 0]
                await it.gone()
                end = f" ({full_on_close.WORDS}); its worker's output is not logged"
                assert it.complaints == [f"cannot write {it.log(0)}{end}", f"cannot write {it.log(1)}{end}"]

        asyncio.run(main())

    def test_logs_that_cannot_be_closed_do_not_keep_it_back_that_they_are_gone(self, tmp_path: Path) -> None:
        class Broken(SyncSink):
            def put(self, order: AnyLogOrder, of: str) -> bool:
                if isinstance(order, CloseLog):
                    raise OSError(errno.EIO, "broken")
                return super().put(order, of)

        async def main() -> None:
            async with nest(tmp_path, sink=Broken(lambda text, quietly: None)) as it:
                it.workers.spawn(1, [it.program("true")])
                await it.spawned()
                assert (await it.exited()).code == 0
                await it.gone()
                assert it.complaints == [f"cannot close {it.log()} (broken); its end may be missing"]

        asyncio.run(main())

    def test_a_worker_that_closes_its_output_goes_on_and_is_framed(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with nest(tmp_path) as it:
                code = "import os; print('bye'); os.close(1); os.close(2); os._exit(7)"
                it.workers.spawn(1, [it.spec(code, shown=rank == 0, rank=rank) for rank in (0, 1)])
                await it.spawned()
                assert [(await it.exited()).code for _ in range(2)] == [7, 7]
                for rank in (0, 1):
                    closing = f"==== rank {rank} gen 1 ended: exit 7 ===="
                    assert it.log(rank).read_text().splitlines() == [f"==== rank {rank} ====", "bye", closing]

        asyncio.run(main())

    def test_stdout_and_stderr_of_a_worker_that_is_not_shown_keep_their_order(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with nest(tmp_path) as it:
                it.workers.spawn(1, [it.spec("import os\nfor i in range(500): os.write(1 + i % 2, b'%d\\n' % i)")])
                await it.spawned()
                await it.exited()
                assert it.log().read_text().splitlines()[1:-1] == [str(count) for count in range(500)]

        asyncio.run(main())

    def test_logs_are_appended_over_starts(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with nest(tmp_path) as it:
                for g in (1, 2):
                    it.workers.spawn(g, [it.program("printf", f"start {g}")])
                    await it.spawned()
                    await it.exited()
                    await it.gone()
                assert it.log().read_text().splitlines() == [
                    "==== rank 0 ====",
                    "start 1",
                    "==== rank 0 gen 1 ended: exit 0 ====",
                    "==== rank 0 ====",
                    "start 2",
                    "==== rank 0 gen 2 ended: exit 0 ====",
                ]
                assert tail_lines(it.workers.workers[0].log.ending) == ("start 2",)

        asyncio.run(main())


def test_no_descriptor_is_left_of_workers_that_have_ended(tmp_path: Path) -> None:
    async def main() -> None:
        async with nest(tmp_path) as it:
            counts = []
            for g in range(1, 4):
                it.workers.spawn(g, [it.program("true", rank=rank, shown=rank == 0) for rank in (0, 1)])
                await it.spawned()
                await it.exited()
                await it.exited()
                await it.gone()
                counts.append(len(os.listdir("/proc/self/fd")))
            assert counts[1:] == counts[:-1]

    asyncio.run(main())
