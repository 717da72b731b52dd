"""The command lines of the seed documents, as they stand there, where no other test types them.

docs/development/requirements.md says for every row of the seeds which test shows it.
"""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.etcd_servers import free_ports
from tests.support.failure_texts import SIGNAL_INFO, TRACEBACK, abort
from tests.support.job_harness import Job, story, workers_by_role
from tests.support.nvidia_smi import four_cards
from tests.support.reserved_ports import free_range
from tests.support.script_runs import WARM, completed, run

FIRST, SECOND = "127.0.0.1", "127.0.0.2"
EIGHT = ",".join(map(str, range(8)))


@story
async def test_two_machines_with_two_cards_each_differ_in_nothing_but_their_cards(job: Job) -> None:
    """`--gpus=0,1 --ips="a,b" train.py --batch_size=64`, and on the other machine `--gpus=2,3`."""
    (serve,) = free_ports(1)
    nodes = [
        await job.node(
            *(f"--gpus={gpus}", f"--ips={FIRST},{SECOND}", "--host", host, "--serve-port", str(serve)),
            script=(str(job.script), "--batch_size=64"),
            server=False,
            environ=four_cards(job.folder),
        )
        for host, gpus in ((FIRST, "0,1"), (SECOND, "2,3"))
    ]
    world = await job.world(1, 4)
    assert {tuple(worker.argv[1:]) for worker in world} == {("--batch_size=64",)}
    names = ("GROUP_RANK", "LOCAL_RANK", "RANK", "WORLD_SIZE", "CUDA_VISIBLE_DEVICES", "FLAGS_selected_gpus")
    assert [tuple(worker.env[name] for name in names) for worker in world] == [
        ("0", "0", "0", "4", "0,1", "0"),
        ("0", "1", "1", "4", "0,1", "1"),
        ("1", "0", "2", "4", "2,3", "0"),
        ("1", "1", "3", "4", "2,3", "1"),
    ]
    both = f"{FIRST},{SECOND}"
    assert {(worker.env["PADDLE_TRAINERS"], worker.env["PADDLE_TRAINERS_NUM"]) for worker in world} == {(both, "4")}
    endpoints = [worker.env["PADDLE_CURRENT_ENDPOINT"] for worker in world]
    assert [endpoint.partition(":")[0] for endpoint in endpoints] == [FIRST, FIRST, SECOND, SECOND]
    assert len(set(endpoints)) == 4
    for worker in world:
        await worker.obeys("print", f"I am {worker.rank}")
        await worker.exits(0)
    for node in nodes:
        assert await node.exits() == 0
        assert node.text("endpoints.log") == "\n".join(("PADDLE_TRAINER_ENDPOINTS:", *endpoints, ""))
    kept = [sorted(path.name for path in (node.folder / "log").glob("workerlog.*")) for node in nodes]
    assert kept == [["workerlog.0", "workerlog.1"], ["workerlog.2", "workerlog.3"]]
    assert [node.shown for node in nodes] == [["I am 0"], []]


@story
async def test_two_of_eight_trainers_fail_and_the_logs_of_the_others_say_where_to_look(job: Job) -> None:
    """The page's own example: `rank=[2,3]` of 8, and `[SignalInfo: *** SIGTERM …]` in the log of another rank."""
    node = await job.node(*("--gpus", EIGHT, "--max-restarts", "0"), server=False, environ={"PATH": str(job.folder)})
    world = await job.world(1, 8)
    for worker in world[2:4]:
        await worker.obeys("complain", TRACEBACK)
    await world[2].exits(1)
    assert await node.exits() == 1
    assert abort(8, "2,3") in node.lines
    assert abort(8, "2,3") in node.text("launcher.log")
    assert f"Its log is {node.folder}/log/workerlog.2 on host {FIRST}." in node.lines
    assert f"log {node.folder}/log/workerlog.3" in "\n".join(node.lines)
    lines = node.text("workerlog.4").splitlines()
    assert any(SIGNAL_INFO.fullmatch(line) for line in lines)
    assert f"==== stopped because rank=[2] failed on host {FIRST}, see workerlog.2 ====" in lines


@story
async def test_a_second_run_in_the_same_folder_is_appended_and_the_newest_is_at_the_end(job: Job) -> None:
    node = await job.node()
    (worker,) = await job.world(1, 1)
    await worker.obeys("print", "first run")
    await worker.exits(0)
    assert await node.exits() == 0
    again = await job.node("--rerun", beside=node)
    (worker,) = await job.newest_world(1)
    await worker.obeys("print", "second run")
    await worker.exits(0)
    assert await again.exits() == 0
    lines = again.text("workerlog.0").splitlines()
    said = [line for line in lines if not line.startswith("==== ")]
    assert said == ["first run", "second run"]
    headers = [place for place, line in enumerate(lines) if line.startswith("==== elastic-launch job ")]
    closings = [place for place, line in enumerate(lines) if line.endswith(" ended: exit 0 ====")]
    assert [headers[0], closings[0], headers[1], closings[1]] == [0, 2, 3, 5]


