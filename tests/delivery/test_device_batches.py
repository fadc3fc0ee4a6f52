"""Batches on a device: copies that begin while a batch is made.

The device is the fake driver's. A late one does everything as late as it may, copies before
training, and aborts where memory is let go under work that uses it.
"""

import gc
import multiprocessing
import os
import time
from dataclasses import replace

import pytest
import torch
from PIL import Image
from support import warm_start
from support.batches import same_batches
from support.fake_device import read_epoch
from support.images import train_transform
from support.participants import participant
from support.raised_at import Steps, needs_returns
from support.waiting import PATIENCE, wait_until
from torch.utils.data import Dataset
from torchvision import transforms
from torchvision.datasets import ImageFolder

from fusionloader import FusionLoader, GpuWorker
from fusionloader._native import cuda as native
from fusionloader.engine.delivery import cuda_device
from fusionloader.engine.delivery.device_memory import DeviceMemory
from fusionloader.engine.delivery.host_batches import without_rows
from fusionloader.engine.iterators import slot_iterator
from fusionloader.gpu import eligibility
from fusionloader.gpu.control import GpuControl
from fusionloader.observe.trace.files import read_timeline
from fusionloader.route.native_backend import NativeBackend
from fusionloader.system.gpu_memory.errors import CudaError
from fusionloader.transforms.executors.device.fused_augment import FusedAugment

ARGUMENTS = {"batch_size": 7, "num_workers": 2, "seed": 1}


# ---- epochs ------------------------------------------------------------------------------------


@pytest.mark.few(2)
@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("converts", [True, False])
def test_an_epoch_on_a_device_is_the_epoch(
    train_set, to_fake_device, fake_cuda, converts, in_order
):
    expected = list(FusionLoader(train_set, **ARGUMENTS))
    to_fake_device(converts)
    kept = list(FusionLoader(train_set, in_order=in_order, **ARGUMENTS))
    fake_cuda.run()  # nothing here is on training's stream
    if not in_order:
        kept.sort(key=lambda batch: float(batch[0].sum()))
        expected.sort(key=lambda batch: float(batch[0].sum()))
    assert same_batches(kept, expected)


class SecondWaits(Dataset):
    """Samples of which the first one of the second mini-batch waits."""

    def __init__(self, may_go_on):
        self.may_go_on = may_go_on

    def __len__(self):
        return 32

    def __getitem__(self, index):
        assert index != 4 or self.may_go_on.wait(PATIENCE)
        return torch.full((2000,), index)


def test_a_batch_that_is_taken_behind_a_later_one_is_not_returned_for_it(to_fake_device, fake_cuda):
    may_go_on = multiprocessing.get_context("fork").Event()
    to_fake_device(False)
    loader = FusionLoader(SecondWaits(may_go_on), 4, num_workers=2, in_order=False)
    iterator = iter(loader)
    batches, in_flight = [next(iterator)], iterator._manager.in_flight
    second = next(job for job in in_flight.jobs if job.number == 1)
    wait_until(lambda: sum(map(in_flight.is_done, in_flight.wanted)) >= 2)
    batches.append(next(iterator))
    assert any(job.taken for job in in_flight.undelivered)
    may_go_on.set()
    wait_until(lambda: in_flight.is_done(second))
    batches += iterator
    fake_cuda.run()
    assert sorted(int(batch[0, 0]) for batch in batches) == list(range(0, 32, 4))


@pytest.mark.parametrize("copies_first", [True, False])
@pytest.mark.parametrize("converts", [True, False])
@pytest.mark.parametrize("kept", [0, 3])
@pytest.mark.few(2)
def test_an_epoch_on_a_late_device_is_the_epoch(
    train_set, to_fake_device, fake_cuda, kept, converts, copies_first
):
    plain = FusionLoader(train_set, 4, num_workers=2, seed=1)
    expected = [batch for _ in range(2) for batch in plain]
    made = to_fake_device(converts)
    fake_cuda.be_late(last_made_first=copies_first)
    loader = FusionLoader(train_set, 4, num_workers=2, seed=1, persistent_workers=True)
    seen, batches = [], []
    for _ in range(2):
        for number, batch in enumerate(loader):
            device = made[-1].device
            seen.append([device.read(leaf) for leaf in batch])
            batches.append(batch)
            del batches[: max(0, len(batches) - kept)]
            if number % 3 == 1 and copies_first:
                fake_cuda.wait(device.copy_stream)  # training is where it was
            if number % 3 == 2:
                fake_cuda.wait(device.stream)  # copies of batches behind it are not done then
    fake_cuda.run()
    assert same_batches(seen, expected)


