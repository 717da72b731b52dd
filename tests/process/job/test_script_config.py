"""A script that says in Python what its job is: `elastic.launch`, and OneFlow's way to say the same."""

from __future__ import annotations

import re
import secrets
from pathlib import Path

import pytest

from launcher.agent.node_id import MARK
from tests.support.agent_process import DISK_WARNING
from tests.support.etcd_servers import Server, free_ports
from tests.support.script_runs import WARM, completed, finish, run, start
from tests.support.shared_console import by_rank

SCRIPT = """
import os, sys
import elastic

print("above", sys.argv[1:])  # Not flushed: what was printed is not lost.
elastic.launch({arguments})
print("below", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], sys.argv[1:], flush=True)
"""


def script(folder: Path, arguments: str, name: str = "train.py") -> str:
    (folder / name).write_text(SCRIPT.format(arguments=arguments))
    return name


def test_a_plain_python_command_starts_its_script_in_as_many_workers_as_it_says(tmp_path: Path) -> None:
    """What stands in the user's folder under our name is not ours."""
    script(tmp_path, "console='none'", "launcher.py")
    name = script(tmp_path, "gpu_device_num=2, console='all'")
    said = completed([name, "--lr", "0.1", "a b", "--", "--np"], tmp_path)
    words = ["--lr", "0.1", "a b", "--", "--np"]
    assert said[0] == f"above {words}"
    inside = [[(rank, f"above {words}"), (rank, f"below {rank} of 2 {words}")] for rank in (0, 1)]
    assert sorted(by_rank(said[1:])) == sorted([*inside[0], *inside[1]])


def test_the_same_script_typed_twice_is_one_job_and_only_its_first_node_shows_output(
    tmp_path: Path, etcd: Server
) -> None:
    job_id = f"config-{secrets.token_hex(4)}"
    name = script(tmp_path, f"elastic_server={etcd.endpoint!r}, job_id={job_id!r}, np=2, log_dir=f'log{{os.getpid()}}'")
    nodes = [start([name], tmp_path) for _ in range(2)]
    ended = [finish(node) for node in nodes]
    assert [code for code, _, _ in ended] == [0, 0], ended
    shown = sorted(out.splitlines() for _, out, _ in ended)
    assert shown == [["above []"], ["above []", "above []", "below 0 of 2 []"]]


def test_the_node_that_is_named_first_shows_the_output_and_the_others_only_compute(tmp_path: Path) -> None:
    """Two addresses of this machine, so that each node has to be told which one is its own; hosts know that."""
    serve, ctrl = free_ports(2)
    nodes = [{"addr": "127.0.0.2"}, {"addr": "127.0.0.1"}]
    name = script(tmp_path, f"nodes={nodes}, gpu_device_num=1, ctrl_port={ctrl}, log_dir=f'log{{os.getpid()}}'")
    with (tmp_path / name).open("a") as file:
        file.write('print(os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"], flush=True)\n')
    hosts = [node["addr"] for node in nodes]
    started = [start([name], tmp_path, ELASTIC_HOST=host, ELASTIC_SERVE_PORT=str(serve)) for host in hosts]
    (first, shown, said), (second, nothing, more) = (finish(node) for node in started)
    assert (first, second) == (0, 0), f"{said}\n{more}"
    assert shown.splitlines() == ["above []", "above []", "below 0 of 2 []", f"127.0.0.2 {ctrl}"]
    assert nothing.splitlines() == ["above []"]


def test_inside_a_worker_it_does_nothing_whatever_it_is_told(tmp_path: Path) -> None:
    name = script(tmp_path, "nodes='nonsense', gpu_device_num=-1")
    assert completed(["-m", "launcher", name, "x"], tmp_path) == ["above ['x']", "below 0 of 1 ['x']"]
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1", name]
    assert completed(torchrun, tmp_path) == ["above []", "below 0 of 1 []"]


def test_a_module_is_started_again_as_a_module_and_a_script_without_ending_as_a_script(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    script(tmp_path, "quiet=True", "package/__main__.py")
    assert completed(["-m", "package", "x"], tmp_path)[1:] == ["above ['x']", "below 0 of 1 ['x']"]
    script(tmp_path, "quiet=True", "train")
    assert completed(["train", "x"], tmp_path)[1:] == ["above ['x']", "below 0 of 1 ['x']"]


def test_a_child_of_multiprocessing_does_not_become_a_launcher(tmp_path: Path) -> None:
    """It imports the main script once more, and with it the call."""
    (tmp_path / "train.py").write_text("""
import multiprocessing
import elastic

if __name__ == "__main__":
    child = multiprocessing.get_context("spawn").Process(target=print, args=("child",))
    child.start()
    child.join()
    print("it ended with", child.exitcode, flush=True)

elastic.launch()
""")
    assert completed(["train.py"], tmp_path) == ["child", "it ended with 0"] * 2


def test_the_old_name_launches_with_one_warning_for_the_user_and_none_in_a_worker(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import os, elastic\nelastic.config(gpu_device_num=1, quiet=True)\nprint(os.environ['RANK'], flush=True)\n"
    )
    code, out, said = run(["train.py"], tmp_path)
    assert (code, out) == (0, "0\n")
    first, call = [line for line in said.splitlines() if not line.endswith(DISK_WARNING)]
    assert "train.py:2: DeprecationWarning: elastic.config is now elastic.launch" in first
    assert call == "  elastic.config(gpu_device_num=1, quiet=True)"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["train.py"], "elastic: error: nodes[1] has the address of nodes[0], a; list each node once"),
        (
            ["-c", "import elastic; elastic.launch()"],
            "elastic: error: a job restarts the script on every node, but",
        ),
        (["-c", "import elastic; elastic.launch(gpu_device_num=0)"], "elastic: error: gpu_device_num is 0"),
        (["unknown.py"], "elastic-launch: error: no such argument: --nonsense"),
    ],
)
def test_a_mistake_is_one_line_and_exit_2_without_a_stack_trace(words: list[str], says: str, tmp_path: Path) -> None:
    script(tmp_path, 'nodes=[{"addr": "a"}, {"addr": "a"}]')
    script(tmp_path, "nonsense=1", "unknown.py")
    code, _, said = run(words, tmp_path)
    assert code == 2
    assert said.startswith(says)
    assert said.count("\n") == 1


