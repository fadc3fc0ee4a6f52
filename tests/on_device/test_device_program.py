"""On a CUDA device the kernel gives the bits that its body gives on the host."""

from __future__ import annotations

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
from fusionloader.transforms.executors.device.launchers import CudaLauncher
from fusionloader.transforms.executors.device.memory import allocator_of_torch
from fusionloader.transforms.executors.device.program import DeviceProgram, DeviceSample
from fusionloader.transforms.executors.results import result_like

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device for torch"),
]


def on_device(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array)).cuda()


@pytest.fixture(scope="module")
def launcher():
    stream = torch.cuda.Stream(0)
    # What torch enqueues on its own stream is there before a launch.
    torch.cuda.synchronize()
    return CudaLauncher(0, stream.cuda_stream, allocator_of_torch(stream))


def check_on_device(launcher: CudaLauncher, cases) -> None:
    """``cases`` are pairs of pixels and operations, of one number of channels."""
    channels = cases[0][0].shape[2]
    expected = []
    for pixels, operations in cases:
        room = native(pixels, operations).size
        expected.append(by_device_body(pixels, operations, 1, room))
    images = [on_device(pixels) for pixels, _ in cases]
    outs = [torch.zeros(result.size, dtype=torch.uint8, device="cuda") for result in expected]
    torch.cuda.synchronize()
    samples = [
        DeviceSample(image.data_ptr(), *pixels.shape[:2], operations, out.data_ptr())
        for image, out, (pixels, operations) in zip(images, outs, cases, strict=True)
    ]
    refused = DeviceProgram(pixel_plan(channels)).launch(launcher, samples)
    launcher.wait()
    assert refused == [None] * len(samples)
    for out, result, (pixels, operations) in zip(outs, expected, cases, strict=True):
        different = int((out.cpu().numpy() != result.reshape(-1)).sum())
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
    image_there = on_device(image)
    row = result_like(compiled.plan).numel() * 4
    # More launches than there are slots for their programs, of growing size.
    counts = (1, 4, 16, 64, 3, 128)
    batches = [(n, torch.zeros(n * row, dtype=torch.uint8, device="cuda")) for n in counts]
    torch.cuda.synchronize()
    for number, (count, out) in enumerate(batches):
        samples = [
            DeviceSample(
                image_there.data_ptr(),
                *image.shape[:2],
                compiled.draw(260, 240, epoch=number, index=index),
                out.data_ptr() + index * row,
            )
            for index in range(count)
        ]
        assert program.launch(launcher, samples) == [None] * count
    launcher.wait()
    for number, (count, out) in enumerate(batches):
        got = out.cpu().view(count, row)
        for index in range(count):
            drawn = compiled.draw(260, 240, epoch=number, index=index)
            expected = compiled.apply(image, drawn).view(torch.uint8).reshape(-1)
            assert torch.equal(got[index], expected), (number, index, drawn)


def test_only_what_makes_no_sense_is_left_out(launcher):
    program = DeviceProgram(pixel_plan(3))
    outs = [on_device(np.full(300, 7, np.uint8)) for _ in range(2)]
    image = on_device(np.zeros((10, 10, 3), np.uint8))
    torch.cuda.synchronize()
    operations = [[("invert",)], [("crop", 0, 0, 0, 0, FILL)]]
    samples = [
        DeviceSample(image.data_ptr(), 10, 10, given, out.data_ptr())
        for given, out in zip(operations, outs, strict=True)
    ]
    assert [why is None for why in program.launch(launcher, samples)] == [True, False]
    launcher.wait()
    assert bool((outs[0] == 255).all())
    assert bool((outs[1] == 7).all())
