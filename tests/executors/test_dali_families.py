"""DALI's op families on its CPU backend: Pillow's pixels, each sample its own operations."""

import math
from pathlib import Path

import dali_or_skip  # noqa: F401
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torchvision import transforms

from benchmarks.dali_combinations import CombinationTasks
from fusionloader import compile_plan
from fusionloader.cli.measure.fidelity import page
from fusionloader.cli.measure.fidelity.cases import images
from fusionloader.cli.measure.fidelity.dali import family_row
from fusionloader.cli.measure.fidelity.gpu_worker import TRANSFORMS, worker_rows
from fusionloader.executors.dali.errors import NotOnDali
from fusionloader.executors.dali.families.family import families, task_of
from fusionloader.executors.dali.families.tasks import FamilyTasks
from fusionloader.executors.dali.task import Backend
from fusionloader.executors.replay import replay

PAGE = (Path(__file__).parents[2] / "docs" / "fidelity.md").read_text()
IMAGES = images()
WRITTEN = page.figures(PAGE, page.DALI_TITLE)
SIDE = 24
PIXELS = np.random.default_rng(5).integers(0, 256, (6, SIDE, SIDE, 3), np.uint8)
EXACT = {
    *("hflip", "vflip", "brightness", "contrast", "saturation", "grayscale", "sharpness"),
    *("posterize", "solarize", "solarize_add", "invert", "autocontrast", "cutout"),
}


@pytest.fixture(scope="module")
def tasks():
    return FamilyTasks(None, 4, SIDE)


def by_torchvision(pixels, operations):
    return np.asarray(replay(Image.fromarray(pixels), operations))


@pytest.mark.parametrize("row", WRITTEN)
def test_an_operation_differs_no_more_than_its_row_says(row):
    _, most, mean, _, _ = WRITTEN[row]
    difference = family_row(row, IMAGES, every=3)
    assert difference.cases > 0
    assert difference.most <= float(most)
    assert difference.mean <= 4 * float(mean)


def test_the_rows_of_exact_forms_say_so():
    assert {row for row, cells in WRITTEN.items() if cells[1] == "0"} >= EXACT
    assert float(WRITTEN["equalize"][1]) <= 1


@pytest.mark.parametrize("row", ["window", "resize, lanczos", "RandAugment"])
def test_rows_of_whole_plans_keep_to_the_page(row):
    written = page.figures(PAGE, page.WORKER_TITLE)
    assert set(written) == set(TRANSFORMS)
    assert all(cells[1:4] == ["0", "0", "0"] for cells in written.values())
    few = {name: IMAGES[name] for name in ("larger leaves", "noise", "one row", "grey leaves")}
    measured = worker_rows(few, names=[row])[row]
    assert measured.kernel.most == 0
    assert (measured.families is None) == (written[row][4] == "-")
    if measured.families is not None:
        assert measured.families.most <= 2 * float(written[row][4])  # its draws are others


exact_operations = st.one_of(
    st.tuples(
        st.sampled_from(["brightness", "contrast", "saturation", "sharpness"]),
        st.floats(-1, 3, width=32) | st.sampled_from([0.0, 0.1, 0.6, 1.9]),
    ),
    st.tuples(st.just("posterize"), st.integers(0, 8)),
    st.tuples(st.just("solarize"), st.floats(0, 300)),
    st.tuples(st.just("solarize_add"), st.integers(0, 255)),
    st.sampled_from([("invert",), ("autocontrast",), ("hflip",), ("vflip",), ("grayscale",)]),
    st.tuples(
        st.just("cutout"),
        *[st.integers(-4, SIDE)] * 2,
        *[st.integers(0, SIDE)] * 2,
        st.just((9, 200, 31)),
    ),
)


@settings(max_examples=60, deadline=None)
@given(operations=st.lists(st.lists(exact_operations, max_size=4), min_size=6, max_size=6))
def test_every_sample_gets_its_own_operations_in_its_own_order(tasks, operations):
    made = tasks.augment(PIXELS, operations)
    for pixels, drawn, result in zip(PIXELS, operations, made, strict=True):
        assert np.array_equal(result, by_torchvision(pixels, drawn)), drawn


