"""What is drawn for timm's transforms is distributed as what timm draws.

timm's functions on images are replaced by recorders, as in ``test_distributions``.
"""

import random
import types

import numpy as np
import pytest
import torch
from PIL import Image
from support.campaigns import DRAWS
from support.distributions import assert_same_distribution, flat
from test_timm import SPECS
from torchvision import transforms as v1

from fusionloader.transforms.executors.native import make_executor
from fusionloader.transforms.plan.transforms import compile_transform

aug = pytest.importorskip("timm.data.auto_augment")
windows = pytest.importorskip("timm.data.transforms")
erasing = pytest.importorskip("timm.data.random_erasing")

OURS, THEIRS = 3 * DRAWS, DRAWS
SIZE = (331, 200)
HPARAMS = {"img_mean": (1, 2, 3), "translate_const": 100}


@pytest.fixture(autouse=True)
def seeded():
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)


def drawn(transform, count=OURS, size=SIZE):
    compiled = compile_transform(transform)
    assert compiled.tail is None, compiled.notes
    executor = make_executor(compiled.plan)
    return [executor.draw(11, 3, index, 0, *size) for index in range(count)]


# What timm's functions do with their argument, as the operations that are drawn.
OPERATIONS = {
    "shear_x": lambda factor: ("affine", 1, factor, 0, 0, 1, 0),
    "shear_y": lambda factor: ("affine", 1, 0, 0, factor, 1, 0),
    "translate_x_abs": lambda pixels: ("affine", 1, 0, pixels, 0, 1, 0),
    "translate_y_abs": lambda pixels: ("affine", 1, 0, 0, 0, 1, pixels),
    "translate_x_rel": lambda part: ("affine", 1, 0, part * SIZE[0], 0, 1, 0),
    "translate_y_rel": lambda part: ("affine", 1, 0, 0, 0, 1, part * SIZE[1]),
    "rotate": lambda degrees: ("rotate", degrees),
    "auto_contrast": lambda: ("autocontrast",),
    "color": lambda factor: ("saturation", factor),
    "desaturate": lambda factor: ("saturation", min(1.0, max(0.0, 1.0 - factor))),
    "posterize": lambda bits: ("posterize", min(8, max(0, bits))),
    "gaussian_blur": lambda radius: ("box_blur", radius),
    "gaussian_blur_rand": lambda factor: ("box_blur", random.uniform(0.1, 2.0 * factor)),
}


def record_into(seen, ops):
    """Makes timm's operations note what they would do and return the image as it is."""
    for op in ops:
        name = op.aug_fn.__name__
        made = OPERATIONS.get(name, lambda *arguments, name=name: (name, *arguments))

        def record(image, *arguments, made=made, **_):
            seen.append(made(*arguments))
            return image

        op.aug_fn = record


def recorded(transform, seen, count=THEIRS):
    image, draws = Image.new("RGB", SIZE), []
    for _ in range(count):
        seen.clear()
        transform(image)
        draws.append(list(seen))
    return draws


@pytest.mark.parametrize("spec", [spec for spec in SPECS if not spec.startswith("augmix")])
@pytest.mark.few(3)
def test_policies_draw_as_timm_s(spec):
    rand = spec.startswith("rand")
    make = aug.rand_augment_transform if rand else aug.auto_augment_transform
    transform = make(spec, dict(HPARAMS))
    ours = [[flat(operation) for operation in draw] for draw in drawn(transform)]
    ops = transform.ops if rand else [op for policy in transform.policy for op in policy]
    seen = []
    record_into(seen, ops)
    assert_same_distribution(ours, recorded(transform, seen))


@pytest.mark.parametrize(
    "spec",
    [
        "augmix-w3-b1",
        pytest.param("augmix-m5-w3-d2", marks=pytest.mark.matrix),
        pytest.param("augmix-m3-w2-mstd1-a0.5", marks=pytest.mark.matrix),
    ],
)
def test_mixes_draw_as_timm_s(spec, monkeypatch):
    transform = aug.augment_and_mix_transform(spec, dict(HPARAMS))
    ours = []
    for ((_, share, weights, chains, how),) in drawn(transform, 20_000):
        parts = [("weight", weight) for weight in weights]
        shares = [] if how == "successive" else [("share", share)]
        ours.append([*parts, *shares, *(flat(op) for chain in chains for op in chain)])
    operations, weights, shares = [], [], []
    record_into(operations, transform.ops)

    def dirichlet(*arguments):
        made = np.random.dirichlet(*arguments)
        weights[:] = [] if transform.blended else [("weight", part) for part in made]
        return made

    def blend(image, _, part):
        shares.append(("weight" if transform.blended else "share", part))
        return image

    # A numpy whose images have one element each: only what is drawn is of interest.
    element = lambda *_, **__: np.zeros(1, np.float32)  # noqa: E731
    drawing = types.SimpleNamespace(**{**vars(np.random), "dirichlet": dirichlet})
    replaced = {"random": drawing, "zeros_like": element, "asarray": element}
    little = types.SimpleNamespace(**{**vars(np), **replaced})
    monkeypatch.setattr(aug, "np", little)
    monkeypatch.setattr(Image, "blend", blend)
    monkeypatch.setattr(Image, "fromarray", lambda *_: None)
    image, theirs = Image.new("RGB", SIZE), []
    for _ in range(THEIRS):
        operations.clear()
        shares.clear()
        transform(image)
        theirs.append([*weights, *shares, *operations])
    assert_same_distribution(ours, theirs)