@pytest.mark.parametrize("element", [torch.float16, torch.float32, torch.float64])
def test_levels_become_what_cpu_workers_would_have_written(image_folder, to_fake_device, element):
    convert = [
        transforms.ToTensor(),
        transforms.Normalize([0.4, 0.5, 0.6], [0.2, 0.3, 0.25]),
        transforms.ConvertImageDtype(element),
    ]
    transform = transforms.Compose([transforms.RandomResizedCrop(33), *convert])
    dataset = ImageFolder(str(image_folder), transform)
    plain = FusionLoader(dataset, **ARGUMENTS)
    expected = list(plain)
    made = to_fake_device()
    loader = FusionLoader(dataset, **ARGUMENTS)
    assert same_batches(read_epoch(loader, made), expected)
    assert loader.stats().copied_bytes == 40 * (3 * 33 * 33 + 8)  # levels and labels
    assert plain.stats().copied_bytes == 0
    shared = [each.stats().shared_memory_bytes for each in (loader, plain)]
    assert shared[0] < shared[1] / element.itemsize * 1.3


def test_levels_cross_again_when_memory_of_the_device_is_no_longer_short(
    train_set, to_fake_device, fake_cuda, monkeypatch
):
    def short(*_):
        raise CudaError("cuModuleLoadData failed: CUDA_ERROR_OUT_OF_MEMORY (2): out of memory", 2)

    made, kernel = to_fake_device(), native.Kernel
    first, second = (FusionLoader(train_set, **ARGUMENTS) for _ in range(2))
    with monkeypatch.context() as patch:
        patch.setattr(cuda_device, "_conversions", {})
        patch.setattr(native, "Kernel", short)
        with pytest.warns(RuntimeWarning, match="as they are, not as 8-bit levels"):
            read_epoch(first, made)
        patch.setattr(native, "Kernel", kernel)
        read_epoch(second, made)
    assert second.stats().copied_bytes < first.stats().copied_bytes / 3


def test_a_trace_sees_the_copies(train_set, to_fake_device, tmp_path):
    made = to_fake_device()
    loader = FusionLoader(train_set, **ARGUMENTS)
    with loader.trace(tmp_path / "a.json"):
        read_epoch(loader, made)
    timeline = read_timeline(tmp_path / "a.json")
    assert [copy.batch for copy in timeline.copies] == [step.batch for step in timeline.steps]
    assert sum(copy.nbytes for copy in timeline.copies) >= 40 * 3 * 32 * 32
    for copy, step in zip(timeline.copies, timeline.steps, strict=True):
        assert copy.begin_ns <= copy.end_ns <= step.delivered_ns
        assert step.complete_ns <= copy.end_ns


def test_the_device_s_time_for_copies_is_measured(image_folder, to_fake_device):
    large = transforms.Compose([transforms.RandomResizedCrop(160), transforms.ToTensor()])
    dataset = ImageFolder(str(image_folder), large)
    plain = FusionLoader(dataset, **ARGUMENTS)
    list(plain)
    made = to_fake_device()
    loader = FusionLoader(dataset, **ARGUMENTS)
    for _ in range(2):  # a time is known when the device has passed its copy
        read_epoch(loader, made)
    copy = next(stage for stage in loader.stats().stages if stage.name == "copy")
    assert copy.seconds > 0
    assert copy.capacity == pytest.approx(copy.samples / copy.seconds)
    assert "copy" not in [stage.name for stage in plain.stats().stages]


def test_grey_images_come_as_levels(tmp_path, to_fake_device):
    (tmp_path / "a").mkdir()
    for number in range(12):
        Image.radial_gradient("L").rotate(number).save(tmp_path / "a" / f"{number}.png")
    transform = transforms.Compose(
        [transforms.Grayscale(), transforms.Resize((20, 30)), transforms.ToTensor()]
    )
    dataset = ImageFolder(str(tmp_path), transform)
    expected = list(FusionLoader(dataset, **ARGUMENTS))
    made = to_fake_device()
    assert same_batches(read_epoch(FusionLoader(dataset, **ARGUMENTS), made), expected)