ONEFLOW = """
import os
from elastic import oneflow as flow

def config_distributed():
    print("distributed config", flush=True)
    flow.config.gpu_device_num(2)
    {ctrl_port}
    {launch}

if __name__ == "__main__":
    config_distributed()
    {then}
    print(os.environ.get("RANK"), "of", os.environ.get("WORLD_SIZE"), flush=True)
"""


def oneflow(folder: Path, launch: str = "", then: str = "", ctrl_port: str = "") -> list[str]:
    (folder / "train.py").write_text(ONEFLOW.format(launch=launch, then=then, ctrl_port=ctrl_port))
    return ["train.py"]


def test_the_lines_of_oneflow_start_two_workers_on_one_machine(tmp_path: Path) -> None:
    said = completed(oneflow(tmp_path, launch="flow.launch(console='all')"), tmp_path)
    assert said.count("distributed config") == 1
    assert {re.sub(rf"^\[[0-9.]+-{MARK}\] ", "", line) for line in said} > {"rank 0: 0 of 2", "rank 1: 1 of 2"}


def test_elastic_init_launches_what_was_set_and_not_launched(tmp_path: Path) -> None:
    said = completed(oneflow(tmp_path, then="import elastic; elastic.init()"), tmp_path)
    assert said == ["distributed config", "distributed config", "0 of 2"]


def test_the_function_of_the_page_of_oneflow_works_with_one_changed_import(tmp_path: Path) -> None:
    serve, ctrl = free_ports(2)
    nodes = [{"addr": "127.0.0.1"}]
    words = oneflow(tmp_path, f"flow.env.machine({nodes})", ctrl_port=f"flow.env.ctrl_port({ctrl})")
    said = completed(words, tmp_path, ELASTIC_SERVE_PORT=str(serve))
    assert said == ["distributed config", "distributed config", "0 of 2"]


def test_a_setting_that_comes_too_late_is_one_line_and_not_a_setting_that_is_lost(tmp_path: Path) -> None:
    words = oneflow(tmp_path, "flow.launch(quiet=True, max_restarts=0)", ctrl_port="", then="flow.env.ctrl_port(9988)")
    code, _, said = run(words, tmp_path)
    assert code == 1
    assert "elastic: error: ctrl_port was called after flow.launch, which has already launched the job" in said
    assert "Traceback" not in said


def test_settings_that_were_never_launched_are_told_at_the_end(tmp_path: Path) -> None:
    code, out, said = run(oneflow(tmp_path, ctrl_port="flow.config.ctrl_port(9988)"), tmp_path)
    assert (code, out) == (0, "distributed config\nNone of None\n")
    assert said == "elastic: gpu_device_num and ctrl_port had no effect; call flow.launch() after them\n"


@pytest.mark.parametrize("call", ["flow.config.gpu_device_num(0)", "flow.env.ctrl_port('a')", "flow.env.machine([])"])
def test_a_wrong_value_of_oneflow_is_one_line_and_exit_2(call: str, tmp_path: Path) -> None:
    code, _, said = run(["-c", f"from elastic import oneflow as flow; {call}"], tmp_path)
    assert code == 2
    assert said.startswith("elastic: error: ")
    assert said.count("\n") == 1


EXAMPLE = ("-m", "elastic.examples.oneflow_style", "--epochs", "20")


def accuracy(line: str) -> float:
    found = re.fullmatch(r"test accuracy (\d+\.\d) %; the model is in mlp\.pt", line)
    assert found, line
    return float(found[1])


def test_the_example_trains_with_two_workers_and_rank_0_alone_shows_and_saves(tmp_path: Path) -> None:
    said = completed([*EXAMPLE, "--gpu_device_num", "2"], tmp_path, ELASTIC_PRELOAD="sklearn.datasets", **WARM)
    assert [line.partition("  loss")[0] for line in said[:-1]] == ["epoch 10", "epoch 20"]
    assert all(line.endswith("world 2") for line in said[:-1])
    assert accuracy(said[-1]) >= 94
    assert (tmp_path / "mlp.pt").exists()


def test_the_example_shows_its_result_and_saves_its_model_on_the_first_node_alone(tmp_path: Path) -> None:
    serve, ctrl = free_ports(2)
    hosts = ("127.0.0.2", "127.0.0.1")
    words = [*EXAMPLE, "--nodes", ",".join(hosts), "--ctrl-port", str(ctrl)]
    started = []
    for host in hosts:
        (tmp_path / host).mkdir()
        more = {"ELASTIC_HOST": host, "ELASTIC_SERVE_PORT": str(serve)}
        started.append(start(words, tmp_path / host, **more))
    (first, shown, said), (second, nothing, more_said) = (finish(node) for node in started)
    assert (first, second) == (0, 0), f"{said}\n{more_said}"
    assert accuracy(shown.splitlines()[-1]) >= 94
    assert nothing == ""
    assert [(tmp_path / host / "mlp.pt").exists() for host in hosts] == [True, False]
