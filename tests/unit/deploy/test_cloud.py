"""What starts machines of clouds: user data that is YAML, and commands that we take."""

from __future__ import annotations

import base64
import gzip
import json
import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from launcher.config.config import Config
from launcher.config.flags import FLAGS
from launcher.config.parse import parse
from tests.support.deploy_files import CLOUD, cloud_files, filled, user_data

CLOUDS = ("aws", "gcp", "azure")
UNIT: Final = "/etc/systemd/system/elastic-launch.service"
CFN_PARAMETER_MAX = 4096
"""Characters of a parameter of CloudFormation (its quotas page)."""


def settings(cloud: str, folder: Path) -> dict[str, str]:
    """The variables that systemd reads from the file."""
    lines = cloud_files(cloud, folder)["/etc/elastic-launch.env"].splitlines()
    words = [shlex.split(line) for line in lines if line and not line.startswith("#")]
    assert all(len(line) == 1 for line in words)
    return dict(line[0].split("=", 1) for line in words)


def config_of(cloud: str, folder: Path) -> Config:
    """What elastic-launch makes of the command of the unit and its environment."""
    environ = settings(cloud, folder)
    drop_in = cloud_files(cloud, folder)[f"{UNIT}.d/cloud.conf"]
    reset, command = re.findall(r"^ExecStart=(.*)$", drop_in, re.MULTILINE)
    assert reset == ""  # Without it systemd refuses a second command.
    program, *words = command.split()
    assert program == "/opt/elastic-launch/venv/bin/elastic-launch"
    argv = [word for one in words for word in (environ[one[1:]].split() if one.startswith("$") else [one])]
    return parse(argv, environ)


@pytest.mark.parametrize("cloud", CLOUDS)
def test_the_command_of_a_machine_is_one_that_elastic_launch_takes(cloud: str, tmp_path: Path) -> None:
    config = config_of(cloud, tmp_path)
    assert config.servers == ("10.0.0.5:2379",)
    assert (config.job_id, str(config.np), config.spot) == ("night", "1:4", cloud)
    assert config.checkpoint_dir == "/mnt/shared/night"
    assert (config.script, config.module) == ("elastic.examples.char_lm", True)


def test_a_machine_of_a_cloud_has_the_unit_of_systemd_with_another_command_and_nothing_else(tmp_path: Path) -> None:
    written = cloud_files("aws", tmp_path)
    lines = (CLOUD.parent / "systemd" / "elastic-launch.service").read_text().splitlines()
    assert written[UNIT].splitlines() == [line for line in lines if line and not line.startswith("#")]
    section, *settings = written[f"{UNIT}.d/cloud.conf"].splitlines()
    assert section == "[Service]"
    assert {line.partition("=")[0] for line in settings} == {"ExecStart"}


def test_the_user_and_the_folder_that_the_set_up_makes_are_those_of_the_unit(tmp_path: Path) -> None:
    written = cloud_files("aws", tmp_path)
    setup = written["/opt/elastic-launch/setup.sh"]
    ((folder, user),) = re.findall(r"useradd .*--home-dir (\S+) (\S+)$", setup, re.MULTILINE)
    for setting in (f"User={user}", f"Group={user}", f"WorkingDirectory={folder}"):
        assert setting in written[UNIT].splitlines()


@pytest.mark.parametrize("cloud", CLOUDS)
def test_the_settings_of_a_machine_are_those_of_the_file_without_its_comments(cloud: str, tmp_path: Path) -> None:
    path = filled(cloud, tmp_path)
    path.write_text(path.read_text().rstrip("\n"))  # A last line without an end keeps its place.
    ran = subprocess.run([CLOUD / "user-data.sh", path], capture_output=True, text=True, check=True)
    written = {one["path"]: one for one in yaml.safe_load(ran.stdout)["write_files"]}["/etc/elastic-launch.env"]
    assert written["permissions"] == "0600"
    assert written["content"].splitlines() == [
        line for line in path.read_text().splitlines() if line and not line.startswith("#")
    ]


@pytest.mark.parametrize("cloud", CLOUDS)
def test_every_variable_of_the_settings_is_that_of_a_flag_or_used_by_the_set_up(cloud: str, tmp_path: Path) -> None:
    flags = {name for flag in FLAGS for name in flag.variables}
    script = cloud_files(cloud, tmp_path)["/opt/elastic-launch/setup.sh"]
    for name in settings(cloud, tmp_path):
        assert name in flags or f"${name}" in script or name == "SCRIPT", name


@pytest.mark.parametrize("cloud", CLOUDS)
def test_a_save_has_no_more_time_than_the_cloud_gives(cloud: str, tmp_path: Path) -> None:
    notice_s = {"aws": 120, "gcp": 30, "azure": 30}[cloud]
    assert config_of(cloud, tmp_path).save_timeout_s <= notice_s - 3


