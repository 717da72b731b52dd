"""torchrun's flags and --rdzv-conf, read as the plugin reads them; and our messages in torchrun's words."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from elastic.core.model import JobMode, Np
from elastic.errors import ConfigError
from launcher.config.flags import BY_NAME as FLAGS
from launcher.torchrun import options
from launcher.torchrun.flag_names import translate_message
from launcher.torchrun.options import OF_OTHERS, OPTIONS, RdzvSettings


def read(
    endpoint: str = "h:2379", run_id: str = "j1", nodes: tuple[int, int] = (1, 4), host: str | None = None, **given: Any
) -> RdzvSettings:
    return options.read(endpoint, run_id, nodes, host, given, {})


def refused(**arguments: Any) -> str:
    with pytest.raises(ConfigError) as raised:
        read(**arguments)
    text = str(raised.value)
    assert "\n" not in text
    return text


def test_what_torchrun_always_gives_is_a_job_of_a_mode_of_its_own() -> None:
    config = read(timeout=900, rank=-1).config
    assert (config.job_id, config.np, config.servers, config.tls) == ("j1", Np(1, 4, 1), ("h:2379",), False)
    assert config.run_mode == JobMode.TORCHRUN
    assert config.slots == 1


def test_a_fixed_number_of_nodes_is_strict() -> None:
    assert read(nodes=(2, 2)).config.np == Np(2, 2, 2)


def test_the_defaults_are_those_that_are_shown() -> None:
    settings = read()
    for option in OPTIONS:
        value = getattr(settings, option.field, getattr(settings.config, option.field, None))
        if option.shown and option.field not in ("attempts", "scale_up_interval_s"):
            assert value == option.read(option.shown), option.name


def test_options_are_read_as_those_of_elastic_launch() -> None:
    settings = read(
        join_timeout="60", close_timeout="5", last_call_timeout="1", lease_ttl="2", scale_up_interval="0",
        key_prefix="/t/e",
        silence_timeout="0.3",
    )  # fmt: skip
    config = settings.config
    assert (settings.join_timeout_s, settings.close_timeout_s) == (60.0, 5.0)
    assert (config.join_window_s, config.lease_ttl_s, config.scale_up_interval_s, config.key_prefix) == (
        1.0,
        2.0,
        0.0,
        "/t/e",
    )
    assert config.silence_timeout_s == 0.3


def test_the_last_call_is_no_longer_than_a_start_may_settle() -> None:
    assert read(last_call_timeout="30").config.join_window_s == 15.0


@pytest.mark.parametrize(
    ("interval", "attempts", "ttl_s"), [("5", "3", 15), ("5", None, 15), ("0.5", "2", 2), ("1.1", "2", 3)]
)
def test_torchs_keep_alive_makes_the_lease(interval: str, attempts: str | None, ttl_s: float) -> None:
    given: dict[str, Any] = {"keep_alive_interval": interval}
    if attempts:
        given["keep_alive_max_attempt"] = attempts
    assert read(**given).config.lease_ttl_s == ttl_s


def test_https_and_a_certificate_speak_tls(tmp_path: Path) -> None:
    assert read("https://h:2379").config.endpoints == ("https://h:2379",)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"is_host": "1"}, "--rdzv-conf is_host: --rdzv-backend elastic-etcd has no such option; etcd is the host"),
        ({"join_timeot": "1"}, "--rdzv-conf join_timeot: --rdzv-backend elastic-etcd has no such option; use one of"),
        ({"password": "x"}, "a password does not belong on a command line; use etcd_password_file, or"),
        ({"join_timeout": "soon"}, "--rdzv-conf join_timeout: 'soon' is not a duration"),
        ({"lease_ttl": "1"}, "--rdzv-conf lease_ttl: 1 is not between 2s and 10m"),
        ({"silence_timeout": "0.01"}, "--rdzv-conf silence_timeout: 0.01 is too short"),
        ({"silence_timeout": "3", "lease_ttl": "2"}, "--silence-timeout 3s is not shorter than --lease-ttl 2s"),
        (
            {"heartbeat_timeout": "5"},
            "--rdzv-conf heartbeat_timeout: --rdzv-backend elastic-etcd has no such option; use silence_timeout",
        ),
        ({"join_timeout": "'5'"}, "--rdzv-conf join_timeout='5': write it without quotes: join_timeout=5"),
        ({'"nic': 'eth0"'}, '--rdzv-conf "nic=eth0": write it without quotes: nic=eth0'),
        ({"rerun": "maybe"}, "--rdzv-conf rerun: 'maybe' is neither 1 nor 0"),
        ({"verbose": "1", "quiet": "1"}, "--rdzv-conf: verbose and quiet contradict each other; leave one out"),
        ({"keep_alive_max_attempt": "2"}, "--rdzv-conf keep_alive_max_attempt needs keep_alive_interval; or use"),
        ({"keep_alive_interval": "2", "lease_ttl": "4"}, "--rdzv-conf lease_ttl and keep_alive_interval set the same"),
        ({"endpoint": ""}, "--rdzv-endpoint is missing; write --rdzv-endpoint HOST:2379, where etcd is"),
        ({"endpoint": "h"}, "--rdzv-endpoint: 'h' has no port; write h:2379"),
        ({"run_id": "a/b"}, "--rdzv-id: 'a/b': a job ID has 1 to 128 letters"),
        ({"host": "a b"}, "--local-addr: 'a b' is neither a host name nor an address"),
        ({"etcd_user": "me"}, "--etcd-user me has no password: add --etcd-password-file FILE, or set"),
    ],
)
def test_a_mistake_is_one_line_that_names_the_option_and_the_mend(arguments: dict[str, Any], text: str) -> None:
    assert text in refused(**arguments)


def test_every_flag_of_ours_that_an_option_stands_for_is_one() -> None:
    assert {option.flag for option in OPTIONS if option.flag} <= FLAGS.keys()
    assert not {option.name for option in OPTIONS} & OF_OTHERS.keys()


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("join anyway with --allow-mismatch", "join anyway with allow_mismatch=1 in --rdzv-conf"),
        ("start it with --rerun; use another --job-id", "start it with rerun=1 in --rdzv-conf; use another --rdzv-id"),
        ("--join-window is 3 there", "last_call_timeout in --rdzv-conf is 3 there"),
        ("is --elastic-server correct?", "is --rdzv-endpoint correct?"),
        ("(--max-restarts)", "(--max-restarts)"),
        ("--np 2:4 becomes", "--nnodes 2:4 becomes"),
        ("a line without any", "a line without any"),
    ],
)
def test_messages_name_what_a_user_of_torchrun_types(ours: str, theirs: str) -> None:
    assert translate_message(ours) == theirs


def test_the_page_names_every_option_and_no_other() -> None:
    page = (Path(__file__).parents[3] / "docs" / "guides/torchrun-plugin.md").read_text()
    rows = [
        line.split("|")
        for line in page.partition("## Options")[2].partition("## ")[0].splitlines()
        if line.startswith("| `")
    ]
    shown = {name: default.strip() for _, names, default, *_ in rows for name in re.findall(r"`(\w+)`", names)}
    assert shown == {option.name: option.shown or "none" for option in OPTIONS}
