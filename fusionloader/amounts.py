"""Amounts of memory as users write them."""

from __future__ import annotations

import re

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_UNITS |= {f"{unit}i": 1024**power for power, unit in enumerate("KMGT", start=1)}


def parse_bytes(amount: int | str) -> int:
    """Returns ``"2GiB"``, ``"500 MB"`` or a plain number as a number of bytes.

    Raises:
        ValueError: not a positive amount of memory.
    """
    if isinstance(amount, int) and not isinstance(amount, bool) and amount > 0:
        return amount
    if isinstance(amount, str):
        found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]i?)?B?\s*", amount)
        if found and float(found[1]) > 0:
            return int(float(found[1]) * _UNITS[found[2] or ""])
    raise ValueError(f'an amount of memory is written as "2GiB" or in bytes, not {amount!r}')


def mib(size: int) -> str:
    """Returns a number of bytes as text, in MiB."""
    return f"{size / 2**20:,.1f} MiB"
