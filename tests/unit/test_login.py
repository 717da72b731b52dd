"""A user of etcd and the password, which never stands on a command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from elastic.errors import ConfigError
from launcher.config import check, parse
from launcher.login import NOBODY, PASSWORD, Login, login

LINE = ("--elastic_server", "127.0.0.1:2379", "--job_id", "j")


def test_the_password_comes_from_the_file_or_else_from_the_variable(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("from the file\n")
    assert login("u", str(file), {PASSWORD: "other"}) == Login("u", "from the file")
    assert login("u", "", {PASSWORD: "other"}) == Login("u", "other")
    assert login("", "", {PASSWORD: "other"}) == NOBODY


def test_no_text_about_a_login_has_the_password() -> None:
    assert "secret" not in repr(Login("u", "secret"))


def test_a_user_without_a_password_and_a_password_without_a_user_are_told_with_the_mend(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("x")
    with pytest.raises(ConfigError, match="--etcd_user u has no password: add --etcd_password_file FILE, or set ELAS"):
        login("u", "", {})
    with pytest.raises(ConfigError, match="but whose"):
        login("", str(file), {})


@pytest.mark.parametrize("text", [b"", b"\n", b"two\nlines", b"\xff", b"x" * 5000])
def test_a_file_that_holds_no_password_is_told(tmp_path: Path, text: bytes) -> None:
    file = tmp_path / "password"
    file.write_bytes(text)
    with pytest.raises(ConfigError, match="holds no password"):
        login("u", str(file), {})


def test_a_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        login("u", str(tmp_path / "none"), {})


def test_the_command_line_names_user_and_file_and_refuses_a_password(tmp_path: Path) -> None:
    file, script = tmp_path / "password", tmp_path / "train.py"
    file.write_text("pw\n")
    script.write_text("")
    flags = (*LINE, "--etcd_user", "job", "--etcd_password_file", str(file), str(script))
    assert check(parse(flags, {}), {}).login == Login("job", "pw")
    with pytest.raises(ConfigError, match="use --etcd_user with --etcd_password_file or ELASTIC_ETCD_PASSWORD"):
        parse(("--elastic_server", "http://u:p@h:2379", "--job_id", "j", "t.py"), {})
    with pytest.raises(ConfigError, match="leave the password out"):
        parse((*LINE, "--etcd_user", "job:pw", "t.py"), {})
