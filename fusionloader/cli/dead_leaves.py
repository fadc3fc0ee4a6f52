"""Dead-leaves images: overlapping shapes whose sizes follow a power law, as in photographs.

Occlusion at all scales gives the edge and frequency statistics of natural images. So a JPEG of such
an image costs about as much to decode as a photograph of the same size. The class of an
image decides its palette, its shapes and its textures; everything else is random.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

CLASSES = 10
TILE = 512
SPECTRA = (0.5, 0.9, 1.3, 1.8)
LEAVES_PER_MEGAPIXEL = 1600

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Style:
    """The parameters of a class: hues as fractions of the circle, share of polygons, elongation."""

    hues: tuple[float, float]
    polygons: float
    elongation: float
    spectrum: int


def style_of(label: int) -> Style:
    """Returns the style of class ``label``; hues of neighbouring classes differ by a tenth."""
    hue = label / CLASSES
    return Style(
        hues=(hue, (hue + (0.5 if label % 2 else 0.15)) % 1.0),
        polygons=(0.1, 0.9)[label % 2],
        elongation=(1.0, 2.0, 3.5)[label % 3],
        spectrum=label % len(SPECTRA),
    )


@cache
def texture_atlas() -> Floats:
    """Tileable noise of several spectra, unit variance; shape (spectra, TILE, TILE)."""
    rng = np.random.default_rng(20170424)
    frequency = np.hypot(np.fft.fftfreq(TILE)[:, None], np.fft.rfftfreq(TILE)[None, :])
    frequency[0, 0] = 1.0
    tiles = []
    for slope in SPECTRA:
        spectrum = np.fft.rfft2(rng.standard_normal((TILE, TILE))) / frequency**slope
        spectrum[0, 0] = 0.0
        tile = np.fft.irfft2(spectrum, s=(TILE, TILE))
        tiles.append(tile / tile.std())
    return np.stack(tiles).astype(np.float32)


def _colors(rng: np.random.Generator, hues: npt.NDArray[np.float64], count: int) -> Floats:
    """Random RGB colors around the given hues; shape (count, 3), levels 0-255."""
    saturation = rng.beta(2.5, 2.0, count)
    value = rng.uniform(0.25, 0.95, count)
    sector = (hues[:, None] * 6.0 + np.array([5.0, 3.0, 1.0])) % 6.0
    wave = np.clip(np.minimum(sector, 4.0 - sector), 0.0, 1.0)
    levels = 255.0 * value[:, None] * (1.0 - saturation[:, None] * wave)
    return np.asarray(levels, dtype=np.float32)


def _label_map(
    rng: np.random.Generator, width: int, height: int, style: Style, count: int
) -> npt.NDArray[np.int32]:
    """Which leaf every pixel shows: leaf 0 lies below all; shape (height, width)."""
    smallest, largest = 3.0, 0.45 * max(width, height)
    # Radii with density r**-3, under which the picture is scale-invariant.
    uniform = rng.random(count)
    radii = (smallest**-2 * (1.0 - uniform) + largest**-2 * uniform) ** -0.5
    # A tenth are large leaves, painted first, so that little of the background stays visible.
    ground = count // 10
    radii[:ground] = np.sort(rng.uniform(0.1, 1.0, ground))[::-1] * largest
    x, y = rng.uniform(0, width, count), rng.uniform(0, height, count)
    long_axis = radii * rng.uniform(1.0, style.elongation + 0.3, count) ** 0.5
    short_axis = radii**2 / long_axis
    turn = rng.uniform(0, np.pi, count)
    polygon = rng.random(count) < style.polygons
    corners = np.where(polygon, rng.integers(3, 7, count), 24)
    image = Image.new("I", (width, height), 0)
    draw = ImageDraw.Draw(image)
    for leaf in range(1, count):
        angle = np.linspace(0.0, 2.0 * np.pi, corners[leaf], endpoint=False)
        along, across = long_axis[leaf] * np.cos(angle), short_axis[leaf] * np.sin(angle)
        cosine, sine = np.cos(turn[leaf]), np.sin(turn[leaf])
        outline = np.stack(
            [x[leaf] + along * cosine - across * sine, y[leaf] + along * sine + across * cosine], 1
        )
        draw.polygon(outline.ravel().tolist(), fill=leaf)
    return np.asarray(image, dtype=np.int32)


def paint(label: int, width: int, height: int, rng: np.random.Generator) -> npt.NDArray[np.uint8]:
    """An image of class ``label``; uint8, shape (height, width, 3)."""
    style = style_of(label)
    count = max(40, round(LEAVES_PER_MEGAPIXEL * width * height / 1e6))
    leaf_of = _label_map(rng, width, height, style, count)

    styled = rng.random(count) < 0.8
    hues = np.where(rng.random(count) < 0.65, style.hues[0], style.hues[1])
    hues = np.where(styled, hues + rng.normal(0, 0.025, count), rng.random(count)) % 1.0
    color = _colors(rng, hues, count)
    slope = rng.normal(0, 40.0, (count, 2)).astype(np.float32) / max(width, height)
    contrast = rng.gamma(2.0, 9.0, count).astype(np.float32)
    kind = np.where(rng.random(count) < 0.7, style.spectrum, rng.integers(0, len(SPECTRA), count))
    shift = rng.integers(0, TILE, (count, 2))

    rows = np.arange(height, dtype=np.int32)[:, None]
    columns = np.arange(width, dtype=np.int32)[None, :]
    shift_of = shift.astype(np.int32)
    texel = (
        (kind.astype(np.int32) * (TILE * TILE))[leaf_of]
        + ((rows + shift_of[:, 0][leaf_of]) & (TILE - 1)) * TILE
        + ((columns + shift_of[:, 1][leaf_of]) & (TILE - 1))
    )
    light = texture_atlas().reshape(-1)[texel] * contrast[leaf_of]
    light += slope[:, 0][leaf_of] * (rows - height // 2).astype(np.float32)
    light += slope[:, 1][leaf_of] * (columns - width // 2).astype(np.float32)
    image = color[leaf_of]
    image += light[:, :, None]
    # Sensor noise, from the atlas too: drawing fresh normals would double the cost of an image.
    down, right = rng.integers(0, TILE, 2)
    grain = texture_atlas()[0][(rows + down) & (TILE - 1), (columns + right) & (TILE - 1)]
    image += 2.5 * grain[:, :, None]
    return np.clip(image, 0.0, 255.0).astype(np.uint8)
