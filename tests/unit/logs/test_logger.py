"""The files of a log folder."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

from elastic.errors import ConfigError
from launcher.logs import shared_file
from launcher.logs.console import Console
from launcher.logs.endpoint_list_writer import ENDPOINTS_KEPT, write_endpoints
from launcher.logs.file_names import LAUNCHER_LOG, closing_line, header_line, signal_info_line
from launcher.logs.json_format import JsonFormatter
from launcher.logs.log_dir import check_log_dir
from launcher.logs.logger import AgentLog, Verbosity
from launcher.logs.rotating_file import RotatingFile, append_line
from launcher.logs.shared_file import SharedLog
from launcher.logs.writer import LogWriter
from launcher.logs.writer_protocol import AppendShared, path_bytes
from launcher.net.endpoints import join_host_port as endpoint
from launcher.text.sanitize import OutputTail, sanitize_line, tail_lines


class TestTheFrameOfAStart:
    def test_header_and_closing_line_are_as_documented(self) -> None:
        at = datetime(2026, 11, 20, 11, 0, tzinfo=timezone(timedelta(hours=1)))
        assert header_line(job_id="j1", g=3, rank=2, local_rank=0, host="10.0.0.5", at=at) == (
            "==== elastic-launch job j1 gen 3 rank 2 local 0 host 10.0.0.5 2026-11-20T10:00:00+00:00 ===="
        )
        assert closing_line(rank=2, g=3, words="exit 0") == "==== rank 2 gen 3 ended: exit 0 ===="

    def test_a_signal_is_noted_as_in_the_seed(self) -> None:
        assert signal_info_line(pid=1164, sender=1022) == (
            "[SignalInfo: *** SIGTERM (@0x3fe) received by PID 1164 (TID 0x48c) from PID 1022 ***]"
        )

    def test_a_line_of_ours_can_follow_when_the_log_is_closed(self, tmp_path: Path) -> None:
        path = tmp_path / "workerlog.0"
        path.write_text("unfinished")
        append_line(path, "==== ended because ====")
        assert path.read_text() == "unfinished\n==== ended because ====\n"
        with pytest.raises(FileNotFoundError):
            append_line(tmp_path / "never.was", "line")

    def test_our_lines_stand_alone_after_an_unfinished_one(self, tmp_path: Path) -> None:
        path = tmp_path / "deep" / "workerlog.0"
        log = RotatingFile(path, "==== one ====", pytest.fail)
        log.write(b"unfinished")
        log.line("==== end ====")
        log.close()
        again = RotatingFile(path, "==== two ====", pytest.fail)
        assert again.begins == path.stat().st_size
        again.close()
        assert path.read_text() == "==== one ====\nunfinished\n==== end ====\n==== two ====\n"

    def test_a_log_that_cannot_be_opened_is_told_once(self, tmp_path: Path) -> None:
        told: list[str] = []
        log = RotatingFile(tmp_path, "==== one ====", told.append)
        log.write(b"lost")
        log.close()
        assert told == [f"cannot write {tmp_path} (Is a directory); its worker's output is not logged"]


class TestEndpoints:
    def test_the_file_is_exactly_the_documented_one(self, tmp_path: Path) -> None:
        write_endpoints(tmp_path, 1, [endpoint("10.0.0.1", 6070)])
        write_endpoints(tmp_path, 2, [endpoint("10.0.0.1", 6070), endpoint("fe80::1", 6071), endpoint("::1", 1)])
        text = "PADDLE_TRAINER_ENDPOINTS:\n10.0.0.1:6070\n[fe80::1]:6071\n[::1]:1\n"
        assert (tmp_path / "endpoints.log").read_text() == text
        assert (tmp_path / "endpoints.2.log").read_text() == text
        assert (tmp_path / "endpoints.1.log").read_text() == "PADDLE_TRAINER_ENDPOINTS:\n10.0.0.1:6070\n"
        assert sorted(path.name for path in tmp_path.iterdir()) == [
            "endpoints.1.log",
            "endpoints.2.log",
            "endpoints.log",
        ]

    def test_those_of_the_newest_generations_are_kept(self, tmp_path: Path) -> None:
        for g in (1, 2, 3, ENDPOINTS_KEPT + 2):
            write_endpoints(tmp_path, g, ["a:1"])
        (tmp_path / "endpoints.mine.log").touch()
        write_endpoints(tmp_path, ENDPOINTS_KEPT + 2, ["a:1"])
        kept = ["endpoints.3.log", f"endpoints.{ENDPOINTS_KEPT + 2}.log", "endpoints.log", "endpoints.mine.log"]
        assert sorted(path.name for path in tmp_path.iterdir()) == kept

    def test_a_folder_that_was_removed_is_made_again(self, tmp_path: Path) -> None:
        write_endpoints(tmp_path / "job" / "log", 1, ["a:1"])
        assert (tmp_path / "job" / "log" / "endpoints.log").exists()

    def test_a_failed_write_leaves_the_old_file_and_no_litter(self, tmp_path: Path) -> None:
        (tmp_path / "endpoints.log").mkdir()
        with pytest.raises(OSError):
            write_endpoints(tmp_path, 1, ["a:1"])
        assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


class TestTail:
    def test_it_is_the_end_of_a_start_without_our_frame(self) -> None:
        said = OutputTail(
            "".join(f"line {i}\n" for i in range(30)).encode() + b"==== rank 0 gen 1 ended: exit 1 ====\n"
        )
        assert tail_lines(said, lines=3) == ("line 27", "line 28", "line 29")
        assert len(tail_lines(said)) == 20
        assert tail_lines(said, lines=100)[0] == "line 0"

    def test_a_part_of_a_line_is_left_out_unless_there_is_nothing_else(self) -> None:
        assert tail_lines(OutputTail(b"rt\ntwo\n", cut=True)) == ("two",)
        assert tail_lines(OutputTail(b"rt\n\n", cut=True)) == ("rt",)
        assert tail_lines(OutputTail(b"rt\ntwo\n")) == ("rt", "two")

    def test_a_long_line_is_cut(self) -> None:
        for end in (b"", b"\n", b"\n==== rank 0 gen 1 ended: exit 1 ====\n"):
            (line,) = tail_lines(OutputTail(b"x" * 500_000 + end, cut=True))
            assert len(line) == 500

    def test_what_is_no_text_is_made_readable(self) -> None:
        said = OutputTail(b"\x1b[31mred\x1b[0m\n 10%\r 50%\r100%\r\n\xff\x00a\x07\tb\n\x1b]0;title\x07ok\r\n\n")
        assert tail_lines(said) == ("red", "100%", "\ufffda  b", "ok")

    def test_who_said_nothing_has_no_tail(self) -> None:
        assert tail_lines(OutputTail()) == ()

    def test_directions_and_private_signs_are_taken_out(self) -> None:
        assert sanitize_line("a\u202eb\u00a0c\ue000") == "ab c"


class TestTheFolder:
    def test_it_is_made(self, tmp_path: Path) -> None:
        check_log_dir(tmp_path / "a" / "b")
        assert list((tmp_path / "a" / "b").iterdir()) == []

    @pytest.mark.parametrize("name", ["file", "file/below"])
    def test_one_that_cannot_be_is_an_error_with_its_mend(self, tmp_path: Path, name: str) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(ConfigError, match="--log-dir"):
            check_log_dir(tmp_path / name)

    def test_one_that_cannot_be_written_is_an_error(self) -> None:
        with pytest.raises(ConfigError, match="cannot write "):
            check_log_dir(Path("/proc/self"))


class TestTheNarrator:
    def test_each_level_shows_its_lines_and_the_file_has_all(self, tmp_path: Path) -> None:
        shown = {}
        for level in Verbosity:
            path = tmp_path / f"console.{level.name}"
            fd = os.open(path, os.O_WRONLY | os.O_CREAT)
            console = Console(fd)
            os.close(fd)
            agent_log = AgentLog("h-1", console, level=level)
            agent_log.keep(SharedLog(tmp_path / LAUNCHER_LOG).append)
            agent_log.warning("w\nx\x1b[31m")
            agent_log.always("a")
            agent_log.info("s")
            agent_log.debug("d")
            agent_log.report(["r"])
            agent_log.close()
            console.close()
            shown[level] = path.read_text().splitlines()
        texts = ("warning: w x", "a", "s", "d")
        warned, always, said, detailed = (f"[elastic-launch h-1] {text}" for text in texts)
        assert shown == {
            Verbosity.QUIET: [warned, always, "r"],
            Verbosity.NORMAL: [warned, always, said, "r"],
            Verbosity.VERBOSE: [warned, always, said, detailed, "r"],
        }
        kept = (tmp_path / "launcher.log").read_text().splitlines()
        assert [line.split(" ", 1)[1] for line in kept] == [f"h-1 {text}" for text in (*texts, "r")] * 3
        assert datetime.fromisoformat(kept[0].split()[0]).tzinfo == UTC

    def test_in_json_the_level_of_a_warning_is_not_repeated_in_its_text(self, tmp_path: Path) -> None:
        with (tmp_path / "console").open("wb") as file:
            console = Console(file.fileno())
            agent_log = AgentLog("h-1", console, lines=JsonFormatter("j", "h-1"))
            kept: list[bytes] = []
            agent_log.keep(kept.append)
            agent_log.warning("w")
            console.close()
        shown = (tmp_path / "console").read_bytes().splitlines()
        (written,) = {(line["level"], line["text"]) for line in map(json.loads, (*shown, *kept))}
        assert written == ("warning", "w")

    def test_it_starts_on_a_new_line_after_an_unfinished_one(self, tmp_path: Path) -> None:
        path = tmp_path / "console"
        fd = os.open(path, os.O_WRONLY | os.O_CREAT)
        console = Console(fd)
        os.close(fd)
        console.write(b"50%\r")
        AgentLog("h-1", console).info("lost a node")
        console.close()
        assert path.read_bytes() == b"50%\r\n[elastic-launch h-1] lost a node\n"

    def test_its_file_has_a_bound_and_the_newest_is_kept(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(shared_file, "BYTES_MAX", 2000)
        log_writer = LogWriter(lambda text, quietly: pytest.fail(text))
        path = path_bytes(tmp_path / LAUNCHER_LOG)
        with open(os.devnull, "w") as null:
            console = Console(null.fileno())
        agent_log = AgentLog("h-1", console, level=Verbosity.QUIET)
        agent_log.keep(lambda line: log_writer.do(AppendShared(path, line)))
        for number in range(200):
            agent_log.info(f"line {number}")
        console.close()
        files = [tmp_path / "launcher.1.log", tmp_path / "launcher.log"]
        assert sorted(tmp_path.iterdir()) == files
        assert all(file.stat().st_size < 2100 for file in files)
        numbers = [int(line.split()[-1]) for file in files for line in file.read_text().splitlines()]
        assert numbers == list(range(numbers[0], 200))

    def test_a_file_that_cannot_be_written_is_complained_of_once(self, tmp_path: Path) -> None:
        told: list[str] = []
        writer = LogWriter(lambda text, quietly: told.append(text))
        for _ in range(3):
            writer.do(AppendShared(path_bytes(tmp_path / "none" / LAUNCHER_LOG), b"line\n"))
        why = "(No such file or directory); it is not complete"
        assert told == [f"cannot write {tmp_path}/none/launcher.log {why}"]
