"""Parameter servers without a launcher: the environment alone, real processes, real kills."""

from __future__ import annotations

import re
from pathlib import Path

import torch

from tests.process.ps_jobs import Job, Process, job

REGRESSION = ("-m", "elastic.examples.ps_regression")


def started(made: Job, **environ: str) -> tuple[list[Process], list[Process]]:
    """All servers and workers, once every worker is ready."""
    servers = [made.server(index, **environ) for index in range(len(made.hosts))]
    workers = [made.worker(index, **environ) for index in range(made.trainers)]
    for worker in workers:
        worker.until("^ready$")
    return servers, workers


def codes(processes: list[Process]) -> list[int]:
    return [process.end() for process in processes]


def test_the_quick_start_s_four_command_lines_train_the_regression(tmp_path: Path) -> None:
    with job(tmp_path, command=REGRESSION) as made:
        servers = [made.server(0), made.server(1)]
        workers = [made.worker(0, "--save", str(tmp_path / "model")), made.worker(1)]
        assert codes([*workers, *servers]) == [0, 0, 0, 0]
    lines = [line for line in workers[1].said if line.startswith("Epoch")]
    assert all(re.fullmatch(r"Epoch: \d+, Batch: \d+, loss: \d+\.\d+(e-\d+)?", line) for line in lines)
    assert [line.partition(", loss")[0] for line in lines[:2]] == ["Epoch: 0, Batch: 9", "Epoch: 0, Batch: 19"]
    assert len(lines) == 30 * 5
    final = re.fullmatch(r"final loss: (\d\.\d+)", workers[0].said[-1])
    assert final is not None
    assert float(final[1]) < 0.5, "least squares reaches 0.482"
    model = torch.nn.Linear(10, 1)
    model.load_state_dict(torch.load(tmp_path / "model", weights_only=True))


class TestAsync:
    def test_every_push_of_every_worker_is_applied_once(self, tmp_path: Path) -> None:
        with job(tmp_path) as made:
            servers, workers = started(made)
            workers[0].ask("step 20")
            assert workers[1].ask("step 30") == "-50 -50 -50 -50"
            assert workers[0].ask("close") == "done"
            assert workers[1].ask("close") == "done"
            assert codes([*workers, *servers]) == [0, 0, 0, 0]

    def test_a_killed_worker_holds_nobody_up_and_the_servers_end(self, tmp_path: Path) -> None:
        with job(tmp_path) as made:
            servers, workers = started(made, LOST_AFTER_S="0.5")
            workers[1].ask("step 5")
            workers[1].kill()
            assert workers[0].ask("step 5") == "-10 -10 -10 -10"
            workers[0].ask("close")
            assert codes([workers[0], *servers]) == [0, 0, 0]
            assert "worker 1 is lost; nobody waits for it any more" in servers[0].said

    def test_a_killed_server_goes_on_from_its_snapshot_and_so_do_the_workers(self, tmp_path: Path) -> None:
        with job(tmp_path) as made:
            servers, workers = started(made, ELASTIC_CHECKPOINT_DIR=str(tmp_path))
            workers[0].ask("step 5")
            servers[0].until("^snapshot 0*1 is written$")
            workers[1].ask("step 2")
            servers[0].until("^snapshot 0*[2-9] is written$")
            servers[0].kill()
            workers[0].tell("step 3")
            workers[0].until("server 0 at .* does not answer")
            servers[0] = made.server(0, ELASTIC_CHECKPOINT_DIR=str(tmp_path))
            servers[0].until(r"^server 0 is back from its snapshot; its state is \d+\.\d s old \(step 0\)$")
            values = workers[0].until("^step (.*)$")[1].split()
            assert float(values[1]) == -10, "server 1 was never away"
            assert -10 <= float(values[0]) < 0
            for worker in workers:
                worker.ask("close")
            assert codes([*workers, *servers]) == [0, 0, 0, 0]