def test_elements_that_are_erased_come_as_they_are(image_folder, to_fake_device):
    transform = transforms.Compose([train_transform(), transforms.RandomErasing(p=1)])
    dataset = ImageFolder(str(image_folder), transform)
    expected = list(FusionLoader(dataset, **ARGUMENTS))
    made = to_fake_device()
    assert same_batches(read_epoch(FusionLoader(dataset, **ARGUMENTS), made), expected)


class Captioned(torch.utils.data.Dataset):
    """Samples of user code: texts stay in host memory, small leaves and empty ones go along."""

    def __len__(self):
        return 30

    def __getitem__(self, index):
        pixels = torch.full((3, 40, 40), float(index))
        return {"pixels": pixels, "text": f"no. {index}", "label": index, "none": torch.empty(0)}


def test_samples_of_user_code_go_to_the_device(to_fake_device, fake_cuda):
    expected = list(FusionLoader(Captioned(), **ARGUMENTS))
    made = to_fake_device()
    batches = []
    for batch in FusionLoader(Captioned(), **ARGUMENTS):
        on_device = {name: batch[name] for name in ("pixels", "label")}
        read = {name: made[-1].device.read(leaf) for name, leaf in on_device.items()}
        batches.append({**batch, **read})
    fake_cuda.run()
    assert same_batches(batches, expected)


def test_samples_without_an_element_go_to_the_device(to_fake_device):
    to_fake_device()
    dataset = torch.utils.data.TensorDataset(torch.empty(30, 0))
    batches = list(FusionLoader(dataset, **ARGUMENTS))
    assert [tuple(batch.shape) for (batch,) in batches] == [(7, 0)] * 4 + [(2, 0)]


def test_a_gpu_worker_on_the_cpu_backend_writes_levels(image_folder, to_fake_device, fake_cuda):
    pytest.importorskip("nvidia.dali")
    transform = transforms.Compose([transforms.CenterCrop(40), transforms.ToTensor()])
    dataset = ImageFolder(str(image_folder), transform)
    expected = list(FusionLoader(dataset, **ARGUMENTS))
    made = to_fake_device()
    gpu_worker = GpuWorker(device="cpu", sharing="spatial")
    with FusionLoader(
        dataset, gpu_worker=gpu_worker, persistent_workers=True, **ARGUMENTS
    ) as loader:
        deadline = time.monotonic() + PATIENCE
        while loader.stats().gpu_worker.get("samples", 0) <= 20:
            assert time.monotonic() < deadline, "the GPU worker took no part"
            batches = []
            for batch in loader:
                batches.append([made[-1].device.read(leaf) for leaf in batch])
                time.sleep(0.01)
            fake_cuda.run()
            assert same_batches(batches, expected)


@pytest.mark.few(2)
@pytest.mark.parametrize(("converts", "interrupted"), [(False, False), (True, False), (True, True)])
def test_a_thread_writes_into_the_buffers_of_the_device(
    image_folder, to_fake_device, fake_cuda, monkeypatch, converts, interrupted
):
    """It writes elements, also where CPU workers write levels that the device converts.

    An exception in the delivery loses neither a buffer nor what was written into it.
    """
    transform = transforms.Compose([transforms.CenterCrop(40), transforms.ToTensor()])
    dataset = ImageFolder(str(image_folder), transform)
    expected = list(FusionLoader(dataset, **ARGUMENTS))
    made = to_fake_device(converts)
    monkeypatch.setattr(NativeBackend, "_gpu_writes_to_slot", False)
    real = eligibility.gpu_options
    monkeypatch.setattr(  # the kernel is the host's, which sees memory of the fake device
        eligibility, "gpu_options", lambda *given: replace(real(*given), buffers=3)
    )
    written, run = [], FusedAugment.run

    def observed(self, images, operations, rows):
        written.extend(row.address for row in rows)
        return run(self, images, operations, rows)

    monkeypatch.setattr(FusedAugment, "run", observed)
    gpu_worker = GpuWorker(device="cpu", where="thread", decoder="torchvision", sharing="spatial")
    with FusionLoader(
        dataset, gpu_worker=gpu_worker, persistent_workers=True, **ARGUMENTS
    ) as loader:

        def some_by_gpu():
            iterator, batches = iter(loader), []
            for _ in expected:
                steps = Steps("engine/delivery", events=("c_return",), called="finish")
                at = 0 if interrupted else -1
                try:
                    batch = steps.raise_at(at, KeyboardInterrupt(), lambda: next(iterator))
                except KeyboardInterrupt:
                    gc.collect()  # tensors in its traceback
                    batch = next(iterator)
                batches.append([made[-1].device.read(leaf) for leaf in batch])
            assert next(iterator, None) is None
            fake_cuda.run()
            assert same_batches(batches, expected)
            return loader.stats().gpu_worker["samples"] > 20

        wait_until(some_by_gpu)
        openers = participant(loader._iterator._manager, GpuControl)._connections.buffers
        buffers = [opened(*arguments) for opened, arguments in openers]
        assert len(buffers) == 3
        assert any(
            buffer.data_ptr() <= address < buffer.data_ptr() + buffer.nbytes
            for buffer in buffers
            for address in written
        )


