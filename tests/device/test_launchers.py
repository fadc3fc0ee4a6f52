"""Launches: through the driver, over a fake one whose kernel is the host's, and on the host."""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from collections import defaultdict
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from support import warm_start
from support.dali_arrays import tensor_gpu
from support.device_cases import FILL, PICTURES, native, pixel_plan
from support.fake_cuda_worker import PTX
from support.images import photo
from support.waiting import PATIENCE, wait_until
from torchvision import transforms as v1

from fusionloader import _native, compile_plan
from fusionloader.system.gpu_memory.errors import CudaError
from fusionloader.transforms.executors.device import launchers, nvrtc
from fusionloader.transforms.executors.device.fused_augment import FusedAugment
from fusionloader.transforms.executors.device.kernel import compile_kernel
from fusionloader.transforms.executors.device.launchers import (
    CudaLauncher,
    HostLauncher,
    KernelError,
)
from fusionloader.transforms.executors.device.memory import Memory, allocator_of_torch
from fusionloader.transforms.executors.device.program import DeviceProgram, DeviceSample
from fusionloader.transforms.executors.device_errors import is_shortage
from fusionloader.transforms.executors.native import make_executor
from fusionloader.transforms.executors.results import result_like


class Device:
    """The fake device: its memory, and the launches that its kernel has seen."""

    def __init__(self, fake, device=0):
        self.fake, self.device = fake, device
        self.launches: list[tuple[int, int, int]] = []
        self.freed: list[int] = []
        fake.set_kernel(self._kernel)

    def _kernel(self, program, work, blocks, threads):
        self.launches.append((work, blocks, threads))
        _native.run_block_on_host(program, work, blocks)

    def allocate(self, nbytes):
        address = self.fake.allocate(nbytes, self.device)
        return Memory(address, nbytes, Owner(self, address))

    def of(self, array):
        memory = self.allocate(array.nbytes)
        ctypes.memmove(memory.address, array.ctypes.data, array.nbytes)
        return memory


class Owner:
    def __init__(self, device, address):
        self._device, self._address = device, address

    def __del__(self):
        self._device.freed.append(self._address)
        if self._address in self._device.fake.allocated:
            self._device.fake.free(self._address, self._device.device)


def content(memory):
    return np.frombuffer(ctypes.string_at(memory.address, memory.nbytes), np.uint8)


@pytest.fixture
def device(fake_cuda):
    return Device(fake_cuda)


@pytest.fixture
def launcher(device, monkeypatch):
    monkeypatch.setattr(launchers, "kernel_code", lambda architecture: PTX)
    return CudaLauncher(0, device.fake.stream(), device.allocate)


def drawn_plan():
    steps = [v1.CenterCrop(48), v1.RandAugment(), v1.ToTensor(), v1.RandomErasing(0.5)]
    compiled = compile_plan(v1.Compose(steps))
    image = np.asarray(photo(np.random.default_rng(1), 70, 60))
    return compiled, image


@pytest.mark.parametrize("where", ["a device", "the host"])
def test_a_group_gets_the_bits_of_the_native_executor(where, request):
    compiled, image = drawn_plan()
    row_bytes = result_like(compiled.plan).nbytes
    if where == "the host":
        augment = FusedAugment(compiled.plan, HostLauncher())
        given = image
    else:
        device, launcher = (request.getfixturevalue(name) for name in ("device", "launcher"))
        augment = FusedAugment(compiled.plan, launcher)
        memory = device.of(image)
        given = tensor_gpu(memory.address, image.shape)
    rounds = [3, 1, 20, 2, 7, 40]  # more than there are slots for programs, of several sizes
    for epoch, count in enumerate(rounds):
        drawn = [compiled.draw(70, 60, epoch=epoch, index=index) for index in range(count)]
        rows = augment.rows(count, row_bytes)
        assert augment.run([given] * count, drawn, rows) == [None] * count
        for row, operations in zip(rows, drawn, strict=True):
            expected = compiled.apply(image, operations).numpy().reshape(-1).view(np.uint8)
            assert np.array_equal(content(row), expected), operations
    if where == "a device":
        assert [launch[1:] for launch in device.launches] == [(count, 1024) for count in rounds]


