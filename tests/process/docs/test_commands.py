"""The commands of the documents, typed: what looks at a job and steers it, and what starts one."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from launcher.config.parse import parse
from tests.scripts.torch_forkserver import Forked
from tests.support.doc_checkers import filled
from tests.support.doc_commands import ROOT, Command, everything, pages, python
from tests.support.doc_shell import Desk, unlike
from tests.support.etcd_servers import Server, free_ports

FIRST: Final = "elastic-launch --elastic-server 10.0.0.5:2379 --job-id j1 --np 2 train.py --lr 0.1"
"""The first line of README.md."""

SAYS: Final = {
    "status": r"^Job {job}: generation 1 \(first: 2 of 2 nodes are here\)",
    "list": r"^{job} +running +2 ",
    "events": r"generation 1 formed: 2 nodes|\"what\":\"generation\"",
    "logs": r"^step \d+$",
    "stacks": r"train\.py\", line \d+",
    "doctor": r"^ok +python: 3",
    "completion": r"elastic.ctl",
    "help": r"^usage: elastic-ctl ",
    "options": r"--etcd-user NAME",
    "wait": r"^Job {job} (runs|has completed)",
    "version": r"^elastic-launch +\d",
    "scale": r"^{job}: --np ",
    "report": r"{job}|<!doctype html>",
}
"""What each subcommand says of the job of the first line."""
STEERS: Final = ("drain", "stop")
AT_THE_END: Final = ("list", "events", "status")

NOT_STARTED: Final = {
    r"--gpus": "cards",
    r"https://|--etcd-user": "certificates, users; tests/store/test_etcd_security.py has them",
    r"--ips|--serve |--host ": "other machines; test_host_list.py and test_served_etcd.py in tests/process/job",
    r"-m elastic\.examples": "torch; train/test_digits_example.py and ps/test_without_launcher.py in tests/process",
    r"--servers (?!127)|--workers|gpu0|ps-0": "machines of these names; tests/process/ps/test_roles.py",
    r"--local-nodes": "several agents; tests/process/job/test_local_supervisor.py",
    r"--resume-from": "a checkpoint; tests/process/train/test_checkpoint_errors.py",
    r"--join-timeout": "gives up on purpose; tests/process/job/test_end.py",
    r"--explain": "starts nothing; tests/process/job/test_command_line.py",
}
"""Command lines of `elastic-launch` that are only read, and what they need or where they are run."""


def of(program: str) -> list[Command]:
    """The commands that are one call of a program, as a person could type them."""
    simple = [one for one in everything() if not one.synopsis and one.parts and one.parts[0][:1] == (program,)]
    return [one for one in simple if len(one.parts[0]) > 1 and not (one.prose and len(one.parts[0]) == 2)]


def subcommand(command: Command) -> str:
    return command.parts[0][1]


def follows(command: Command) -> bool:
    return bool({"--follow", "--watch", "-f", "-w"} & set(command.parts[0]))


def asks_kubernetes(command: Command) -> bool:
    return bool({"--k8s-job", "--jobset"} & set(command.parts[0]))


@pytest.fixture
def desk(etcd: Server, tmp_path: Path) -> Desk:
    return Desk(tmp_path, etcd.endpoint, f"docs-{secrets.token_hex(3)}", port=str(free_ports(1)[0]))


def each(work: Callable[[str, Command], None], commands: dict[str, Command]) -> None:
    """Do it for all of them, as many at once as there are cores on a small machine."""
    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(work, text, command) for text, command in commands.items()]:
            done.result()


@pytest.mark.timeout(240)
def test_what_looks_at_a_job_and_steers_it_does_what_its_page_says(desk: Desk) -> None:
    # tests/process/web/test_page.py has "ui", and tests/process/ctl/test_scale_pods.py what asks Kubernetes.
    ctl = [command for command in of("elastic-ctl") if subcommand(command) != "ui" and not asks_kubernetes(command)]
    assert {subcommand(command) for command in ctl} <= {*SAYS, *STEERS, "forget"}
    job = desk.places["job"]

    def looks(text: str, command: Command) -> None:
        code, said = desk.ran(text)
        if command.fails:
            assert code in (1, 2), f"{command}\n{said}"
            assert re.match(r"elastic-ctl: error: [^\n]+\n\Z", said), said
            return
        assert code == 0 or subcommand(command) == "doctor", f"{command}\n{code} {said}"
        wanted = '"job_id"' if "--json" in text and subcommand(command) == "status" else SAYS[subcommand(command)]
        assert re.search(wanted.format(job=job), said, re.M), f"{command}\n{said}"

    (first,) = {command.text: command for command in everything() if command.text == FIRST}.values()
    with ExitStack() as running:
        nodes = [running.enter_context(desk.typed(desk.here(first), within=name)) for name in "ab"]
        for node in nodes:
            node.says("generation 1: 2 nodes")
        desk.places["node"] = next(filter(None, (re.search(r"joined the job as (\S+)", nodes[0].said),)))[1]
        rank_0 = next(node for node in nodes if "this is M_id 0 " in node.said)
        rank_0.says("^step 5$")
        following = [running.enter_context(desk.typed(text)) for text in unlike(desk, [c for c in ctl if follows(c)])]
        for one in following:
            one.says(".")
        steering = (*STEERS, "forget", "scale")
        each(looks, unlike(desk, [c for c in ctl if not follows(c) and (subcommand(c) not in steering or c.fails)]))
        for text, command in unlike(desk, [c for c in ctl if subcommand(c) == "scale" and not c.fails]).items():
            looks(text, command)
        code, said = desk.ran("elastic-ctl stop")
        assert code == 0, said
        assert [node.ends() for node in nodes] == [0, 0]
        assert [(one.text, one.ends(), one.said) for one in following if one.ends()] == []
    for name in AT_THE_END:
        assert re.search(rf"{job}.*stopped|final status: stopped", desk.ran(f"elastic-ctl {name}")[1])
    assert desk.ran("elastic-ctl forget --yes")[1].startswith(f"Deleted the record of job {job}: ")


def test_what_makes_nodes_leave_and_what_ends_a_job_does_so(etcd: Server, tmp_path: Path) -> None:
    """Each on a job of its own, of one node."""
    ordering = [command for command in of("elastic-ctl") if subcommand(command) in STEERS and not command.fails]

    def orders(text: str, command: Command) -> None:
        folder = tmp_path / secrets.token_hex(3)
        folder.mkdir()
        desk = Desk(folder, etcd.endpoint, f"docs-{secrets.token_hex(3)}")
        with desk.typed("elastic-launch --np 1:4 train.py --lr 1") as node:
            desk.places["node"] = node.says(r"joined the job as (\S+)")[1]
            node.says("^step 5$")
            code, said = desk.ran(desk.here(command))
            assert code == 0, f"{command}\n{said}"
            assert node.ends() == 0, node.said

    each(orders, {command.text: command for command in ordering})


def test_a_command_line_that_starts_nodes_starts_them_and_they_train(desk: Desk, tmp_path: Path) -> None:
    """Each on as many nodes as it waits for."""
    lines = [
        command
        for command in of("elastic-launch")
        if "train.py" in command.text
        and not command.fails
        and not any(re.search(what, command.text) for what in NOT_STARTED)
    ]
    assert len({desk.here(command) for command in lines}) > 10

    def starts(_: str, command: Command) -> None:
        own = Desk(tmp_path / secrets.token_hex(3), **{**desk.places, "job": f"docs-{secrets.token_hex(3)}"})
        text = own.here(command).replace("--lr 0.1", "")
        words = filled("elastic-launch", command.parts[0][1:])
        config = parse(words, {})
        servers = int(words[words.index("--server-num") + 1]) if "--server-num" in words else 0
        waited = config.np.first + servers if config.servers else 1
        with ExitStack() as running:
            nodes = [
                running.enter_context(own.typed(text, within=f"n{n}", environ=ALONE if not config.servers else {}))
                for n in range(waited)
            ]
            for node in nodes:
                assert node.ends() == 0, f"{command}\n{node.said}"
            assert any("trained" in node.said for node in nodes), nodes[0].said

    each(starts, unlike(desk, lines))


ALONE: Final = {"ELASTIC_ETCD": "", "ELASTIC_JOB_ID": ""}


def page(name: str) -> list[Command]:
    return [command for command in everything() if command.page == f"docs/{name}.md"]


def test_monitors_are_answered_as_docs_metrics_shows(desk: Desk) -> None:
    (launch,) = (
        command for command in page("guides/metrics") if "--metrics-port" in command.text and not command.prose
    )
    (asking,) = (command for command in page("guides/metrics") if command.parts[0][0] == "curl")
    line = desk.here(launch).replace("--np 2", "--np 1")
    with desk.typed(f"{line} --lr 0.1") as node:
        node.says("metrics: http://127.0.0.1:")
        node.says("^step 1$")
        code, said = desk.ran(desk.here(asking))
    assert code == 0, said
    assert said.splitlines()[-1:] == list(asking.shown)


def test_the_notice_of_docs_spot_makes_the_node_leave(desk: Desk) -> None:
    first = next(command.line for command in page("guides/spot") if "mktemp" in command.text)
    typed = [command for command in page("guides/spot") if command.line >= first]
    assert typed[-1].text == "kill $server"
    lines = [desk.here(command) for command in typed]
    real = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}  # The desk's own torch is none to train with.
    for _ in "first try", "second try":
        _, said = desk.ran("\n".join(["set -m", *lines]), **ALONE, **real)
        assert re.search(r"AWS reclaims this machine at .*: this node drains", said), said
        assert re.search(r"left \(AWS reclaims this machine at .*\); the job stays open", said), said


SHORTENED: Final = {r"elastic\.epochs\(state, \d+\)": "elastic.epochs(state, 1)", r"randn\(10_000": "randn(1000"}


def scripts() -> dict[str, str]:
    """The pieces of Python that are whole scripts, by where they stand."""
    whole = [piece for path in pages() for piece in python(str(path.relative_to(ROOT)), path.read_text())]
    texts = {f"{piece.page}:{piece.line}": "\n".join(piece.lines) for piece in whole}
    return {at: text for at, text in texts.items() if "elastic.init()" in text and re.search(r"^for epoch", text, re.M)}


def test_the_scripts_of_the_documents_train_as_plain_python_runs_them(tmp_path: Path) -> None:
    found = {at: text for at, text in scripts().items() if "import torch" in text}
    assert len(found) > 3
    for at, text in found.items():
        folder = tmp_path / re.sub(r"\W", "-", at)
        folder.mkdir()
        for what, short in SHORTENED.items():
            text = re.sub(what, short, text)
        (folder / "train.py").write_text(text)
        kept = {name: value for name, value in os.environ.items() if not name.startswith("ELASTIC_")}
        run = Forked(["train.py"], {**kept, "OMP_NUM_THREADS": "1"}, cwd=folder)
        said = run.output(60.0)
        assert run.returncode == 0, f"{at}\n{said}"
        assert list((folder / "checkpoints").glob("**/step-*")), at


def test_the_words_of_docs_training_about_long_preparation_run_as_they_stand(tmp_path: Path) -> None:
    (piece,) = [
        one for one in python("training", (ROOT / "docs/guides/training.md").read_text()) if DOWNLOADS in one.lines
    ]
    given = ["import os", "import elastic", "def download(): print('downloaded')"]
    (tmp_path / "train.py").write_text("\n".join([*given, *piece.lines]))
    run = Forked(["train.py"], {**os.environ, "OMP_NUM_THREADS": "1"}, cwd=tmp_path)
    said = run.output(60.0)
    assert (run.returncode, said.splitlines()[:1]) == (0, ["downloaded"]), said


DOWNLOADS: Final = '    with elastic.preparing("downloading the data"):'


def test_every_reason_not_to_start_a_command_line_is_that_of_one() -> None:
    texts = [command.text for command in of("elastic-launch")]
    assert [what for what in NOT_STARTED if not any(re.search(what, text) for text in texts)] == []
