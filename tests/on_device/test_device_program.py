"""On a CUDA device the kernel gives the bits that its body gives on the host."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
import torch
from support.device_cases import (
    BORDERS,
    COLORS,
    FILL,
    PICTURES,
    WINDOWS,
    by_device_body,
    native,
    pixel_plan,
    warps,
)
from support.images import NORMALIZE, photo
from torchvision import transforms as v1

from fusionloader import compile_plan
from fusionloader.executors.device import program as device_program
from fusionloader.executors.device.program import (
    DeviceProgram,
    DeviceSample,
    KernelError,
    Launcher,
    check,
    load_library,
)
from fusionloader.executors.results import result_like


def why_not() -> str | None:
    try:
        return None if device_program.device_count() > 0 else "no CUDA device"
    except KernelError as error:
        return str(error)


REASON = why_not()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(REASON is not None, reason=REASON or "")]


class Memory:
    """Bytes on the device."""

    def __init__(self, nbytes: int) -> None:
        self._library = load_library()
        self.nbytes = nbytes
        made = ctypes.c_void_p()
        check(self._library, self._library.fl_allocate(max(nbytes, 1), ctypes.byref(made)))
        self.address = made.value or 0

    @staticmethod
    def of(array: np.ndarray) -> Memory:
        memory = Memory(array.nbytes)
        code = memory._library.fl_copy(memory.address, array.ctypes.data, array.nbytes)
        check(memory._library, code)
        return memory

    def bytes(self) -> np.ndarray:
        array = np.empty(self.nbytes, np.uint8)
        check(self._library, self._library.fl_synchronize())
        check(self._library, self._library.fl_copy(array.ctypes.data, self.address, self.nbytes))
        return array

    def __del__(self) -> None:
        self._library.fl_free(self.address)


@pytest.fixture
def launcher():
    made = Launcher(0)
    yield made
    made.close()


def check_on_device(launcher: Launcher, cases) -> None:
    """``cases`` are pairs of pixels and operations, of one number of channels."""
    channels = cases[0][0].shape[2]
    expected = []
    for pixels, operations in cases:
        room = native(pixels, operations).size
        expected.append(by_device_body(pixels, operations, 1, room))
    images = [Memory.of(pixels) for pixels, _ in cases]
    outs = [Memory(result.size) for result in expected]
    samples = [
        DeviceSample(image.address, *pixels.shape[:2], operations, out.address)
        for image, out, (pixels, operations) in zip(images, outs, cases, strict=True)
    ]
    refused = DeviceProgram(pixel_plan(channels)).launch(launcher, samples)
    assert refused == [None] * len(samples)
    for out, result, (pixels, operations) in zip(outs, expected, cases, strict=True):
        different = int((out.bytes() != result.reshape(-1)).sum())
        assert different == 0, (pixels.shape, operations, different)


EVERYTHING = [[operation] for kind in COLORS.values() for operation in kind]
EVERYTHING += [[operation] for operation in warps()] + WINDOWS
EVERYTHING += [[("blur", 5, 3, 0.8, 2.0)], [("blur", 3, 13, 9.0, 0.3)]]
EVERYTHING += [[operation] for operation in BORDERS if min(operation[1:5]) >= 0]


@pytest.mark.parametrize("channels", [3, 1])
@pytest.mark.parametrize("part", range(8))
def test_every_operation(launcher, channels, part):
    pictures = [p for p in PICTURES if p.shape[2] == channels]
    for operations in EVERYTHING[part::8]:
        large = [p for p in pictures if operations[:1] == [] or operations[0][0] != "blur"]
        fitting = large or [p for p in pictures if min(p.shape[:2]) > 6]
        check_on_device(launcher, [(pixels, operations) for pixels in fitting])


@pytest.mark.parametrize(
    "policy", [v1.RandAugment(), v1.AutoAugment(), v1.TrivialAugmentWide(), v1.GaussianBlur(23)]
)
def test_batches_of_a_plan(launcher, policy):
    steps = [v1.CenterCrop(224), policy, v1.ToTensor(), v1.Normalize(*NORMALIZE)]
    compiled = compile_plan(v1.Compose([*steps, v1.RandomErasing(0.5)]))
    program = DeviceProgram(compiled.plan)
    image = np.asarray(photo(np.random.default_rng(1), 260, 240))
    on_device = Memory.of(image)
    row = result_like(compiled.plan).numel() * 4
    # More launches than there are slots for their programs, of growing size.
    batches = [(count, Memory(count * row)) for count in (1, 4, 16, 64, 3, 128)]
    for number, (count, out) in enumerate(batches):
        samples = [
            DeviceSample(
                on_device.address,
                *image.shape[:2],
                compiled.draw(260, 240, epoch=number, index=index),
                out.address + index * row,
            )
            for index in range(count)
        ]
        assert program.launch(launcher, samples) == [None] * count
    for number, (count, out) in enumerate(batches):
        got = torch.from_numpy(out.bytes()).view(count, row)
        for index in range(count):
            drawn = compiled.draw(260, 240, epoch=number, index=index)
            expected = compiled.apply(image, drawn).view(torch.uint8).reshape(-1)
            assert torch.equal(got[index], expected), (number, index, drawn)


def test_only_what_makes_no_sense_is_left_out(launcher):
    program = DeviceProgram(pixel_plan(3))
    outs = [Memory.of(np.full(300, 7, np.uint8)) for _ in range(2)]
    image = Memory.of(np.zeros((10, 10, 3), np.uint8))
    operations = [[("invert",)], [("crop", 0, 0, 0, 0, FILL)]]
    samples = [
        DeviceSample(image.address, 10, 10, given, out.address)
        for given, out in zip(operations, outs, strict=True)
    ]
    assert [why is None for why in program.launch(launcher, samples)] == [True, False]
    assert (outs[0].bytes() == 255).all()
    assert (outs[1].bytes() == 7).all()
