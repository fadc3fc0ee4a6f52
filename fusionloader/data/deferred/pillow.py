"""Type names for values of Pillow, torchvision and user code, which have no better type."""

from __future__ import annotations

from typing import Any, TypeAlias

# An image of Pillow's, or an enhancer, whose private attributes are read and set.
PillowImage: TypeAlias = Any
# An argument of a call by user code.
Argument: TypeAlias = Any
