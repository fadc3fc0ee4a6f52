"""Parses and formats amounts of memory, time and things."""

from __future__ import annotations

import math
import re
from numbers import Integral

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_UNITS |= {f"{unit}i": 1024**power for power, unit in enumerate("KMGT", start=1)}

_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


def parse_bytes(amount: int | str, name: str = "an amount of memory") -> int:
    """Parses ``"2GiB"``, ``"500 MB"`` or a plain number into a number of bytes.

    ``name`` is what errors call it.

    Raises:
        ValueError: not a positive amount of memory.
    """
    if isinstance(amount, Integral) and not isinstance(amount, bool) and amount > 0:
        return int(amount)
    if isinstance(amount, str):
        found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]i?)?B?\s*", amount)
        if found and float(found[1]) > 0:
            return int(float(found[1]) * _UNITS[found[2] or ""])
    raise ValueError(f'{name} is written as "2GiB" or in bytes, not {amount!r}')


def parse_seconds(amount: float | str) -> float:
    """Parses ``"2ms"``, ``"500 us"``, ``"1.5s"`` or a plain number into seconds.

    Raises:
        ValueError: not an amount of time.
    """
    if isinstance(amount, int | float) and not isinstance(amount, bool) and 0 <= amount < math.inf:
        return float(amount)
    if isinstance(amount, str):
        found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(us|ms|s)\s*", amount)
        if found:
            return float(found[1]) * _SECONDS[found[2]]
    raise ValueError(f'an amount of time is written as "2ms" or in seconds, not {amount!r}')


def counted(count: int, noun: str) -> str:
    """Returns ``"1 file"`` or ``"1,200 files"``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def mib(size: int) -> str:
    """Returns a number of bytes as text, in MiB."""
    return f"{size / 2**20:,.1f} MiB"
