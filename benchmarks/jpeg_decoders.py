"""JPEG decoders of Python, each called as the imread benchmark calls it: bytes to HWC RGB uint8.

A function here imports its library, has it use one thread, and returns what decodes. ImportError
says what is missing.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

Decode = Callable[[bytes], Any]


def pillow() -> Decode:
    from PIL import Image

    def decode(encoded: bytes) -> Any:
        with Image.open(io.BytesIO(encoded)) as image:
            return np.array(image.convert("RGB"))

    return decode


def opencv() -> Decode:
    import cv2

    cv2.setNumThreads(1)
    return lambda encoded: cv2.imdecode(np.frombuffer(encoded, np.uint8), cv2.IMREAD_COLOR_RGB)


def torchvision() -> Decode:
    import torch
    from torchvision.io import decode_jpeg

    torch.set_num_threads(1)

    def decode(encoded: bytes) -> Any:
        data = torch.frombuffer(bytearray(encoded), dtype=torch.uint8)
        return decode_jpeg(data, "RGB").permute(1, 2, 0).numpy()

    return decode


def torchcodec() -> Decode:
    import torch
    from torchcodec.decoders import decode_jpeg

    torch.set_num_threads(1)
    return lambda encoded: decode_jpeg(encoded, mode="RGB").permute(1, 2, 0).numpy()


def simplejpeg() -> Decode:
    import simplejpeg

    return lambda encoded: simplejpeg.decode_jpeg(encoded, colorspace="RGB")


def pyturbojpeg() -> Decode:
    from turbojpeg import TJPF_RGB, TurboJPEG

    try:
        decoder = TurboJPEG()
    except RuntimeError as error:  # the package comes without its library
        raise ImportError(str(error).splitlines()[0]) from error
    return lambda encoded: decoder.decode(encoded, pixel_format=TJPF_RGB)


def imagecodecs() -> Decode:
    import imagecodecs

    return lambda encoded: imagecodecs.jpeg_decode(encoded)


def kornia() -> Decode:
    import kornia_rs

    return lambda encoded: kornia_rs.io.decode_image_jpeg(encoded)


def ajpegli() -> Decode:
    import ajpegli

    return lambda encoded: ajpegli.imdecode(encoded, mode="RGB")


def pyvips() -> Decode:
    os.environ["VIPS_CONCURRENCY"] = "1"  # read when the library is loaded
    import pyvips

    return lambda encoded: pyvips.Image.new_from_buffer(encoded, "", access="sequential").numpy()


def fusionloader() -> Decode:
    from fusionloader.transforms.io import decode_jpeg

    return decode_jpeg


class Decoder(NamedTuple):
    """A decoder: what loads it, and the distribution that it comes in."""

    load: Callable[[], Decode]
    distribution: str


OURS = "fusionloader"
DECODERS = {
    "pillow": Decoder(pillow, "pillow"),
    "opencv": Decoder(opencv, "opencv-python-headless"),
    "torchvision": Decoder(torchvision, "torchvision"),
    "torchcodec": Decoder(torchcodec, "torchcodec"),
    "simplejpeg": Decoder(simplejpeg, "simplejpeg"),
    "pyturbojpeg": Decoder(pyturbojpeg, "PyTurboJPEG"),
    "imagecodecs": Decoder(imagecodecs, "imagecodecs"),
    "kornia-rs": Decoder(kornia, "kornia-rs"),
    "ajpegli": Decoder(ajpegli, "ajpegli"),
    "pyvips": Decoder(pyvips, "pyvips"),
    OURS: Decoder(fusionloader, "fusionloader"),
}