def samples_on(device, count):
    """Samples of every size, what the executor makes of them, and where results go."""
    pictures = [picture for picture in PICTURES if picture.shape[2] == 3][:count]
    images = [device.of(np.ascontiguousarray(picture)) for picture in pictures]
    rows = [device.allocate(picture.nbytes) for picture in pictures]
    samples = [
        DeviceSample(image.address, *picture.shape[:2], [("equalize",), ("hflip",)], row.address)
        for image, picture, row in zip(images, pictures, rows, strict=True)
    ]
    expected = [native(picture, [("equalize",), ("hflip",)]).reshape(-1) for picture in pictures]
    return samples, rows, expected, images


def test_a_program_is_not_overwritten_before_the_device_has_read_it(device, monkeypatch):
    monkeypatch.setattr(launchers, "kernel_code", lambda architecture: PTX)
    stream = device.fake.stream()
    launcher = CudaLauncher(0, stream, device.allocate)
    program = DeviceProgram(pixel_plan(3))
    samples, rows, expected, _images = samples_on(device, 6)
    device.fake.hold(stream, True)
    launched = []

    def launch_all():
        for sample in samples:
            assert program.launch(launcher, [sample]) == [None]
            launched.append(sample)

    thread = threading.Thread(target=launch_all)
    thread.start()
    wait_until(lambda: len(launched) == 4)
    thread.join(0.05)
    assert len(launched) == 4 and not device.launches
    device.fake.hold(stream, False)
    thread.join(PATIENCE)
    launcher.wait()
    assert len(launched) == len(device.launches) == 6
    for row, wanted in zip(rows, expected, strict=True):
        assert np.array_equal(content(row), wanted)


def test_working_memory_is_kept_until_the_launch_has_ended_and_no_longer(device, launcher):
    program = DeviceProgram(pixel_plan(3))
    samples, *_ = samples_on(device, 3)
    for sample in samples:
        program.launch(launcher, [sample])
    assert device.freed == []
    launcher.wait()
    assert len(set(device.freed)) == 3
    assert {work for work, _, _ in device.launches} == set(device.freed)


class Tensor(SimpleNamespace):
    """Of an allocator; may be referred to weakly."""


class CachingAllocator:
    """Torch's, strict: what was freed last on the current stream is handed out next, at once.

    ``c10/cuda/CUDACachingAllocator.cpp``: "Allocations are associated with a stream. Once freed,
    blocks can be re-allocated on the same stream, but not on any other stream."
    """

    def __init__(self, device, current):
        self._device, self.current, self._free = device, current, defaultdict(list)

    @contextmanager
    def stream(self, stream):
        before, self.current = self.current, stream.cuda_stream
        yield
        self.current = before

    def empty(self, nbytes, *, dtype, device):
        assert nbytes <= 1 << 20
        free = self._free[self.current]
        address = free.pop() if free else self._device.fake.allocate(1 << 20)
        made = Tensor(nbytes=nbytes, data_ptr=lambda: address)
        weakref.finalize(made, self._free[self.current].append, address)
        return made


