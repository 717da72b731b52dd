"""The options of torch's DataLoader that an exact loader copies from the script's loader."""

from __future__ import annotations

from typing import Any, Final

TAKEN_OVER: Final = (
    "num_workers",
    "collate_fn",
    "pin_memory",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "prefetch_factor",
    "persistent_workers",
    "pin_memory_device",
)


def options_of(loader: Any, *also: str) -> dict[str, Any]:
    """Return the options of `loader` by name, without dataset, batch size and order; `also` names further ones."""
    options = {name: getattr(loader, name) for name in (*TAKEN_OVER, *also) if hasattr(loader, name)}
    if not options.get("pin_memory_device"):
        options.pop("pin_memory_device", None)  # Torch warns about it, even if it has its default value.
    return options
