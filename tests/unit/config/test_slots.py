"""How many workers a node has and on which cards, when flags and machine come together."""

from __future__ import annotations

from pathlib import Path

import pytest

from elastic.errors import ConfigError
from launcher.config.config import Config
from launcher.config.machine_checks import check
from launcher.config.parse import parse
from tests.support.nvidia_smi import HERE, LISTED, MIG, OTHER_MIG, UUID_A, smi

SCRIPT = ("-m", "json.tool")


def found(environ: dict[str, str], *argv: str) -> Config:
    return check(parse([*argv, *SCRIPT], environ), environ)


def refusal(*argv: str) -> str:
    """What the flags alone are refused with, whatever the machine."""
    with pytest.raises(ConfigError) as caught:
        parse([*argv, *SCRIPT], {})
    text = str(caught.value)
    assert "\n" not in text
    return text


@pytest.fixture
def four(tmp_path: Path) -> dict[str, str]:
    """A machine with four cards."""
    return smi(tmp_path, LISTED)


@pytest.fixture
def none(tmp_path: Path) -> dict[str, str]:
    """A machine without a driver."""
    return {"PATH": str(tmp_path / "empty")}


def test_there_is_one_worker_for_each_named_card_in_the_order_of_the_names(four: dict[str, str]) -> None:
    config = found(four, "--gpus", "3,2")
    assert (config.slots, config.gpu_ids, config.shown_gpus) == (2, ("3", "2"), ("3", "2"))
    assert config.warnings == ()


@pytest.mark.parametrize("spelling", [("--gpus", "1, 3"), ("--gpus=1,3",), ("--gpus", " 1 ,3 ")])
def test_blanks_between_cards_do_not_count(four: dict[str, str], spelling: tuple[str, ...]) -> None:
    assert found(four, *spelling).gpu_ids == ("1", "3")


def test_uuids_and_mig_ids_are_passed_on_as_they_were_written(four: dict[str, str]) -> None:
    assert found(four, "--gpus", f"{UUID_A},{MIG}").gpu_ids == (UUID_A, MIG)


def test_without_gpus_it_is_all_cards_and_they_are_not_handed_out(four: dict[str, str]) -> None:
    config = found(four)
    assert (config.slots, config.gpu_ids, config.shown_gpus) == (len(HERE), ("0", "1", "2", "3"), ())
    assert found(four, "--isolate-gpus").shown_gpus == ("0", "1", "2", "3")


def test_the_named_cards_must_be_visible(four: dict[str, str]) -> None:
    assert found({**four, "CUDA_VISIBLE_DEVICES": "3,2"}, "--gpus", "2,3").gpu_ids == ("2", "3")
    with pytest.raises(ConfigError, match="GPU 1 is not in CUDA_VISIBLE_DEVICES"):
        found({**four, "CUDA_VISIBLE_DEVICES": "3,2"}, "--gpus", "2,1")


def test_without_a_driver_as_many_workers_as_cards_are_named_run_on_the_cpu_and_it_is_said(
    none: dict[str, str],
) -> None:
    config = found(none, "--gpus", "4,5,6")
    assert (config.slots, config.gpu_ids, config.shown_gpus) == (3, (), ())
    (warning,) = config.warnings
    assert warning.startswith("--gpus 4,5,6: no NVIDIA driver on this machine (nvidia-smi: No such file")
    assert warning.endswith("; 3 workers on the CPU")
    assert found({**none, "CUDA_VISIBLE_DEVICES": ""}, "--gpus", "0").slots == 1


def test_without_a_driver_and_without_gpus_nothing_is_said(none: dict[str, str]) -> None:
    assert (found(none).slots, found(none).warnings) == (1, ())


@pytest.mark.parametrize("word", ["2", "auto", "gpu"])
def test_a_number_of_workers_that_fits_the_cards_may_be_given_too(
    four: dict[str, str], none: dict[str, str], word: str
) -> None:
    assert found(four, "--gpus", "0,1", "--nproc-per-node", word).slots == 2
    assert found(none, "--gpus", "0,1", "--nproc-per-node", word).slots == 2


def test_another_number_of_workers_than_cards_is_a_contradiction() -> None:
    text = refusal("--gpus", "0,1", "--nproc-per-node", "3")
    assert text == (
        "--gpus names 2 GPUs, one worker for each, and --nproc-per-node is 3; leave out --nproc-per-node, or use 2"
    )
    assert "on each of 2 nodes; leave" in refusal("--gpus", "0,1", "--nproc-per-node", "2", "--local-nodes", "2")


@pytest.mark.parametrize("flag", [("--gpus", "0"), ("--isolate-gpus",)])
def test_cards_and_cpu_workers_are_a_contradiction(flag: tuple[str, ...]) -> None:
    assert refusal(*flag, "--nproc-per-node", "cpu").startswith(f"{flag[0]} and --nproc-per-node cpu contradict")


def test_local_nodes_share_the_named_cards_evenly_or_not_at_all(four: dict[str, str]) -> None:
    assert found(four, "--gpus", "3,2,1,0", "--local-nodes", "2").slots == 2
    assert "name 2 or 4, or use another --local-nodes" in refusal("--gpus", "0,1,2", "--local-nodes", "2")
    assert "name 2, or use another --local-nodes" in refusal("--gpus", "0", "--local-nodes", "2")


def test_one_card_for_each_worker_needs_as_many_cards(four: dict[str, str], none: dict[str, str]) -> None:
    assert found(four, "--isolate-gpus", "--nproc-per-node", "4").slots == 4
    with pytest.raises(ConfigError, match="5 workers share 4 GPUs here"):
        found(four, "--isolate-gpus", "--nproc-per-node", "5")
    with pytest.raises(ConfigError, match="6 workers share 4 GPUs here"):
        found(four, "--isolate-gpus", "--nproc-per-node", "3", "--local-nodes", "2")
    assert found(none, "--isolate-gpus", "--nproc-per-node", "5").slots == 5


def test_several_mig_devices_are_warned_of_unless_each_worker_sees_one(four: dict[str, str]) -> None:
    (warning,) = found(four, "--gpus", f"{MIG},{OTHER_MIG}").warnings
    assert "add --isolate-gpus" in warning
    assert not found(four, "--gpus", f"{MIG},{OTHER_MIG}", "--isolate-gpus").warnings
    assert not found(four, "--gpus", MIG).warnings
