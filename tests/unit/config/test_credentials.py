"""A user of etcd and the password, or the secret of a job; neither ever stands on a command line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from elastic.errors import ConfigError
from launcher.config.machine_checks import check
from launcher.config.parse import parse
from launcher.config.store_access import NOBODY, PASSWORD, SECRET, Credentials, read_credentials

LINE = ("--elastic-server", "127.0.0.1:2379", "--job-id", "j")
LONG = "a secret of many characters"


def own_file(folder: Path, text: str, mode: int = 0o600) -> Path:
    file = folder / "password"
    file.write_text(text)
    file.chmod(mode)
    return file


def test_the_password_comes_from_the_file_or_else_from_the_variable(tmp_path: Path) -> None:
    file = own_file(tmp_path, "from the file\n")
    assert read_credentials("u", str(file), {PASSWORD: "other"}) == Credentials("u", "from the file", file=str(file))
    assert read_credentials("u", "", {PASSWORD: "other"}) == Credentials("u", "other")
    assert read_credentials("", "", {PASSWORD: "other"}) == NOBODY


def test_the_secret_comes_from_the_file_or_else_from_the_variable(tmp_path: Path) -> None:
    file = own_file(tmp_path, f"{LONG}\r\n")
    assert read_credentials("", "", {SECRET: "of the variable"}, str(file)) == Credentials(secret=LONG)
    assert read_credentials("", "", {SECRET: LONG}) == Credentials(secret=LONG)


def test_a_line_end_and_a_mark_of_the_encoding_do_not_count_wherever_they_stand(tmp_path: Path) -> None:
    file = tmp_path / "password"
    for data in (b"pw", b"pw\n", b"pw\r\n", b"\xef\xbb\xbfpw\r\n"):
        file.write_bytes(data)
        assert read_credentials("u", str(file), {}).password == "pw"
    assert read_credentials("u", "", {PASSWORD: "pw\n"}).password == "pw", "as variables are that were made of files"
    assert read_credentials("", "", {SECRET: f"{LONG}\n"}).secret == LONG
    with pytest.raises(ConfigError, match="has no password"):
        read_credentials("u", "", {PASSWORD: "\n"})


def test_a_pipe_is_read_once_and_one_that_nobody_writes_into_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe, 0o600)
    monkeypatch.setattr("launcher.config.store_access.PIPE_LIMIT_S", 0.0)
    with pytest.raises(ConfigError, match=r"--etcd-password-file .* is a pipe or a device, and nothing has come from"):
        read_credentials("u", str(pipe), {})
    with open(os.open(pipe, os.O_RDWR), "r+b", buffering=0) as both:  # It never ends.
        both.write(b"pw\n")
        with pytest.raises(ConfigError, match="nothing has come"):
            read_credentials("u", str(pipe), {})
    reader, writer = os.pipe()
    os.write(writer, b"pw\n")
    os.close(writer)
    who = read_credentials("u", f"/dev/fd/{reader}", {})
    assert who.password == "pw", "as bash's <(command)"
    assert who.again() == ""
    os.close(reader)


def test_no_text_about_a_login_has_the_password_or_the_secret() -> None:
    assert "pw-1" not in repr(Credentials("u", "pw-1"))
    assert "pw-1" not in repr(Credentials(secret="pw-1"))


def test_a_file_that_others_can_read_is_a_warning(tmp_path: Path) -> None:
    for mode, who in ((0o644, "every user of this machine"), (0o640, "its group")):
        file = own_file(tmp_path, f"{LONG}\n", mode)
        line = f"{file} can be read by {who}; chmod 600 {file}"
        assert read_credentials("u", str(file), {}).warnings == (f"--etcd-password-file {line}",)
        assert read_credentials("", "", {}, str(file)).warnings == (f"--job-secret-file {line}",)
    assert read_credentials("u", str(own_file(tmp_path, "x")), {}).warnings == ()


def test_a_password_that_was_changed_in_its_file_is_known_again(tmp_path: Path) -> None:
    file = own_file(tmp_path, "old\n")
    who = read_credentials("u", str(file), {})
    file.write_text("new\n")
    assert who.again() == "new"
    file.write_text("")
    assert who.again() == "", "it is being written"
    file.unlink()
    assert who.again() == ""
    assert Credentials("u", "of a variable").again() == ""


def test_a_user_without_a_password_and_a_password_without_a_user_are_told_with_the_mend(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--etcd-user u has no password: add --etcd-password-file FILE, or set ELAS"):
        read_credentials("u", "", {})
    with pytest.raises(ConfigError, match="needs the name of the user"):
        read_credentials("", str(own_file(tmp_path, "x")), {})


def test_a_user_beside_a_secret_and_a_secret_that_is_soon_guessed_are_told_with_the_mend(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"{SECRET} and --etcd-user contradict each other: .*; leave one out"):
        read_credentials("u", "", {PASSWORD: "x", SECRET: LONG})
    with pytest.raises(
        ConfigError, match=f"{SECRET} is shorter than 12 characters; make one with: openssl rand -hex 16"
    ):
        read_credentials("", "", {SECRET: "short"})


@pytest.mark.parametrize("text", [b"", b"\n", b"two\nlines", b"\xff", b"x" * 5000])
def test_a_file_that_holds_no_password_is_told(tmp_path: Path, text: bytes) -> None:
    file = tmp_path / "password"
    file.write_bytes(text)
    with pytest.raises(ConfigError, match=r"--etcd-password-file .* holds no password"):
        read_credentials("u", str(file), {})
    with pytest.raises(ConfigError, match=r"--job-secret-file .* holds no secret"):
        read_credentials("", "", {}, str(file))


def test_a_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read_credentials("u", str(tmp_path / "none"), {})
    with pytest.raises(ConfigError, match=r"--job-secret-file .* cannot be read: Is a directory"):
        read_credentials("", "", {}, str(tmp_path))


def test_the_command_line_names_user_and_file_and_refuses_a_password(tmp_path: Path) -> None:
    file, script = own_file(tmp_path, "pw\n", 0o644), tmp_path / "train.py"
    script.write_text("")
    flags = (*LINE, "--etcd-user", "job", "--etcd-password-file", str(file), str(script))
    found = check(parse(flags, {}), {})
    assert (found.login.user, found.login.password) == ("job", "pw")
    assert [line for line in found.warnings if "chmod 600" in line], "it is said once at the start"
    with pytest.raises(ConfigError, match="use --etcd-user with --etcd-password-file or ELASTIC_ETCD_PASSWORD"):
        parse(("--elastic-server", "http://u:p@h:2379", "--job-id", "j", "t.py"), {})
    with pytest.raises(ConfigError, match="leave out the password"):
        parse((*LINE, "--etcd-user", "job:pw", "t.py"), {})
