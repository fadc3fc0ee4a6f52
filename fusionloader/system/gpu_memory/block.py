"""A block of GPU memory, by address."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, Protocol

from fusionloader.system.gpu_memory.errors import SizeError


@dataclass(frozen=True, slots=True)
class Block:
    """Memory that this process got from ``cudaMalloc``, or a part of it.

    Args:
        address: address on the device.
        nbytes: size in bytes, at least 1.
        stream: the CUDA stream that used the memory last, as a number (0 is the default stream).
            The block is offered once the work that is in the stream now is done; lending does not
            wait for that. ``None`` if the stream is unknown: then lending waits for all work of
            this process.

    Raises:
        SizeError: ``nbytes`` is less than 1.
    """

    address: int
    nbytes: int
    stream: int | None = None

    def __post_init__(self) -> None:
        if self.nbytes < 1:
            raise SizeError(f"a block has at least 1 byte, not {self.nbytes}")


class CudaArray(Protocol):
    """Memory of a CUDA device, such as a tensor or a CuPy array."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...


def as_block(memory: Block | CudaArray) -> Block:
    """Returns ``memory`` as a block.

    Raises:
        TypeError: ``memory`` is of another type, not contiguous, or read-only.
        SizeError: it has no bytes.
    """
    if isinstance(memory, Block):
        return memory
    try:
        interface = memory.__cuda_array_interface__
    except AttributeError:
        raise TypeError(
            f"a block is a Block, or has __cuda_array_interface__, not {type(memory).__name__}"
        ) from None
    address, read_only = interface["data"]
    if read_only or interface.get("strides") is not None or interface.get("mask") is not None:
        raise TypeError("only contiguous memory that may be written can be lent")
    item_bytes = int(interface["typestr"][2:])
    return Block(address, prod(interface["shape"]) * item_bytes, interface.get("stream"))