def test_rows_and_working_memory_are_nothing_that_another_stream_still_writes(device, monkeypatch):
    monkeypatch.setattr(launchers, "kernel_code", lambda architecture: PTX)
    decoding, launching = device.fake.stream(), device.fake.stream()
    allocator = CachingAllocator(device, decoding)
    monkeypatch.setattr(torch.cuda, "stream", allocator.stream)
    monkeypatch.setattr(torch, "empty", allocator.empty)
    own = SimpleNamespace(cuda_stream=launching, device="cuda:0")
    launcher = CudaLauncher(0, launching, allocator_of_torch(own))
    samples, _, expected, _images = samples_on(device, 3)
    noise = device.of(np.full(1 << 20, 99, np.uint8))
    device.fake.hold(decoding, True)
    # As a decoder's temporary images: dropped, while what uses them is still queued.
    images = [allocator.empty(1 << 20, dtype=torch.uint8, device="cuda:0") for _ in range(8)]
    for image in images:
        device.fake.read_later(image.data_ptr(), noise.address, noise.nbytes, decoding)
    del image, images
    rows = [launcher.allocate(wanted.nbytes) for wanted in expected]
    given = [replace(s, out=row.address) for s, row in zip(samples, rows, strict=True)]
    assert DeviceProgram(pixel_plan(3)).launch(launcher, given) == [None] * 3
    launcher.wait()
    device.fake.hold(decoding, False)
    device.fake.wait(decoding)
    assert all(np.array_equal(content(row), e) for row, e in zip(rows, expected, strict=True))


def test_no_other_device_gets_a_context():
    program = """
from support.fake_cuda import FakeCuda
import os, pathlib, numpy as np
from device.test_launchers import PTX, Device, content, samples_on
from support.device_cases import pixel_plan
from fusionloader.transforms.executors.device import launchers
from fusionloader.transforms.executors.device.program import DeviceProgram
launchers.kernel_code = lambda architecture: PTX
fake = FakeCuda(pathlib.Path(os.environ["FUSIONLOADER_LIBCUDA"]))
device = Device(fake, 1)
launcher = launchers.CudaLauncher(1, 0, device.allocate)
samples, rows, expected, images = samples_on(device, 3)
assert DeviceProgram(pixel_plan(3)).launch(launcher, samples) == [None] * 3
launcher.wait()
for row, wanted in zip(rows, expected):
    assert np.array_equal(content(row), wanted)
assert fake.has_context(1) and not fake.has_context(0)
del launcher, samples, rows, images
assert not fake.has_context(0)
"""
    done = warm_start.completed("-c", program, env={**os.environ, "FAKE_CUDA_DEVICES": "ab"})
    assert done.returncode == 0, done.stderr


@pytest.fixture(autouse=True)
def _driver(fake_library):
    """Processes that are started load it too."""


def test_a_driver_that_is_too_old_says_what_to_do(device, monkeypatch):
    monkeypatch.setattr(launchers, "kernel_code", lambda architecture: PTX)
    monkeypatch.setenv("FAKE_CUDA_TOO_OLD", "1")
    with pytest.raises(KernelError, match=r"does not take .*\(209\).*update NVIDIA's driver"):
        CudaLauncher(0, 0, device.allocate)


def test_code_is_compiled_for_the_architecture_of_the_device(device, monkeypatch):
    compiled = []
    monkeypatch.setattr(launchers, "kernel_code", lambda number: compiled.append(number) or b"junk")
    monkeypatch.setenv("FAKE_CUDA_ARCHITECTURE", "121")
    with pytest.raises(KernelError, match="cuModuleLoadData"):
        CudaLauncher(0, 0, device.allocate)
    assert compiled == [121]


def test_too_little_memory_is_a_shortage(device, launcher, monkeypatch):
    program = DeviceProgram(pixel_plan(3))
    samples, *_ = samples_on(device, 1)
    monkeypatch.setattr(launcher, "_allocate", lambda nbytes: Memory(samples[0].out, nbytes))
    monkeypatch.setenv("FAKE_CUDA_MIB", "0")
    with pytest.raises(CudaError) as raised:
        program.launch(launcher, samples)
    assert is_shortage(raised.value)
    monkeypatch.undo()
    # The slot that found no memory can be used later.
    assert program.launch(launcher, samples) == [None]
    launcher.wait()


