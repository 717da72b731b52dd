"""The words as values: np as it is written, places and ranks of a generation."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from elastic.core import model
from elastic.core.model import NP_UNLIMITED, SCHEMA, Budget, ChangeReason, Generation, GenerationMember, JobSpec, Np
from launcher.config.readers import np as read_np


@pytest.mark.parametrize("text", ["1", "2", "17", "1:4", "2:4", "3:3", "1:99999", "1+", "17+"])
def test_np_is_written_as_it_was_given(text: str) -> None:
    assert str(read_np(text)) == text


@pytest.mark.parametrize(
    ("text", "np"),
    [
        ("4", Np(low=1, high=4, first=4)),
        ("2:4", Np(low=2, high=4, first=2)),
        ("4:4", Np(low=4, high=4, first=4)),
        ("4+", Np(low=1, high=NP_UNLIMITED, first=4)),
    ],
)
def test_n_awaits_n_and_then_runs_anything_a_range_awaits_min_and_n_n_runs_n_only(text: str, np: Np) -> None:
    assert read_np(text) == np


def test_a_spec_has_the_defaults_of_the_design() -> None:
    spec = JobSpec(np=read_np("2"), slots=1)
    assert (spec.run, spec.schema) == (1, SCHEMA)
    assert (spec.join_window_s, spec.scale_up_interval_s, spec.restarts_max) == (3.0, None, 3)
    assert (spec.lease_ttl_s, spec.etcd_outage_timeout_s, spec.fatal_exit_codes) == (5.0, 120.0, ())
    assert spec.silence_timeout_s == 1.0


def test_a_budget_begins_unused_and_without_any_step() -> None:
    assert (Budget().charged, Budget().consecutive_failures, Budget().machine_faults, Budget().step) == (0, 0, 0, -1)


def test_the_m_id_of_a_node_is_its_place_in_the_generation_and_the_world_has_m_times_n_workers() -> None:
    places = tuple(GenerationMember(node, "h", (7000,), (8000, 8001)) for node in "cab")
    generation = Generation(g=1, run=1, leader="", why=ChangeReason.FIRST, reason="", members=places, slots=2)
    assert [generation.index(node) for node in "cabx"] == [0, 1, 2, None]
    assert generation.world_size == 6


def _change(value: object, name: str) -> None:
    setattr(value, name, 7)


@pytest.mark.parametrize(
    "change",
    [
        lambda: _change(Np(low=1, high=1, first=1), "low"),
        lambda: _change(Budget(), "charged"),
        lambda: _change(GenerationMember("a", "h", (1,), (1,)), "node"),
    ],
)
def test_a_word_cannot_be_changed(change: Callable[[], None]) -> None:
    with pytest.raises(AttributeError):
        change()


def test_every_document_is_frozen() -> None:
    structs = [each for each in vars(model).values() if isinstance(each, type) and issubclass(each, msgspec.Struct)]
    assert {JobSpec, Generation, model.Member, model.Go, model.Outcome, model.Verdict} <= set(structs)
    assert all(each.__struct_config__.frozen for each in structs)
