"""This package's policies: what they refuse, draw and do, with torch's DataLoader and compiled."""

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from support.images import NORMALIZE
from test_augmentations import (
    IMAGES,
    assert_batches_are_those_of_the_replay,
    assert_pixels_are_those_of_the_replay,
)
from torch.utils.data import DataLoader
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder

from fusionloader.transforms.executors.native import make_executor
from fusionloader.transforms.plan.transforms import compile_transform
from fusionloader.transforms.policies import DeepAutoAugment, ExtendedRandAugment

EXAMPLE = Path(__file__).parents[2] / "examples/policies/example_deep_autoaugment.json"
ALL = [
    *[(name, part, 1 / 18) for name in ("shear_x", "translate_y", "rotate") for part in (-1, 0.3)],
    *[(name, -0.5, 1 / 18) for name in ("shear_y", "translate_x", "contrast", "sharpness")],
    *[(name, 0.7, 1 / 18) for name in ("posterize", "solarize", "solarize_add", "cutout")],
    *[(name, 0, 1 / 18) for name in ("autocontrast", "equalize", "invert", "hflip")],
]
POLICIES = {
    "deep": DeepAutoAugment([ALL, ALL, [("brightness", 1, 0.25), ("saturation", -1, 0.75)]]),
    "example": DeepAutoAugment.from_file(EXAMPLE, "bilinear", 128),
    "randaugment": ExtendedRandAugment(),
    "strong": ExtendedRandAugment(4, 30, v1.InterpolationMode.BICUBIC, 77),
    "weak": ExtendedRandAugment(1, 0),
}


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_pixels_are_those_of_the_replay(name, mode):
    assert_pixels_are_those_of_the_replay(POLICIES[name], IMAGES["photo"].convert(mode))


@pytest.mark.parametrize("name", POLICIES)
def test_called_on_an_image_it_does_what_the_compiled_form_draws(name):
    policy, image = POLICIES[name], IMAGES["noise"]
    torch.manual_seed(4)
    results = [np.asarray(policy(image)) for _ in range(20)]
    torch.manual_seed(4)
    executor = make_executor(compile_transform(policy).plan)
    for result in results:
        seed = int(torch.randint(2**63 - 1, ()))
        (pixels, (height, width)) = executor.pixels_of_pixels(np.asarray(image), seed, 0, 0, 0)
        assert np.array_equal(np.frombuffer(pixels, np.uint8).reshape(height, width, 3), result)


def test_an_image_alone_is_taken():
    with pytest.raises(ValueError, match="RGB or L is expected, not RGBA"):
        POLICIES["weak"](IMAGES["photo"].convert("RGBA"))
    with pytest.raises(TypeError, match="a PIL image is expected, not ndarray"):
        POLICIES["weak"](np.zeros((3, 4, 3), np.uint8))
    with pytest.raises(ValueError, match="fill"):
        ExtendedRandAugment(fill=(1, 2, 3))(IMAGES["photo"].convert("L"))


def test_a_copy_for_another_process_draws_the_same():
    policy, image = POLICIES["strong"], IMAGES["photo"]
    policy(image)
    torch.manual_seed(9)
    expected = policy(image)
    torch.manual_seed(9)
    assert pickle.loads(pickle.dumps(policy))(image) == expected


# A step of each layer, and what becomes of it: all layers of one entry, so that nothing is random.
VALUES = [
    (("shear_x", -0.5), lambda image: v1.functional.affine(
        image, 0, [0, 0], 1, [float(np.degrees(np.arctan(-0.15))), 0], center=[0, 0])),
    (("rotate", 0.5), lambda image: image.rotate(15)),
    (("brightness", -1), lambda image: v1.functional.adjust_brightness(image, 0.1)),
    (("sharpness", 1), lambda image: v1.functional.adjust_sharpness(image, 1.9)),
    (("posterize", 1), lambda image: v1.functional.posterize(image, 4)),
    (("posterize", 0.3), lambda image: v1.functional.posterize(image, 7)),
    (("solarize", 0), lambda image: image),
    (("solarize", 1), v1.functional.invert),
    (("invert", None), v1.functional.invert),
    (("hflip", 0), v1.functional.hflip),
]  # fmt: skip


@pytest.mark.parametrize(("entry", "expected"), VALUES)
def test_magnitudes_mean_what_the_documentation_says(entry, expected):
    image = IMAGES["photo"]
    result = DeepAutoAugment([[(*entry, 1.0)]])(image)
    assert np.array_equal(np.asarray(result), np.asarray(expected(image)))


def test_translations_and_cutouts_are_parts_of_the_image():
    def drawn(name, part, width, height):
        executor = make_executor(compile_transform(DeepAutoAugment([[(name, part, 1)]])).plan)
        return [executor.draw(0, 0, index, 0, width, height)[0] for index in range(200)]

    assert {round(op[1][2]) for op in drawn("translate_x", 1, 201, 400)} == {-90}
    assert {round(op[1][5]) for op in drawn("translate_y", -1, 201, 400)} == {180}
    boxes = [op[1:5] for op in drawn("cutout", 0.5, 200, 400)]
    assert {op[2] for op in drawn("cutout", 0.5, 200, 400)} != {0}
    assert max(width for _, _, width, _ in boxes) == max(height for *_, height in boxes) == 60


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ((0,), "num_ops .* at least 1: 0"),
        ((1.5,), "num_ops .* 1.5"),
        ((True,), "num_ops"),
        ((2, 31), "magnitude .* from 0 to 30: 31"),
        ((2, -1), "magnitude .* -1"),
        ((2, 9.5), "magnitude .* 9.5"),
        ((2, 9, "lanczos"), "ExtendedRandAugment: interpolation 'lanczos'"),
        ((2, 9, "nearest", 256), "ExtendedRandAugment: fill=256"),
    ],
)
def test_extended_rand_augment_refuses(arguments, why):
    with pytest.raises(ValueError, match=why):
        ExtendedRandAugment(*arguments)