def test_results_are_of_the_argument_s_kind_and_no_later_run_writes_to_them(tasks):
    operations = [[("invert",)]] * 6
    assert isinstance(tasks.augment(PIXELS, operations), np.ndarray)
    listed = tasks.augment(list(PIXELS), operations)
    assert isinstance(listed, list)
    for _ in range(3):
        tasks.augment(PIXELS, [[("solarize", 7)]] * 6)
    assert np.array_equal(np.stack(listed), 255 - PIXELS)


@pytest.mark.parametrize("operation", [("hue", 0.1), ("resize", 3, 3, "bilinear")])
def test_an_operation_that_no_family_does_is_named(tasks, operation):
    with pytest.raises(NotOnDali, match=operation[0]):
        tasks.augment(PIXELS[:1], [[operation]])


def test_pair_pipelines_do_what_the_families_do(tasks):
    pairs = CombinationTasks(None, 4, SIDE, ("identity", "rotate", "shear_x", "contrast"))
    operations = [
        [],
        [("contrast", 1.7)],
        [("rotate", 20.0, "nearest", False, None, (0, 0, 0)), ("contrast", 0.3)],
        [("contrast", 0.3), ("affine", (1.0, 0.2, 0.0, 0.0, 1.0, 0.0), "nearest", (0, 0, 0))],
        [("contrast", 0.3), ("contrast", 1.9)],
        [("contrast", 1.0)],
    ]
    assert np.array_equal(pairs.augment(PIXELS, operations), tasks.augment(PIXELS, operations))
    with pytest.raises(NotOnDali, match="no pipeline"):
        pairs.augment(PIXELS[:1], [[("contrast", 0.5), ("brightness", 0.5)]])


@pytest.mark.parametrize("name", families(3))
@pytest.mark.parametrize("channels", [1, 3])
def test_a_graph_for_a_gpu_can_be_defined_without_one(name, channels):
    task_of(families(channels)[name], Backend(device=0, channels=channels))


NORMALISED = transforms.Compose(
    [
        transforms.Resize((SIDE, SIDE)),
        transforms.ToTensor(),
        transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        transforms.RandomErasing(1.0),
    ]
)


def test_multiplied_levels_are_within_two_units_in_the_last_place_of_the_table_s():
    convert = compile_plan(NORMALISED).plan.convert
    tasks = FamilyTasks(None, 4, SIDE, convert=convert)
    out = np.full((8, 3, SIDE, SIDE), math.nan, np.float32)
    tasks.normalise(list(PIXELS), out)
    table = np.frombuffer(convert.table, np.float32).reshape(3, 256)
    for channel in range(3):
        unit = np.spacing(np.abs(table[channel]).max())
        wanted = table[channel][PIXELS[..., channel]]
        assert np.abs(out[:6, channel] - wanted).max() <= 2 * unit
    assert np.isnan(out[6:]).all()


def test_rows_are_erased_as_the_native_executor_does():
    compiled = compile_plan(NORMALISED)
    tasks = FamilyTasks(None, 4, SIDE, convert=compiled.plan.convert)
    drawn = [compiled.draw(SIDE, SIDE, index=index)[-1:] for index in range(6)]
    assert {operation[0] for (operation,) in drawn} == {"erase"}
    out = np.zeros((6, 3, SIDE, SIDE), np.float32)
    tasks.normalise(PIXELS, out, drawn)
    for pixels, operations, row in zip(PIXELS, drawn, out, strict=True):
        assert np.array_equal(row, compiled.apply(pixels, operations).numpy())


@pytest.mark.parametrize("element", ["uint8", "float64"])
def test_other_tables_are_looked_up(element):
    last = transforms.PILToTensor() if element == "uint8" else None
    steps = [last] if last else [transforms.ToTensor(), transforms.ConvertImageDtype(torch.float64)]
    compiled = compile_plan(transforms.Compose([transforms.Resize((SIDE, SIDE)), *steps]))
    assert compiled.plan.convert.element_type == element
    out = np.zeros((6, 3, SIDE, SIDE), element)
    FamilyTasks(None, 4, SIDE, convert=compiled.plan.convert).normalise(PIXELS, out)
    for pixels, row in zip(PIXELS, out, strict=True):
        assert np.array_equal(row, compiled.apply(pixels, []).numpy())
