"""Errors that mean: not enough memory."""

from __future__ import annotations

_SIGNS = ("out of memory", "bad_alloc", "cudaerrormemoryallocation", "can't allocate")


def is_shortage(error: BaseException) -> bool:
    """Whether an error says that memory has run out: of Python, torch, DALI or the CUDA runtime.

    DALI and the runtime have no type of their own for it, only words.
    """
    if isinstance(error, MemoryError):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and any(sign in text for sign in _SIGNS)
