"""--check-nan: checks each commit for NaN and Inf, and finds the module that produced them.

Hooks check the output of every module, which waits for the GPU each time. Use it to find a problem; it is off by
default.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import torch
from torch import Tensor, nn

from elastic.errors import ConfigError, NotFinite

VARIABLES: Final = ("ELASTIC_CHECK_NAN", "FLAGS_check_nan_inf")
"""The first variable that is set wins."""
YES: Final = frozenset({"1", "true", "yes", "on"})
NO: Final = frozenset({"0", "false", "no", "off"})
WRAPPERS: Final = frozenset({"module", "_orig_mod", "_checkpoint_wrapped_module"})
"""Names that DDP, torch.compile and activation checkpointing insert into the names of modules."""
DEPTH_MAX: Final = 16
"""The depth to which a module's output is searched for tensors."""


def enabled(environ: Mapping[str, str]) -> bool:
    """Return whether the environment enables the checks. Raises `ConfigError` for a value other than yes or no."""
    name = next((name for name in VARIABLES if environ.get(name, "").strip()), "")
    word = environ.get(name, "").strip().lower()
    if word and word not in YES | NO:
        raise ConfigError(f"{name} is {environ[name]!r}; write 1 to check for NaN and Inf, or 0")
    return word in YES


def first_bad(named: Iterable[tuple[str, Tensor]]) -> str | None:
    """Return the name of the first tensor that has NaN or Inf; None if there is none.

    It sums all tensors, which runs at full memory bandwidth, and then waits once for each device. Of a DTensor it
    checks this rank's shard. Integers count as finite; so do attention masks, whose values are infinite, 0 or 1.
    """
    looked: dict[torch.device, list[tuple[int, str, Tensor]]] = {}
    bad: list[tuple[int, str]] = []
    with torch.no_grad():
        for index, (name, tensor) in enumerate(named):
            if (values := _values(tensor)) is not None:
                looked.setdefault(values.device, []).append((index, name, values))
        for entries in looked.values():
            sums = torch.stack([values.sum().double() for _, _, values in entries]).isfinite().tolist()
            for good, (index, name, values) in zip(sums, entries, strict=True):
                if not (good or bool(values.isfinite().all()) or _is_mask(values)):  # The sum may have overflowed.
                    bad.append((index, name))
                    break
    return min(bad)[1] if bad else None


def check_commit(
    parts: Mapping[str, Any], loss: Any = None, *, step: int = 0, rank: int = 0, kept_step: int | None = None
) -> None:
    """Raise `NotFinite`, with its name, if the loss or a tensor of a component is NaN or Inf.

    `parts` has the trees of the components by name; `kept_step` is the step of the newest checkpoint, None or -1 if
    there is none. Plain numbers in the trees are not checked: a best loss may start as inf. Only this rank is checked.
    """
    where = f"at step {step} on rank {rank}; {_kept(kept_step)}"
    if isinstance(loss, Tensor):
        if first_bad([("loss", loss)]) is not None:
            raise NotFinite(f"the loss is {_kind(loss)} {where}")
    elif isinstance(loss, float) and not math.isfinite(loss):
        raise NotFinite(f"the loss is {'NaN' if math.isnan(loss) else 'Inf'} {where}")
    tensors = {f"component {part}: {path}": tensor for part, tree in parts.items() for path, tensor in _tensors(tree)}
    name = first_bad(tensors.items())
    if name is not None:
        raise NotFinite(f"{name} has {_kind(tensors[name])} {where}")


def watch(module: nn.Module, step: Callable[[], int], rank: int) -> None:
    """Register hooks that raise `NotFinite` in the first module whose output has NaN or Inf while its inputs have none.

    The message has the module's name and class, the step that `step()` returns, and the rank. It works with DDP, FSDP2,
    autocast and activation checkpointing. Hooks do not run inside compiled code: of `torch.compile(model)` only the
    output of the whole model is checked, of `model.compile()` nothing; the check of the commit remains. Modules that
    are added later are not checked.
    """
    for name, submodule in module.named_modules():
        hook = _hook(_clean(name), step, rank, whole=submodule is module)
        submodule.register_forward_hook(hook, with_kwargs=True)


