"""The random state of a worker: captured, put back, or derived anew where the world is another one.

It is that of python's `random`, numpy's global generator, torch's on the CPU, and torch's on the current card. Numpy
counts once something has imported it, a card once CUDA is in use. Generators that a script makes are its own to keep.
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
"""Of what `capture` returns."""


def capture() -> dict[str, Any]:
    """The random state as it is now: plain values and tensors, about 13 kB, in some 0.1 ms."""
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
    """Put back what `capture` returned, here or in another process. What is not in use here is left out.

    Raises `CheckpointDamaged`, and changes nothing, if it is not what `capture` returns.
    """
    if not isinstance(captured, Mapping) or captured.get("layout") != LAYOUT:
        raise CheckpointDamaged(f"the random state is not one of layout {LAYOUT}, which this version reads")
    before = capture()
    try:
        _set(captured)
    except (AttributeError, KeyError, OverflowError, RuntimeError, TypeError, ValueError) as error:
        _set(before)
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CheckpointDamaged(f"the random state is damaged or of another version ({said})") from error


def derive(seed: int, *, rank: int, step: int) -> None:
    """Seed everything from these three: the same ones give the same numbers, others give others.

    Each generator gets its part of BLAKE2b over the text "elastic-rng-1/<seed>/<rank>/<step>/<generator>", so the
    numbers hold across machines and versions of python. Torch's seed serves the CPU and all cards.
    """
    random.seed(_hashed(seed, rank, step, "python"))
    torch.manual_seed(_hashed(seed, rank, step, "torch") >> 192)  # It takes 64 bits.
    if "numpy" in sys.modules:
        words = _hashed(seed, rank, step, "numpy")
        sys.modules["numpy"].random.seed([words >> shift & 0xFFFFFFFF for shift in range(0, 256, 32)])


def _hashed(seed: int, rank: int, step: int, generator: str) -> int:
    """256 bits."""
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
    """Numpy's state without numpy: an array as the name of its type and its bytes."""
    if isinstance(state, dict):
        return {name: _plain(value) for name, value in state.items()}
    if hasattr(state, "tobytes") and hasattr(state, "shape") and state.shape:
        data = torch.frombuffer(bytearray(state.tobytes()), dtype=torch.uint8)
        return {"array": state.dtype.name, "bytes": data}
    return state.item() if hasattr(state, "item") else state


def _numpys(state: Any) -> Any:
    """The opposite of `_plain`."""
    if not isinstance(state, dict):
        return state
    if state.keys() == {"array", "bytes"}:
        return sys.modules["numpy"].frombuffer(state["bytes"].numpy().tobytes(), dtype=state["array"])
    return {name: _numpys(value) for name, value in state.items()}
