"""The environment of a worker as a file for people."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from elastic.core.ps.model import Role
from launcher.logs.environment_dump import environment_file_name, environment_text, looks_secret
from launcher.logs.writer import LogWriter
from launcher.logs.writer_protocol import WriteEnvironment, path_bytes, text_bytes


@pytest.mark.parametrize(
    "name",
    [
        *("HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "MYSQL_PWD", "PGPASSWORD", "GITHUB_PAT", "DB_PASS"),
        *("authToken", "OPENAI_APIKEY", "ELASTIC_ETCD_PASSWORD", "ELASTIC_ETCD_PASSWORD_FILE", "ELASTIC_JOB_SECRET"),
        *("COMET_OPTIMIZER_KEY", "my-secret", "REGISTRY_AUTH", "GOOGLE_APPLICATION_CREDENTIALS"),
    ],
)
def test_a_name_that_looks_like_a_secret_is_left_out(name: str) -> None:
    assert looks_secret(name)
    assert environment_text({name: "x", "A": "1"}) == "A=1\n"


@pytest.mark.parametrize(
    "name", ["PATH", "PWD", "OLDPWD", "TOKENIZERS_PARALLELISM", "RANK", "PADDLE_TRAINER_ID", "MONKEYPOX", "PASSENGERS"]
)
def test_a_name_that_only_sounds_like_one_is_kept(name: str) -> None:
    assert environment_text({name: "x"}) == f"{name}=x\n"


def test_a_password_in_an_address_is_masked() -> None:
    assert environment_text(
        {"HTTP_PROXY": "http://me:pw@proxy:3128/", "DB": "x://u:p@h,x://v:q@i", "MAIL": "me@host"}
    ) == ("DB=x://***@h,x://***@i\nHTTP_PROXY=http://***@proxy:3128/\nMAIL=me@host\n")


def test_each_variable_is_one_line_whatever_it_holds() -> None:
    assert environment_text({"B": "1\n2\r", "A": ""}) == "A=\nB=1\\n2\\r\n"


def test_it_is_written_whole_for_its_owner_only(tmp_path: Path) -> None:
    told: list[str] = []
    writer = LogWriter(lambda text, quietly: told.append(text))
    for value in ("one", "\udcff"):
        text = text_bytes(environment_text({"A": value}))
        writer.do(WriteEnvironment(path_bytes(tmp_path), environment_file_name(Role.WORKER, 3), text))
    (path,) = tmp_path.iterdir()
    assert path.name == "envlog.3"
    assert path.read_bytes() == b"A=\xff\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    writer.do(WriteEnvironment(path_bytes(tmp_path), environment_file_name(Role.SERVER, 3), b"A=x\n"))
    assert (tmp_path / "envlog.server.3").read_text() == "A=x\n"
    assert told == []
    writer.do(WriteEnvironment(path_bytes(tmp_path / "none"), "envlog.3", b""))
    assert told == ["cannot write envlog.<rank> (No such file or directory); training continues"]
