"""Any deterministic list of transforms, compiled, gives the bits of torchvision."""

import io
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from support.campaigns import examples
from support.images import photo
from torchvision import transforms as v1
from torchvision.transforms import InterpolationMode, v2

from fusionloader.data.sources.datasets import compile_dataset
from fusionloader.data.sources.plan_source import PlanSource
from fusionloader.transforms.executors.native import make_executor
from fusionloader.transforms.executors.python import SampleKey
from fusionloader.transforms.executors.results import result_array
from fusionloader.transforms.plan.compiled_transform import Tail
from fusionloader.transforms.plan.transforms import compile_transform

pytestmark = pytest.mark.usefixtures("one_thread")

libraries = st.sampled_from([v1, v2])
sides = st.integers(1, 80)
filters = st.sampled_from(
    [
        InterpolationMode.BILINEAR,
        InterpolationMode.BICUBIC,
        InterpolationMode.BOX,
        InterpolationMode.HAMMING,
        InterpolationMode.LANCZOS,
        Image.Resampling.BICUBIC.value,
        Image.Resampling.LANCZOS.value,
    ]
)
levels = st.tuples(*[st.floats(-3, 3, width=32)] * 3)
spreads = st.tuples(*[st.floats(0.0625, 4, width=32)] * 3)
types = st.sampled_from(
    [torch.uint8, torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int16]
)


class Inverted:
    """A transform of the user's, on images and tensors."""

    def __call__(self, image):
        if isinstance(image, torch.Tensor):
            return 1 - image
        return Image.fromarray(255 - np.asarray(image))


class Same(v2.RandomHorizontalFlip):
    """A subclass may do anything."""

    def forward(self, image):
        return image


def _halved(image):
    return image // 2 if isinstance(image, torch.Tensor) else image.point(lambda level: level // 2)


def unknown(place):
    """Transforms that are not compiled."""
    always = [
        Inverted(),
        Same(1.0),
        v1.Lambda(_halved),
        v1.Resize((9, 7), InterpolationMode.NEAREST),
    ]
    if place == "images":
        return st.sampled_from([*always, v1.RandomRotation((3, 3), fill=0.5)])
    return st.sampled_from(always)


@st.composite
def resizes(draw):
    library, interpolation = draw(libraries), draw(filters)
    if draw(st.booleans()):
        return [library.Resize((draw(sides), draw(sides)), interpolation)]
    side = draw(sides)
    limit = draw(st.none() | st.integers(side + 1, 160))
    size = draw(st.sampled_from([side, [side]]))
    return [library.Resize(size, interpolation, max_size=limit)]


@st.composite
def center_crops(draw):
    size = draw(st.one_of(sides, st.tuples(sides), st.tuples(sides, sides)))
    return [draw(libraries).CenterCrop(size)]


@st.composite
def flips(draw):
    library = draw(libraries)
    kind = draw(st.sampled_from([library.RandomHorizontalFlip, library.RandomVerticalFlip]))
    return [kind(draw(st.sampled_from([1.0, 1.0, 0.0])))]


@st.composite
def whole_crops(draw):
    """A random crop that leaves no choice, since it is as large as the padded image."""
    height, width = draw(sides), draw(sides)
    padding = draw(st.none() | st.lists(st.integers(0, 5), min_size=4, max_size=4))
    fill = draw(st.sampled_from([0, 7, (1, 2, 3)]))
    resize = draw(libraries).Resize((height, width))
    if padding is None:
        return [resize, draw(libraries).RandomCrop((height, width))]
    left, top, right, bottom = padding
    if draw(st.booleans()):
        right, bottom, padding = left, top, [left, top]
    size = (height + top + bottom, width + left + right)
    return [resize, draw(libraries).RandomCrop(size, padding, fill=fill)]