FINE = ("invert", 0, 1.0)
WRONG = [
    ([], "there are no layers"),
    (3, "layers are to be sequences"),
    ([[FINE], []], "layer 1 has no entries"),
    ([[FINE], [("invert", 0, 0.5), ("swirl", 0, 0.5)]], "layer 1, entry 1: unknown .* 'swirl'"),
    ([[("rotate", 1.2, 1.0)]], "layer 0, entry 0: the magnitude of rotate .* from -1 to 1: 1.2"),
    ([[("cutout", -0.1, 1.0)]], "layer 0, entry 0: the magnitude of cutout .* from 0 to 1: -0.1"),
    ([[("invert", 0.5, 1.0)]], "layer 0, entry 0: the magnitude of invert .* 0 or left out: 0.5"),
    ([[("rotate", float("nan"), 1.0)]], "layer 0, entry 0: the magnitude of rotate"),
    ([[("rotate", "much", 1.0)]], "layer 0, entry 0: the magnitude is not a number: 'much'"),
    ([[FINE], [FINE, ("rotate", 1, -0.5)]], "layer 1, entry 1: the probability is to be from 0"),
    ([[("rotate", 1, 1.5)]], "layer 0, entry 0: the probability is to be from 0 to 1: 1.5"),
    ([[("rotate", 1, None)]], "layer 0, entry 0: the probability is not a number: None"),
    ([[FINE], [("rotate", 1, 0.5), ("rotate", 0, 0.4)]], "layer 1: .* add up to 0.9, not to 1"),
]


@pytest.mark.parametrize(("layers", "why"), WRONG)
def test_deep_autoaugment_refuses(layers, why):
    with pytest.raises(ValueError, match="DeepAutoAugment: " + why):
        DeepAutoAugment(layers)


@pytest.mark.parametrize(("layers", "why"), [case for case in WRONG[2:] if "number" not in case[1]])
@pytest.mark.parametrize("kind", ["json", "npz"])
def test_files_are_refused_by_name(layers, why, kind, tmp_path):
    path = tmp_path / f"policy.{kind}"
    write(path, layers)
    with pytest.raises(ValueError, match=rf"policy\.{kind}: {why}"):
        DeepAutoAugment.from_file(path)


NAMES = ("operation", "magnitude", "probability")


def write(path, layers):
    if path.suffix == ".json":
        objects = [[dict(zip(NAMES, entry, strict=True)) for entry in layer] for layer in layers]
        path.write_text(json.dumps({"layers": objects}))
        return
    longest = max(map(len, layers))
    filled = [[*layer, *[("", 0, 0.0)] * (longest - len(layer))] for layer in layers]
    columns = [[[entry[i] for entry in layer] for layer in filled] for i in range(3)]
    np.savez(path, **{name: np.array(column) for name, column in zip(NAMES, columns, strict=True)})


@pytest.mark.parametrize("kind", ["json", "npz"])
def test_files_give_the_policy_that_was_written(kind, tmp_path):
    path = tmp_path / f"policy.{kind}"
    layers = [[FINE], [("rotate", 0.25, 0.5), ("cutout", 1.0, 0.5)]]
    write(path, layers)
    assert DeepAutoAugment.from_file(path).layers == DeepAutoAugment(layers).layers
    assert DeepAutoAugment.from_file(str(path), fill=9).fill == 9


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("policy.json", b"{", "policy.json: not JSON"),
        ("policy.json", b"[]", 'an object with a list of lists "layers"'),
        ("policy.json", b'{"layers": [3]}', 'an object with a list of lists "layers"'),
        ("policy.json", b'{"layers": [[{"operation": "invert"}]]}', "layer 0, entry 0: an object"),
        ("policy.npz", b"PK", "policy.npz: not an .npz file"),
        ("policy.txt", b"", "ends in .json or .npz"),
    ],
)
def test_other_files_are_refused(name, content, why, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=why):
        DeepAutoAugment.from_file(tmp_path / name)


def test_arrays_that_are_no_policy_are_refused(tmp_path):
    path = tmp_path / "policy.npz"
    np.savez(path, operation=[["invert"]], magnitude=[[0.0]])
    with pytest.raises(ValueError, match="policy.npz: probability is not a file"):
        DeepAutoAugment.from_file(path)
    np.savez(path, operation=[["invert"]], magnitude=[0.0], probability=[[1.0]])
    with pytest.raises(ValueError, match="three arrays of layers x entries"):
        DeepAutoAugment.from_file(path)


@pytest.mark.parametrize("policy", [POLICIES["example"], POLICIES["randaugment"]])
def test_loaders_take_it_and_ours_compiles_it_whole(policy, image_folder):
    steps = [v1.Resize((24, 24)), policy, v1.ToTensor(), v1.Normalize(*NORMALIZE)]
    dataset = ImageFolder(image_folder, v1.Compose(steps))
    for images, _ in DataLoader(dataset, 8, num_workers=1):
        assert images.shape == (8, 3, 24, 24)
    assert_batches_are_those_of_the_replay(dataset, v1.Compose(steps[2:]))