def test_both_interpolations_are_drawn_equally_often():
    transform = aug.rand_augment_transform("rand-m9-n1-p1", dict(HPARAMS))
    used = [op[2] for draw in drawn(transform) for op in draw if op[0] == "affine"]
    assert set(used) == {"bilinear", "bicubic"}
    assert abs(used.count("bicubic") / len(used) - 0.5) < 5 * 0.5 / len(used) ** 0.5


def place(image, top, left, height, width, **_):
    return [("crop", left, top, width, height)]


def window(image, top, left, height, width, size, interpolation):
    return [("crop", left, top, width, height), *side(image, size, interpolation)]


def side(image, size, interpolation):
    return [("resize", *size[::-1], interpolation.value == "bicubic")]


def of_random_size(area):
    return windows.ResizeKeepRatio(
        (90, 120),
        interpolation="random",
        random_scale_prob=0.5,
        random_scale_range=(0.7, 1.1),
        random_scale_area=area,
        random_aspect_prob=0.3,
    )


CROP = windows.RandomResizedCropAndInterpolation((30, 40), interpolation="random")
# The transform, the function that it ends with, what that is given, and the size of the image.
GEOMETRY = {
    "window": (CROP, windows.F, "resized_crop", window, SIZE),
    "window of a narrow image": (CROP, windows.F, "resized_crop", window, (60, 400)),
    "size": (of_random_size(False), windows.F, "resize", side, SIZE),
    "size of an area": (of_random_size(True), windows.F, "resize", side, SIZE),
    "place": (windows.RandomCropOrPad((50, 400)), windows, "crop_or_pad", place, SIZE),
    "place, turned": (windows.RandomCropOrPad((300, 100)), windows, "crop_or_pad", place, SIZE),
}


@pytest.mark.parametrize("name", GEOMETRY)
def test_geometry_is_drawn_as_timm_s(name, monkeypatch):
    transform, owner, function, recorded, size = GEOMETRY[name]
    ours = [
        [op[:5] if op[0] == "crop" else (*op[:3], op[3] == "bicubic") for op in draw]
        for draw in drawn(transform, size=size)
    ]
    theirs = []
    monkeypatch.setattr(
        owner, function, lambda *given, **more: theirs.append(recorded(*given, **more))
    )
    image = Image.new("L", size)
    for _ in range(THEIRS):
        transform(image)
    assert_same_distribution(ours, theirs)


class Canvas:
    """An image that notes where it would be erased."""

    dtype = torch.float32

    def __init__(self):
        self.boxes = []

    def size(self):
        return 3, SIZE[1], SIZE[0]

    def __setitem__(self, place, pixels):
        _, rows, columns = place
        width, height = columns.stop - columns.start, rows.stop - rows.start
        self.boxes.append(("erase", columns.start, rows.start, width, height))


ERASED = {
    "one": erasing.RandomErasing(0.4, 0.05, 0.7, 0.2),
    "several": erasing.RandomErasing(0.8, 0.05, 0.9, 0.3, 2.0, min_count=2, max_count=4),
}


@pytest.mark.parametrize("name", ERASED)
def test_erased_boxes_are_drawn_as_timm_s(name, monkeypatch):
    whole = v1.Compose([v1.Resize((200, 331)), windows.MaybeToTensor(), ERASED[name]])
    ours = [[op[:5] for op in draw if op[0] == "erase"] for draw in drawn(whole)]
    monkeypatch.setattr(erasing, "_get_pixels", lambda *_, **__: None)
    theirs = []
    for _ in range(THEIRS):
        canvas = Canvas()
        ERASED[name](canvas)
        theirs.append(canvas.boxes)
    assert_same_distribution(ours, theirs)
