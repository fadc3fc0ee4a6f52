"""timm's transforms compiled: no Python tail, timm's pixels, drawn as timm draws."""

import functools
import random

import numpy as np
import pytest
import torch
from PIL import Image
from support import warm_start
from test_augmentations import (
    IMAGES,
    assert_batches_are_those_of_the_replay,
    assert_pixels_are_those_of_the_replay,
)
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder

from fusionloader.transforms.executors.native import make_executor
from fusionloader.transforms.executors.replay import replay
from fusionloader.transforms.plan.stages import ImageKind
from fusionloader.transforms.plan.transforms import compile_transform

timm_data = pytest.importorskip("timm.data")
aug = pytest.importorskip("timm.data.auto_augment")
windows = pytest.importorskip("timm.data.transforms")
RandomErasing = pytest.importorskip("timm.data.random_erasing").RandomErasing

SPECS = [
    "rand-m9-mstd0.5-inc1",
    "rand-m9-n3-mstdinf",
    "rand-m7-p0.3",
    "rand-m9-n3-tweights-mstd2",
    "rand-t3a-inc1",
    "rand-m5-n2-mstd1-t3aw",
    "rand-m15-mmax30-inc1-mstd3",
    "augmix-m5-w4-d2",
    "augmix-m3-b1-mstd1",
    "original",
    "originalr-mstd0.5",
    "v0",
    "v0r-mstd2",
    "3a",
    "3a-mstd0.5",
]
TRAINING = {
    **{spec: {"auto_augment": spec, "color_jitter": None} for spec in SPECS},
    "plain": {},
    "simclr": {"color_jitter_prob": 0.8, "grayscale_prob": 0.2, "gaussian_blur_prob": 0.5},
    "keep ratio": {"train_crop_mode": "rkrc"},
    "keep ratio, random place": {"train_crop_mode": "rkrr", "interpolation": "random"},
    "one filter": {"auto_augment": "rand-m9", "interpolation": "bicubic", "vflip": 0.3},
    "no augmentation": {"no_aug": True},
    "prefetcher": {"use_prefetcher": True},
    "levels": {"normalize": False},
    "erasing": {"re_prob": 0.4, "re_count": 3},
    "noise": {"re_prob": 0.4, "re_mode": "pixel"},
    "colors": {"re_prob": 0.4, "re_mode": "rand"},
}
EVALUATION = {
    "center": {},
    "squash": {"crop_mode": "squash"},
    "border": {"crop_mode": "border"},
    "oblong": {"input_size": (3, 24, 40)},
    "trimmed": {"crop_border_pixels": 2, "interpolation": "bicubic"},
    "prefetcher": {"use_prefetcher": True},
}


def compiled_whole(transform):
    compiled = compile_transform(transform)
    assert compiled.tail is None, compiled.notes
    return compiled


def make_transform(is_training, **arguments):
    return timm_data.create_transform(**{"input_size": 32, "is_training": is_training, **arguments})


@pytest.mark.parametrize("name", TRAINING)
def test_training_compiles_whole(name):
    plan = compiled_whole(make_transform(True, **TRAINING[name])).plan
    assert (plan.height, plan.width) == (32, 32)
    assert plan.convert is not None


def final_pixels(transform, image):
    plan = compiled_whole(transform).plan
    elements = {"uint8": np.uint8, "float32": np.float32}
    out = np.empty((3, plan.height, plan.width), elements[plan.convert.element_type])
    make_executor(plan).run_pixels(np.asarray(image), 0, 0, 0, 0, out)
    return torch.from_numpy(out)


@pytest.mark.parametrize("name", EVALUATION)
@pytest.mark.parametrize("image", IMAGES)
def test_evaluation_is_bit_identical(name, image):
    transform = make_transform(False, **EVALUATION[name])
    assert torch.equal(final_pixels(transform, IMAGES[image]), transform(IMAGES[image]))


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("image", ["photo", "narrow"])
def test_pixels_are_those_of_the_replay(spec, image):
    transform = make_transform(True, **TRAINING[spec])
    (augmentation,) = transform.transforms[2:-2]
    assert_pixels_are_those_of_the_replay(augmentation, IMAGES[image], draws=60)


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "symmetric"])
@pytest.mark.parametrize("kind", ["CenterCropOrPad", "RandomCropOrPad"])
@pytest.mark.parametrize("size", [30, (50, 20), (20, 70), (90, 80)])
def test_crops_and_borders_are_timm_s(mode, kind, size):
    image, fill = IMAGES["noise"], (9, 8, 7) if mode == "constant" else 0
    transform = getattr(windows, kind)(size, fill=fill, padding_mode=mode)
    assert_pixels_are_those_of_the_replay(transform, image, draws=10)
    if kind == "CenterCropOrPad":
        whole = v1.Compose([transform, v1.PILToTensor()])
        assert torch.equal(final_pixels(whole, image), whole(image))
        return
    executor = make_executor(compiled_whole(transform).plan)
    for index in range(30):
        operations = executor.draw(1, 0, index, 0, *image.size)
        _, x, y, width, height, _ = operations[-1]
        if operations[0][0] == "pad":
            _, left, top, *_ = operations[0]
            x, y = x - left, y - top
        expected = windows.crop_or_pad(image, y, x, height, width, fill, mode)
        assert np.array_equal(np.asarray(expected), np.asarray(replay(image, operations)))


