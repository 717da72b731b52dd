"""`elastic-launch` as a command: every wrong input is one clear line and exit 2."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from launcher import cli
from launcher.config import argv as command_line
from launcher.config import help_page
from launcher.ctl import cli as ctl
from tests.support.nvidia_smi import LISTED, smi

SERVER = ("--elastic-server", "203.0.113.77:2379", "--job-id", "j1", "--host", "203.0.113.7")
LIMIT_S = 30.0


def launched(argv: Sequence[str], cwd: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """The command, run to its end in `cwd`."""
    return subprocess.run(
        [sys.executable, "-m", "launcher", *argv],
        cwd=cwd,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", **environ},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=LIMIT_S,
        text=True,
        check=False,
    )


def refused(argv: Sequence[str], capsys: pytest.CaptureFixture[str]) -> str:
    """What is said of a command line that must be refused, in this process."""
    code = cli.main(argv)
    out, err = capsys.readouterr()
    assert code == 2
    assert out == ""
    assert err.startswith("elastic-launch: error: ")
    assert err.count("\n") == 1
    return err


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a script, where the user stands."""
    (tmp_path / "train.py").write_text("print('hello')\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("argv", "names"),
    [
        (("--quiet",), "train.py"),
        (("missing.py",), "missing.py"),
        ((*SERVER, "--np", "0", "train.py"), "--np"),
        ((*SERVER, "--np", "3:2", "train.py"), "--np"),
        ((*SERVER, "--np", "a", "train.py"), "--np"),
        (("--elastic-server", "203.0.113.77:2379", "train.py"), "--job-id"),
        (("--elastic-server", "203.0.113.77:2379", "--job-id", "a/b", "train.py"), "--job-id"),
        (("--elastic-server", "203.0.113.77", "--job-id", "j", "train.py"), "203.0.113.77:2379"),
        (("--unknown", "train.py"), "--unknown"),
        (("--elastic_serv", "203.0.113.77:2379", "train.py"), "--elastic-server"),
        (("--elastic-server", "203.0.113.77:2379", "--job-id", "j", "--host", "127.0.0.1", "train.py"), "127.0.0.1"),
        ((*SERVER, "--log-dir", "/proc/none/log", "train.py"), "--log-dir"),
        ((*SERVER, "--log-dir", "train.py", "train.py"), "--log-dir"),
        (("-m", "no_such_module"), "no_such_module"),
        (("--gpus", "0,0", "train.py"), "GPU 0 appears twice"),
        (("--gpus", "one", "train.py"), "'one' is not a GPU"),
        (("--gpus=", "train.py"), "--gpus"),
        (("--gpus", "0,", "train.py"), "'0,': a GPU is missing"),
        (("--ips", ",10.0.0.1", "train.py"), "',10.0.0.1': a host is missing"),
        (("-m", "train.py"), "there is no module train.py here; write -m train, or leave -m out"),
        (("--gpus", "0,1", "--nproc-per-node", "3", "train.py"), "--nproc-per-node is 3"),
        (("--gpus", "0", "--nproc-per-node", "cpu", "train.py"), "contradict"),
        (("--port-range", "35000", "train.py"), "35000:35099"),
        (("--port-range", "35005:35000", "train.py"), "35000:35005"),
        (("--ctrl-port", "0", "train.py"), "--ctrl-port"),
        (("--ctrl-port", "9988", "--local-nodes", "2", "train.py"), "--ctrl-port 9988"),
        (("--cluster_node_ips=10.0.0.1", "train.py"), "no such argument: --cluster_node_ips; use --ips"),
        (("--selected_gpus", "0,1", "train.py"), "no such argument: --selected_gpus; use --gpus"),
    ],
)
def test_a_wrong_command_line_is_one_line_that_names_what_is_wrong(
    argv: tuple[str, ...], names: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert names in refused(argv, capsys)


def test_a_card_that_is_not_there_is_one_line_that_names_those_that_are(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in smi(folder, LISTED).items():
        monkeypatch.setenv(name, text)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert "there is no GPU 7 on this machine; there are: 0, 1, 2, 3\n" in refused(
        ("--gpus", "0,7", "train.py"), capsys
    )
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    assert "GPU 0 is not in CUDA_VISIBLE_DEVICES (2,3)" in refused(("--gpus", "0", "train.py"), capsys)


def test_another_system_than_linux_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert "Linux" in refused(("train.py",), capsys)


def test_the_process_itself_ends_with_2_and_one_line(folder: Path) -> None:
    ran = launched(("--np", "0", "train.py"), folder)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.startswith("elastic-launch: error: --np: ")
    assert ran.stderr.count("\n") == 1


def test_a_wrong_variable_ends_with_2_too(folder: Path) -> None:
    ran = launched(("train.py",), folder, ELASTIC_NP="x")
    assert ran.returncode == 2
    assert "ELASTIC_NP" in ran.stderr


def test_nothing_is_left_behind_by_a_wrong_command_line(folder: Path) -> None:
    launched((*SERVER, "--np", "0", "train.py"), folder)
    assert [path.name for path in folder.iterdir()] == ["train.py"]


def test_help_goes_to_stdout_in_groups_and_needs_no_script(folder: Path) -> None:
    ran = launched(("--help",), folder)
    assert (ran.returncode, ran.stderr) == (0, "")
    for group in ("Base:", "Collective:", "Parameter-Server:", "Elastic:", "Workers:", "Logs:"):
        assert f"\n{group}\n" in ran.stdout
    assert cli.main(["-h"]) == 0


def test_the_word_help_is_a_question_unless_a_script_has_that_name(folder: Path) -> None:
    assert launched(("help",), folder).stdout == launched(("--help",), folder).stdout
    (folder / "help").write_text("#!/bin/sh\necho a script\n")
    ran = launched(("help",), folder)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert "help is not executable" in ran.stderr


def test_a_command_line_of_torchrun_runs_as_it_is(folder: Path) -> None:
    program = folder / "train.py"
    program.write_text("#!/bin/sh\necho $RANK of $WORLD_SIZE: $*\n")
    program.chmod(0o755)
    flags = ("--standalone", "--nnodes=1", "--nproc_per_node", "2", "--rdzv-endpoint", "localhost:0", "--no-python")
    ran = launched((*flags, "train.py", "--lr", "0.1"), folder, ELASTIC_ETCD="203.0.113.77:2379")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == "0 of 2: --lr 0.1\n"
    assert ran.stderr.count("--rdzv-endpoint has no effect with --standalone") == 1


def test_a_shell_completes_both_names_of_a_flag(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for shell in ("bash", "zsh", "fish"):
        assert ctl.main(["completion", shell]) == 0
        script = capsys.readouterr().out
        for name in ("rdzv-endpoint", "elastic-server", "nnodes", "explain", "module", "quiet"):
            assert name in script, (shell, name)
        assert re.search(r"-s q " if shell == "fish" else r"[ {]-q[ ,]", script), shell


def test_a_call_without_arguments_shows_the_common_flags_on_stderr_and_ends_with_2(folder: Path) -> None:
    ran = launched((), folder)
    assert (ran.returncode, ran.stdout, ran.stderr) == (2, "", help_page.short_text())


def test_explain_prints_settings_and_sources_and_starts_nothing(folder: Path) -> None:
    argv = (
        "--explain",
        "--nnodes",
        "2",
        "--grace",
        "9s",
        "--rdzv-backend",
        "c10d",
        *SERVER,
        "train.py",
        "--key",
        "geheim",
    )
    secrets = {"ELASTIC_JOB_SECRET": "geheimgeheim"}
    ran = launched(argv, folder, PADDLE_ELASTIC_NP="7", ELASTIC_MAX_RESTARTS="5", **secrets)
    assert ran.returncode == 0, ran.stderr
    rows = {line.split()[0]: line.split()[1:] for line in ran.stdout.splitlines() if line.startswith("  --")}
    assert rows["--np"] == ["2:2", "flag", "--nnodes,", "torchrun's", "name"]
    assert rows["--max-restarts"] == ["5", "environment", "variable", "ELASTIC_MAX_RESTARTS"]
    assert rows["--nproc-per-node"] == ["1", "default"]
    assert "geheim" not in ran.stdout + ran.stderr
    warning, note = ran.stderr.splitlines()
    assert warning == "elastic-launch: warning: --grace is now --stop-timeout; the old name works until 0.3"
    assert note.startswith("elastic-launch: note: --rdzv-backend has no effect: ")
    assert [path.name for path in folder.iterdir()] == ["train.py"]


def test_explain_reports_a_wrong_command_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "missing.py" in refused(("--explain", "missing.py"), capsys)


def test_a_warning_and_a_note_appear_once_although_a_second_process_runs_the_node(folder: Path) -> None:
    (folder / "train.py").write_text("")
    ran = launched(("--save-limit", "9s", "--node-rank", "0", "train.py"), folder, ELASTIC_GRACE="9s")
    assert ran.returncode == 0, ran.stderr
    for text in ("--save-limit is now", "ELASTIC_GRACE is now", "--node-rank has no effect"):
        assert ran.stderr.count(text) == 1, ran.stderr


def test_help_of_the_script_is_the_scripts() -> None:
    line = command_line.split_argv(["train.py", "--help"])
    assert (line.asks, line.script_args) == ("", ("--help",))


def test_the_version_is_one_line(folder: Path) -> None:
    ran = launched(("--version",), folder)
    assert ran.returncode == 0
    assert ran.stdout.startswith("elastic-launch ")
    assert ran.stdout.count("\n") == 1


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_standard_descriptors_are_no_crash(folder: Path, closed: str) -> None:
    def ended(*argv: str) -> int:
        command = f'exec "$0" -m launcher "$@" {closed}'
        return subprocess.run(
            ["sh", "-c", command, sys.executable, *argv], cwd=folder, timeout=LIMIT_S, check=False, capture_output=True
        ).returncode

    assert ended("--version") == 0
    assert ended("--np", "0", "train.py") == 2


@pytest.mark.parametrize("taken_by", ["nobody", "a full disk"])
@pytest.mark.parametrize("command", ["launcher nothing.py", "launcher.ctl status --elastic-server :"])
def test_the_exit_code_is_the_same_where_the_line_is_not_taken(folder: Path, command: str, taken_by: str) -> None:
    """1 would say that training has failed."""
    if taken_by == "nobody":
        reader, stderr = os.pipe()
        os.close(reader)
    else:
        stderr = os.open("/dev/full", os.O_WRONLY)
    words = [sys.executable, "-m", *command.split()]
    ran = subprocess.run(words, cwd=folder, stderr=stderr, timeout=LIMIT_S, check=False)
    os.close(stderr)
    assert ran.returncode == 2


def test_a_caller_that_ignores_its_children_changes_nothing(folder: Path) -> None:
    """So some daemons start what they start. The process that writes the logs could not be waited for."""
    code = (
        "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); "
        "os.execv(sys.executable, [sys.executable, '-m', 'launcher', *sys.argv[1:]])"
    )
    etcd = ("--elastic-server", "127.0.0.1:1", "--job-id", "j", "--connect-timeout", "0.1")
    command = [sys.executable, "-c", code, *etcd, "--no-preload", "train.py"]
    ran = subprocess.run(command, cwd=folder, capture_output=True, timeout=LIMIT_S, text=True, check=False)
    assert "no etcd within 0.1 s" in ran.stderr
    assert (ran.returncode, ran.stderr.count("Traceback")) == (4, 0)


def test_what_the_caller_closed_is_open_in_every_child(folder: Path) -> None:
    look = "import os; [os.fstat(fd) for fd in range(3)]; open('looked', 'w')"
    code = f"""
import subprocess, sys
from launcher.system.descriptors import open_standard
open_standard()
sys.stdout.write("to nobody")
sys.stderr.write(sys.stdin.read())
sys.exit(subprocess.run([sys.executable, "-c", {look!r}]).returncode)
"""
    command = ["sh", "-c", 'exec "$0" -c "$1" <&- >&- 2>&-', sys.executable, code]
    assert subprocess.run(command, cwd=folder, timeout=LIMIT_S, check=False).returncode == 0
    assert (folder / "looked").exists()


def test_ctrl_c_while_it_is_imported_is_no_stack_trace(folder: Path) -> None:
    (folder / "msgspec.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    path = f"{folder}:{os.environ.get('PYTHONPATH', '')}"
    ran = launched(("--version",), folder, PYTHONPATH=path)
    assert (ran.returncode, ran.stdout, ran.stderr) == (-signal.SIGINT, "", "")


def test_a_folder_that_is_gone_is_one_line(folder: Path) -> None:
    gone = folder / "gone"
    gone.mkdir()
    command = 'rmdir "$PWD" && exec "$0" -P -m launcher "$1"'
    ran = subprocess.run(
        ["sh", "-c", command, sys.executable, str(folder / "train.py")],
        cwd=gone,
        capture_output=True,
        timeout=LIMIT_S,
        text=True,
        check=False,
    )
    assert ran.returncode == 2
    assert ran.stderr.startswith("elastic-launch: error: the working directory does not exist")
    assert ran.stderr.count("\n") == 1


def test_a_machine_without_a_temporary_folder_is_told_to_set_one(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: ["/proc/nowhere"])
    assert "set TMPDIR" in refused(("train.py",), capsys)


def test_a_lack_of_open_files_is_one_line(folder: Path) -> None:
    def ended(files: int, *argv: str) -> tuple[int, str]:
        ran = subprocess.run(
            ["sh", "-c", f'ulimit -n {files}; exec "$0" -P -m launcher "$@"', sys.executable, *argv, "train.py"],
            cwd=folder,
            capture_output=True,
            timeout=LIMIT_S,
            text=True,
            check=False,
        )
        return ran.returncode, ran.stderr

    code, said = ended(64, *SERVER, "--nproc-per-node", "8")
    assert (code, said.count("\n")) == (2, 1)
    assert "a node of 8 workers needs 104 open files" in said


def test_what_a_terminal_would_obey_is_not_in_an_error(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "\x1b" not in refused(("\x1b[31mtrain.py\x07",), capsys)


def test_help_on_a_full_disk_is_one_line_and_a_reader_that_has_enough_is_none(folder: Path) -> None:
    def ended(rest: str) -> tuple[int, str]:
        ran = subprocess.run(
            ["bash", "-c", f'set -o pipefail; "$0" -m launcher --help-env {rest}', sys.executable],
            cwd=folder,
            capture_output=True,
            timeout=LIMIT_S,
            text=True,
            check=False,
        )
        return ran.returncode, ran.stderr

    code, said = ended("> /dev/full")
    assert (code, said.count("\n")) == (2, 1)
    assert "No space left on device" in said
    assert ended("| true") in ((0, ""), (141, ""))  # It may have written all before its reader ended.
