"""One line of the doctor: what was looked at, what was found, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "warn", "fail"]
"""``"fail"``: FusionLoader does not work here; ``"warn"``: something is slower than necessary, or a
part of it does not work."""


@dataclass(frozen=True, slots=True)
class Check:
    """What was found under a name; ``remedy`` says what to type, where it is not ok."""

    name: str
    value: str
    state: State = "ok"
    remedy: str = ""


def warn_if(bad: bool, name: str, value: str, remedy: str) -> Check:
    """Returns a check that is ok, or a warning with its remedy."""
    return Check(name, value, "warn", remedy) if bad else Check(name, value)


def gigabytes(nbytes: float) -> str:
    """Returns bytes as people read them."""
    return f"{nbytes / 1e9:.1f} GB"
