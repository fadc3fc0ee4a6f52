"""Pillow's pixel arithmetic in DALI graphs. Which rounding is reproduced is said for each."""

from __future__ import annotations

from nvidia.dali import fn, math, types

from fusionloader.executors.dali.task import Backend, Node

# ITU-R 601 luma as Pillow has it, in 1/65536.
_LUMA = [19595 / 65536, 38470 / 65536, 7471 / 65536]


def cut_off(backend: Backend, values: Node) -> Node:
    """Levels from numbers: cut off, not rounded, as Pillow's conversions from float do.

    DALI's cast rounds: on the CPU halves go away from zero, so that half a level less is exactly
    the whole part. A GPU's go to even; there the whole part is taken first, which costs much less
    than on a CPU.
    """
    if backend.on_gpu:
        return fn.cast(math.floor(values), dtype=types.UINT8)
    return fn.cast(values - types.Constant(0.5, dtype=types.FLOAT), dtype=types.UINT8)


def grey_levels(backend: Backend, images: Node) -> Node:
    """Pillow's "L", height x width x 1: whole multiples of 1/65536 in float32, so exact."""
    if backend.channels == 1:
        return images
    if backend.on_gpu:
        exact = fn.coord_transform(images, M=_LUMA, T=[0.5], dtype=types.FLOAT)
        return cut_off(backend, exact)
    return fn.coord_transform(images, M=_LUMA, dtype=types.UINT8)


def in_all_channels(backend: Backend, plane: Node) -> Node:
    """Three equal channels; several times as fast as arithmetic between one channel and three."""
    return fn.coord_transform(plane, M=[1.0] * backend.channels, dtype=types.UINT8)


def blended(backend: Backend, start: Node, images: Node, factor: Node) -> Node:
    """Pillow's ``Image.blend``: from ``start`` towards ``images``, each step in float32.

    ``start`` has int16 levels: their difference is a whole number.
    """
    towards = (images - start) * backend.operand(factor)
    return cut_off(backend, towards + fn.cast(start, dtype=types.FLOAT))
