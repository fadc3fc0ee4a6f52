"""Batches in host memory that are incomplete in their slot, or whose samples differ in shape.

For complete ones, ``Layout.batch`` makes tensors over the slot's memory.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch._utils import KeyErrorMessage
from torch.utils._pytree import tree_map
from torch.utils.data._utils import collate
from torch.utils.data._utils.collate import collate_tensor_fn, default_collate

from fusionloader.options.aliases import Batch, Sample
from fusionloader.system.shm.slots import Owner
from fusionloader.transforms.executors.layout import Layout


def collate_rest(
    layout: Layout,
    owner: Owner,
    rows: int,
    spilled: Iterable[tuple[Sequence[int], bytes]],
    dropped: set[int],
    name: Callable[[int], str],
) -> Batch:
    """Returns a mini-batch of which some samples are not in their rows.

    Args:
        layout: layout of the rows.
        owner: owner of the slot.
        rows: number of rows.
        spilled: rows of samples that do not fit the layout, and these samples, pickled.
        dropped: rows that are left out.
        name: returns the name of a row's sample.

    Raises:
        Exception: the samples cannot be collated, see ``collate_named``.
    """
    apart: dict[int, Sample] = {}
    for places, pickled in spilled:
        apart.update(zip(places, pickle.loads(pickled), strict=True))
    kept = [row for row in range(rows) if row not in dropped]
    # Rows of the other samples were not written, and hold data of an earlier mini-batch.
    written = iter(layout.samples(owner, rows, [row for row in kept if row not in apart]))
    samples = [apart[row] if row in apart else next(written) for row in kept]
    return collate_named(samples, lambda place: name(kept[place]), _collate_as_workers)


def _collate_as_workers(samples: list[Sample]) -> Batch:
    """Returns what ``default_collate`` returns in a worker: the first sample's types count."""
    functions: Any = dict(collate.default_collate_fn_map)
    if functions.get(torch.Tensor) is collate_tensor_fn:
        functions[torch.Tensor] = _stack
    return collate.collate(samples, collate_fn_map=functions)


def _stack(tensors: Sequence[torch.Tensor], *, collate_fn_map: Any = None) -> torch.Tensor:
    first = tensors[0]
    if all(each.dtype == first.dtype and not each.requires_grad for each in tensors):
        made: torch.Tensor = collate_tensor_fn(tensors, collate_fn_map=collate_fn_map)
        return made
    out = torch.empty((len(tensors), *first.shape), dtype=first.dtype, device=first.device)
    return torch.stack(tuple(tensors), 0, out=out)


def without_rows(batch: Batch, rows: int, dropped: set[int]) -> Batch:
    """Returns a batch of ``rows`` rows without those in ``dropped``."""
    if not dropped:
        return batch
    kept = [row for row in range(rows) if row not in dropped]

    def select(leaf: Any) -> Any:
        return type(leaf)(leaf[row] for row in kept) if _is_texts(leaf) else leaf[kept]

    return tree_map(select, batch, is_leaf=_is_texts)


def _is_texts(node: Any) -> bool:
    return type(node) in (list, tuple) and bool(node) and isinstance(node[0], (str, bytes))


def collate_named(
    samples: Sequence[Sample],
    name: Callable[[int], str],
    collated: Callable[[list[Sample]], Batch] = default_collate,
) -> Batch:
    """Returns ``collated(samples)``.

    Args:
        samples: samples of a mini-batch.
        name: returns the name of a sample by its position.
        collated: ``default_collate``, or the same as it is in workers.

    Raises:
        Exception: the error of ``default_collate``, with the names of two samples that differ and
            what to do added to its message.
    """
    try:
        return collated(list(samples))
    except Exception as error:
        hint = _hint(samples, name)
        if not hint:
            raise
        # Not a variable of this frame: the error would refer to itself, and keep the samples.
        raise _with_hint(error, hint)  # noqa: B904 - it has its cause


def _with_hint(error: Exception, hint: str) -> Exception:
    text = f"{error}\n{hint}"
    try:
        # A KeyError shows the repr of its text.
        explained = type(error)(KeyErrorMessage(text) if isinstance(error, KeyError) else text)
    except Exception:  # its constructor takes other arguments
        return error
    explained.__cause__ = error
    return explained


def _hint(samples: Sequence[Sample], name: Callable[[int], str]) -> str:
    described = [_describe(sample) for sample in samples]
    odd = next((i for i, text in enumerate(described) if text != described[0]), None)
    if odd is None:
        return ""
    return (
        f"{name(0)} is {described[0]}, {name(odd)} is {described[odd]}. Samples of a mini-batch "
        "need one structure and shape: end the transforms with a crop or resize to one size, or "
        "give the loader a collate_fn that puts such samples together."
    )


def _describe(sample: Sample) -> str:
    layout = Layout.of(sample)
    return layout if isinstance(layout, str) else layout.describe()