def test_a_lost_device_is_an_error_of_the_wait():
    program = """
import os, pathlib
from support.fake_cuda import FakeCuda
from device.test_launchers import PTX, Device, samples_on
from support.device_cases import pixel_plan
from fusionloader.transforms.executors.device import launchers
from fusionloader.transforms.executors.device.program import DeviceProgram
launchers.kernel_code = lambda architecture: PTX
fake = FakeCuda(pathlib.Path(os.environ["FUSIONLOADER_LIBCUDA"]))
device = Device(fake)
launcher = launchers.CudaLauncher(0, 0, device.allocate)
samples, *kept = samples_on(device, 1)
DeviceProgram(pixel_plan(3)).launch(launcher, samples)
fake.break_device()
try:
    launcher.wait()
except Exception as error:
    print(type(error).__name__, error)
del launcher
os._exit(0)
"""
    done = warm_start.completed("-c", program)
    assert "CudaError cuStreamSynchronize failed: CUDA_ERROR_ILLEGAL_ADDRESS" in done.stdout
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(nvrtc.find_library() is None, reason="no libnvrtc")
@pytest.mark.parametrize("kind", ["sm", "compute"])
@pytest.mark.few(1)
def test_what_nvrtc_makes_has_the_function_that_is_launched(device, monkeypatch, kind):
    compiler = nvrtc.Nvrtc()
    code, _ = compile_kernel(compiler, f"{kind}_{compiler.architectures[-1]}")
    monkeypatch.setattr(launchers, "kernel_code", lambda architecture: code)
    launcher = CudaLauncher(0, 0, device.allocate)
    samples, rows, expected, _images = samples_on(device, 2)
    assert DeviceProgram(pixel_plan(3)).launch(launcher, samples) == [None, None]
    launcher.wait()
    assert all(np.array_equal(content(row), e) for row, e in zip(rows, expected, strict=True))


class RecordingLauncher(HostLauncher):
    def __init__(self) -> None:
        self.samples: list[int] = []

    def launch(self, batch):
        self.samples.append(batch.samples)


def test_a_launch_says_which_samples_it_leaves_out_and_why():
    launcher, program = RecordingLauncher(), DeviceProgram(pixel_plan(3))
    good = DeviceSample(0, 10, 10, [("invert",)], 0)
    bad = DeviceSample(0, 10, 10, [("mix", 0.5, [0.5], [[("invert",)]], "sum")], 0)
    assert program.launch(launcher, [good, bad, good]) == [
        None,
        "a device program cannot do: mix",
        None,
    ]
    assert program.launch(launcher, [good]) == [None]
    assert program.launch(launcher, [bad])[0] is not None
    assert program.launch(launcher, []) == []
    assert launcher.samples == [2, 1]


def test_an_image_of_other_channels_is_left_out():
    augment = FusedAugment(pixel_plan(1), HostLauncher())
    grey, color = np.zeros((4, 4, 1), np.uint8), np.zeros((4, 4, 3), np.uint8)
    rows = augment.rows(2, 16)
    done = augment.run([color, grey], [[("invert",)]] * 2, rows)
    assert done == ["an image of 3 channels, not of 1", None]
    assert (content(rows[1]) == 255).all()


def test_an_image_that_is_not_in_one_piece_is_an_error():
    augment = FusedAugment(pixel_plan(3), HostLauncher())
    image = np.zeros((4, 8, 3), np.uint8)[:, ::2]
    with pytest.raises(ValueError, match="in one piece"):
        augment.run([image], [[]], augment.rows(1, 48))


def test_only_what_the_block_has_is_run():
    batch = _native.DeviceBatch(make_executor(pixel_plan(3)))
    image, out = np.zeros((5, 5, 3), np.uint8), np.full(75, 7, np.uint8)
    batch.add([("crop", 0, 0, 5, 5, FILL), ("invert",)], image.ctypes.data, 5, 5, out.ctypes.data)
    launcher = HostLauncher()
    block, work = launcher.allocate(batch.nbytes), launcher.allocate(batch.work_bytes)
    batch.write(block.address)
    with pytest.raises(ValueError, match="fewer samples"):
        _native.run_block_on_host(block.address, work.address, 2)
    assert (out == 7).all()
    _native.run_block_on_host(block.address, work.address, 1)
    assert (out == 255).all()
