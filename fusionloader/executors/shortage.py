"""Errors that mean: not enough memory."""

from __future__ import annotations

_SIGNS = (
    "out of memory",
    "bad_alloc",
    "cudaerrormemoryallocation",
    "cuda_error_out_of_memory",
    "can't allocate",
)


def is_shortage(error: BaseException) -> bool:
    """Whether an error says that memory has run out: of Python, torch, DALI or CUDA.

    DALI and CUDA have no type of their own for it, only words.
    """
    if isinstance(error, MemoryError):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and any(sign in text for sign in _SIGNS)
