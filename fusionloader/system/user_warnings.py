"""Warnings that point at the user's line."""

from __future__ import annotations

import sys
import warnings

_INSIDE = ("fusionloader.", "torch.utils.data.", "accelerate.")


def warn_user(text: str, category: type[Warning] = UserWarning) -> None:
    """Warns at the innermost frame outside this package, torch's data loading and Accelerate."""
    frame = sys._getframe(1)
    while frame.f_back is not None and _is_inside(frame.f_globals.get("__name__", "")):
        frame = frame.f_back
    registry = frame.f_globals.setdefault("__warningregistry__", {})
    where = frame.f_globals.get("__name__", "<unknown>")
    warnings.warn_explicit(
        text, category, frame.f_code.co_filename, frame.f_lineno, where, registry
    )


def _is_inside(module: str) -> bool:
    return module == "fusionloader" or f"{module}.".startswith(_INSIDE)
