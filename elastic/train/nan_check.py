"""Where nan and inf come from: the check of a commit, and hooks that name the first module. For --check_nan.

With it on, each module's output is looked at, which on a card waits for the card each time: it finds a fault, and is
off otherwise.
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
"""The first that is set counts."""
YES: Final = frozenset({"1", "true", "yes", "on"})
NO: Final = frozenset({"0", "false", "no", "off"})
WRAPPERS: Final = ("module.", "_orig_mod.", "_checkpoint_wrapped_module.")
"""What DDP, torch.compile and activation checkpointing put into the names of modules."""
DEPTH_MAX: Final = 16
"""How deep a module's output is looked into."""


def enabled(environ: Mapping[str, str]) -> bool:
    """Whether the environment asks for the checks. Raises `ConfigError` for a word that is neither yes nor no."""
    for name in VARIABLES:
        word = environ.get(name, "").strip().lower()
        if word in YES:
            return True
        if word in NO:
            return False
        if word:
            raise ConfigError(f"{name} is {environ[name]!r}; write 1 to check for nan and inf, or 0")
    return False


def first_bad(named: Iterable[tuple[str, Tensor]]) -> str | None:
    """The name of the first tensor that has nan or inf; None if there is none.

    One fast pass over all tensors of a type, and one wait for each card. Of a DTensor this rank's shard is looked at.
    Whole numbers are finite. A mask, all of whose values are 0, 1 or infinite, counts as finite.
    """
    pairs = list(named)
    groups: dict[tuple[torch.device, torch.dtype], tuple[list[int], list[Tensor]]] = {}
    with torch.no_grad():
        for index, (_, tensor) in enumerate(pairs):
            values = _values(tensor)
            if values is not None:
                indices, tensors = groups.setdefault((values.device, values.dtype), ([], []))
                indices.append(index)
                tensors.append(values)
        bad: list[int] = []
        for indices, tensors in groups.values():
            certain = _summaries(tensors).isfinite()
            if bool(certain.all()):
                continue
            for index, tensor, good in zip(indices, tensors, certain.tolist(), strict=True):
                if not good and not bool(tensor.isfinite().all()) and not _is_mask(tensor):
                    bad.append(index)
                    break
    return pairs[min(bad)][0] if bad else None


def check_commit(
    parts: Mapping[str, Any], loss: Any = None, *, step: int = 0, rank: int = 0, kept_step: int | None = None
) -> None:
    """Raise `NotFinite` if the loss or a tensor of a part is not finite, with its name.

    `parts` are trees by their names, `kept_step` is the step of the newest checkpoint, None or -1 if there is none.
    Plain numbers in the trees may be anything: the best loss so far begins as inf. Only this rank is looked at.
    """
    where = f"at step {step} on rank {rank}; {_kept(kept_step)}"
    if isinstance(loss, Tensor):
        if first_bad([("loss", loss)]) is not None:
            raise NotFinite(f"the loss is {_kind(loss)} {where}")
    elif isinstance(loss, float) and not math.isfinite(loss):
        raise NotFinite(f"the loss is {'nan' if math.isnan(loss) else 'inf'} {where}")
    tensors = {
        (part, path): tensor for part, tree in parts.items() for path, tensor in _tensors(tree)
    }  # A tensor that is there twice is looked at twice, which is rare.
    names = {f"part {part}: {path}": tensor for (part, path), tensor in tensors.items()}
    name = first_bad(names.items())
    if name is not None:
        raise NotFinite(f"{name} has {_kind(names[name])} {where}")


class NanHooks:
    """The hooks of `watch`."""

    def __init__(self, handles: Iterable[Any]) -> None:
        """Keep them."""
        self._handles = list(handles)

    def remove(self) -> None:
        """Take them off. A second call does nothing."""
        while self._handles:
            self._handles.pop().remove()