@st.composite
def conversions(draw):
    """One that makes a tensor, and what may follow it; an unsupported dtype is a tail."""
    first = draw(st.sampled_from([v1.ToTensor(), v1.PILToTensor(), v2.PILToTensor(), v2.ToImage()]))
    steps = [first]
    kind = torch.float32 if isinstance(first, v1.ToTensor) else torch.uint8
    if draw(st.booleans()):
        kind = draw(types)
        scaled = [v1.ConvertImageDtype(kind), v2.ToDtype(kind, scale=True)]
        steps.append(draw(st.sampled_from([*scaled, v2.ToDtype(kind)])))
    while kind.is_floating_point and draw(st.booleans()):
        steps.append(draw(libraries).Normalize(draw(levels), draw(spreads)))
    if draw(st.booleans()):
        steps.append(v2.ToPureTensor())
    return steps


def _makes_integers(step):
    return getattr(step, "dtype", None) is torch.int16


spatial = st.lists(st.one_of(resizes(), center_crops(), flips(), whole_crops()), max_size=3)


@st.composite
def warps(draw):
    """A rotation or an affine transform of tensors that leaves no choice."""
    library, fill = draw(libraries), draw(st.sampled_from([0, 0, 1, 100]))
    filter = draw(st.sampled_from([InterpolationMode.NEAREST, InterpolationMode.BILINEAR]))
    angle = draw(st.sampled_from([0, 90, 180, 270, -90]) | st.floats(-200, 200, width=32))
    centre = draw(st.none() | st.tuples(sides, sides))
    if draw(st.booleans()):
        expand = draw(st.booleans())
        return library.RandomRotation((angle, angle), filter, expand, centre, fill)
    scale, shear = draw(st.floats(0.5, 2, width=32)), draw(st.floats(-30, 30, width=32))
    angles, scales, shears = ([each] * 2 for each in (angle, scale, shear))
    return library.RandomAffine(angles, None, scales, shears, filter, fill, centre)


@st.composite
def early_tensors(draw):
    """A conversion, and windows and resizes of the tensor that it makes."""
    floats = [[v1.ToTensor()], [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]]
    steps = list(draw(st.sampled_from([*floats, [v1.PILToTensor()], [v2.ToImage()]])))
    makes_floats = steps[-1:] in ([each[-1]] for each in floats)
    tensor_filters = st.sampled_from([InterpolationMode.BILINEAR, InterpolationMode.BICUBIC])
    for _ in range(draw(st.integers(1, 4))):
        library = draw(libraries)
        kinds = ["resize", "shorter side", "window", "border", "normalize", "warp"]
        kind = draw(st.sampled_from(kinds))
        if kind == "resize":
            size = draw(st.tuples(sides, st.integers(2, 80)))
            aliased = makes_floats and draw(st.booleans())
            filter = InterpolationMode.BILINEAR if aliased else draw(tensor_filters)
            steps.append(library.Resize(size, filter, antialias=not aliased))
        elif kind == "shorter side":
            steps.append(library.Resize(draw(st.integers(2, 80)), draw(tensor_filters)))
        elif kind == "window":
            steps += draw(st.one_of(center_crops(), flips()))
        elif kind == "border":
            border = draw(st.lists(st.integers(0, 4), min_size=4, max_size=4))
            steps.append(library.Pad(border, fill=draw(st.sampled_from([0, 0, 1, 100]))))
        elif kind == "warp":
            steps.append(draw(warps()))
        elif makes_floats:
            steps.append(library.Normalize(draw(levels), draw(spreads)))
    return steps