@pytest.mark.parametrize("longest", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("size", [31, (224, 40), (33, 71)])
def test_sizes_of_resize_keep_ratio_are_timm_s(longest, size):
    transform = windows.ResizeKeepRatio(size, longest=longest)
    executor = make_executor(compiled_whole(transform).plan)
    sides = [1, 2, 17, 64, 333, 1000]
    for width in sides:
        for height in sides:
            image = Image.new("L", (width, height))
            expected = transform.get_params(image, transform.size, longest)
            if min(expected) == 0:
                continue
            ((_, *drawn, _),) = executor.draw(0, 0, 0, 0, width, height)
            assert drawn == expected[::-1]


@pytest.mark.few(100)
@pytest.mark.parametrize("name", sorted(aug.NAME_TO_OP))
@pytest.mark.parametrize("magnitude", [0, 3, 7.6, 10, 14])
@pytest.mark.parametrize("most", [None, 30])
def test_operations_get_timm_s_arguments_and_give_its_pixels(name, magnitude, most, monkeypatch):
    image = IMAGES["photo"]
    hparams = {"translate_const": 17, "magnitude_max": most, "img_mean": (1, 2, 3)}
    op = aug.AugmentOp(name, 1.0, magnitude, hparams)
    executor = make_executor(compiled_whole(op).plan)
    possible = []
    for drawn in (0.0, 0.9):
        monkeypatch.setattr(aug.random, "random", lambda value=drawn: value)
        level = max(0.0, min(magnitude, most or 10.0))
        possible.append(op.level_fn(level, op.hparams) if op.level_fn else ())
    monkeypatch.undo()
    seen = set()
    for index in range(20):
        ((kind, *values),) = operations = executor.draw(1, 0, index, 0, *image.size)
        interpolation = next((v for v in values if v in ("bilinear", "bicubic")), "bicubic")
        named = {"resample": Image.Resampling[interpolation.upper()], "fillcolor": (1, 2, 3)}
        if name == "GaussianBlurRand":
            low, high = sorted((0.1, 2.0 * possible[0][0]))
            assert low <= values[0] <= high
            expected = {(): aug.gaussian_blur(image, values[0])}
        elif kind == "posterize":
            # More bits keep all as well; fewer than 1 give black, which Pillow 13 refuses to make.
            levels = [min(max(bits, 0), 8) for (bits,) in possible]
            expected = {
                (bits,): op.aug_fn(image, bits) if bits else image.point([0] * 768)
                for bits in levels
            }
        else:
            expected = {given: op.aug_fn(image, *given, **named) for given in possible}
        made = replay(image, operations)
        same = {given for given, each in expected.items() if each.tobytes() == made.tobytes()}
        if kind in ("posterize", "solarize", "solarize_add"):  # a fraction would change no pixel
            same &= {tuple(values)}
        assert same, (operations, possible)
        seen |= same
    assert seen == set(expected)


@pytest.mark.parametrize("blended", [0, 1])
def test_mixes_are_timm_s(blended, monkeypatch):
    image = IMAGES["photo"]
    transform = aug.augment_and_mix_transform(
        f"augmix-m5-w3-d1-b{blended}", {"img_mean": (1, 2, 3)}
    )
    executor = make_executor(compiled_whole(transform).plan)
    for index in range(30):
        ((_, share, weights, chains, how),) = executor.draw(2, 0, index, 0, *image.size)
        assert how == ("successive" if blended else "over")
        parts = iter([[functools.partial(replay, operations=chain)] for chain in chains])
        monkeypatch.setattr(np.random, "choice", lambda *_, parts=parts, **__: next(parts))
        mixing = transform._apply_blended if blended else transform._apply_basic
        if blended:
            made = np.array(weights, np.float32)
            monkeypatch.setattr(transform, "_calc_blended_weights", lambda *_, made=made: made)
        result = mixing(image, np.float32(weights), np.float32(share))
        monkeypatch.undo()
        operations = executor.draw(2, 0, index, 0, *image.size)
        assert np.array_equal(np.asarray(result), np.asarray(replay(image, operations)))


@pytest.mark.parametrize(
    ("make", "spec"),
    [
        (aug.auto_augment_transform, "original"),
        (aug.auto_augment_transform, "3a"),
        (aug.rand_augment_transform, "rand-m9-inc1"),
        (aug.augment_and_mix_transform, "augmix-m3"),
    ],
)
def test_grey_images_are_augmented_as_timm_would(make, spec):
    augmentation = make(spec, {"img_mean": (40,), "translate_const": 9})
    assert_pixels_are_those_of_the_replay(augmentation, IMAGES["photo"].convert("L"), draws=20)


class OwnOp(aug.AugmentOp):
    pass


class OwnRandAugment(aug.RandAugment):
    pass


def changed(name, value, op="Rotate"):
    made = aug.AugmentOp(op)
    setattr(made, name, value)
    return aug.AutoAugment([[made]])


REFUSED = {
    "a custom OwnOp": aug.RandAugment([OwnOp("Rotate")]),
    "not a transform that can be compiled": OwnRandAugment([aug.AugmentOp("Rotate")]),
    "operation 'Rotate' is not known": changed("aug_fn", lambda image, *_, **__: image),
    "the magnitude of 'Rotate'": changed("level_fn", lambda level, _: (level,)),
    "the magnitude of 'Invert'": changed("level_fn", aug._rotate_level_to_arg, "Invert"),
    "interpolation 'lanczos'": changed(
        "kwargs", {"fillcolor": (1, 2, 3), "resample": Image.Resampling.LANCZOS}
    ),
    "differ in fill": aug.RandAugment(
        [aug.AugmentOp("Rotate"), aug.AugmentOp("Invert", hparams={"img_mean": (1, 2, 3)})]
    ),
    "choice_weights": aug.RandAugment([aug.AugmentOp("Invert")], 2, [1.0]),
    "translate_const": aug.AutoAugment([[aug.AugmentOp("TranslateX", hparams={"img_mean": 0})]]),
    "its scale or ratio": windows.RandomResizedCropAndInterpolation(8, scale=(-1, 1)),
    "makes its noise on 'cuda'": v1.Compose(
        [v1.Resize((4, 4)), windows.MaybeToTensor(), RandomErasing(mode="rand")]
    ),
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_is_not_timm_s_own_stays_in_python(why):
    compiled = compile_transform(REFUSED[why])
    assert compiled.tail is not None
    assert why in compiled.explain()


def test_arrays_and_images_for_grey_are_left_to_python():
    compiled = compile_transform(v1.Compose([v1.Resize((4, 4)), windows.ToNumpy()]))
    assert compiled.tail is not None
    assert np.array_equal(compiled.tail(IMAGES["noise"]), windows.ToNumpy()(IMAGES["noise"]))
    color_fill = aug.rand_augment_transform("rand-m9")
    assert compile_transform(color_fill, images=ImageKind(1)).tail is not None


@pytest.mark.matrix
def test_timm_is_found_when_it_is_imported_later():
    code = """if True:
        import sys
        from torchvision import transforms
        from fusionloader.transforms.plan.transforms import compile_transform
        assert compile_transform(transforms.RandomHorizontalFlip()).tail is None
        assert not any(name.startswith("timm") for name in sys.modules)
        from timm.data import create_transform
        made = compile_transform(create_transform(32, is_training=True, auto_augment="3a"))
        assert made.tail is None, made.explain()
    """
    done = warm_start.completed("-c", code)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("mode", ["const", "rand", "pixel"])
def test_erased_boxes_hold_what_timm_puts_there(mode):
    fixed = [v1.Resize((40, 30)), windows.MaybeToTensor(), v1.Normalize([-1.0] * 3, [1.0] * 3)]
    erasing = RandomErasing(1.0, 0.1, 0.2, mode=mode, device="cpu")
    executor = make_executor(compiled_whole(v1.Compose([*fixed, erasing])).plan)
    for index in range(20):
        out = np.empty((3, 40, 30), np.float32)
        executor.run_pixels(np.zeros((40, 30, 3), np.uint8), 5, 0, index, 0, out)
        _, x, y, width, height, *_ = executor.draw(5, 0, index, 0, 30, 40)[-1]
        box = out[:, y : y + height, x : x + width].copy()
        out[:, y : y + height, x : x + width] = 1.0
        assert (out == 1.0).all()
        assert len(np.unique(box)) == {"const": 1, "rand": 3, "pixel": box.size}[mode]
        assert mode != "const" or (box == 0.0).all()


def test_compiling_leaves_python_s_random_numbers_alone():
    before = random.getstate()
    compile_transform(make_transform(True, auto_augment="rand-m9-mstd0.5"))
    assert random.getstate() == before


def test_a_loader_gives_what_is_drawn(image_folder):
    transform = make_transform(True, auto_augment="rand-m9-mstd0.5-inc1", interpolation="random")
    dataset = ImageFolder(image_folder, transform)
    assert_batches_are_those_of_the_replay(dataset, v1.Compose(transform.transforms[-2:]))