def watch(module: nn.Module, step: Callable[[], int], rank: int) -> NanHooks:
    """From now on raise `NotFinite` in the first module whose output has nan or inf while its inputs had not.

    The text has the module's name and class, the step that `step()` says, and the rank. Works in DDP, FSDP2, autocast
    and activation checkpointing. Code that torch.compile has compiled runs no such checks inside: of what
    `torch.compile(model)` returns the whole is checked, of `model.compile()` nothing, and the commit's check serves.
    Modules that are added later are not watched.
    """
    handles = [
        submodule.register_forward_hook(_hook(_clean(name), step, rank, whole=submodule is module), with_kwargs=True)
        for name, submodule in module.named_modules()
    ]
    return NanHooks(handles)


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
                f"{_named(name, module)} put out {_kind(outputs[bad])} {where} while its inputs were finite"
                f"{_own_fault(module)}"
            )
        if whole:
            raise NotFinite(f"the input of {_named(name, module)} has {_kind(inputs[bad_input])} {where}")

    return look


def _own_fault(module: nn.Module) -> str:
    """Whether a parameter of the module's own was bad before: then the fault is older than this step."""
    own = dict(module.named_parameters(recurse=False))
    bad = first_bad(own.items())
    return "" if bad is None else f"; its {bad} already had {_kind(own[bad])}"


def _named(name: str, module: nn.Module) -> str:
    kind = type(module).__name__.removeprefix("FSDP")
    return f"module {name} ({kind})" if name else f"the whole model ({kind})"


def _clean(name: str) -> str:
    """The name in the script's own model."""
    dotted = f"{name}."
    for wrapper in WRAPPERS:
        dotted = dotted.replace(f".{wrapper}", ".")
        while dotted.startswith(wrapper):
            dotted = dotted.removeprefix(wrapper)
    return dotted.strip(".")


def _recording() -> bool:
    """Whether torch only writes down what is called: for torch.jit.trace, or for a CUDA graph."""
    if torch._C._get_tracing_state() is not None:
        return True
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()  # type: ignore[no-untyped-call]


def _tensors(tree: Any, path: str = "", depth: int = 0) -> Iterator[tuple[str, Tensor]]:
    """Every tensor of a tree with the way to it, in order."""
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
    """What of a tensor can be nan or inf on this rank; None if nothing can."""
    local = getattr(tensor, "to_local", None)
    if local is not None:
        tensor = local()
    tensor = tensor.detach()
    if tensor.layout is torch.sparse_coo:
        tensor = tensor._values()
    elif tensor.layout is not torch.strided:
        tensor = tensor.values()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    if not tensor.is_floating_point() or not tensor.numel() or tensor.is_meta:
        return None
    return tensor.float() if tensor.itemsize == 1 else tensor  # Types of 8 bits have no norm.


def _summaries(tensors: list[Tensor]) -> Tensor:
    """A number for each tensor, which is finite only if all of the tensor is.

    On a card the largest magnitude, in one fused call; on the CPU, where that is slow, the sum, which reads memory at
    its full speed, and may overflow in good tensors.
    """
    if tensors[0].device.type != "cpu":
        return torch.stack(torch._foreach_norm(tensors, math.inf))
    wide = torch.float32 if tensors[0].itemsize < 4 else tensors[0].dtype
    return torch.stack([tensor.sum(dtype=wide) for tensor in tensors])


def _is_mask(tensor: Tensor) -> bool:
    return tensor.numel() > 1 and bool((tensor.isinf() | (tensor == 0) | (tensor == 1)).all()) and not _all_inf(tensor)


def _all_inf(tensor: Tensor) -> bool:
    return bool(tensor.isinf().all())


def _kind(tensor: Tensor) -> str:
    with torch.no_grad():
        values = _values(tensor)
        return "nan" if values is not None and bool(values.isnan().any()) else "inf"


def _kept(step: int | None) -> str:
    if step is None or step < 0:
        return "no checkpoint was saved before"
    return f"the checkpoint of step {step} is kept; --restore_step goes back further"
