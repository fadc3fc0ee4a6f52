"""torchvision's colors, resizes and warps of plain tensors are the same ones, natively."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import warm_start
from support.campaigns import examples
from torch.autograd import forward_ad
from torch.utils.data import DataLoader, Dataset
from torchvision import tv_tensors
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms import _functional_tensor as v1
from torchvision.transforms import functional as older
from torchvision.transforms.v2 import functional
from torchvision.transforms.v2.functional import _color, _geometry

from fusionloader import FusionLoader
from fusionloader._native import simd_levels
from fusionloader.data.deferred import activity, counts, patches
from fusionloader.data.deferred.guard import PLAIN
from fusionloader.data.deferred.scope import deferring
from fusionloader.data.deferred.tensors import native_kernels, native_operations

FEWEST = 256  # pixels
GRIDS = {
    size: torch.from_numpy(np.random.default_rng(0).uniform(-1.2, 1.2, (1, *size, 2))).float()
    for size in ((31, 300), (1, 1))
}
FACTORS = (0, 0.0, 0.3, 1, 1.7, 999.5)
ARGUMENTS = {
    **{
        f"adjust_{name}": [(factor,) for factor in FACTORS]
        for name in ("brightness", "contrast", "saturation", "sharpness")
    },
    "adjust_hue": [(-0.5,), (-0.31,), (0,), (0.17,), (0.5,)],
    "rgb_to_grayscale": [(), (1,), (3,)],
    "gaussian_blur": [([3, 3], [0.9, 0.9]), ((5, 3), (0.05, 40.0)), ([3, 1], [1.7, 2])],
    "to_dtype": [(torch.float32, True), (torch.float32,), (torch.uint8, True)],
    native_operations.WARP: [
        (GRIDS[size], mode, fill)
        for size in GRIDS
        for mode in ("nearest", "bilinear")
        for fill in (0, [0.5], (3.0, 250, 9.5))
    ],
    "normalize": [([0.5, 0.4, 0.3], [0.2, 0.3, 1]), ((0, 1, 2), (3.0, -1.0, 1e-3))],
    "autocontrast": [()],
    "equalize": [()],
    "solarize": [(0,), (0.4,), (1,), (0.9999999999,)],
    native_operations.RESIZE: [
        (size, None, mode, False, None, True)
        for size in ([31, 40], (5, 300), [24, 33], [7, 7], [90, 19])
        for mode in ("bilinear", "bicubic")
    ],
}
BY_ALL = native_operations.WARP, native_operations.RESIZE
"""Functions that torchvision's kernels call with plain tensors alone."""
SHAPES = [
    *(
        (3, 24, 32),
        (3, 37, 53),
        (4, 3, 16, 16),
        (2, 4, 3, 19, 23),
        (1, 3, 90, 90),
        (2, 1, 3, 3, 99),
    ),
    *((16, 3, 5, 7), (3, 3, 300)),
]
KINDS = {"tensor": lambda image: image, "image": tv_tensors.Image, "video": tv_tensors.Video}


@pytest.fixture(autouse=True)
def _as_in_a_worker(monkeypatch, one_thread):
    for name in native_operations.OPERATIONS:
        monkeypatch.setitem(native_operations.LEAST_PIXELS, name, FEWEST)
    counts.take()
    yield
    counts.take()


def interleaved(image):
    return image.movedim(-3, -1).contiguous().movedim(-1, -3)


LAYOUTS = {
    "contiguous": lambda image: image,
    "interleaved": interleaved,
    "rows": lambda image: torch.cat([image, image], -2)[..., : image.shape[-2], :],
    "columns": lambda image: torch.cat([image, image], -1)[..., ::2],
    "transposed": lambda image: image.mT.contiguous().mT,
    "expanded": lambda image: image[..., :1, :].expand(image.shape),
    "cut out": lambda image: torch.cat([image, image], -1)[..., : image.shape[-1]],
    "cut out of interleaved": lambda image: interleaved(torch.cat([image, image], -1))[
        ..., image.shape[-1] :
    ],
}