# ---- when --------------------------------------------------------------------------------------


@pytest.fixture
def large_set(image_folder):
    """Its rows are large enough to be copied one by one."""
    return ImageFolder(str(image_folder), train_transform(64))


def test_copies_begin_before_training_asks(large_set, to_fake_device):
    to_fake_device()
    iterator = iter(FusionLoader(large_set, 20, num_workers=1, prefetch_factor=1, seed=0))
    copies = iterator._manager._memory._copies
    wait_until(lambda: copies.copied_bytes >= 20 * 3 * 64 * 64)
    assert iterator._num_yielded == 0


def test_a_captured_graph_is_not_disturbed(large_set, to_fake_device, fake_cuda):
    made = to_fake_device()
    iterator = iter(FusionLoader(large_set, **ARGUMENTS))
    next(iterator)
    copies = iterator._manager._memory._copies
    before = copies.copied_bytes
    kept = DeviceMemory(0, 64)
    fake_cuda.capture(made[-1].device.stream, True)
    wait_until(lambda: copies.copied_bytes > before or iterator._in_flight.ready >= 2)
    del kept  # whose memory is freed now
    fake_cuda.capture(made[-1].device.stream, False)
    assert len(list(iterator)) == 5


def test_host_memory_is_there_until_the_copies_have_read_it(train_set, to_fake_device, fake_cuda):
    to_fake_device()
    fake_cuda.be_late()
    iterator = iter(FusionLoader(train_set, **ARGUMENTS))
    kept = next(iterator)  # or freeing it would wait for the device
    assert not fake_cuda.idle
    del iterator  # as when an epoch is left
    gc.collect()  # page-locked memory is let go: under a copy from it the driver aborts
    del kept


def test_slots_do_not_wait_for_training_which_reads_none(train_set, to_fake_device, fake_cuda):
    made = to_fake_device()
    iterator = iter(FusionLoader(train_set, 2, num_workers=1))
    kept = [next(iterator)]
    fake_cuda.hold(made[-1].device.stream, True)  # as when this process runs ahead of the device
    for batch in iterator:
        kept.append(batch)
        fake_cuda.wait(made[-1].device.copy_stream)
    assert iterator._manager.totals().slots < len(kept) / 2
    fake_cuda.hold(made[-1].device.stream, False)


@needs_returns
@pytest.mark.parametrize("called", ["begin", "finish"])
def test_an_exception_behind_a_copy_leaves_none_under_way(
    train_set, to_fake_device, fake_cuda, called
):
    to_fake_device()
    fake_cuda.be_late()
    loader = FusionLoader(train_set, 40, num_workers=1)
    steps = Steps("engine/delivery", events=("c_return",), called=called)
    with pytest.raises(KeyboardInterrupt, match="planted"):
        steps.raise_at(0, KeyboardInterrupt("planted"), lambda: next(iter(loader)))
    assert fake_cuda.idle


def test_an_epoch_that_is_left_leaves_nothing_to_the_next(train_set, to_fake_device, fake_cuda):
    reference = FusionLoader(train_set, **ARGUMENTS)
    reference.set_epoch(3)
    expected = list(reference)
    made = to_fake_device()
    fake_cuda.be_late()
    loader = FusionLoader(train_set, persistent_workers=True, **ARGUMENTS)
    next(iter(loader))
    loader.set_epoch(3)
    seen = []
    for batch in loader:
        seen.append([made[-1].device.read(leaf) for leaf in batch])
    fake_cuda.run()
    assert same_batches(seen, expected)


def test_a_forked_child_can_drop_an_iterator(train_set, to_fake_device):
    to_fake_device()
    iterator = iter(FusionLoader(train_set, **ARGUMENTS))
    for _ in range(6):  # the copying thread may be anywhere at the fork
        kept = [next(iterator)]
        child = os.fork()
        if child == 0:
            del iterator, kept
            gc.collect()
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert not list(iterator)


