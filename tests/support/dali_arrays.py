"""What DALI's tensors say of their memory, without DALI."""

from __future__ import annotations

from types import SimpleNamespace


def array_interface(address: int, shape: tuple[int, ...], version: int) -> dict[str, object]:
    """Returns the dictionary that DALI 2.4.0 makes, version 2 on a GPU and 3 on the CPU.

    One C++ function makes both, ``ArrayInterfaceRepr`` in ``dali/python/backend_impl.cc``, so the
    test of the head compares this with what a tensor of the CPU backend says.
    """
    return {
        "typestr": "=B",
        "shape": shape,
        "data": (address, False),
        "version": version,
        "strides": None,
    }


def tensor_gpu(address: int, shape: tuple[int, ...]) -> SimpleNamespace:
    """Returns an image as DALI's GPU decoder gives it: the host cannot read its content."""
    return SimpleNamespace(__cuda_array_interface__=array_interface(address, shape, 2))