def _hook(name: str, step: Callable[[], int], rank: int, *, whole: bool) -> Callable[..., None]:
    def look(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if torch.compiler.is_compiling() or _recording():
            return
        outputs = dict(_tensors(output))
        bad = first_bad(outputs.items())
        if bad is None:
            return
        inputs = dict(_tensors([args, kwargs]))
        bad_input = first_bad(inputs.items())
        where = f"at step {step()} on rank {rank}"
        if bad_input is None:
            raise NotFinite(
                f"{_named(name, module)} returned {_kind(outputs[bad])} {where} while its inputs were finite"
                f"{_own_fault(module)}"
            )
        if whole:
            raise NotFinite(f"the input of {_named(name, module)} has {_kind(inputs[bad_input])} {where}")

    return look


def _own_fault(module: nn.Module) -> str:
    """Name a parameter of the module itself that was bad before: the problem is then older than this step."""
    own = dict(module.named_parameters(recurse=False))
    bad = first_bad(own.items())
    return "" if bad is None else f"; its {bad} already had {_kind(own[bad])}"


def _named(name: str, module: nn.Module) -> str:
    kind = type(module).__name__.removeprefix("FSDP")
    return f"module {name} ({kind})" if name else f"the whole model ({kind})"


def _clean(name: str) -> str:
    """Return the name of the module in the script's unwrapped model."""
    return ".".join(part for part in name.split(".") if part not in WRAPPERS)


def _recording() -> bool:
    """Return whether torch only records the operations: for torch.jit.trace, or for a CUDA graph."""
    if torch.jit.is_tracing():  # type: ignore[attr-defined, no-untyped-call]
        return True
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()  # type: ignore[no-untyped-call]


def _tensors(tree: Any, path: str = "", depth: int = 0) -> Iterator[tuple[str, Tensor]]:
    """Yield every tensor of a tree with its path, in order."""
    if isinstance(tree, Tensor):
        yield path, tree
        return
    inside: Iterable[tuple[Any, Any]]
    if depth >= DEPTH_MAX:
        return
    if isinstance(tree, Mapping):
        inside = tree.items()
    elif isinstance(tree, list | tuple):
        inside = enumerate(tree)
    elif dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        inside = ((field.name, getattr(tree, field.name)) for field in dataclasses.fields(tree))
    else:
        return
    for key, value in inside:
        yield from _tensors(value, f"{path}.{key}" if path else str(key), depth + 1)


def _values(tensor: Tensor) -> Tensor | None:
    """Return the values of a tensor that can be NaN or Inf on this rank; None if none can."""
    tensor = tensor.detach()
    if hasattr(tensor, "to_local"):
        tensor = tensor.to_local()
    if tensor.layout is not torch.strided:
        tensor = (tensor.coalesce() if tensor.layout is torch.sparse_coo else tensor).values()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    if not tensor.is_floating_point() or not tensor.numel() or tensor.is_meta:
        return None
    return tensor.float() if tensor.itemsize == 1 else tensor  # 8-bit types have no isfinite.


def _is_mask(values: Tensor) -> bool:
    infinite = values.isinf()
    return not bool(infinite.all()) and bool((infinite | (values == 0) | (values == 1)).all())


def _kind(tensor: Tensor) -> str:
    with torch.no_grad():
        values = _values(tensor)
        return "NaN" if values is not None and bool(values.isnan().any()) else "Inf"


def _kept(step: int | None) -> str:
    if step is None or step < 0:
        return "no checkpoint has been saved"
    return f"the newest checkpoint is step {step}; --restore-step rolls back further"