@st.composite
def transforms(draw):
    """A Compose, and whether all that is in it is known to the compiler."""
    groups = draw(spatial)
    tensors = draw(st.one_of(conversions(), early_tensors()))
    if len(tensors) > 1 and draw(st.booleans()):  # a flip commutes with the conversions
        tensors.insert(draw(st.integers(1, len(tensors))), draw(flips())[0])
    place = draw(st.sampled_from(["nowhere", "nowhere", "images", "tensors"]))
    if place == "images":
        groups.insert(draw(st.integers(0, len(groups))), [draw(unknown(place))])
    elif place == "tensors":
        tensors.insert(draw(st.integers(1, len(tensors))), draw(unknown(place)))
    steps = [step for group in groups for step in group] + tensors
    if len(steps) > 1 and draw(st.booleans()):
        cut = draw(st.integers(1, len(steps) - 1))
        steps = [v1.Compose(steps[:cut]), *steps[cut:]]
    known = place == "nowhere" and not any(_makes_integers(step) for step in tensors)
    return draw(libraries).Compose(steps), known


@st.composite
def photos(draw):
    width, height = draw(st.integers(1, 90)), draw(st.integers(1, 90))
    return photo(np.random.default_rng(draw(st.integers(0, 99))), width, height)


def bits(result):
    assert isinstance(result, torch.Tensor)
    plain = result.as_subclass(torch.Tensor).contiguous()
    return plain.dtype, plain.shape, plain.reshape(-1).view(torch.uint8).numpy().tobytes()


def outcome(function, *arguments):
    """The bits of the result, or that there was none: a side can come out as 0 pixels."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = function(*arguments)
    except Exception:
        return None
    return bits(result)


def executed(compiled, image, simd):
    """The result of a compiled transform whose results have one size, or that has a tail."""
    executor = make_executor(compiled.plan, simd=simd)
    pixels = np.asarray(image)
    if compiled.plan.works_on_floats:
        made = result_array(*executor.pixels_of_pixels(pixels, 1, 0, 0, 0), compiled.plan)
        floats = torch.from_numpy(made.copy())
        return floats if compiled.tail is None else compiled.tail(floats)
    if compiled.tail is not None:
        raw, (height, width) = executor.pixels_of_pixels(pixels, 1, 0, 0, 0)
        return compiled.tail(Image.frombytes("RGB", (width, height), raw))
    plan = compiled.plan
    out = bytearray(executor.result_bytes)
    executor.run_pixels(pixels, 1, 0, 0, 0, out)
    flat = torch.frombuffer(out, dtype=getattr(torch, plan.convert.element_type))
    return flat.view(3, plan.height, plan.width)


@pytest.mark.properties
@settings(max_examples=examples(80, 200), deadline=None)
@given(transforms(), photos(), st.sampled_from([None, "scalar"]))
def test_a_compiled_transform_has_torchvision_s_bits(chosen, image, simd):
    transform, known = chosen
    compiled = compile_transform(transform)
    assert any(note.why for note in compiled.notes) == (not known)
    if known:
        assert compiled.tail is None and compiled.plan.convert is not None
        if compiled.plan.height is None:
            return  # no size for an executor's result: the next test
    else:
        assert isinstance(compiled.tail, Tail)
        assert (compiled.plan.convert is not None) == compiled.plan.works_on_floats
    expected = outcome(transform, image)
    assert outcome(executed, compiled, image, simd) == expected


class OneEncoded:
    """A file, as datasets with ``read_encoded`` have them."""

    def __init__(self, encoded, transform):
        self.encoded = encoded
        self.transform = transform

    def __len__(self):
        return 1

    def read_encoded(self, index):
        return self.encoded, 0


@pytest.mark.properties
@settings(max_examples=examples(40, 100), deadline=None)
@given(transforms(), photos(), st.sampled_from(["JPEG", "PNG"]))
def test_a_compiled_dataset_has_torchvision_s_bits(chosen, image, kind):
    transform, _ = chosen
    file = io.BytesIO()
    image.save(file, kind)
    dataset = OneEncoded(file.getvalue(), transform)
    source = PlanSource(dataset, compile_dataset(dataset))
    with Image.open(file) as opened:
        expected = outcome(transform, opened.convert("RGB"))
    assert outcome(lambda: source.load(SampleKey(0, 1, 0, 0, 0))[0]) == expected
