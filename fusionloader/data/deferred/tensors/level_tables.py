"""What conversions make of the levels of an image, as tables that are computed by torch."""

from __future__ import annotations

from collections.abc import Callable, Hashable

import torch

from fusionloader.transforms.plan.stages import Convert
from fusionloader.transforms.plan.torchvision.conversions import ELEMENTS

# A table takes 30 us, so a conversion that is another one for each image is not recorded.
_MOST_FOLLOWING = 32
_MOST_TABLES = 256  # of a process

# Finds functions that depend on the place of a pixel.
_ORDER = (torch.arange(256, device="cpu") * 77 + 13) % 256


class LevelTable:
    """Elements for the 256 levels of three channels, each computed from the level alone.

    Attributes:
        convert: the conversion from levels, for the native executor.
        dtype: dtype of the elements.
    """

    __slots__ = ("_following", "_values", "convert", "dtype")
    _count = 0

    def __init__(self, values: torch.Tensor) -> None:
        """``values`` has 3 x 16 x 16 elements of a dtype in ``ELEMENTS``."""
        self._values, self.dtype = values, values.dtype
        content = values.contiguous().view(torch.uint8).numpy().tobytes()
        self.convert = Convert(ELEMENTS[values.dtype], content)
        self._following: dict[Hashable, LevelTable | None] = {}

    def then(self, key: Hashable, function: Callable[[torch.Tensor], object]) -> LevelTable | None:
        """Returns the table after an elementwise function; ``None`` if torch has to call it.

        It is this table itself if the function returns its argument.

        Args:
            key: equal for functions that do the same with the same default dtype.
            function: of a tensor, 3 x height x width.
        """
        key = key, torch.get_default_dtype()
        if key not in self._following:
            if len(self._following) >= _MOST_FOLLOWING or LevelTable._count >= _MOST_TABLES:
                return None
            LevelTable._count += 1
            self._following[key] = self.after(function)
        return self._following[key]

    def after(self, function: Callable[[torch.Tensor], object]) -> LevelTable | None:
        """Like ``then``, but the table is computed again with each call."""
        shuffled = self._values.reshape(3, 256)[:, _ORDER].reshape(3, 16, 16)
        try:
            made, other = function(self._values), function(shuffled)
        except Exception:  # torch raises it for the image, too
            return None
        if made is self._values:
            return self
        if not (isinstance(made, torch.Tensor) and isinstance(other, torch.Tensor)):
            return None
        made, other = made.as_subclass(torch.Tensor), other.as_subclass(torch.Tensor)
        if made.shape != (3, 16, 16) or made.dtype not in ELEMENTS or made.requires_grad:
            return None
        if made.isnan().any():  # whose bits depend on the place
            return None
        table = LevelTable(made.clone())
        expected = made.reshape(3, 256)[:, _ORDER].contiguous().view(torch.uint8)
        same = torch.equal(expected, other.reshape(3, 256).contiguous().view(torch.uint8))
        return table if same else None

    def look_up(self, pixels: torch.Tensor) -> torch.Tensor:
        """Returns the elements of uint8 pixels, 3 x height x width."""
        planes = [
            values[levels.long()]
            for values, levels in zip(self._values.reshape(3, 256), pixels, strict=True)
        ]
        return torch.stack(planes)


LEVELS = LevelTable(torch.arange(256, dtype=torch.uint8, device="cpu").repeat(3).view(3, 16, 16))
"""The table of an image that is not converted."""
