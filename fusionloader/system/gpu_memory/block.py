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
        address: on the device.
        nbytes: at least 1.
        stream: the CUDA stream that used it last, as a number (0 is the default stream). The block
            is on offer once all that is in the stream by now is done; nothing waits for that here.
            With ``None``, the stream is not known: lending waits for all work of this process.

    Raises:
        SizeError: it has no bytes.
    """

    address: int
    nbytes: int
    stream: int | None = None

    def __post_init__(self) -> None:
        if self.nbytes < 1:
            raise SizeError(f"a block has at least 1 byte, not {self.nbytes}")


class CudaArray(Protocol):
    """Memory of a CUDA device: a tensor, a CuPy array."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...


def as_block(memory: Block | CudaArray) -> Block:
    """Returns a block, or what has ``__cuda_array_interface__`` (tensors, CuPy arrays), as one.

    Raises:
        TypeError: it is neither, or not contiguous, or not to be written.
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
