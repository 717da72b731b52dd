"""The RNG state of a worker: captured, restored, or derived if the world size has changed.

It has the states of Python's `random`, of NumPy's global generator, and of torch on the CPU and the current GPU. NumPy
is included once it is imported, the GPU once CUDA is initialized. A script saves the generators that it creates.
"""

from __future__ import annotations

import hashlib
import random
import sys
from array import array
from collections.abc import Mapping
from typing import Any, Final

import torch

from elastic.errors import CheckpointDamaged

LAYOUT: Final = 1
"""The layout of the result of `capture`."""


def capture() -> dict[str, Any]:
    """Return the current RNG state: plain values and tensors, about 13 kB, in about 0.1 ms."""
    version, words, gauss = random.getstate()
    captured: dict[str, Any] = {
        "layout": LAYOUT,
        "python": {"version": version, "words": torch.frombuffer(array("q", words), dtype=torch.int64), "gauss": gauss},
        "torch": torch.get_rng_state(),
    }
    if "numpy" in sys.modules:
        captured["numpy"] = _plain(sys.modules["numpy"].random.get_state(legacy=False))
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        captured["cuda"] = torch.cuda.get_rng_state()
    return captured


def restore(captured: Any) -> None:
    """Restore the result of `capture`, of this or another process, for the generators in use.

    Raises `CheckpointDamaged`, and changes nothing, if it is not a valid result of `capture`.
    """
    if not isinstance(captured, Mapping) or captured.get("layout") != LAYOUT:
        raise CheckpointDamaged(f"the RNG state does not have layout {LAYOUT}, which this version reads")
    before = capture()
    try:
        _set(captured)
    except (AttributeError, KeyError, OverflowError, RuntimeError, TypeError, ValueError) as error:
        _set(before)
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CheckpointDamaged(f"the RNG state is damaged or of another version ({why})") from error


def derive(seed: int, *, rank: int, step: int) -> None:
    """Seed all generators from these three numbers: equal arguments give equal random numbers.

    The seed of a generator is BLAKE2b of the text "elastic-rng-1/<seed>/<rank>/<step>/<generator>", which is the same
    on all machines and versions of Python. The seed of torch applies to the CPU and all GPUs.
    """
    random.seed(_hashed(seed, rank, step, "python"))
    torch.manual_seed(_hashed(seed, rank, step, "torch") >> 192)  # torch takes 64 bits.
    if "numpy" in sys.modules:
        words = _hashed(seed, rank, step, "numpy")
        sys.modules["numpy"].random.seed([words >> shift & 0xFFFFFFFF for shift in range(0, 256, 32)])


def _hashed(seed: int, rank: int, step: int, generator: str) -> int:
    """Return 256 bits."""
    text = f"elastic-rng-1/{seed}/{rank}/{step}/{generator}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=32).digest(), "big")


def _set(captured: Mapping[str, Any]) -> None:
    python = captured["python"]
    random.setstate((python["version"], tuple(python["words"].tolist()), python["gauss"]))
    torch.set_rng_state(captured["torch"])
    if "numpy" in captured and "numpy" in sys.modules:
        sys.modules["numpy"].random.set_state(_numpys(captured["numpy"]))
    if "cuda" in captured and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.set_rng_state(captured["cuda"])


def _plain(state: Any) -> Any:
    """Convert NumPy's state to plain values: an array becomes the name of its dtype and its bytes."""
    if isinstance(state, dict):
        return {name: _plain(value) for name, value in state.items()}
    if hasattr(state, "tobytes") and hasattr(state, "shape") and state.shape:
        data = torch.frombuffer(bytearray(state.tobytes()), dtype=torch.uint8)
        return {"array": state.dtype.name, "bytes": data}
    return state.item() if hasattr(state, "item") else state


def _numpys(state: Any) -> Any:
    """Invert `_plain`."""
    if not isinstance(state, dict):
        return state
    if state.keys() == {"array", "bytes"}:
        return sys.modules["numpy"].frombuffer(state["bytes"].numpy().tobytes(), dtype=state["array"])
    return {name: _numpys(value) for name, value in state.items()}