def test_a_place_that_was_not_filled_in_is_one_line() -> None:
    ran = subprocess.run(
        [CLOUD / "user-data.sh", CLOUD / "aws" / "job.env"], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 2
    places = r'3:PACKAGE="[^"]* @ <WHEEL>" 5:ELASTIC_ETCD="<ETCD>:2379" .*'
    assert re.fullmatch(rf".*job\.env has placeholders to fill in: {places}\n", ran.stderr)
    assert ran.stdout == ""


@pytest.mark.parametrize("cloud", CLOUDS)
def test_user_data_is_a_cloud_config_that_runs_what_it_writes(cloud: str, tmp_path: Path) -> None:
    text = user_data(cloud, tmp_path)
    assert text.startswith("#cloud-config\n")
    document = yaml.safe_load(text)
    assert set(document) == {"package_update", "packages", "write_files", "runcmd"}
    (setup,) = [one for one in document["write_files"] if one["path"].endswith("setup.sh")]
    assert document["runcmd"] == [[setup["path"]]]
    assert setup["permissions"] == "0755"


def test_user_data_fits_into_a_parameter_of_cloudformation(tmp_path: Path) -> None:
    packed = gzip.compress(user_data("aws", tmp_path).encode(), 9)
    assert len(base64.b64encode(packed)) < CFN_PARAMETER_MAX / 2


SIGNED_URL_MAX: Final = 1600
"""Characters of an object's URL that was signed with temporary credentials, whose token is most of it."""


def test_user_data_with_a_signed_url_fits_into_a_parameter_of_cloudformation(tmp_path: Path) -> None:
    settings = filled("aws", tmp_path)
    text = settings.read_text()
    url = base64.urlsafe_b64encode(os.urandom(SIGNED_URL_MAX)).decode()[:SIGNED_URL_MAX]  # It cannot be packed.
    settings.write_text(text.replace("examples] @ 10.0.0.5", f"examples] @ https://{url}"))
    assert url in settings.read_text()
    made = subprocess.run([CLOUD / "user-data.sh", settings], capture_output=True, check=True).stdout
    assert len(base64.b64encode(gzip.compress(made, 9))) < CFN_PARAMETER_MAX


@pytest.mark.parametrize("cloud", CLOUDS)
def test_the_page_of_a_cloud_says_what_goes_in_the_place_of_the_wheel(cloud: str) -> None:
    assert "<WHEEL>" in (CLOUD / cloud / "job.env").read_text()
    assert re.search("replace .*<WHEEL>|<WHEEL> with", (CLOUD / cloud / "README.md").read_text())


class _Cfn(yaml.SafeLoader):
    """YAML with the short functions of CloudFormation: `!Ref x` is {"Ref": "x"}."""


def _function(loader: yaml.SafeLoader, suffix: str, node: yaml.Node) -> Any:
    if isinstance(node, yaml.ScalarNode):
        return {suffix: loader.construct_scalar(node)}
    assert isinstance(node, yaml.SequenceNode)
    return {suffix: loader.construct_sequence(node)}


_Cfn.add_multi_constructor("!", _function)


def stack(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.load((CLOUD / "aws" / name).read_text(), Loader=_Cfn)
    return found


@pytest.mark.parametrize("name", ["store.yaml", "nodes.yaml"])
def test_every_name_that_a_stack_refers_to_is_in_it(name: str) -> None:
    document = stack(name)
    known = {*document["Parameters"], *document["Resources"]}
    text = json.dumps([document["Resources"], document["Outputs"]])
    assert set(re.findall(r'"Ref": "([^"]+)"', text)) <= known
    assert {at.partition(".")[0] for at in re.findall(r'"GetAtt": "([^"]+)"', text)} <= known


def test_the_group_of_aws_is_of_spot_machines_that_need_tokens_and_are_replaced_before_they_go() -> None:
    resources = stack("nodes.yaml")["Resources"]
    group = resources["Group"]["Properties"]
    assert group["CapacityRebalance"] is True
    distribution = group["MixedInstancesPolicy"]["InstancesDistribution"]
    assert distribution["OnDemandBaseCapacity"] == distribution["OnDemandPercentageAboveBaseCapacity"] == 0
    assert resources["Template"]["Properties"]["LaunchTemplateData"]["MetadataOptions"]["HttpTokens"] == "required"


def test_the_scale_set_of_azure_is_of_spot_machines_that_are_told_of_their_end() -> None:
    document = json.loads((CLOUD / "azure" / "nodes.json").read_text())
    (scale_set,) = document["resources"]
    profile = scale_set["properties"]["virtualMachineProfile"]
    assert (profile["priority"], profile["evictionPolicy"]) == ("Spot", "Delete")
    assert profile["scheduledEventsProfile"]["terminateNotificationProfile"]["enable"] is True
    used = set(re.findall(r"parameters\('(\w+)'\)", json.dumps(scale_set)))
    assert used == set(document["parameters"])


def test_the_network_of_azure_has_a_way_out_before_a_machine_is_in_it(tmp_path: Path) -> None:
    typed = tmp_path / "typed"
    (stub := tmp_path / "az").write_text(f'#!/bin/sh\necho "$@" >>{typed}\n')
    stub.chmod(0o755)
    environ = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    subprocess.run([CLOUD / "azure" / "store.sh", "share"], env=environ, capture_output=True, check=True)
    commands = typed.read_text().splitlines()
    (gateway,) = (at for at, line in enumerate(commands) if line.startswith("network nat gateway create"))
    (subnet,) = (at for at, line in enumerate(commands) if " --nat-gateway " in line)
    (machine,) = (at for at, line in enumerate(commands) if line.startswith("vm create"))
    assert gateway < subnet < machine
    (name,) = re.findall(r" --name (\S+)", commands[gateway])
    assert f" --nat-gateway {name} " in commands[subnet]


def test_the_instances_of_google_are_spot_machines() -> None:
    assert "--provisioning-model=SPOT" in (CLOUD / "gcp" / "nodes.sh").read_text()
