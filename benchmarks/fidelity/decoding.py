"""Decoding against Pillow's, and the conversion to elements against torch's."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from PIL import Image

from benchmarks.fidelity.differences import Difference, array
from fusionloader.transforms.executors.native import make_executor
from fusionloader.transforms.plan.stages import ImageKind, Plan, Resize
from fusionloader.transforms.plan.transforms import compile_transform

MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
# What a file is saved with, by the name of its row.
FILES: dict[str, dict[str, Any]] = {
    "4:4:4": {"quality": 92, "subsampling": 0},
    "4:2:2": {"quality": 85, "subsampling": 1},
    "4:2:0": {"quality": 75, "subsampling": 2},
    "4:2:0, progressive": {"quality": 80, "subsampling": 2, "progressive": True},
    "4:2:0, restart markers": {"quality": 60, "subsampling": 2, "restart_marker_blocks": 3},
}
REDUCTIONS = (2, 4, 8)
TYPES = (torch.float32, torch.float16, torch.bfloat16)


def exact_decode(chosen: dict[str, Image.Image]) -> dict[str, Difference]:
    """Whole decoded files against Pillow's pixels, for every kind of file and for grey ones."""
    executor = make_executor(Plan((), None, None, None))
    made = {name: Difference() for name in (*FILES, "grey")}
    for image in chosen.values():
        kinds = FILES if image.mode == "RGB" else {"grey": {"quality": 85}}
        for name, options in kinds.items():
            encoded = jpeg(image, **options)
            result = executor.pixels(encoded, 0, 0, 0, 0)
            if result is None:
                raise RuntimeError(f"a file ({name}) was left to Pillow")
            ours = np.frombuffer(result[0], np.uint8).reshape(*result[1], 3)
            with Image.open(io.BytesIO(encoded)) as opened:
                made[name].add(ours, array(opened.convert("RGB")))
    return made


def fast_decode(chosen: dict[str, Image.Image]) -> dict[str, Difference]:
    """``decode="fast"`` against ``"exact"`` where an image is resized to 1/2, 1/4 and 1/8."""
    made = {f"1/{reduction}": Difference() for reduction in REDUCTIONS}
    for image in chosen.values():
        for reduction in REDUCTIONS:
            width, height = image.width // reduction, image.height // reduction
            if image.mode != "RGB" or min(width, height) < 1:
                continue
            encoded = jpeg(image, quality=85, subsampling=2)
            stages = (Resize(height, width, "bilinear"),)
            results = [
                make_executor(Plan(stages, None, height, width, decode)).pixels(encoded, 0, 0, 0, 0)
                for decode in ("fast", "exact")
            ]
            fast, exact = (np.frombuffer(r[0], np.uint8) for r in results if r is not None)
            made[f"1/{reduction}"].add(fast, exact)
    return made


def conversion(chosen: dict[str, Image.Image]) -> dict[str, Difference]:
    """``ToTensor`` and ``Normalize``, then each element type; elements are equal bit by bit."""
    from torchvision import transforms

    made = {}
    for dtype in TYPES:
        difference = made[str(dtype).removeprefix("torch.")] = Difference()
        for image in chosen.values():
            channels = len(image.getbands())
            steps: list[Callable[[Any], Any]] = [
                transforms.ToTensor(),
                transforms.Normalize(MEAN[:channels], DEVIATION[:channels]),
            ]
            if dtype is not torch.float32:
                steps.append(transforms.ConvertImageDtype(dtype))
            transform = transforms.Compose(steps)
            kind = ImageKind(3 if channels == 3 else 1, image.height, image.width)
            compiled = compile_transform(transform, images=kind)
            if compiled.tail is not None:
                raise RuntimeError(f"the conversion to {dtype} is not compiled")
            ours = torch.empty((channels, image.height, image.width), dtype=dtype)
            executor = make_executor(compiled.plan)
            executor.run_pixels(array(image).data, 0, 0, 0, 0, ours.view(torch.uint8).numpy().data)
            theirs = transform(image)
            if not torch.equal(ours.isnan(), theirs.isnan()):
                raise RuntimeError(f"the conversion to {dtype} makes other NaNs")
            difference.add(ours.double().numpy(), theirs.double().numpy())
    return made


def jpeg(image: Image.Image, **options: Any) -> bytes:
    """Returns a JPEG of an image."""
    file = io.BytesIO()
    image.save(file, "JPEG", **options)
    return file.getvalue()
