"""Values that stages are made of."""

from __future__ import annotations

from typing import Literal

Filter = Literal[
    "box", "bilinear", "hamming", "bicubic", "lanczos", "torch_bilinear", "torch_bicubic"
]
"""Pillow's filters, and torch's antialiased ones for uint8 tensors, whose weights have 16 bits."""
Interpolation = Literal["nearest", "bilinear", "bicubic"]
Range = tuple[float, float]
Color = tuple[int, int, int]
Decode = Literal["exact", "fast"]
Channels = Literal[1, 3]
PadMode = Literal["constant", "edge", "reflect", "symmetric"]
