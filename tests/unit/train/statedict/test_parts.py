"""What a state takes out of each kind of thing, puts back, and refuses."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from elastic.errors import ConfigError
from elastic.train.statedict import parts, tree


class Colour(enum.IntEnum):
    """A number that is of no type of Python's own."""

    RED = 1


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))


def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.arange(6.0).reshape(2, 3)).sum().backward()
    optimizer.step()


def carried(things: Mapping[str, Any], others: Mapping[str, Any]) -> None:
    """Take the state of `things`, write and read it as a checkpoint does, and put it into `others`."""
    taken = {name: part.take() for name, part in parts.make(things).items()}
    packed, tensors = tree.pack(taken)
    back = tree.merge_tensors(tree.unpack(packed), [tensor.clone() for tensor in tensors])
    for name, part in parts.make(others).items():
        part.put(back[name])


class TestWhatIsTakenComesBack:
    def test_a_module_an_optimizer_a_scheduler_and_a_scaler_go_on_where_they_were(self) -> None:
        def made() -> dict[str, Any]:
            model = network()
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
            return {
                "model": model,
                "optimizer": optimizer,
                "scheduler": torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10),
                "scaler": torch.amp.GradScaler("cpu", init_scale=8.0),
            }

        before, after = made(), made()
        for _ in range(3):
            step(before["model"], before["optimizer"])
            before["scheduler"].step()
        before["scaler"].scale(torch.ones(()))
        before["scaler"].update(2.0)
        carried(before, after)
        for one in (before, after):
            step(one["model"], one["optimizer"])
        assert all(
            torch.equal(a, b)
            for a, b in zip(before["model"].state_dict().values(), after["model"].state_dict().values(), strict=True)
        )
        assert after["scheduler"].get_last_lr() == before["scheduler"].get_last_lr()
        assert after["scaler"].get_scale() == 2.0

    def test_a_wrapped_module_fits_the_bare_one(self) -> None:
        wrapped, bare = torch.nn.DataParallel(network()), network()
        with torch.no_grad():
            next(wrapped.parameters()).add_(1)
        carried({"model": wrapped}, {"model": bare})
        assert torch.equal(next(wrapped.module.parameters()), next(bare.parameters()))

    def test_several_optimizers_each_have_their_own_part(self) -> None:
        model, other = network(), network()
        things = {"one": torch.optim.SGD(model[0].parameters(), lr=0.1, momentum=0.9),  # type: ignore[index]
                  "two": torch.optim.Adam(model[2].parameters())}  # type: ignore[index]  # fmt: skip
        assert set(parts.make({"model": other, **things})) == {"model", "one", "two"}


class TestValues:
    @pytest.mark.parametrize(
        "value", [1, 2.5, "text", None, True, b"raw", [1, [2.0]], {"a": (1, None)}, {(1, 2): 3, None: 4}]
    )
    def test_numbers_texts_and_what_is_made_of_them_are_kept(self, value: Any) -> None:
        assert parts.plain("best", value) == value

    def test_a_number_of_numpy_becomes_one_of_python(self) -> None:
        kept = parts.plain("best", [numpy.float64(0.5), numpy.int64(3)])
        assert kept == [0.5, 3]
        assert [type(one) for one in kept] == [float, int]

    def test_a_number_of_numpy_may_be_a_key(self) -> None:
        (key,) = parts.plain("best", {(numpy.int64(3), "a"): 1})
        assert key == (3, "a")
        assert type(key[0]) is int

    def test_the_state_dict_of_a_module_is_a_value_and_stays_one(self) -> None:
        before = network().state_dict()
        kept = parts.on_its_device(parts.plain("best", before), None)
        assert type(kept) is type(before)
        assert kept._metadata == before._metadata  # type: ignore[attr-defined]
        network().load_state_dict(kept)

    @pytest.mark.parametrize(
        "value",
        [
            object(),
            {1, 2},
            numpy.zeros(3),
            [object()],
            Colour.RED,
            {Colour.RED: 1},
            {Path("here"): 1},
            numpy.longdouble(1.5),
            numpy.datetime64("2020-01-01"),
        ],
    )
    def test_what_could_not_be_loaded_again_is_refused_by_name(self, value: Any) -> None:
        with pytest.raises(ConfigError, match=r"elastic.State: best (is|has a key that is) of type .* cannot be saved"):
            parts.plain("best", value)

    def test_a_part_among_values_is_refused_with_the_way_to_name_it(self) -> None:
        with pytest.raises(ConfigError, match=r"as a separate component: elastic\.State\(nets=\.\.\.\)"):
            parts.plain("nets", [network()])


class TestWhatIsRefused:
    def test_a_module_without_values_is_refused_with_the_mend(self) -> None:
        (lazy,) = parts.make({"net": torch.nn.Sequential(torch.nn.LazyLinear(1))}).values()
        with pytest.raises(ConfigError, match=r"0\.weight of net is lazy .* call net with one batch"):
            parts.require_values("net", lazy)
        (meta,) = parts.make({"net": torch.nn.Linear(1, 1, device="meta")}).values()
        with pytest.raises(ConfigError, match=r"weight of net is on the meta device .* net\.to_empty"):
            parts.require_values("net", meta)
        parts.require_values("net", parts.make({"net": network()})["net"])

    def test_a_tensor_that_cannot_be_a_value_is_refused_with_the_mend(self) -> None:
        with pytest.raises(ConfigError, match="the tensor best is on the meta device"):
            parts.plain("best", [torch.zeros(1, device="meta")])

    def test_an_optimizer_that_keeps_its_state_on_one_rank_is_refused_with_the_mend(self) -> None:
        class ZeroRedundancyOptimizer(torch.optim.SGD):
            pass

        with pytest.raises(ConfigError, match="fully_shard"):
            parts.make({"optimizer": ZeroRedundancyOptimizer(network().parameters(), lr=0.1)})
