"""Collating in the memory of batches: by default functions in rows, by others where they join."""

from __future__ import annotations

import functools
import threading
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.jit import _builtins
from torch.utils.data._utils import collate as torch_collate

from fusionloader.data.deferred.guard import PLAIN, call_library, guarded
from fusionloader.data.deferred.rows.memory import BatchRows, current, is_plain, joined_shape
from fusionloader.data.deferred.rows.sample_rows import LEAST_BYTES
from fusionloader.data.deferred.tensors.deferred_tensor import finish_sample
from fusionloader.options.aliases import Batch
from fusionloader.transforms.executors.collate import is_of_collate

Function = Callable[..., Any]


def default_collate(rows: BatchRows) -> Function:
    """Returns torch's ``default_collate`` with tensors that are made in rows."""

    def stacked(batch: Sequence[Any], *, collate_fn_map: Any = None) -> Any:
        finish_sample(batch)
        made = rows.stacked(batch)
        return PLAIN if made is None else made

    collate_tensor = guarded(stacked, torch_collate.collate_tensor_fn)

    def collate(batch: Sequence[Any]) -> Batch:
        functions = dict(torch_collate.default_collate_fn_map)
        if is_of_collate(functions.get(torch.Tensor), "collate_tensor_fn"):
            functions[torch.Tensor] = collate_tensor
        with rows.collating():
            return torch_collate.collate(batch, collate_fn_map=functions)

    return collate


class _Collating(threading.local):
    """What a collate function of user code runs with in this thread."""

    storage: Callable[[int], torch.UntypedStorage | None] | None = None


_collating = _Collating()
_JOINS = "cat", "stack"


def joining(collate: Function, storage: Callable[[int], torch.UntypedStorage | None]) -> Function:
    """Returns a collate function of user code whose large joined tensors lie in a batch's memory.

    What ``torch.cat`` and ``torch.stack`` return there is not copied again. ``storage`` returns
    memory of so many bytes; ``None`` if there is none.
    """

    def collate_in_memory(samples: Any) -> Any:
        originals = {name: getattr(torch, name) for name in _JOINS}
        try:
            for name, original in originals.items():
                setattr(torch, name, _in_memory(original))
            _collating.storage = storage
            return collate(samples)
        finally:
            _collating.storage = None
            _replace({_in_memory(original): original for original in originals.values()})

    return collate_in_memory


def _replace(functions: dict[Function, Function]) -> None:
    """Replaces functions that join tensors, but not where the program has replaced them."""
    for name in _JOINS:
        found = getattr(torch, name)
        setattr(torch, name, functions.get(found, found))


@functools.cache
def _in_memory(join: Function) -> Function:
    if type(join) is not types.BuiltinFunctionType:  # a replacement by the program
        return join

    def attempt(*arguments: Any, **named: Any) -> Any:
        if torch.compiler.is_compiling() or _collating.storage is None:
            return PLAIN
        tensors: Any = arguments[0] if arguments else named.get("tensors")
        if type(tensors) not in (list, tuple):
            return PLAIN
        if any(type(each) is not torch.Tensor for each in tensors):
            return compared(*arguments, **named)
        dim = arguments[1] if len(arguments) == 2 else 0
        if named or len(arguments) > 2 or type(dim) is not int or dim != 0 or _is_watched():
            return PLAIN
        if not all(is_plain(each) and _has_usual_strides(each) for each in tensors):
            return PLAIN
        nbytes, dtypes = sum(each.nbytes for each in tensors), {each.dtype for each in tensors}
        if nbytes < LEAST_BYTES or len(dtypes) > 1 or torch.is_inference_mode_enabled():
            return PLAIN
        shape = joined_shape(join.__name__, [each.shape for each in tensors])
        memory = None if shape is None else _collating.storage(nbytes)
        if memory is None:
            return PLAIN
        out: Any = torch.empty(0, dtype=dtypes.pop(), device="cpu")
        return join(tensors, out=out.set_(memory, 0, shape))

    def compared(*arguments: Any, **named: Any) -> Any:
        """Calls torch's function for a class that may compare it with ``torch.cat``."""
        _replace({replacement: join})
        try:
            return call_library(join, *arguments, **named)
        finally:
            _replace({join: replacement})

    replacement = guarded(attempt, join, f"torch.{join.__name__}")
    replacement.__module__, replacement.__qualname__ = "torch", join.__name__  # for pickle
    # torch.jit.script knows functions by identity.
    builtins: Any = _builtins
    builtins._get_builtin_table()[id(replacement)] = f"aten::{join.__name__}"
    return replacement


def _is_watched() -> bool:
    """Whether a mode, a transform or a trace sees which operations are called."""
    modes = torch._C._len_torch_function_stack() + torch._C._len_torch_dispatch_stack()
    if modes or torch._C._get_tracing_state() is not None or forward_ad._current_level >= 0:
        return True
    return torch._C._functorch.peek_interpreter_stack() is not None


def _has_usual_strides(tensor: torch.Tensor) -> bool:
    """Whether torch takes it for no other memory format than the usual one."""
    expected = 1
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.stride()), strict=True):
        if stride != expected:
            return False
        expected *= max(size, 1)
    return True


def invoking(original: Function) -> Function:
    """Returns a ``DataPipeline.invoke`` for WebDataset whose ``batched`` makes tensors in rows."""
    from webdataset import filters  # type: ignore[import-untyped]

    batched = filters.batched.f

    def collate(samples: Sequence[Any]) -> Batch:
        rows = current()
        assert rows is not None
        with rows.collating():
            return filters.default_collation_fn(samples)

    def attempt(self: Any, f: Any, *arguments: Any, **named: Any) -> Any:
        rows = current()
        if rows is None or named or type(f) is not filters.FilterFunction or f.f is not batched:
            return PLAIN
        default = filters.default_collation_fn
        if len(f.args) > 1 or f.kw.get("collation_fn", default) is not default:
            return PLAIN
        stage = filters.FilterFunction(f.f, *f.args, **{**f.kw, "collation_fn": collate})
        # Unlike a generator, map() drops its reference to a batch as soon as it has returned it.
        return map(_settled, call_library(original, self, stage, *arguments))

    return guarded(attempt, original)


def _settled(batch: Batch) -> Batch:
    rows = current()
    if rows is not None:
        rows.settle()
    return batch


def combine_values(b: Any, combine_tensors: Any = True, combine_scalars: Any = True) -> Any:
    """Replaces WebDataset's ``combine_values``: stacks tensors in rows."""
    rows = current()
    if rows is None or not combine_tensors or not isinstance(b[0], torch.Tensor):
        return PLAIN
    finish_sample(b)
    made = rows.stacked(b)
    return PLAIN if made is None else made
