"""What servers, workers and embeddings check before they speak to anybody."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from elastic import environment
from elastic.errors import ConfigError
from elastic.train import ps
from elastic.train.ps import cluster
from elastic.train.ps.server import load

SERVER = environment.read(
    {"PADDLE_TRAINING_ROLE": "PSERVER", "PADDLE_PSERVER_IPS": "127.0.0.1", "PADDLE_TRAINERS": "1"}
)
WORKER = environment.read(
    {"PADDLE_TRAINING_ROLE": "TRAINER", "PADDLE_PSERVER_IPS": "127.0.0.1", "PADDLE_TRAINERS": "1"}
)


class TestRoles:
    def test_a_worker_is_no_server_and_a_server_no_worker(self) -> None:
        with pytest.raises(ConfigError, match="this process is a worker, not a server"):
            ps.Server(env=WORKER)
        with pytest.raises(ConfigError, match="this process is a server, not a worker"):
            ps.Worker(torch.nn.Linear(1, 1), lr=0.1, env=SERVER)

    @pytest.mark.parametrize(
        ("settings", "said"),
        [
            ({"mode": "eager"}, "mode is 'eager'; write 'sync' or 'async'"),
            ({"lr": -1.0}, "lr and weight_decay must be 0 or more"),
            ({"momentum": 1.0}, "momentum from 0 to less than 1"),
        ],
    )
    def test_settings_that_make_no_sense_are_named(self, settings: dict[str, object], said: str) -> None:
        with pytest.raises(ConfigError, match=said):
            ps.Worker(torch.nn.Linear(1, 1), env=WORKER, **{"lr": 0.1} | settings)  # type: ignore[arg-type]

    def test_a_parameter_that_cannot_be_sent_is_named(self) -> None:
        model = torch.nn.Linear(1, 1, dtype=torch.complex64)
        with pytest.raises(ConfigError, match=r"weight has torch.complex64; .* support float16"):
            ps.Worker(model, lr=0.1, env=WORKER)


class TestLoadFrom:
    def test_all_tensors_of_a_file_or_those_that_are_named(self, tmp_path: Path) -> None:
        torch.save({"w": torch.ones(2), "b": torch.zeros(1), "epoch": 3}, tmp_path / "model")
        assert list(load(tmp_path / "model")) == ["w", "b"]
        assert list(load(tmp_path / "model", ["b"])) == ["b"]

    def test_a_name_that_the_file_does_not_have_is_named_with_those_it_has(self, tmp_path: Path) -> None:
        torch.save({"w": torch.ones(2)}, tmp_path / "model")
        with pytest.raises(ConfigError, match="has no v, u; it has w"):
            load(tmp_path / "model", ["v", "w", "u"])

    def test_what_is_no_such_file_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "text").write_text("no model")
        torch.save([1], tmp_path / "list")
        torch.save({"w": Path}, tmp_path / "code")
        for name, said in (
            ("absent", "No such file"),
            ("text", "it is not a file of tensors by torch.save"),
            ("list", "is not a dict of tensors"),
            ("code", "it is not a file of tensors by torch.save"),
        ):
            with pytest.raises(ConfigError, match=said):
                ps.Server(env=SERVER, load_from=tmp_path / name)

    def test_names_need_a_file(self) -> None:
        with pytest.raises(ConfigError, match="pass the file with load_from="):
            ps.Server(env=SERVER, names=["w"])


class TestRoster:
    def test_it_says_where_the_servers_are_and_how_many_workers_there_are(self, tmp_path: Path) -> None:
        path = tmp_path / "roster"
        path.write_text(
            '{"generation": 1, "revision": 2, "servers": ["a:1", ""], "workers": [{"index": 0, "endpoint": "b:1"}, '
            '{"index": 5, "endpoint": ""}], "heters": []}'
        )
        found = cluster.cluster_spec(str(path))
        assert found is not None
        assert found.servers == ("a:1", "")
        assert len(found.workers) == 2

    @pytest.mark.parametrize("text", ["", "{", "[]", '{"servers": [1]}', '{"servers": "a"}'])
    def test_one_that_cannot_be_read_is_passed_over(self, tmp_path: Path, text: str) -> None:
        (tmp_path / "roster").write_text(text)
        assert cluster.cluster_spec(str(tmp_path / "roster")) is None
        assert cluster.cluster_spec(str(tmp_path / "absent")) is None
        assert cluster.cluster_spec("") is None

    def test_without_one_the_environment_counts(self) -> None:
        assert cluster.servers(WORKER) == ("127.0.0.1:6174",)
        assert cluster.workers(WORKER) == 1


class TestEmbedding:
    def test_without_a_worker_it_has_no_rows_and_says_what_to_do(self) -> None:
        with pytest.raises(ConfigError, match=r"create a ps\.Worker with the model first"):
            ps.Embedding(3, 2)(torch.tensor([0]))

    def test_without_a_worker_it_looks_up_the_rows_of_a_saved_model(self) -> None:
        model = torch.nn.ModuleDict({"emb": ps.Embedding(3, 2), "out": torch.nn.Linear(2, 1)})
        saved = {**model.state_dict(), "emb.weight": torch.arange(6.0).reshape(3, 2)}
        model.load_state_dict(saved)
        assert model["emb"](torch.tensor([[2], [0]])).tolist() == [[[4, 5]], [[0, 1]]]
        with pytest.raises(ConfigError, match=r"emb.weight is \[1\], but \[3, 2\] in the model"):
            model.load_state_dict({**saved, "emb.weight": torch.zeros(1)})

    def test_gradients_of_all_uses_are_gathered_by_id(self) -> None:
        table = ps.Embedding(10, 2)
        asked: list[list[int]] = []

        def fetch(ids: torch.Tensor) -> torch.Tensor:
            asked.append(ids.tolist())
            return torch.zeros(len(ids), 2)

        table.fetch = fetch
        torch.autograd.backward(table(torch.tensor([[7, 1], [7, 7]])).sum() + 2 * table(torch.tensor([1])).sum())
        ids, rows = table.gathered()
        assert asked == [[1, 7], [1]]
        assert ids.tolist() == [1, 7]
        assert rows.tolist() == [[3, 3], [3, 3]]
        assert table.gathered()[0].tolist() == []

    def test_nothing_is_gathered_without_gradients(self) -> None:
        table = ps.Embedding(10, 2)
        table.fetch = lambda ids: torch.zeros(len(ids), 2)
        with torch.no_grad():
            table(torch.tensor([1]))
        assert len(table.gathered()[0]) == 0

    def test_an_id_outside_of_the_table_is_an_index_error(self) -> None:
        table = ps.Embedding(10, 2)
        table.fetch = lambda ids: torch.zeros(len(ids), 2)
        for wrong in (10, -1):
            with pytest.raises(IndexError, match="the table has 0 to 9"):
                table(torch.tensor([wrong]))

    def test_a_table_needs_rows_and_columns(self) -> None:
        with pytest.raises(ConfigError):
            ps.Embedding(0, 2)
