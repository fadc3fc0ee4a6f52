"""Pixels of Pillow's images, in bands or at once, are those of its own conversion."""

import tracemalloc

import numpy as np
import pytest
from PIL import Image

from fusionloader.data.sources.pillow_pixels import rgb_bytes


@pytest.mark.few(20)
@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "I", "F"])
@pytest.mark.parametrize("size", [(40, 30), (1, 1), (1500, 1401), (3, 700_001), (1_048_580, 2)])
def test_the_bytes_are_those_of_the_converted_image(mode, size):
    small = np.random.default_rng(4).integers(0, 256, (7, 9, 3), np.uint8)
    image = Image.fromarray(small).resize(size, Image.Resampling.NEAREST).convert(mode)
    if mode == "P":
        image.info["transparency"] = 3
    assert bytes(rgb_bytes(image)) == image.convert("RGB").tobytes()


def test_a_large_image_is_not_held_twice():
    image = Image.new("L", (4000, 4000), 7)
    image.load()
    tracemalloc.start()
    try:
        made = rgb_bytes(image)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < len(made) * 1.5
