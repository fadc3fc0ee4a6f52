"""Numbers as people read them: two or three digits, and a unit."""

from __future__ import annotations

import re

_SPACE = "\N{NO-BREAK SPACE}"  # a unit stays with its number
_TIMES = ((1e-6, "µs", 1e6), (1e-3, "ms", 1e3), (1.0, "s", 1.0))


def percent(share: float) -> str:
    """Returns a share as whole percents; what is small but not nothing as less than one."""
    if 0 < share < 0.01:
        return f"less than 1{_SPACE}%"
    return f"{share:.0%}".replace("%", f"{_SPACE}%")


def spaced(text: str) -> str:
    """Returns a text in which a space that no line breaks at is before each sign of percent."""
    return re.sub(r"(?<=\d)%", f"{_SPACE}%", text)


def number(value: float) -> str:
    """Returns a number with three digits, or all those before the point."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def duration(seconds: float) -> str:
    """Returns seconds in the unit in which they have one to three digits before the point."""
    if not seconds:
        return f"0{_SPACE}s"
    _, unit, factor = max(
        (each for each in _TIMES if each[0] <= abs(seconds)), default=_TIMES[0], key=lambda t: t[0]
    )
    return f"{number(seconds * factor)}{_SPACE}{unit}"


def size(nbytes: float) -> str:
    """Returns bytes in kB, MB or GB."""
    for factor, unit in ((1e9, "GB"), (1e6, "MB")):
        if nbytes >= factor:
            return f"{number(nbytes / factor)}{_SPACE}{unit}"
    return f"{number(nbytes / 1e3)}{_SPACE}kB"
