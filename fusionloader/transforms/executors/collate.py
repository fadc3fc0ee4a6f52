"""Whether ``default_collate`` uses torch's functions, or custom ones instead of them."""

from __future__ import annotations

import numpy as np
import torch
from torch.utils.data._utils import collate as torch_collate

_Key = type | tuple[type, ...]
_COLLATED_BY: dict[_Key, str] = {
    torch.Tensor: "collate_tensor_fn",
    np.ndarray: "collate_numpy_array_fn",
    (np.bool_, np.number, np.object_): "collate_numpy_scalar_fn",
    float: "collate_float_fn",
    int: "collate_int_fn",
    str: "collate_str_fn",
    bytes: "collate_str_fn",
}


def collated_by_torch(sample: object) -> bool:
    """Whether ``default_collate`` uses torch's function for a sample, even if its map changed."""
    functions = torch_collate.default_collate_fn_map
    key: _Key | None = type(sample)
    if key not in functions:
        key = next((registered for registered in functions if isinstance(sample, registered)), None)
    if key is None:
        return True
    if key is np.ndarray and not _is_torchs(torch.Tensor):  # arrays are collated as tensors
        return False
    return _is_torchs(key)


def _is_torchs(key: _Key) -> bool:
    found = torch_collate.default_collate_fn_map.get(key)
    return is_of_collate(found, _COLLATED_BY.get(key, ""))


def is_of_collate(function: object, name: str) -> bool:
    """Whether a function is the one that torch's collate module defines as ``name``."""
    defined_there = getattr(function, "__globals__", None) is vars(torch_collate)
    return defined_there and getattr(function, "__name__", "") == name
