"""Cards: what nvidia-smi lists, which of them --gpus may name, and who gets which."""

from __future__ import annotations

from pathlib import Path

import pytest

from elastic.errors import ConfigError
from launcher.config.devices import check_named, installed_gpus, read_list, unused_gpus, visible_gpus
from tests.support.nvidia_smi import HERE, LISTED, MIG, OTHER_MIG, UUID_A, UUID_B, UUID_C, smi


def refusal(*named: str, **environ: str) -> str:
    with pytest.raises(ConfigError) as caught:
        check_named(named, HERE, environ)
    text = str(caught.value)
    assert text.startswith("--gpus: ")
    assert "\n" not in text
    return text


# What is there


def test_cards_and_their_mig_parts_are_read_from_the_list() -> None:
    assert read_list(LISTED) == HERE
    assert read_list("No devices found.\n") == ()


def test_nvidia_smi_is_asked_for_the_cards(tmp_path: Path) -> None:
    assert installed_gpus(smi(tmp_path, LISTED)).gpus == HERE


def test_why_there_is_no_card_is_told(tmp_path: Path) -> None:
    assert installed_gpus({"PATH": str(tmp_path)}).problem == "nvidia-smi: No such file or directory"
    broken = installed_gpus(
        smi(tmp_path, "NVIDIA-SMI has failed because it couldn't\ncommunicate with the driver.\n", 9)
    )
    assert broken.gpus == ()
    assert broken.problem == "nvidia-smi: NVIDIA-SMI has failed because it couldn't communicate with the driver."
    assert installed_gpus(smi(tmp_path, "")).problem == "nvidia-smi lists no GPU"


# What may be named


@pytest.mark.parametrize(
    "named",
    [
        ("0", "1", "2", "3"),
        ("3", "2"),
        (UUID_A, "2"),
        ("GPU-c0ff",),
        (MIG, OTHER_MIG),
        (f"MIG-{UUID_B}/7/0", f"MIG-{UUID_B}/8/0"),
    ],
)
def test_numbers_uuids_and_mig_ids_of_cards_that_are_there_may_be_named(named: tuple[str, ...]) -> None:
    check_named(named, HERE, {})


def test_a_card_that_is_not_there_is_answered_with_those_that_are() -> None:
    assert refusal("0", "7") == "--gpus: there is no GPU 7 on this machine; there are: 0, 1, 2, 3"
    assert (
        refusal("GPU-dead")
        == f"--gpus: there is no GPU GPU-dead on this machine; there are: {UUID_A}, {UUID_B}, {UUID_C}, 3"
    )
    assert refusal("MIG-dead").endswith(f"there are: {MIG}, {OTHER_MIG}")
    with pytest.raises(ConfigError, match="no GPU has MIG devices"):
        check_named(["MIG-dead"], HERE[2:], {})
    assert "there is no GPU" in refusal(f"MIG-{UUID_A[:-1]}/1/0")


def test_the_beginning_of_a_uuid_that_two_cards_share_names_neither() -> None:
    check_named(["GPU-5d5"], HERE, {})
    assert "GPU-5d begins the UUIDs of several GPUs; there are: " in refusal("GPU-5d")


@pytest.mark.parametrize("named", [("0", UUID_A), (UUID_A, "0"), ("2", "GPU-c0ff"), ("1", "01"), (MIG, MIG[:-4])])
def test_one_card_under_two_names_is_doubled(named: tuple[str, str]) -> None:
    assert refusal(*named) == f"--gpus: {named[0]} and {named[1]} are the same GPU; name each GPU once"


@pytest.mark.parametrize("visible", ["2,0", f"{UUID_C},0", f" 2 , {UUID_A}", "GPU-c0ff,GPU-5d5b"])
def test_cards_inside_cuda_visible_devices_may_be_named_by_number_or_uuid(visible: str) -> None:
    for named in (("0", "2"), (UUID_A, UUID_C), ("2",)):
        check_named(named, HERE, {"CUDA_VISIBLE_DEVICES": visible})
    assert f"GPU 1 is not in CUDA_VISIBLE_DEVICES ({visible})" in refusal("0", "1", CUDA_VISIBLE_DEVICES=visible)


def test_a_part_of_a_visible_card_is_visible_and_the_card_of_a_visible_part_is_not() -> None:
    check_named([MIG], HERE, {"CUDA_VISIBLE_DEVICES": "1"})
    check_named([MIG], HERE, {"CUDA_VISIBLE_DEVICES": MIG})
    assert "not in CUDA_VISIBLE_DEVICES" in refusal(OTHER_MIG, CUDA_VISIBLE_DEVICES=MIG)
    assert "not in CUDA_VISIBLE_DEVICES" in refusal("1", CUDA_VISIBLE_DEVICES=MIG)


def test_where_every_card_is_hidden_none_may_be_named() -> None:
    assert "empty, which hides every GPU" in refusal("0", CUDA_VISIBLE_DEVICES="")
    assert "CUDA_VISIBLE_DEVICES (-1)" in refusal("0", CUDA_VISIBLE_DEVICES="-1")


# What is left


def test_spare_cards_are_the_visible_ones_that_nobody_uses(tmp_path: Path) -> None:
    environ = smi(tmp_path, LISTED)
    assert visible_gpus(environ) == ("0", "1", "2", "3")
    assert unused_gpus(["2", UUID_A], environ) == ("1", "3")
    assert unused_gpus(["2"], {**environ, "CUDA_VISIBLE_DEVICES": f"{UUID_C},{UUID_B}"}) == (UUID_B,)
