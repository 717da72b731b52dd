"""The options of torch's DataLoader that an exact loader takes over from the one of the script."""

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
    """The options of `loader` by name, without dataset, batch size and order; `also` names further ones."""
    options = {name: getattr(loader, name) for name in (*TAKEN_OVER, *also) if hasattr(loader, name)}
    if not options.get("pin_memory_device"):
        options.pop("pin_memory_device", None)  # Torch warns of it, even where it is the default.
    return options
