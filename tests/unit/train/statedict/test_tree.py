"""State dicts taken apart and put together."""

from __future__ import annotations

import pickle
from collections import Counter, OrderedDict
from pathlib import Path, PosixPath
from typing import Any

import numpy
import pytest
import torch

from elastic.train.statedict import tree


def again(whole: Any) -> Any:
    """A tree after the way that it takes through memory or over the network."""
    packed, tensors = tree.pack(whole)
    return tree.merge_tensors(tree.unpack(packed), tensors)


def test_a_tree_comes_back_with_its_types_its_order_and_its_tensors() -> None:
    plain = {"a": [1, 2.5, None, True, "text", b"bytes", 3 + 4j], 7: (float("inf"), {}), "d": torch.float16}
    tensors = OrderedDict(weight=torch.ones(2, 3), bias=torch.zeros(3))
    found = again({"plain": plain, "state": tensors, "exp_avg": [torch.ones(1)]})
    assert found["plain"] == plain
    assert type(found["state"]) is OrderedDict
    assert list(found["state"]) == ["weight", "bias"]
    assert found["state"]["weight"] is tensors["weight"]


@pytest.mark.parametrize("kind", [list, tuple])
def test_tensors_in_lists_are_taken_apart_too(kind: type[Any]) -> None:
    moment = torch.ones(1)
    packed, tensors = tree.pack({"moments": kind([1, moment])})
    assert tensors == [moment]
    found = tree.merge_tensors(tree.unpack(packed), tensors)["moments"]
    assert type(found) is kind
    assert found[1] is moment


def test_the_versions_that_a_module_writes_into_its_state_come_back() -> None:
    state = torch.nn.BatchNorm1d(2).state_dict()
    assert again(state)._metadata == state._metadata  # type: ignore[attr-defined]


def test_tensors_that_share_their_memory_are_one_and_views_of_another_shape_are_not() -> None:
    weight = torch.ones(4, 4)
    packed, tensors = tree.pack({"a": weight, "b": weight.detach(), "row": weight[0], "flat": weight.flatten()})
    assert len(tensors) == 3
    found = tree.merge_tensors(tree.unpack(packed), tensors)
    assert found["a"] is found["b"]


def test_tensors_without_memory_are_never_taken_for_one() -> None:
    empty = {"a": torch.empty(0), "b": torch.empty(0), "c": torch.empty(2, device="meta")}
    more = {"d": torch.empty(2, device="meta"), "e": torch.eye(2).to_sparse(), "f": torch.eye(2).to_sparse()}
    assert len(tree.pack({**empty, **more})[1]) == 6


STRANGE_TO_MSGPACK = {
    "a key that is a tuple": {(1, "a"): 2, (2, "b"): [True]},
    "a key that is a truth value": {True: 1, 2: 2},
    "a key of more than 64 bits": {2**70: 1},
    "a number of more than 64 bits": {"state": 2**127 + 1, "least": -(2**63), "most": 2**64 - 1},
    "half a surrogate pair": {"file": "a\udce4b"},
    "a type of torch's": {"dtype": torch.float16, "size": torch.Size([2, 3])},
    "a set": {"seen": {1, 2}},
    "a complex number": {"z": 1j},
    "a Counter": Counter({3: 1, 5: 2}),
}


@pytest.mark.parametrize("strange", STRANGE_TO_MSGPACK.values(), ids=STRANGE_TO_MSGPACK.keys())
def test_what_msgpack_has_no_type_for_comes_back_as_it_was_beside_tensors(strange: Any) -> None:
    found = again({"strange": strange, "weight": torch.ones(2)})
    assert found["strange"] == strange
    assert type(found["strange"]) is type(strange)
    assert [type(key) for key in found["strange"]] == [type(key) for key in strange]
    assert torch.equal(found["weight"], torch.ones(2))


def test_what_torch_saves_is_loaded_again() -> None:
    found = tree.load(tree.save({"words": torch.arange(3), "version": 3}))
    assert found["version"] == 3
    assert torch.equal(found["words"], torch.arange(3))


def test_what_is_not_plain_does_not_come_back() -> None:
    with pytest.raises(pickle.UnpicklingError):
        tree.unpack(tree.pack({"where": Path("/")})[0])


def test_what_would_not_come_back_is_named_also_where_there_are_tensors() -> None:
    plain = OrderedDict(where=Path("/"))
    for whole in (plain, OrderedDict(plain, words=torch.arange(3)), {("a",): plain}):
        assert tree.unsafe(tree.pack(whole)[0]) == [f"{PosixPath.__module__}.PosixPath"]


def test_numbers_of_numpy_become_pythons_wherever_they_are_and_nothing_else_changes() -> None:
    rate, weight = numpy.float64(0.5), torch.ones(2)
    state: OrderedDict[str, Any] = OrderedDict(
        weight=weight, rates=[1, rate], groups=({"lr": rate},), best=numpy.array(3)
    )
    state._metadata = {"version": 2}  # type: ignore[attr-defined]
    made = tree.without_numpy(state)
    assert (made["rates"], made["groups"], made["best"]) == ([1, 0.5], ({"lr": 0.5},), 3)
    assert [type(one) for one in (made["rates"][1], made["groups"][0]["lr"], made["best"])] == [float, float, int]
    assert (type(made), made._metadata, list(made)) == (OrderedDict, {"version": 2}, list(state))
    assert made["weight"] is weight
    assert type(state["rates"][1]) is numpy.float64, "what the script holds stays as it is"


def test_a_state_without_numbers_of_numpy_is_not_copied() -> None:
    inner: dict[str, Any] = {"groups": [{"lr": 0.5, "betas": (0.9, 0.99)}], "none": [None, ["text"]]}
    assert tree.without_numpy(inner) is inner


def test_a_number_that_torch_does_not_load_again_is_told() -> None:
    assert tree.unsafe(tree.pack({"a": 2**1000})[0]) == []
    assert tree.unsafe(tree.pack({"a": 2**3000})[0]) == ["a number of more than 2000 bits"]
