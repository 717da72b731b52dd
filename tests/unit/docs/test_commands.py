"""Every command that the documents show is run, read, or named here with the reason why it cannot be run.

`elastic-ctl` and what starts jobs are run by tests/process/docs/test_commands.py; all of ours are read here besides.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Final

import pytest

from elastic.errors import ElasticError
from launcher.config import machine_checks, parse
from launcher.config.argv import HINTS
from launcher.config.flags import BY_NAME
from launcher.config.torchrun_names import ALIASES, NO_EFFECT
from tests.support import doc_checkers
from tests.support.doc_commands import ROOT, Block, Command, commands, everything, pages, parses, python

NOT_HERE: Final[Mapping[str, str]] = {
    "ssh": "another machine",
    "scp": "another machine",
    "kubectl": "a cluster; tests/unit/deploy/test_kubernetes.py and tests/cluster/test_deploy.py try it",
    "docker": "the image; tests/cluster/test_deploy.py runs what is in it",
    "systemctl": "systemd as the first process; tests/process/deploy/test_checkers.py verifies the units",
    "journalctl": "systemd as the first process",
    "sbatch": "Slurm; tests/process/deploy/test_slurm.py runs the file under a stand-in",
    "aws": "an account; tests/unit/deploy/test_cloud.py looks at the stacks",
    "az": "an account; tests/unit/deploy/test_cloud.py looks at the templates",
    "gcloud": "an account; tests/unit/deploy/test_cloud.py looks at the scripts",
    "azure/store.sh": "an account",
    "gcp/store.sh": "an account",
    "gcp/nodes.sh": "an account",
    "deploy/compose/chaos.sh": "the compose project; tests/cluster/test_deploy.py runs it",
    "etcdctl": "run by tests/support/etcd_roles.py, as they stand on the page",
    "etcd": "flags of a server for good; tests/process/docs/test_etcd_page.py starts those of the guide",
    "promtool": "Prometheus; tests/unit/deploy/test_monitoring.py reads rules and names",
    "horovodrun": "Horovod, shown beside ours",
    "accelerate": "Accelerate; tests/process/integrations/test_accelerate.py starts what it starts",
    "apt": "changes the machine",
    "useradd": "changes the machine",
    "install": "changes the machine",
    "sysctl": "changes the machine",
    "ufw": "changes the machine",
    "firewall-cmd": "changes the machine",
    "nano": "a person",
}
"""Programs whose commands do not run in a test, and what they need; or which test runs them."""

SHELL: Final = frozenset(
    {"export", "eval", "echo", "mkdir", "cp", "cd", "kill", "tail", "sed", "tee", "head", "source", "sleep", "wait"}
) | {
    "until",
    "do",
    "done",
    "curl",
    "openssl",
    "python3",
    ".ci/run",
}
"""What every shell has; that the files of ours that they name are there is looked at."""


OF_OTHERS: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        ("--min-np", "--max-np", "--slots-per-host", "--slots", "--reset-limit", "--elastic-timeout"), "horovodrun"
    ),
    **dict.fromkeys(("--host-discovery-script", "--blacklist-cooldown-range"), "horovodrun"),
    **dict.fromkeys(("--network", "--net", "--build-arg"), "docker"),
    **dict.fromkeys(("--no-kill", "--signal"), "sbatch"),
    **dict.fromkeys(("--client-cert-auth", "--auth-token-ttl", "--name", "--initial-cluster"), "etcd"),
    **dict.fromkeys(("--listen-peer-urls", "--peer-client-cert-auth", "--peer-auto-tls"), "etcd"),
    **dict.fromkeys(("--peer-cert-file", "--peer-key-file", "--peer-trusted-ca-file"), "etcd"),
    **dict.fromkeys(("--image-family", "--image-project"), "gcloud"),
    **dict.fromkeys(("--patience", "--again", "--job"), "elastic-k8s-autoscaler"),
    **dict.fromkeys(("--seed", "--seeds", "--rounds", "--only", "--lasts", "--write"), "the tests' own commands"),
    **dict.fromkeys(("--main_process_port", "--main_process_ip", "--machine_rank"), "accelerate launch"),
    **dict.fromkeys(("--num_machines", "--multi_gpu", "--tpu"), "accelerate launch"),
    "--part": "python -m elastic.train.export",
    "--grace-period": "kubectl",
    "--help-env": "elastic-launch",
    "--explain": "elastic-launch",
    "--version": "elastic-launch",
}
"""Flags that sentences name beside those of the tables, and whose they are."""


def every(programs: Mapping[str, object]) -> list[tuple[Command, tuple[str, ...]]]:
    return [(command, words) for command in everything() for words in command.parts if words and words[0] in programs]


def test_every_command_is_run_or_read_or_has_a_reason() -> None:
    known = {*doc_checkers.READ, *NOT_HERE, *SHELL}
    assert [
        str(command) for command in everything() for words in command.parts if words and words[0] not in known
    ] == []


def test_every_reason_is_that_of_a_command() -> None:
    programs = {words[0] for command in everything() for words in command.parts if words}
    assert set(NOT_HERE) <= programs
    for reason in NOT_HERE.values():
        for named in re.findall(r"tests/[\w/]+\.py", reason):
            assert (ROOT / named).is_file(), named


@pytest.mark.parametrize("program", sorted(doc_checkers.READ))
def test_every_command_can_be_read_by_what_reads_it_when_it_is_run(program: str) -> None:
    wrong = []
    for command, words in every({program: ""}):
        if command.fails:  # It is typed to show the error.
            continue
        try:
            doc_checkers.synopsis(command) if command.synopsis else doc_checkers.READ[program](words)
        except (AssertionError, ElasticError, SystemExit, SyntaxError, IndexError) as error:
            wrong.append(f"{command}: {error}")
    assert not wrong, chr(10).join(wrong)


def test_every_file_of_the_project_that_a_command_names_is_there() -> None:
    for command in everything():
        for words in command.parts:
            doc_checkers.files(words)


def pieces() -> list[Block]:
    return [piece for page in pages() for piece in python(str(page.relative_to(ROOT)), page.read_text())]


def test_every_piece_of_python_can_be_read() -> None:
    assert [f"{piece.page}:{piece.line}" for piece in pieces() if not parses(piece)] == []


def test_every_flag_in_the_prose_is_one_of_a_command_that_it_speaks_of() -> None:
    of_ctl = {flag for flags in doc_checkers.flags_of_ctl().values() for flag in flags}
    known = {*(name.replace("_", "-") for name in (*BY_NAME, *HINTS, *ALIASES, *NO_EFFECT)), "module", *of_ctl}
    quoted = [
        (f"{page.relative_to(ROOT)}:{number}", flag)
        for page in pages()
        for number, line in enumerate(page.read_text().splitlines(), 1)
        for flag in re.findall(r"`(--[A-Za-z][\w-]*)[^`]*`", line)
    ]
    of_others = [(where, flag) for where, flag in quoted if flag[2:].replace("_", "-") not in known]
    assert [told for told in of_others if told[1] not in OF_OTHERS] == []
    assert set(OF_OTHERS) <= {flag for _, flag in of_others}


def number_of(page: str, pattern: str, *, prose: bool = True) -> int:
    """The line of the first command of a page that matches; 0 if there is none."""
    found = (one for one in everything() if one.page == page and (prose or not one.prose))
    return next((one.line for one in found if re.search(pattern, one.text)), 0)


PAGES: Final = sorted({command.page for command in everything()})


def test_a_command_of_the_projects_own_tests_names_the_python_of_the_checkout() -> None:
    assert [str(one) for one in everything() if re.search(r"(?<!\.venv/bin/)python3? -m tests\.", one.text)] == []


@pytest.mark.parametrize("page", PAGES)
def test_a_page_makes_a_virtual_environment_before_it_installs_the_checkout(page: str) -> None:
    installs = number_of(page, r"^pip install '?\.", prose=False)
    assert not installs or 0 < number_of(page, r"^source .*/bin/activate") < installs


@pytest.mark.parametrize("page", PAGES)
def test_a_page_prepares_the_cluster_before_it_applies_the_first_job(page: str) -> None:
    applies = number_of(page, "kubectl apply --kustomize deploy/kubernetes/overlays")
    for what in ("docker push", "newName", "kubectl create namespace elastic"):
        assert not applies or 0 < number_of(page, what) < applies, what
    assert number_of(page, "ReadWriteOnce") <= applies, "the access mode of a claim that exists cannot be changed"


def test_no_argument_of_a_build_is_left_out() -> None:
    assert [str(one) for one in everything() if re.search("--build-arg [A-Z_]+=…", one.text)] == []


IMAGES: Final = ("elastic-launch", "train")
"""Images of the pages whose entrypoint is elastic-launch: that of deploy/Dockerfile, and one made from it."""


def test_what_follows_an_image_is_read_by_its_entrypoint() -> None:
    runs = [words for _, words in every({"docker": ""}) if words[1] == "run" and {*IMAGES} & {*words}]
    assert len(runs) >= 4
    for words in runs:
        image = next(at for at, word in enumerate(words) if word in IMAGES and words[at - 1] != "--entrypoint")
        options, arguments = words[:image], words[image + 1 :]
        program = options[options.index("--entrypoint") + 1] if "--entrypoint" in options else "elastic-launch"
        assert arguments[0] not in doc_checkers.READ, " ".join(words)
        doc_checkers.READ[program]([program, *arguments])


def test_an_export_reads_the_folder_in_which_its_job_saves() -> None:
    """Without a job's name beside it, it is that of a plain `python train.py`."""
    shown = [
        (page.name, folder, job[1] if (job := re.search(r"the job `(\w+)`", after)) else "")
        for page in pages()
        for folder, after in re.findall(r'`elastic\.export\("([^"]+)", "model\.pt"\)`(.{0,40})', page.read_text())
    ]
    assert {folder for _, folder, job in shown if job} == {saves_in("j1"), saves_in("job1")}
    assert all(folder == saves_in(job) for _, folder, job in shown if job), shown


