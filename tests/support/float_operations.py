"""Drawn operations on float32 tensors by torchvision."""

import torch
from torchvision.transforms import InterpolationMode, functional


def by_torch(image, name, *arguments):
    if name == "resize":
        width, height, filter = arguments
        mode, antialias = InterpolationMode(filter.split("_")[-1]), "aliased" not in filter
        return functional.resize(image, [height, width], mode, antialias=antialias)
    if name == "crop":
        x, y, width, height, fill = arguments
        fill = torch.tensor(fill[: image.shape[0]], dtype=image.dtype).reshape(-1, 1, 1)
        made = fill.expand(image.shape[0], height, width).clone()
        left, top = max(x, 0), max(y, 0)
        right, bottom = min(x + width, image.shape[2]), min(y + height, image.shape[1])
        if left < right and top < bottom:
            inside = image[:, top:bottom, left:right]
            made[:, top - y : bottom - y, left - x : right - x] = inside
        return made
    if name == "pad":
        left, top, right, bottom, _, fill = arguments
        height, width = image.shape[1] + top + bottom, image.shape[2] + left + right
        return by_torch(image, "crop", -left, -top, width, height, fill)
    if name == "normalize":
        channels = image.shape[0]
        return functional.normalize(image, *(each[:channels] for each in arguments))
    return {"hflip": functional.hflip, "vflip": functional.vflip}[name](image)