def image_of(shape, dtype=torch.float32, least=0.0, most=1.0, layout="contiguous", seed=0):
    random = np.random.default_rng(seed)
    values = torch.from_numpy(random.uniform(least, most, shape))
    image = (values * 255).clamp(0, 255).to(dtype) if dtype == torch.uint8 else values.to(dtype)
    return LAYOUTS[layout](image) if image.numel() else image


def about(value):
    """All that user code may see of a result; one bit pattern stands for all that are no number."""
    memory = value.untyped_storage().nbytes(), value.storage_offset(), value.stride()
    plain = value.detach().as_subclass(torch.Tensor).contiguous()
    if plain.is_floating_point():
        plain = plain.masked_fill(plain.isnan(), math.nan)
    content = plain.reshape(-1).view(torch.uint8).numpy().tobytes()
    seen = value.requires_grad, value.is_inference()
    return type(value), value.dtype, tuple(value.shape), memory, content, seen


def outcome(use):
    state = torch.get_rng_state()
    try:
        made = about(use())
    except Exception as error:
        made = type(error), str(error)
    assert torch.equal(torch.get_rng_state(), state)
    return made


def assert_is_as_usual(use):
    """Returns how many calls ran natively."""
    expected = outcome(use)
    with deferring():
        made = outcome(use)
    assert made == expected
    counted = counts.take()
    assert not counted.failed
    assert not counted.left
    return sum(counted.native.values())


def function_of(module, name):
    home = _geometry if name in BY_ALL and module is functional else module
    # Looked up in each call, as it is replaced in a worker.
    return (lambda *given: getattr(home, name)(*given)) if hasattr(home, name) else None


@pytest.mark.few(40)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layout", ["contiguous", "interleaved"])
@pytest.mark.parametrize("name", ARGUMENTS)
def test_each_function_is_torchvisions(name, layout, kind):
    if name in BY_ALL and kind != "tensor":
        return
    function = function_of(functional, name)
    for shape in SHAPES if kind == "tensor" else SHAPES[-3:-1]:
        for dtype in native_operations.OPERATIONS[name].dtypes:
            image = KINDS[kind](image_of(shape, dtype, layout=layout))
            native = 0
            for arguments in ARGUMENTS[name]:
                native += assert_is_as_usual(lambda: function(image, *arguments))  # noqa: B023
            large = math.prod(shape) >= 3 * FEWEST
            known = kind != "video" or name != "rgb_to_grayscale"  # which has no kernel for videos
            times = 1 if name == "to_dtype" else len(ARGUMENTS[name])
            taken = native_operations.OPERATIONS[name].takes(image)
            assert native == times * (large and known and taken)


@pytest.mark.few(10)
@pytest.mark.parametrize("layout", ["contiguous", "interleaved"])
@pytest.mark.parametrize("name", native_operations.V1)
def test_each_older_function_is_torchvisions(name, layout):
    for shape in SHAPES:
        for dtype in native_operations.OPERATIONS[name].dtypes:
            image = image_of(shape, dtype, layout=layout)
            for arguments in ARGUMENTS[name]:
                native = assert_is_as_usual(lambda: getattr(v1, name)(image, *arguments))  # noqa: B023
                large = math.prod(shape) >= 3 * FEWEST
                taken = native_operations.OPERATIONS[name].takes(image)
                assert native == (large and len(shape) < 5 and taken)


@pytest.mark.parametrize("name", ARGUMENTS)
@pytest.mark.parametrize("simd", simd_levels())
@pytest.mark.few(14)
def test_each_instruction_set_gives_the_same(name, simd, monkeypatch):
    calls = ("adjust", "scale", "normalize", "blur", "warp", "resize")
    for call in (f"{call}_tensor" for call in calls):
        native = getattr(native_operations._native, call)
        monkeypatch.setattr(
            native_operations._native, call, lambda *given, native=native: native(*given, simd=simd)
        )
    test_each_function_is_torchvisions(name, "contiguous", "tensor")
    test_each_function_is_torchvisions(name, "interleaved", "image")


SIDES = st.integers(1, 40)
BOUNDS = st.sampled_from([(0.0, 1.0), (-0.7, 1.9), (0.0, 0.0), (-1e38, 1e38), (1e-40, 1e-38)])
SPECIAL = st.lists(st.sampled_from([math.nan, math.inf, -math.inf, -0.0, 1.0]), max_size=3)


