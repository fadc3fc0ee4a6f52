"""Operations: what a plan does to one image once all random parameters are drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from typing_extensions import Unpack

# A name and its arguments: ("crop", x, y, width, height, fill), ("brightness", 1.2), ("invert",).
Operation: TypeAlias = "tuple[str, Unpack[tuple[Any, ...]]]"
