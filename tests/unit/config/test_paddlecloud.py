"""PaddleCloud's variables stand for --ips and --host, when all of them are there and nothing else says who is in."""

from __future__ import annotations

import pytest

from elastic.errors import ConfigError
from launcher.config import paddlecloud
from launcher.config.parse import parse

CLOUD = {
    "POD_IP": "10.0.0.2",
    "PADDLE_TRAINERS": "10.0.0.2,10.0.0.1",
    "PADDLE_TRAINER_ID": "0",
    "PADDLE_TRAINER_ENDPOINTS": "10.0.0.2:6170,10.0.0.1:6170",
    "PADDLE_TRAINERS_NUM": "2",
    "PADDLE_PORT": "6170",
    "TRAINER_PORTS_NUM": "1",
}


def test_with_all_of_them_the_list_and_this_node_are_known() -> None:
    config = parse(["t.py"], CLOUD)
    assert (config.ips, config.host, config.paddlecloud) == (("10.0.0.2", "10.0.0.1"), "10.0.0.2", True)
    assert config.np.first == 2
    assert config.served_by == "10.0.0.1"


@pytest.mark.parametrize("name", paddlecloud.ALL)
@pytest.mark.parametrize("text", [None, "", " "])
def test_without_one_of_them_they_say_nothing(name: str, text: str | None) -> None:
    environ = {key: value for key, value in CLOUD.items() if key != name} | ({} if text is None else {name: text})
    config = parse(["t.py"], environ)
    assert (config.ips, config.paddlecloud, config.local_nodes) == ((), False, 1)


def test_inside_a_worker_of_ours_they_say_nothing() -> None:
    assert parse(["t.py"], {**CLOUD, "ELASTIC_FENCE": "i/1"}).ips == ()


def test_a_number_of_trainers_is_no_list() -> None:
    assert parse(["t.py"], {**CLOUD, "PADDLE_TRAINERS": "2"}).ips == ()


@pytest.mark.parametrize(
    "argv",
    [
        ("--elastic-server", "h:1", "--job-id", "j"),
        ("--local-nodes", "2"),
        ("--run-mode", "ps", "--server-num", "1", "--worker-num", "2"),
        ("--server-num", "1", "--worker-num", "2"),
        ("--servers", "10.0.0.1:6170", "--workers", "10.0.0.1:6171"),
    ],
)
def test_they_say_nothing_where_the_command_line_says_who_is_in(argv: tuple[str, ...]) -> None:
    config = parse([*argv, "t.py"], CLOUD)
    assert (config.ips, config.paddlecloud) == ((), False)


def test_ips_of_the_command_line_or_of_our_variable_go_before_them() -> None:
    for config in (
        parse(["--ips", "10.0.0.3,10.0.0.2", "t.py"], CLOUD),
        parse(["t.py"], {**CLOUD, "ELASTIC_IPS": "10.0.0.3,10.0.0.2"}),
    ):
        assert (config.ips, config.paddlecloud) == (("10.0.0.3", "10.0.0.2"), False)


def test_a_list_that_cannot_be_read_is_named_by_its_variable() -> None:
    with pytest.raises(ConfigError, match=r"^PADDLE_TRAINERS: 10\.0\.0\.1 appears twice"):
        parse(["t.py"], {**CLOUD, "PADDLE_TRAINERS": "10.0.0.1,10.0.0.1"})


def test_messages_name_the_variable_and_not_a_flag_that_nobody_gave() -> None:
    with pytest.raises(ConfigError, match="PADDLE_TRAINERS names 2"):
        parse(["--np", "3", "t.py"], CLOUD)


def test_one_line_says_that_they_are_used() -> None:
    config = parse(["t.py"], CLOUD)
    line = paddlecloud.used_notice(config.ips, config.host)
    assert line.startswith("PaddleCloud's variables are used: PADDLE_TRAINERS gives --ips 10.0.0.2,10.0.0.1")
