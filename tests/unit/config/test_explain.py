"""--explain: every setting with its value and its source, and no secret."""

from __future__ import annotations

import dataclasses

import pytest

from launcher.config import help_page
from launcher.config.argv import split_argv
from launcher.config.explain import explained
from launcher.config.flags import BY_NAME, FLAGS
from launcher.config.parse import resolve
from launcher.config.store_access import Credentials

ETCD = BY_NAME["elastic_server"]
SERVER = ("--elastic-server", "10.0.0.5:2379", "--job-id", "j1")


def rows(*argv: str, environ: dict[str, str] | None = None, **found: object) -> dict[str, tuple[str, str]]:
    """The table by name: value and source. `found` stands for what is found out about the machine."""
    config, named = resolve(split_argv([*argv, "train.py", "--key", "geheim"]), environ or {})
    config = dataclasses.replace(config, **{"slots": 1, "job_id": config.job_id or "local-abc123", **found})  # type: ignore[arg-type]
    text = explained(config, named, random_job_id=not named.get("job_id"))
    assert "geheim" not in text
    return {
        line[2:].split("  ")[0].strip(): (cells[-2].strip(), cells[-1].strip())
        for line in text.splitlines()
        if line.startswith("  ") and (cells := [cell for cell in line.split("  ") if cell.strip()])
    }


@pytest.mark.parametrize(
    ("argv", "environ", "flag", "row"),
    [
        ((), {}, "--max-restarts", ("3", "default")),
        (("--max-restarts", "5"), {"ELASTIC_MAX_RESTARTS": "4"}, "--max-restarts", ("5", "flag --max-restarts")),
        ((), {"ELASTIC_NP": "2"}, "--np", ("2", "environment variable ELASTIC_NP")),
        ((), {"PADDLE_ELASTIC_NP": "2"}, "--np", ("2", "environment variable PADDLE_ELASTIC_NP, of another launcher")),
        (("--nnodes", "2"), {}, "--np", ("2:2", "flag --nnodes, torchrun's name")),
        (("--grace", "90"), {}, "--stop-timeout", ("90s", "flag --grace, an old name")),
        (("--grace", "120"), {}, "--stop-timeout", ("2m", "flag --grace, an old name")),
        ((), {"ELASTIC_GRACE": "9s"}, "--stop-timeout", ("9s", "environment variable ELASTIC_GRACE, an old name")),
        (("--hang-timeout", "0"), {}, "--hang-timeout", ("0s", "flag --hang-timeout")),
        (("--memory-limit", "8GB"), {}, "--memory-limit", ("8000000000 bytes", "flag --memory-limit")),
        ((), {}, "--memory-limit", ("half of the available memory", "default")),
        ((), {}, "--log-max-bytes", ("1GB", "default")),
        (("--log-max-bytes", "0"), {}, "--log-max-bytes", ("off", "flag --log-max-bytes")),
        (("--metrics-port", "0.0.0.0:9401"), {}, "--metrics-port", ("0.0.0.0:9401", "flag --metrics-port")),
        (("--metrics-port", "0"), {}, "--metrics-port", ("off", "flag --metrics-port")),
        (("--port-range", "100:200"), {}, "--port-range", ("100:200", "flag --port-range")),
        ((), {"FLAGS_START_PORT": "7"}, "--port-range", ("7:65535", "environment variable FLAGS_START_PORT")),
        (("--quiet",), {}, "--quiet", ("on", "flag --quiet")),
        ((), {}, "--gpus", ("none: workers run on the CPU", "default")),
        (("--ips", "a,b"), {}, "--ips", ("a,b", "flag --ips")),
        (("--ips", "a,b"), {}, "--elastic-server", ("a:12379", "default")),
        (SERVER, {}, "--elastic-server", ("10.0.0.5:2379", "flag --elastic-server")),
        (
            ("--elastic-server", "https://h:1", "--job-id=j"),
            {},
            "--elastic-server",
            ("https://h:1", "flag --elastic-server"),
        ),
        (("--fatal-exit-codes", "3,4"), {}, "--fatal-exit-codes", ("3,4", "flag --fatal-exit-codes")),
        (("--standalone",), {"ELASTIC_ETCD": "h:1"}, "--elastic-server", (help_page.shown_default(ETCD), "default")),
    ],
)  # fmt: skip
def test_a_setting_has_its_value_and_its_source(
    argv: tuple[str, ...], environ: dict[str, str], flag: str, row: tuple[str, str]
) -> None:
    value, source = rows(*argv, environ=environ)[flag]
    assert value == row[0]
    assert source.startswith(row[1])


def test_every_flag_of_the_mode_has_a_row() -> None:
    of_ps = {flag.option for flag in FLAGS if flag.group == "Parameter-Server"}
    every = {flag.option for flag in FLAGS}
    assert {name for name in rows(*SERVER) if name.startswith("--")} == every - of_ps
    with_ps = rows("--server-num", "1", "--worker-num", "2")
    assert {name for name in with_ps if name.startswith("--")} == every
    assert with_ps["--worker-num"] == ("2", "flag --worker-num")


def test_the_script_is_named_and_its_arguments_are_counted() -> None:
    table = rows()
    assert table["script"][0] == "train.py"
    assert table["arguments of the script"] == ("2 (not shown)", "command line")
    assert rows("--no-python")["script"] == ("train.py", "run as a program")


def test_a_random_job_id_is_not_shown_as_if_it_were_that_of_the_next_start() -> None:
    table = rows(job_id="local-abc123", checkpoint_dir="/x/checkpoints/local-abc123")
    assert table["--job-id"] == ("local-<random>", "default")
    assert table["--checkpoint-dir"] == ("/x/checkpoints/local-<random>", "default")


@pytest.mark.parametrize(
    ("argv", "login", "row"),
    [
        (SERVER, Credentials(), ("none", "default")),
        (SERVER, Credentials(secret="geheimgeheim"), ("set", "environment variable ELASTIC_JOB_SECRET")),
        (("--job-secret-file", "/s", *SERVER), Credentials(secret="geheimgeheim"), ("set", "file /s")),
        (
            ("--serve", "127.0.0.1"),
            Credentials(secret="geheimgeheim", made=True),
            ("a random one at each start", "default of --serve"),
        ),
    ],
)
def test_a_secret_has_a_source_and_no_value(argv: tuple[str, ...], login: Credentials, row: tuple[str, str]) -> None:
    assert rows(*argv, login=login)["job secret"] == row


def test_a_password_has_a_source_and_no_value() -> None:
    login = Credentials(user="u", password="geheim")
    argv = (*SERVER, "--etcd-user", "u", "--etcd-password-file", "/p")
    assert rows(*argv, login=login)["password of --etcd-user"] == ("set", "file /p")
    assert rows(*argv, login=login)["--etcd-user"] == ("u", "flag --etcd-user")
    assert rows(*SERVER, login=login)["password of --etcd-user"][1] == "environment variable ELASTIC_ETCD_PASSWORD"
