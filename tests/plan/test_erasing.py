"""RandomErasing compiled: the same rectangles, values and noise as torchvision's."""

import copy
import pickle

import numpy as np
import pytest
import torch
from support.distributions import assert_same_distribution
from support.images import NORMALIZE, photo
from torchvision import transforms as v1
from torchvision.transforms import v2

from fusionloader import compile_plan
from fusionloader.transforms.executors.native import make_executor
from fusionloader.transforms.plan.stages import Convert, ImageKind, Plan

IMAGE = photo(np.random.default_rng(2), 40, 30)
IMAGES = ImageKind(3, 30, 40)
FLOATS = [v1.ToTensor(), v1.Normalize(*NORMALIZE)]
HALVES = [v2.PILToTensor(), v2.ToDtype(torch.float16, scale=True)]


def box_of(operations):
    """x, y, width, height of the rectangle among the operations."""
    boxes = [operation[1:5] for operation in operations if operation[0] == "erase"]
    return boxes[0] if boxes else None


@pytest.mark.parametrize(
    ("library", "before", "value", "after"),
    [
        *[(v1, FLOATS[:1], value, FLOATS[1:]) for value in (0, 0.75, (0.1, -2.0, 30.0))],
        *[(v1, FLOATS, value, []) for value in (0, 0.75, (0.1, -2.0, 30.0))],
        (v1, [v1.ToTensor(), v1.ConvertImageDtype(torch.float64)], 0.485, []),
        (v2, [v1.PILToTensor()], 7, []),
        (v2, HALVES, 0.3, []),
    ],
)
def test_constant_values_are_converted_as_the_pixels_are(library, before, value, after):
    steps = [*before, library.RandomErasing(1.0, value=value), *after]
    compiled = compile_plan(library.Compose(steps), images=IMAGES)
    assert compiled.tail is None
    values = torch.tensor(value if isinstance(value, tuple) else [float(value)])
    for index in range(20):
        operations = compiled.draw(40, 30, index=index)
        x, y, width, height = box_of(operations)
        image = library.Compose(before)(IMAGE)
        expected = v1.functional.erase(image, y, x, height, width, values[:, None, None])
        for step in after:
            expected = step(expected)
        assert torch.equal(compiled.apply(IMAGE, operations), expected)


@pytest.mark.parametrize("element", [torch.float32, torch.bfloat16])
def test_grey_images_are_erased_too(element):
    steps = [v1.ToTensor(), v1.ConvertImageDtype(element), v1.RandomErasing(1.0, value=0.5)]
    compiled = compile_plan(v1.Compose([v1.Grayscale(), *steps]), images=IMAGES)
    operations = compiled.draw(40, 30)
    x, y, width, height = box_of(operations)
    made = compiled.apply(IMAGE, operations)
    assert made.shape == (1, 30, 40)
    assert (made[:, y : y + height, x : x + width] == 0.5).all()


def test_noise_is_normal_for_every_element():
    steps = [*FLOATS, v1.RandomErasing(1.0, (0.3, 0.5), (0.8, 1.2), value="random")]
    compiled = compile_plan(v1.Compose(steps), images=IMAGES)
    plain = v1.Compose(FLOATS)(IMAGE)
    noise = []
    for index in range(200):
        operations = compiled.draw(40, 30, index=index)
        x, y, width, height = box_of(operations)
        result = compiled.apply(IMAGE, operations)
        noise.append(result[:, y : y + height, x : x + width].flatten())
        result[:, y : y + height, x : x + width] = plain[:, y : y + height, x : x + width]
        assert torch.equal(result, plain)
    noise = torch.cat(noise).double()
    n = len(noise)
    assert abs(noise.mean()) < 5 / n**0.5 and abs(noise.var() - 1) < 5 * (2 / n) ** 0.5
    assert abs((noise**4).mean() - 3) < 5 * (96 / n) ** 0.5
    assert len(noise.unique()) > 0.99 * n
    # Neighbours are made together: they must have nothing to do with each other.
    for one, other in ((noise, noise), (noise, noise**2), (noise**2, noise**2)):
        product = ((one - one.mean())[:-1] * (other - other.mean())[1:]) / (one.std() * other.std())
        assert abs(product.mean()) < 5 * product.std() / n**0.5


def test_noise_of_one_value_per_channel_is_normal():
    table = np.zeros(3 * 256, np.float32).tobytes()
    executor = make_executor(Plan((), Convert("float32", table), 30, 40))
    values = []
    for seed in range(2_000):
        out = np.zeros((3, 30, 40), np.float32)
        executor.run_pixels_with(
            np.asarray(IMAGE), [("erase", 3, 4, 20, 10, b"", False, seed)], out
        )
        box = out[:, 4:14, 3:23]
        values.append(box[:, 0, 0].copy())
        assert (box == box[:, :1, :1]).all()
        assert (out != 0).sum() == 600
    values = np.array(values, np.float64)
    n = values.size
    assert abs(values.mean()) < 5 / n**0.5 and abs(values.var() - 1) < 5 * (2 / n) ** 0.5
    correlations = np.corrcoef(values.T)[np.triu_indices(3, 1)]
    assert np.abs(correlations).max() < 5 / len(values) ** 0.5


def test_rectangles_are_distributed_as_torchvision_s():
    step = v1.RandomErasing(0.4, (0.05, 0.6), (0.3, 3.3))
    compiled = compile_plan(v1.Compose([*FLOATS, step]), images=IMAGES)
    ours = [box_of(compiled.draw(40, 30, index=index)) for index in range(60_000)]
    torch.manual_seed(3)
    image = torch.zeros(3, 30, 40)
    theirs = []
    for _ in range(8_000):
        y, x, height, width, _ = step.get_params(image, step.scale, step.ratio, [0.0])
        succeeded = (height, width) != (30, 40)
        drawn = succeeded and torch.rand(()) < 0.4
        theirs.append([("erase", x, y, width, height)] if drawn else [])
    assert_same_distribution([[("erase", *box)] if box else [] for box in ours], theirs)


def test_copies_are_compiled_alike_and_scripts_are_left_alone():
    transform = v1.Compose([v1.RandomResizedCrop(16), v1.RandAugment(), *FLOATS])
    compiled = compile_plan(transform)
    for copied in (copy.deepcopy(transform), pickle.loads(pickle.dumps(transform))):
        assert compile_plan(copied).plan == compiled.plan
    script = torch.jit.script(torch.nn.Sequential(v1.RandomHorizontalFlip(1.0)))
    scripted = compile_plan(v1.Compose([v1.Resize((8, 8)), v1.PILToTensor(), script]))
    assert scripted.tail is not None and len(scripted.plan.stages) == 1
    assert scripted.apply(IMAGE, scripted.draw(40, 30)).shape == (3, 8, 8)