@settings(max_examples=examples(300, 20000), deadline=None)
@given(st.data(), st.sampled_from(sorted(ARGUMENTS)), st.sampled_from([v1, functional]))
def test_any_tensor_gives_torchvisions_result(data, name, module):
    leading = data.draw(st.sampled_from([(), (4,), (2, 4), (1,), (3, 1), (0,)]))
    shape = (
        *leading,
        data.draw(st.sampled_from([3, 3, 3, 1, 2, 4])),
        data.draw(SIDES),
        data.draw(SIDES),
    )
    dtypes = [torch.float32] * 3 + [torch.uint8] * 3 + [torch.float64, torch.int32, torch.float16]
    dtype = data.draw(st.sampled_from(dtypes))
    layout = data.draw(st.sampled_from(sorted(LAYOUTS)))
    image = image_of(shape, dtype, *data.draw(BOUNDS), layout, data.draw(st.integers(0, 99)))
    if image.is_floating_point() and image.numel() and layout != "expanded":
        for value in data.draw(SPECIAL):
            index = tuple(data.draw(st.integers(0, side - 1)) for side in shape)
            image[index] = value
    arguments = data.draw(
        st.one_of(
            st.sampled_from(ARGUMENTS[name]),
            st.tuples(st.floats(-0.6, 3.0) | st.sampled_from([-1, math.nan, math.inf, 101])),
            st.just((np.float32(0.3),)),
            st.just((torch.tensor(0.3),)),
        )
    )
    kind = data.draw(st.sampled_from(sorted(KINDS)))
    function = function_of(module, name)
    if function is not None:
        assert_is_as_usual(lambda: function(KINDS[kind](image), *arguments))


POINTS = [[0, 0], [31, 0], [31, 31], [0, 31]], [[3, 2], [27, 1], [30, 29], [2, 24]]
WARPS = {
    "affine": lambda image, mode, fill: functional.affine(
        image, 7, [3, -2], 1.2, [5, 1], mode, fill=fill
    ),
    "rotation": lambda image, mode, fill: functional.rotate(image, 31, mode, True, fill=fill),
    "perspective": lambda image, mode, fill: functional.perspective(image, *POINTS, mode, fill),
    "elastic": lambda image, mode, fill: functional.elastic(
        image, torch.linspace(-0.2, 0.3, 2048).view(1, 32, 32, 2), mode, fill
    ),
    "older affine": lambda image, mode, fill: older.affine(
        image, 7, [3, -2], 1.2, [5, 1], mode, fill
    ),
    "older rotation": lambda image, mode, fill: older.rotate(image, 31, mode, True, fill=fill),
    "older perspective": lambda image, mode, fill: older.perspective(image, *POINTS, mode, fill),
    "older elastic": lambda image, mode, fill: older.elastic_transform(
        image, torch.linspace(-0.2, 0.3, 2048).view(1, 32, 32, 2), mode, fill
    ),
}


@pytest.mark.parametrize("name", WARPS)
def test_each_warp_is_torchvisions(name):
    for dtype in (torch.uint8, torch.float32):
        for shape in ((3, 32, 32), (4, 3, 32, 32)):
            image = image_of(shape, dtype)
            for mode in (InterpolationMode.NEAREST, InterpolationMode.BILINEAR):
                for fill in (None, [1.0, 0.5, 90.0]):
                    native = assert_is_as_usual(lambda: WARPS[name](image, mode, fill))  # noqa: B023
                    assert native == (fill is not None or dtype is torch.uint8)


def test_random_warps_of_images_and_videos_are_torchvisions():
    warps = [
        v2.RandomAffine(9, (0.1, 0.2), (0.9, 1.2), 4, InterpolationMode.BILINEAR),
        v2.RandomPerspective(p=1.0, fill=3),
        v2.RandomRotation(50, fill={"others": None}),
        v2.ElasticTransform(),
        v2.RandAugment(interpolation=InterpolationMode.BILINEAR),
    ]
    for kind in KINDS.values():
        for warp in warps:
            for seed in range(5):

                def use(warp=warp, kind=kind, seed=seed):
                    torch.manual_seed(seed)
                    return warp(kind(image_of((2, 3, 32, 32), torch.uint8)))

                state = torch.get_rng_state()
                expected = about(use())
                with deferring():
                    assert about(use()) == expected
                torch.set_rng_state(state)
    assert counts.take().native["warps by a grid"] > 60