def saves_in(job: str) -> str:
    given = ["--elastic-server", doc_checkers.ETCD, "--job-id", job, "-m", "elastic.examples.digits"]
    return os.path.relpath(machine_checks.check(parse.parse(given, {}), {}).checkpoint_dir)


# The extractor.


def texts(page: str) -> list[str]:
    return [command.text for command in commands("page.md", page)]


def test_a_block_of_commands_has_comments_variables_and_lines_that_go_on() -> None:
    page = "Do:\n\n    # first\n    A=1 elastic-launch \\\n        --np 2 train.py  # two\n    nano x\n\nSo.\n"
    found = commands("page.md", page)
    assert [(command.line, command.text) for command in found] == [
        (4, "A=1 elastic-launch --np 2 train.py  # two"),
        (6, "nano x"),
    ]
    assert found[0].parts == (("elastic-launch", "--np", "2", "train.py"),)


def test_of_a_transcript_only_what_was_typed_counts() -> None:
    assert texts("\n    $ elastic-ctl list\n    job  state\n\n    elastic-launch: error: no\n") == ["elastic-ctl list"]


def test_what_is_quoted_in_a_sentence_counts_when_it_is_more_than_a_name() -> None:
    assert texts("`elastic-ctl` has `elastic-ctl logs RANK`, and `python x.py` is one, `a b` none\n") == [
        "elastic-ctl logs RANK",
        "python x.py",
    ]


def test_a_pipe_and_two_commands_on_a_line_are_parts() -> None:
    (found,) = commands("page.md", "`sudo make a && .venv/bin/python -m b > c | tee d`\n")
    assert found.parts == (("make", "a"), ("python", "-m", "b"), ("tee", "d"))
