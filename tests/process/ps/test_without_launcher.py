"""Parameter servers without a launcher: the environment alone, real processes, real kills."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import pytest
import torch

from tests.support.etcd_servers import free_ports
from tests.support.ps_job_harness import EMBEDDING, ROOT, SYNC, Job, Process, job

pytestmark = pytest.mark.timeout(300)

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
    assert final is not None, workers[0].said[-5:]
    assert float(final[1]) < 0.5, "least squares reaches 0.482"
    model = torch.nn.Linear(10, 1)
    model.load_state_dict(torch.load(tmp_path / "model", weights_only=True))


def test_the_example_with_a_sparse_table_learns(tmp_path: Path) -> None:
    with job(tmp_path, command=EMBEDDING) as made:
        servers = [made.server(0), made.server(1)]
        workers = [made.worker(0, "--steps", "150"), made.worker(1, "--steps", "150")]
        assert codes([*workers, *servers]) == [0, 0, 0, 0]
    losses = [float(line.rpartition(" ")[2]) for line in workers[0].said if line.startswith("step ")]
    assert len(losses) == 3
    assert losses[0] > losses[1] > losses[2]
    assert losses[2] < 3.5, "guessing blindly is 4.85"


@pytest.mark.parametrize("name", ["ps_regression", "ps_embedding"])
def test_the_examples_stay_short_enough_to_copy(name: str) -> None:
    assert len((ROOT / "elastic" / "examples" / f"{name}.py").read_text().splitlines()) < 80


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
            assert "worker 1 has failed; steps no longer wait for it" in servers[0].said

    def test_a_frozen_worker_is_lost(self, tmp_path: Path) -> None:
        with job(tmp_path, servers=1) as made:
            (server,), workers = started(made, LOST_AFTER_S="0.5")
            workers[1].popen.send_signal(signal.SIGSTOP)
            server.until("^worker 1 has failed")
            assert workers[0].ask("close") == "done"
            assert server.end() == 0
            workers[1].kill()
            assert workers[0].end() == 0

    def test_a_killed_server_goes_on_from_its_snapshot_and_so_do_the_workers(self, tmp_path: Path) -> None:
        with job(tmp_path) as made:
            servers, workers = started(made, ELASTIC_CHECKPOINT_DIR=str(tmp_path))
            workers[0].ask("step 5")
            servers[0].until("^snapshot 0*1 is written$")
            workers[1].ask("step 2")
            servers[0].until("^snapshot 0*[2-9] is written$")
            servers[0].kill()
            workers[0].tell("step 3")
            workers[0].until("server 0 at .* is unavailable")
            servers[0] = made.server(0, ELASTIC_CHECKPOINT_DIR=str(tmp_path))
            servers[0].until(r"^server 0 restored its snapshot, which is \d+\.\d s old \(step 0\)$")
            values = workers[0].until("^step (.*)$")[1].split()
            assert float(values[1]) == -10, "server 1 was never away"
            assert -10 <= float(values[0]) < 0
            for worker in workers:
                worker.ask("close")
            assert codes([*workers, *servers]) == [0, 0, 0, 0]


class TestSync:
    def test_two_workers_compute_what_one_machine_computes_on_the_joined_batch(self, tmp_path: Path) -> None:
        with job(tmp_path, command=SYNC) as made:
            servers = [made.server(0), made.server(1)]
            workers = [made.worker(0, str(tmp_path / "model.pt")), made.worker(1)]
            assert codes([*workers, *servers]) == [0, 0, 0, 0]
            assert made.worker(0, str(tmp_path / "alone.pt"), "alone").end() == 0
        together, alone = (torch.load(tmp_path / name, weights_only=True) for name in ("model.pt", "alone.pt"))
        assert together.keys() == alone.keys()
        for name, value in alone.items():
            assert value.dtype == torch.float64
            assert torch.allclose(together[name], value, rtol=0, atol=1e-12), name

    def test_a_killed_worker_holds_nobody_up_and_a_new_one_takes_its_number(self, tmp_path: Path) -> None:
        with job(tmp_path) as made:
            servers, workers = started(made, MODE="sync", LOST_AFTER_S="0.5")
            workers[0].tell("step 2")
            workers[1].tell("step 1")
            workers[1].until("^step ")
            workers[1].kill()
            assert workers[0].until("^step (.*)$")[1] == "-2 -2 -2 -2"
            workers[1] = made.worker(1, MODE="sync")
            workers[1].until("^ready$")
            workers[0].tell("step 3")
            assert workers[1].ask("step 3") == "-5 -5 -5 -5"
            workers[0].until("^step -5 -5 -5 -5$")
            for worker in workers:
                worker.ask("close")
            assert codes([*workers, *servers]) == [0, 0, 0, 0]

    def test_a_killed_server_comes_back_and_the_steps_go_on(self, tmp_path: Path) -> None:
        with job(tmp_path) as made:
            servers, workers = started(made, MODE="sync", ELASTIC_CHECKPOINT_DIR=str(tmp_path))
            workers[0].tell("step 5")
            assert workers[1].ask("step 5") == "-5 -5 -5 -5"
            servers[1].until("^snapshot .* is written$")
            servers[1].kill()
            servers[1] = made.server(1, MODE="sync", ELASTIC_CHECKPOINT_DIR=str(tmp_path))
            servers[1].until("restored its snapshot")
            workers[0].tell("step 5")
            values = [float(value) for value in workers[1].ask("step 5").split()]
            assert values[0] == -10
            assert -10 <= values[1] <= -5
            for worker in workers:
                worker.ask("close")
            assert codes([*workers, *servers]) == [0, 0, 0, 0]


class TestEnds:
    def test_a_server_at_sigterm_keeps_everything_and_leaves_with_143(self, tmp_path: Path) -> None:
        with job(tmp_path, servers=1, trainers=1) as made:
            kept = {"ELASTIC_CHECKPOINT_DIR": str(tmp_path), "SNAPSHOT_EVERY_S": "60"}
            (server,), (worker,) = started(made, **kept)
            assert worker.ask("step 7") == "-7 -7 -7 -7"
            server.popen.send_signal(signal.SIGTERM)
            assert server.end() == 143
            back = made.server(0, **kept)
            back.until(r"^server 0 restored its snapshot, which is \d+\.\d s old")
            assert worker.ask("step 1") == "-8 -8 -8 -8"
            worker.ask("close")
            assert codes([worker, back]) == [0, 0]
            assert not [line for line in worker.said if re.match(r"[IWEF]\d{4} ", line)], "gRPC's own log"

    def test_a_server_without_snapshots_that_was_lost_gets_the_values_of_a_worker(self, tmp_path: Path) -> None:
        with job(tmp_path, servers=1, trainers=1) as made:
            (server,), (worker,) = started(made)
            worker.ask("step 7")
            server.kill()
            back = made.server(0)
            assert worker.ask("value") == "-7 -7 0 0", "the table's rows are gone, and start anew"
            worker.ask("close")
            assert codes([worker, back]) == [0, 0]

    def test_a_worker_that_fails_has_not_closed_and_one_that_ends_well_has(self, tmp_path: Path) -> None:
        with job(tmp_path, servers=1) as made:
            (server,), workers = started(made, LOST_AFTER_S="0.5")
            workers[0].tell("fail")
            assert workers[0].end() == 1
            server.until("^the connection of worker 0 broke$")
            server.until("^worker 0 has failed")
            assert workers[1].end() == 0
            assert server.end() == 0
            assert "worker 1 has closed" in server.said

    def test_a_model_is_saved_whole_and_a_server_starts_from_it_or_from_some_names_of_it(self, tmp_path: Path) -> None:
        path = str(tmp_path / "model.pdparams")
        with job(tmp_path, trainers=1) as made:
            servers, (worker,) = started(made)
            worker.ask("step 3")
            assert worker.ask(f"save {path}") == "done"
            worker.ask("close")
            assert codes([worker, *servers]) == [0, 0, 0]
        saved = torch.load(path, weights_only=True)
        assert {name: list(value.shape) for name, value in saved.items()} == {
            "first": [3],
            "second": [3],
            "rows.weight": [10, 2],
        }
        assert saved["rows.weight"][:, 0].tolist() == [0, 0, 0, -3, -3, 0, 0, 0, 0, 0]
        assert [path.name for path in tmp_path.iterdir()] == ["model.pdparams"]
        for names, expected in (("", "-3 -3 -3 -3"), ("first,rows.weight", "-3 0 -3 -3")):
            with job(tmp_path, trainers=1) as made:
                servers, (worker,) = started(made, LOAD_FROM=path, NAMES=names)
                assert worker.ask("value") == expected
                worker.ask("close")
                assert codes([worker, *servers]) == [0, 0, 0]

    def test_a_worker_may_fork_processes_that_read_its_data(self, tmp_path: Path) -> None:
        with job(tmp_path, servers=1, trainers=1) as made:
            (server,), (worker,) = started(made)
            assert worker.ask("load 10") == "280"
            assert worker.ask("step 1") == "-1 -1 -1 -1"
            assert worker.ask("close") == "done"
            assert codes([worker, server]) == [0, 0]


class TestUnderTheLauncher:
    def test_losses_do_not_end_a_server_and_a_worker_with_a_new_number_goes_on(self, tmp_path: Path) -> None:
        cluster_spec = tmp_path / "roster.json"
        with job(tmp_path, servers=1) as made:
            known = {"ELASTIC_ROSTER_FILE": str(cluster_spec), "LOST_AFTER_S": "0.2", "ELASTIC_JOB_ID": "j"}
            cluster_spec.write_text(json.dumps({"servers": [made.servers[0]], "workers": [{"index": 0}, {"index": 1}]}))
            (server,), workers = started(made, **known)
            for worker in workers:
                worker.kill()
            server.until("^worker . has failed")
            server.until("^worker . has failed")
            workers = [made.worker(2, **known)]
            workers[0].until("^ready$")
            assert workers[0].ask("step 2") == "-2 -2 -2 -2"
            workers[0].ask("close")
            assert workers[0].end() == 0
            assert server.popen.poll() is None
            server.popen.send_signal(signal.SIGTERM)
            assert server.end() == 143

    def test_a_server_that_moved_is_found_where_the_roster_says(self, tmp_path: Path) -> None:
        cluster_spec = tmp_path / "roster.json"
        with job(tmp_path, servers=1, trainers=1) as made:
            known = {"ELASTIC_ROSTER_FILE": str(cluster_spec), "ELASTIC_CHECKPOINT_DIR": str(tmp_path)}
            cluster_spec.write_text(json.dumps({"servers": [made.servers[0]], "workers": [{"index": 0}]}))
            (server,), (worker,) = started(made, **known)
            worker.ask("step 2")
            server.popen.send_signal(signal.SIGTERM)
            assert server.end() == 143
            cluster_spec.write_text(json.dumps({"servers": [""], "workers": [{"index": 0}]}))
            worker.tell("step 1")
            worker.until("is unavailable")
            (made.port,) = free_ports(1)
            moved = made.server(0, **known, PADDLE_PSERVER_PORT=str(made.port))
            moved.until("listens on")
            cluster_spec.write_text(json.dumps({"servers": made.servers, "workers": [{"index": 0}]}))
            assert worker.until("^step (.*)$")[1] == "-3 -3 -3 -3"
            worker.ask("close")
            assert codes([worker, moved]) == [0, 0]
