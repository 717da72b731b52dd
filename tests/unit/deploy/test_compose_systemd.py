"""deploy/compose and deploy/systemd: their command lines are the agent's, and what stands in two places is the same."""

from __future__ import annotations

import re
import shlex
from typing import Any

import pytest
import yaml

from launcher.config.config import Config
from launcher.config.parse import parse
from launcher.system.priority import RAISED_NICE
from tests.support.deploy_files import DEPLOY, environment_file, systemd_unit
from tests.support.kustomize import ROOT, Thing

UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
NOT_MENDED = {1, 2, 3}
"""Exit codes after which another start would end as this one did."""


def compose() -> Thing:
    made: Thing = yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text())
    return made


def filled(word: str) -> str:
    """Variables of compose, where nothing is set."""
    return re.sub(r"\$\{\w+:-(\w+)\}", r"\1", word)


def seconds(text: str) -> float:
    assert text.endswith("s")
    return float(text[:-1])


def test_the_agent_takes_the_command_line_of_compose_and_has_the_time_to_save() -> None:
    node = compose()["services"]["node"]
    config = parse([filled(word) for word in node["command"]], {})
    assert config.job_id == "compose"
    assert config.servers == ("etcd-0:2379", "etcd-1:2379", "etcd-2:2379")
    assert config.np.low <= node["deploy"]["replicas"] <= config.np.high
    assert seconds(node["stop_grace_period"]) > config.save_timeout_s + config.stop_timeout_s
    mounted = [volume.partition(":")[2] for volume in node["volumes"]]
    assert any(config.checkpoint_dir.startswith(path) for path in mounted)
    assert (ROOT / "deploy" / "compose" / node["build"]["context"]).resolve() == ROOT
    assert (ROOT / node["build"]["dockerfile"]).is_file()


def test_the_members_of_compose_s_etcd_know_each_other() -> None:
    services: dict[str, Any] = {name: made for name, made in compose()["services"].items() if name != "node"}
    for name, made in services.items():
        flags = made["environment"]
        assert f"--name={name}" in made["command"]
        assert flags["ETCD_INITIAL_CLUSTER"] == ",".join(f"{one}=http://{one}:2380" for one in services)
        assert flags["ETCD_INITIAL_ADVERTISE_PEER_URLS"] == f"http://{name}:2380"
        assert flags["ETCD_ADVERTISE_CLIENT_URLS"] == f"http://{name}:2379"
        assert flags["ETCD_AUTO_COMPACTION_MODE"] == "periodic"
        assert made["volumes"] == [f"{name}:/data"]
        assert flags["ETCD_DATA_DIR"].startswith("/data")
        assert made["networks"] == compose()["services"]["node"]["networks"] == list(compose()["networks"])


def test_etcd_may_be_the_distribution_s_or_in_the_folder_that_the_comment_of_its_unit_names() -> None:
    text = (DEPLOY / "systemd" / "etcd.service").read_text()
    assert re.search(r"apt install etcd-server .* from its releases, to /usr/local/bin$", text, re.MULTILINE)
    assert systemd_unit("etcd.service")["ExecStart"].split()[0] == "etcd"  # systemd finds it in either folder.


def config_of_the_unit() -> Config:
    environ = environment_file("elastic-launch.env")
    program, *words = systemd_unit("elastic-launch.service")["ExecStart"].split()
    assert program.endswith("/elastic-launch")
    assert words == ["$TRAIN"]  # Without braces systemd splits it at blanks.
    return parse(shlex.split(environ.pop("TRAIN")), environ)


def test_the_agent_takes_what_the_environment_file_of_systemd_says() -> None:
    config = config_of_the_unit()
    assert (config.job_id, config.script, config.module) == ("digits", "elastic.examples.digits", True)
    (server,) = config.servers
    urls = environment_file("etcd.env")
    assert f"http://{server}" == urls["ETCD_ADVERTISE_CLIENT_URLS"]
    assert f"http://{server}" in urls["ETCD_LISTEN_CLIENT_URLS"].split(",")
    assert config.log_dir.startswith(f"/var/lib/{systemd_unit('elastic-launch.service')['StateDirectory']}")


def test_systemd_starts_the_agent_again_unless_that_mends_nothing_and_gives_it_time_to_save() -> None:
    service, config = systemd_unit("elastic-launch.service"), config_of_the_unit()
    assert service["Restart"] == "on-failure"
    assert {int(code) for code in service["RestartPreventExitStatus"].split()} == NOT_MENDED
    assert {int(code) for code in service["SuccessExitStatus"].split()} == {130, 143}
    assert service["KillMode"] == "mixed"  # SIGTERM to the agent alone.
    assert service["OOMPolicy"] == "continue"
    assert float(service["TimeoutStopSec"]) > config.save_timeout_s + config.stop_timeout_s


@pytest.mark.parametrize("setting", ["PrivateDevices", "DeviceAllow", "DevicePolicy", "MemoryDenyWriteExecute"])
def test_the_unit_of_a_node_hides_no_card(setting: str) -> None:
    assert setting not in systemd_unit("elastic-launch.service")


def test_the_agent_of_the_unit_may_raise_its_priority_as_far_as_it_wants_and_not_to_realtime() -> None:
    service = systemd_unit("elastic-launch.service")
    assert int(service["LimitNICE"]) == RAISED_NICE
    assert "RestrictRealtime" not in service  # It refuses SCHED_RESET_ON_FORK, too.
    assert service["CapabilityBoundingSet"] == ""
    assert "LimitRTPRIO" not in service


def test_an_sbatch_file_warns_earlier_than_the_agents_need_and_asks_to_be_queued_again() -> None:
    text = (DEPLOY / "slurm" / "elastic.sbatch").read_text()
    wishes = re.findall(r"^#SBATCH (.*)$", text, re.MULTILINE)
    assert {"--requeue", "--open-mode=append", "--no-kill", "--ntasks-per-node=1"} <= set(wishes)
    (before,) = (int(wish.rpartition("@")[2]) for wish in wishes if wish.startswith("--signal=B:TERM@"))
    config = parse(["train.py"], {})
    assert before > config.save_timeout_s + config.stop_timeout_s
    head = text[: text.index("set -uo")]
    assert head.count("#SBATCH") == len(wishes)  # Slurm reads them only above the first command.