# ---- memory that is used -----------------------------------------------------------------------


@pytest.mark.parametrize("converts", [True, False])
def test_batches_that_a_side_stream_fetches_are_whole(
    train_set, to_fake_device, fake_cuda, converts
):
    expected = list(FusionLoader(train_set, 4, num_workers=2, seed=1))
    made = to_fake_device(converts)
    fake_cuda.be_late()
    iterator = iter(FusionLoader(train_set, 4, num_workers=2, seed=1))
    device, side, seen = made[-1].device, fake_cuda.stream(), []
    with device.on(side):
        ahead = next(iterator)
    while ahead is not None:  # as the usual prefetcher does
        native.Event(0, side).hold_back(device.stream)
        batch = ahead
        for leaf in batch:
            device.record(leaf, device.stream)
        with device.on(side):
            ahead = next(iterator, None)
        seen.append([device.read(leaf) for leaf in batch])
        del batch
        fake_cuda.wait(device.copy_stream)
    fake_cuda.run()
    assert same_batches(seen, expected)


def test_buffers_are_used_again_unless_batches_are_kept(train_set, to_fake_device, fake_cuda):
    made = to_fake_device()
    for _ in FusionLoader(train_set, 2, num_workers=1):
        fake_cuda.run()
    kept = list(FusionLoader(train_set, 2, num_workers=1))
    dropped, kept_bytes = (each.device.allocated_bytes for each in made)
    assert len(kept) == 20
    assert dropped <= kept_bytes / 2


def test_kept_labels_keep_no_images(large_set, to_fake_device, fake_cuda):
    made = to_fake_device()
    kept = []
    for _, labels in FusionLoader(large_set, 2, num_workers=1):
        kept.append(labels)
        fake_cuda.run()
    assert len(kept) == 20
    assert made[-1].device.allocated_bytes <= 8 * (2 * 3 * 64 * 64 * 5 + 64)


def test_leaves_have_versions_of_their_own(large_set, to_fake_device):
    to_fake_device()
    images, labels = next(iter(FusionLoader(large_set, 2, num_workers=1)))
    before = labels._version
    images[0] = 0
    assert labels._version == before


def test_skipped_samples_leave_no_row_on_the_device(
    image_folder, tmp_path, to_fake_device, fake_cuda, monkeypatch
):
    dataset = ImageFolder(str(image_folder), train_transform())
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(b"no image")
    dataset.samples[5] = (str(broken), 0)
    whole = list(FusionLoader(ImageFolder(str(image_folder), train_transform()), 4, seed=0))
    to_fake_device()

    def when_done(*arguments):  # a device would do it in the order of the stream
        fake_cuda.run()
        return without_rows(*arguments)

    monkeypatch.setattr(slot_iterator, "without_rows", when_done)
    loader = FusionLoader(dataset, 4, num_workers=1, on_error="skip", seed=0)
    batches = list(loader)
    fake_cuda.run()
    assert [len(images) for images, _ in batches] == [4, 3, *[4] * 8]
    assert torch.equal(batches[1][0], whole[1][0][[0, 2, 3]])


def test_a_sample_that_fails_raises_as_without_a_device(image_folder, tmp_path, to_fake_device):
    dataset = ImageFolder(str(image_folder), train_transform())
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(b"no image")
    dataset.samples[5] = (str(broken), 0)
    to_fake_device()
    with pytest.raises(Exception, match="broken.jpg"):
        list(FusionLoader(dataset, 4, num_workers=1, seed=0))


LOST = """
import os, sys
from pathlib import Path
from support.fake_cuda import FakeCuda
from support.fake_device import delivery
from support.images import train_transform
from torchvision.datasets import ImageFolder
from fusionloader import FusionLoader
from fusionloader.engine.iterators import slot_iterator

cuda = FakeCuda(Path(os.environ["FUSIONLOADER_LIBCUDA"]))
slot_iterator.make_delivery = lambda _: delivery(cuda)
iterator = iter(FusionLoader(ImageFolder(sys.argv[1], train_transform()), 4, num_workers=1))
next(iterator)
cuda.break_device()
list(iterator)
"""


@pytest.mark.usefixtures("fake_library")
def test_a_lost_device_is_an_error_that_says_so(train_set, tmp_path):
    status, complaints = warm_start.end_of(LOST, tmp_path, train_set.root)
    assert complaints.count("Traceback") == 1, complaints  # nothing more on the way out
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in complaints.splitlines()[-1]
    assert status == 1