@story
async def test_a_machine_in_front_of_the_node_is_named_with_host_and_its_open_ports_with_port_range(job: Job) -> None:
    """As in a container with `docker run -p`: no interface here has the address that the others are told."""
    low, high = free_range(5)
    outside = "203.0.113.5"
    await job.node("--host", outside, "--port-range", f"{low}:{high}")
    (worker,) = await job.world(1, 1)
    assert worker.env["PADDLE_CURRENT_ENDPOINT"] == f"{outside}:{low}"
    assert worker.env["MASTER_ADDR"] == outside
    assert low < int(worker.env["MASTER_PORT"]) <= high


# --- parameter servers ------------------------------------------------------------------------------------------------


@story
async def test_one_machine_simulates_servers_workers_and_heterogeneous_workers_that_meet_at_the_http_port(
    job: Job,
) -> None:
    (port,) = free_ports(1)
    node = await job.node(
        *("--run-mode", "ps-heter", "--server-num", "1", "--worker-num", "1", "--heter-worker-num", "2"),
        *("--http-port", str(port)),
    )
    world = await workers_by_role(job, "server 0", "worker 0", "heter 0", "heter 1")
    told = {name: worker.env["PADDLE_TRAINING_ROLE"] for name, worker in world.items()}
    assert told == {
        "server 0": "PSERVER",
        "worker 0": "TRAINER",
        "heter 0": "HETER_TRAINER",
        "heter 1": "HETER_TRAINER",
    }
    assert {worker.env["PADDLE_TRAINERS"] for worker in world.values()} == {"1"}, "a number here, and no list of hosts"
    assert {worker.env["PADDLE_GLOO_HTTP_ENDPOINT"] for worker in world.values()} == {f"{FIRST}:{port}"}
    assert {world[name].env["MASTER_PORT"] for name in ("worker 0", "heter 0", "heter 1")} == {str(port)}
    for name in ("worker 0", "heter 0", "heter 1"):
        await world[name].obeys("print", f"I am {name}")
        await world[name].exits(0)
    assert await node.exits() == 0
    for name, log in (("worker 0", "workerlog.0"), ("heter 0", "heterlog.0"), ("heter 1", "heterlog.1")):
        assert f"I am {name}\n" in node.text(log)
    assert node.text("serverlog.0")


@story
async def test_servers_sit_on_a_node_without_cards_and_workers_on_one_with_cards(job: Job) -> None:
    (port,) = free_ports(1)
    flags = ("--np", "1", "--servers", f"{FIRST}:{port}", "--worker-num", "2")
    cpu = await job.node(*flags, "--host", FIRST)
    gpu = await job.node(*flags, "--host", SECOND, environ={**four_cards(job.folder), "CUDA_VISIBLE_DEVICES": "0,1"})
    world = await workers_by_role(job, "server 0", "worker 0", "worker 1")
    assert world["server 0"].node == cpu.id
    assert world["server 0"].env["PADDLE_CURRENT_ENDPOINT"] == f"{FIRST}:{port}"
    workers = [world["worker 0"], world["worker 1"]]
    assert {worker.node for worker in workers} == {gpu.id}
    assert [(worker.env["LOCAL_RANK"], worker.env["CUDA_VISIBLE_DEVICES"]) for worker in workers] == [
        ("0", "0,1"),
        ("1", "0,1"),
    ]
    for worker in workers:
        await worker.exits(0)
    assert [await cpu.exits(), await gpu.exits()] == [0, 0]


def test_two_servers_and_two_trainers_train_the_regression_and_the_servers_end_with_the_last_trainer(
    tmp_path: Path,
) -> None:
    """One script in both roles; every trainer tells every server when it is done."""
    launch = ("-m", "launcher", "--server-num", "2", "--worker-num", "2", "--preload", "sklearn.datasets")
    script = ("-m", "elastic.examples.ps_regression", "--epochs", "6", "--lr", "0.005")
    said = completed((*launch, *script), tmp_path, **WARM)
    epochs = [line for line in said if line.startswith("Epoch: ")]
    assert len(epochs) == 6 * 5
    assert re.fullmatch(r"Epoch: 0, Batch: 9, loss: \d+\.\d+(e-\d+)?", epochs[0])
    final = re.fullmatch(r"final loss: (\d\.\d+)", said[-1])
    assert final is not None
    assert float(final[1]) < 0.55, "least squares reaches 0.482"
    for index in (0, 1):
        log = (tmp_path / "log" / f"serverlog.{index}").read_text()
        assert "worker 0 has closed" in log
        assert "worker 1 has closed" in log
        assert f"==== server {index} gen 1 ended: " in log


def test_a_role_that_does_not_exist_is_one_line_and_no_stack_trace(tmp_path: Path) -> None:
    (tmp_path / "fluid_dist.py").write_text("import elastic\n\nelastic.env()\n")
    code, out, said = run(["fluid_dist.py"], tmp_path, PADDLE_TRAINING_ROLE="WORKER", PADDLE_TRAINERS="2")
    assert (code, out) == (2, "")
    assert said == "elastic: error: PADDLE_TRAINING_ROLE should be one of [TRAINER, PSERVER]\n"
