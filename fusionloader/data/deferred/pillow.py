"""Names for what Pillow, torchvision and their users hand over, which no type describes."""

from __future__ import annotations

from typing import Any, TypeAlias

# An image of Pillow's, or an enhancer of one: private attributes are read and set.
PillowImage: TypeAlias = Any
# An argument of a call that user code makes: anything.
Argument: TypeAlias = Any