def frames(layout="interleaved"):
    return image_of((4, 3, 32, 32), layout=layout)


class Doubling(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        return made * 2 if func is torch.Tensor.mul else made


def dual(image):
    with forward_ad.dual_level():
        made = functional.adjust_contrast(forward_ad.make_dual(image, torch.ones_like(image)), 0.5)
        return forward_ad.unpack_dual(made).tangent


def unaligned():
    content = b"\0" + frames("contiguous").numpy().tobytes()
    flat = torch.frombuffer(bytearray(content), dtype=torch.float32, offset=1)
    return flat.view(4, 3, 32, 32)


def without_mkldnn():
    return torch.backends.mkldnn.flags(enabled=False)


def other_default(image):
    torch.set_default_dtype(torch.float64)
    try:
        return functional.solarize((image * 255).to(torch.uint8), 100.0000001)
    finally:
        torch.set_default_dtype(torch.float32)


def under(context):
    def use(image):
        with context():
            return functional.adjust_sharpness(functional.adjust_contrast(image, 0.5), 1.5)

    return use


LEFT = {
    "gradient": lambda image: functional.adjust_contrast(image.requires_grad_(), 0.5),
    "parameter": lambda image: functional.adjust_contrast(
        torch.nn.Parameter(image, requires_grad=False), 0.5
    ),
    "vmap": lambda image: torch.vmap(lambda each: functional.adjust_saturation(each, 0.5))(image),
    "negated": lambda image: functional.adjust_contrast(torch._neg_view(image), 0.5),
    "mask": lambda image: functional.adjust_contrast(tv_tensors.Mask(image), 0.5),
    "function mode": under(Doubling),
    "autocast": under(lambda: torch.autocast("cpu", torch.bfloat16)),
    "meta": lambda image: functional.adjust_contrast(image.to("meta"), 0.5).cpu(),
    "in place": lambda image: functional.normalize(image, [0.5] * 3, [0.5] * 3, inplace=True),
    "no deviation": lambda image: functional.normalize(image, [0.5] * 3, [0.5, 0, 0.5]),
    "hue of infinity": lambda image: functional.adjust_hue(image / 0, 0.1),
    "a wrong name": lambda image: functional.adjust_contrast(image, contrast=0.5),
    "a missing factor": lambda image: functional.adjust_contrast(image),
    "the name in a kernel": lambda image: v1.adjust_contrast(image=image, contrast_factor=0.5),
    "whole factor of levels": lambda image: functional.adjust_brightness(
        (image * 255).to(torch.uint8), 2
    ),
    "dual": dual,
    "other convolution": under(without_mkldnn),
    "grid with a gradient": lambda image: _geometry._apply_grid_transform(
        image, GRIDS[1, 1].clone().requires_grad_(), "nearest", None
    ),
    "grids of each image": lambda image: _geometry._apply_grid_transform(
        image[:1], GRIDS[1, 1].expand(2, -1, -1, -1), "nearest", None
    ),
    "bicubic": lambda image: _geometry._apply_grid_transform(image, GRIDS[1, 1], "bicubic", None),
    "without antialias": lambda image: functional.resize(image, [20, 20], antialias=False),
    "by a factor": lambda image: _geometry.interpolate(
        image, scale_factor=0.5, mode="bilinear", align_corners=False, antialias=True
    ),
    "single columns": lambda image: functional.resize(image, [20, 1]),
    "much smaller": lambda image: functional.resize(image.repeat(1, 1, 7, 1), [3, 20]),
    "threshold beyond floats": lambda image: functional.solarize(image, 1.1),
    "zeros of both signs": lambda image: functional.autocontrast(
        torch.where(image > 0.5, image, torch.where(image > 0.2, 0.0, -0.0))
    ),
    "other default dtype": other_default,
    "threshold below levels": lambda image: functional.solarize(image, -1),
    "two fills": lambda image: _geometry._apply_grid_transform(
        image, GRIDS[1, 1], "nearest", [1, 2]
    ),
    "unaligned": lambda _: functional.adjust_contrast(unaligned(), 0.5),
    "traced": lambda image: torch.jit.trace(
        lambda each: functional.adjust_contrast(each, 0.5), image, check_trace=False
    )(image + 0.1),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", LEFT)
def test_other_tensors_are_left_to_torchvision(name):
    assert not assert_is_as_usual(lambda: LEFT[name](frames()))


@pytest.mark.filterwarnings("ignore")
def test_functions_may_be_compiled_in_a_worker():
    def scripted():
        return torch.jit.script(v1.adjust_contrast)(frames(), 0.5)

    assert not assert_is_as_usual(scripted)
    with torch.no_grad():
        assert not assert_is_as_usual(
            lambda: torch.compile(functional.adjust_contrast, backend="eager")(frames(), 0.5)
        )


SCRIPTED = """
import torch
from torchvision import transforms
from torchvision.transforms import v2
from fusionloader.data.deferred.scope import deferring
torch.set_num_threads(1)
image = torch.rand(3, 64, 80)
with deferring():  # first, as in a worker: torch compiles the overloads of a function once
    made = torch.jit.script(transforms.Resize([20, 30], antialias=True))(image)
    other = torch.jit.script(v2.functional.resize_image)(image, [20, 30])
expected = transforms.Resize([20, 30], antialias=True)(image)
assert torch.equal(made, expected) and torch.equal(other, expected)
"""


def test_resizes_may_be_compiled_in_a_new_worker():
    done = warm_start.completed("-c", SCRIPTED)
    assert done.returncode == 0, done.stderr


def test_a_size_beyond_all_images_is_left_to_torch():
    image = torch.empty(12000).expand(1, 1, 12000, 12000)
    kernel = native_kernels.kernel(native_operations.RESIZE, torch.Tensor, "torch_v2")
    size = [400, 400]
    with deferring():
        made = kernel(image, size, mode="bilinear", align_corners=False, antialias=True)
    assert made is PLAIN


@pytest.mark.parametrize("decorate", [torch.no_grad(), lambda function: torch.compile(function)])
def test_a_replacement_that_torch_decorates_is_the_programs(decorate, monkeypatch):
    patch = patches.Patch(_geometry, "interpolate")
    assert patches._unexpected(patch) == ""
    monkeypatch.setattr(_geometry, "interpolate", decorate(lambda *given, **named: given[0]))
    assert "replaced by the program" in patches._unexpected(patch)


def test_tensors_of_inference_are_replaced():
    assert assert_is_as_usual(under(torch.inference_mode).__get__(frames())) == 2


def test_torchs_threads_are_left_to_it():
    torch.set_num_threads(2)
    assert not assert_is_as_usual(lambda: functional.adjust_contrast(frames(), 0.5))


def test_arguments_may_have_names():
    for call in (
        lambda image: functional.adjust_contrast(image, contrast_factor=0.5),
        lambda image: functional.adjust_contrast(inpt=image, contrast_factor=0.5),
        lambda image: functional.rgb_to_grayscale(image, num_output_channels=3),
        lambda image: functional.normalize(image, mean=[0.5] * 3, std=[0.5] * 3, inplace=False),
    ):
        assert assert_is_as_usual(lambda: call(frames())) == 1  # noqa: B023


@pytest.mark.parametrize(
    ("module", "name", "use"),
    [
        (v1, "rgb_to_grayscale", v1.adjust_saturation),
        (v1, "_max_value", v1.adjust_saturation),
        (_color, "_rgb_to_grayscale_image", functional.adjust_saturation),
        (_color, "_max_value", functional.adjust_sharpness),
    ],
)
def test_what_the_program_replaces_within_torchvision_is_called(module, name, use, monkeypatch):
    def adjusted():
        with deferring():
            return getattr(v1 if module is v1 else functional, use.__name__)(frames(), 0.5)

    adjusted()
    assert counts.take().native
    original = getattr(module, name)
    monkeypatch.setattr(module, name, lambda *given, **named: original(*given, **named) / 2)
    expected = use(frames(), 0.5)
    assert torch.equal(adjusted(), expected)
    assert use.__name__ not in counts.take().native


def images_of_all():
    """Gives an image, a function that is replaced and its arguments, for each function."""
    for name, operation in native_operations.OPERATIONS.items():
        image = image_of((4, 3, 32, 32), operation.dtypes[0])
        yield image, function_of(functional, name), ARGUMENTS[name][0 if name == "to_dtype" else -1]


def test_torch_may_resize_images_and_results():
    with deferring():
        for image, function, arguments in images_of_all():
            made = function(image, *arguments)
            assert made.untyped_storage().resizable()
            assert image.untyped_storage().resizable()
    assert sum(counts.take().native.values()) == len(ARGUMENTS)


def test_images_are_not_written_to():
    with deferring():
        for image, function, arguments in images_of_all():
            before = image.clone()
            function(image, *arguments)
            assert torch.equal(image, before)


def test_nothing_is_replaced_outside_of_the_scope():
    registry = functional._utils._KERNEL_REGISTRY[functional.adjust_hue]
    before = dict(registry), v1.adjust_contrast
    for tensors in (False, True):
        with deferring(tensors):
            assert registry != before[0]
            with activity.suspended():
                functional.adjust_hue(frames(), 0.1)
            assert not counts.take().native
        assert (registry, v1.adjust_contrast) == before


@pytest.mark.parametrize("after", ["adjust_contrast", torch.Tensor, tv_tensors.Video])
def test_an_interrupted_installation_is_undone(after, monkeypatch):
    registries = functional._utils._KERNEL_REGISTRY
    before = v1.adjust_contrast, {name: dict(kernels) for name, kernels in registries.items()}
    original = patches.Patch.set

    def interrupted(self, value):
        original(self, value)
        if self.name == after:
            monkeypatch.undo()
            raise KeyboardInterrupt

    monkeypatch.setattr(patches.Patch, "set", interrupted)
    with pytest.raises(KeyboardInterrupt), deferring():
        pass
    assert (v1.adjust_contrast, registries) == before


def test_deferred_and_plain_tensors_are_both_replaced():
    with deferring(tensors=True):
        functional.adjust_hue(frames(), 0.1)
    assert counts.take().native == {"adjust_hue": 1}


def test_what_torch_rounds_otherwise_is_left_to_it(monkeypatch):
    monkeypatch.setattr(native_kernels, "rounds_natively", lambda *_: False)
    image = frames()
    expected = functional.adjust_hue(image, 0.1)
    with deferring():
        assert torch.equal(functional.adjust_hue(image, 0.1), expected)
    counted = counts.take()
    assert counted.left == {"adjust_hue of torch.float32, which torch rounds otherwise here": 1}
    assert "which torch rounds otherwise here 1" in "\n".join(counted.explain())


@pytest.mark.parametrize("name", ARGUMENTS)
def test_a_difference_in_one_bit_is_noticed(name, monkeypatch):
    original = native_kernels._find_original(name, "torch_v2")

    def other(image, *arguments):
        made = original(image, *arguments).clone()
        made.view(-1)[-1:].view(torch.uint8)[0] ^= 1
        return made

    dtype = native_operations.OPERATIONS[name].dtypes[0]
    assert native_kernels.rounds_natively.__wrapped__(name, dtype, "torch_v2")
    monkeypatch.setattr(native_kernels, "_find_original", lambda *_: other)
    assert not native_kernels.rounds_natively.__wrapped__(name, dtype, "torch_v2")


@pytest.mark.parametrize("name", ["adjust_brightness", "normalize"])
@pytest.mark.parametrize("rounding", ["torch_v1", "torch_v2"])
def test_another_clamp_of_what_is_not_0_to_1_is_noticed(name, rounding, monkeypatch):
    original = native_kernels._find_original(name, rounding)

    def other(image, *arguments):
        fractions = (image >= 0) & (image <= 1) & ~torch.signbit(image)
        made = original(image, *arguments)
        return torch.where(fractions, made, made + 1)

    monkeypatch.setattr(native_kernels, "_find_original", lambda *_: other)
    assert not native_kernels.rounds_natively.__wrapped__(name, torch.float32, rounding)


class Frames(Dataset):
    """Frames of two cameras, each with one draw for all frames, as LeRobot has them."""

    transform = v2.Compose(
        [
            v2.RandomApply([v2.ColorJitter(0.2, 0.2, 0.5, 0.05)]),
            v2.RandomAdjustSharpness(1.5),
            v2.RandomGrayscale(),
            v2.RandomResizedCrop(24),
            v2.RandomAutocontrast(),
        ]
    )

    def __len__(self):
        return 12

    def __getitem__(self, index):
        torch.manual_seed(index)  # or workers would have other draws
        cameras = [
            image_of((3, 3, 40, 48), torch.uint8, layout=layout, seed=index)
            for layout in ("interleaved", "contiguous")
        ]
        first, second = (self.transform(camera.float() / 255) for camera in cameras)
        video = self.transform(tv_tensors.Video(cameras[0]))
        return {"first": first, "second": second, "video": video, "index": index}


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_of_frames_are_those_of_dataloader(workers):
    options = {"batch_size": 4, "num_workers": workers, "shuffle": True}
    expected, states = [], []
    for kind in (DataLoader, FusionLoader):
        torch.manual_seed(3)
        loader = kind(Frames(), **options)
        expected.append(list(loader))
        states.append(torch.get_rng_state())
    for ours, theirs in zip(*expected, strict=True):
        assert ours.keys() == theirs.keys()
        for key in theirs:
            assert about(ours[key])[:3] == about(theirs[key])[:3]
            assert torch.equal(ours[key], theirs[key])
    assert torch.equal(*states)
    native = loader.stats().deferred_images["native"]
    assert native["adjust_hue"] > 0
    assert "run natively on plain tensors: " in loader.explain()


@pytest.mark.parametrize("name", ARGUMENTS)
def test_empty_and_tiny_tensors_are_left_to_torchvision(name):
    for shape in ((0, 3, 9, 9), (3, 2, 400), (3, 1, 1), (3, 400, 1)):
        image = image_of(shape, native_operations.OPERATIONS[name].dtypes[0])
        function = function_of(functional, name)
        assert not assert_is_as_usual(lambda: function(image, *ARGUMENTS[name][0]))  # noqa: B023


def test_memory_of_another_form_is_refused():
    adjust = native_operations._native.adjust_tensor
    image = np.zeros((2, 3, 8, 8), np.float32)
    for one, other, message in (
        (image[:, :2], image[:, :2], "is ... x 3 x height x width"),
        (image[..., ::2], image[..., ::2], "is contiguous, or its channels lie side by side"),
        (image, image[:1], "needs the layout of the image"),
        (image, image.transpose(0, 1, 3, 2), "needs the layout of the image"),
        (image, image.astype(np.uint8), "uint8 or float32"),
        (image.astype(np.float64), image.astype(np.float64), "uint8 or float32"),
    ):
        with pytest.raises(ValueError, match=message):
            adjust("saturation", one, other.copy() if other is image else other, 0.5, "torch_v2")
    with pytest.raises(ValueError, match="another number of elements"):
        adjust("grayscale", image, np.zeros((2, 8, 9), np.float32), 0, "torch_v2")
    with pytest.raises(ValueError, match="no such color operation"):
        adjust("contrast", image, image.copy(), 0.5, "torch_v2")
    with pytest.raises(ValueError, match="no such color operation"):
        adjust("solarize", image, image.copy(), 256, "torch_v2")
    resize = native_operations._native.resize_tensor
    other = np.zeros((2, 8, 8, 3), np.float32).transpose(0, 3, 1, 2)
    for one, out, by, message in (
        (image[0], image, "float_bilinear", "is images x channels x height x width"),
        (image[..., ::2], image, "float_bilinear", "columns of a tensor lie side by side"),
        (image, image[:1], "float_bilinear", "out has the planes of the image"),
        (image, other, "float_bilinear", "out has the planes of the image"),
        (image, image[..., :0], "float_bilinear", "out has the planes of the image"),
        (image, image[..., :5], "float_bilinear", "has to be contiguous"),
        (image.astype(np.uint8), image, "float_bilinear", "uint8 or float32"),
        (image, image, "torch_bilinear", "uint8 or float32"),
        (image, image, "bilinear", "by a filter of torch"),
    ):
        with pytest.raises(ValueError, match=message):
            resize(one, out, by)
    with pytest.raises(ValueError, match="torch_v1 or torch_v2"):
        adjust("saturation", image, image.copy(), 0.5, "pillow")
