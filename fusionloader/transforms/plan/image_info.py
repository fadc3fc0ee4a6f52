"""What happens to the ``info`` of a PIL image, as its EXIF, in torchvision's transforms."""

from __future__ import annotations

import math
from collections.abc import Iterable

from fusionloader.transforms.plan.stages import Operation

# For these torchvision makes a new image; for some of them only if it has colors.
_WITHOUT_INFO = {"brightness", "contrast", "blur", "pad"}
_WITHOUT_INFO_OF_COLORS = {*_WITHOUT_INFO, "hue", "grayscale"}


def keeps_info(
    operations: Iterable[Operation], width: float, height: float, has_colors: bool = True
) -> bool:
    """Whether the result of the operations has the ``info`` of the image.

    ``width`` and ``height`` are those of the image, in pixels. A crop beyond it pads it first.
    """
    lacking = _WITHOUT_INFO_OF_COLORS if has_colors else _WITHOUT_INFO
    for name, *arguments in operations:
        if name in lacking or (name == "mix" and arguments[3] == "sum"):
            return False
        if name == "crop":
            x, y, *size = arguments[:4]
            if min(x, y) < 0 or x + size[0] > width or y + size[1] > height:
                return False
            width, height = size
        elif name == "resize":
            width, height = arguments[:2]
        elif name == "rotate" and arguments[2]:
            width = height = math.inf  # enlarged; nothing says by how much
    return True
