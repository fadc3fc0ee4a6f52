"""Batches on a device: buffers that are reused, copies ahead. Host memory stands for the device."""

import ctypes
import weakref

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.batches import same_batches
from support.images import train_transform
from support.strict_device import StrictDevice
from torchvision.datasets import ImageFolder

from fusionloader import FusionLoader
from fusionloader.delivery.device_batches import DeviceDelivery, runs_without
from fusionloader.delivery.device_copies import CudaCopies, HostCopies
from fusionloader.delivery.device_ring import DeviceRing
from fusionloader.executors.layout import Layout
from fusionloader.iterators import slot_iterator as slot_iterator

HOST = torch.device("cpu")


class SlowDevice(HostCopies):
    """A consumer that passes its marks only when the test says so."""

    def __init__(self):
        self.marks = []

    def mark_consumer(self):
        mark = _Point()
        self.marks.append(mark)
        return mark


class _Point:
    passed = False

    def query(self):
        return self.passed


def test_a_buffer_comes_back_when_its_last_tensor_is_gone_and_the_device_has_passed():
    device = SlowDevice()
    ring = DeviceRing(device)
    first = ring.acquire(64)
    view = first.memory[10:20].view(2, 5)
    ring.deliver(first)
    assert ring.acquire(64) is not first
    row = view[0]
    del view
    assert ring.acquire(64) is not first
    assert not device.marks
    del row
    assert ring.acquire(64) is not first
    device.marks[0].passed = True
    assert ring.acquire(64) is first


def test_a_numpy_view_keeps_its_buffer():
    ring = DeviceRing(HostCopies())
    buffer = ring.acquire(8)
    array = buffer.memory.numpy()
    ring.deliver(buffer)
    assert ring.acquire(8) is not buffer
    del array
    assert ring.acquire(8) is buffer


def test_shared_buffers_are_for_the_gpu_worker_alone():
    ring = DeviceRing(HostCopies())
    assert len(ring.share(2, 64)) == 2
    shared = [ring.acquire_shared(64) for _ in range(3)]
    assert [buffer and buffer.number for buffer in shared] == [0, 1, None]
    unshared = ring.acquire(32)
    ring.release(shared[1])
    ring.release(unshared)
    assert ring.acquire(32) is unshared
    assert ring.acquire_shared(65) is None
    assert ring.acquire_shared(64) is shared[1]
    assert ring.allocated_bytes == 64 * 2 + 32


@given(st.sets(st.integers(0, 20)), st.integers(0, 21))
def test_runs_are_what_is_not_there(rows, count):
    rows = [row for row in rows if row < count]
    runs = list(runs_without(rows, count))
    covered = [row for begin, end in runs for row in range(begin, end)]
    assert covered == [row for row in range(count) if row not in rows]
    assert all(before[1] < after[0] for before, after in zip(runs, runs[1:], strict=False))


def test_rows_that_are_there_are_not_overwritten():
    layout = Layout.of((torch.zeros(2, 3), 0))
    delivery = DeviceDelivery(HostCopies(), DeviceRing(HostCopies()))
    host = bytearray(layout.batch_bytes(4))
    images, targets = layout.batch(host, 4, 4)
    images.copy_(torch.arange(24.0).view(4, 2, 3))
    targets.copy_(torch.arange(4))
    buffer = delivery.ring.acquire(layout.batch_bytes(4))
    layout.tensors(buffer.memory, 4, 4)[0].fill_(-1.0)
    batch = delivery.finish(delivery.begin(layout, host, buffer, 4, on_device=[1, 3]))
    assert torch.equal(batch[0][[0, 2]], images[[0, 2]])
    assert bool((batch[0][[1, 3]] == -1).all())
    assert torch.equal(batch[1], targets)


@pytest.fixture
def delivered_by_copies(monkeypatch):
    """Makes loaders deliver to "the device" through copies, as to a CUDA device."""
    rings = []

    def make(device):
        rings.append(DeviceRing(HostCopies()))
        return DeviceDelivery(HostCopies(), rings[-1])

    monkeypatch.setattr(slot_iterator, "make_delivery", make)
    monkeypatch.setattr(slot_iterator, "CudaPageLocking", lambda: None)
    return rings


@pytest.mark.parametrize("in_order", [True, False])
def test_an_epoch_of_copies_is_the_epoch(image_folder, delivered_by_copies, in_order, monkeypatch):
    dataset = ImageFolder(str(image_folder), train_transform())
    arguments = {"batch_size": 7, "num_workers": 2, "seed": 1, "in_order": in_order}
    kept = list(FusionLoader(dataset, **arguments))
    monkeypatch.undo()
    expected = list(FusionLoader(dataset, **arguments))
    if not in_order:
        kept.sort(key=lambda batch: float(batch[0].sum()))
        expected.sort(key=lambda batch: float(batch[0].sum()))
    assert same_batches(kept, expected)


def test_buffers_are_used_again_unless_batches_are_kept(image_folder, delivered_by_copies):
    dataset = ImageFolder(str(image_folder), train_transform())
    for _ in FusionLoader(dataset, 4, num_workers=1):
        pass
    kept = list(FusionLoader(dataset, 4, num_workers=1))
    dropped, kept_bytes = (ring.allocated_bytes for ring in delivered_by_copies)
    assert len(kept) == 10
    assert dropped <= kept_bytes / 2


def test_skipped_samples_leave_no_row_on_the_device(image_folder, tmp_path, delivered_by_copies):
    dataset = ImageFolder(str(image_folder), train_transform())
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(b"no image")
    dataset.samples[5] = (str(broken), 0)
    loader = FusionLoader(dataset, 4, num_workers=1, on_error="skip", seed=0)
    batches = list(loader)
    assert [len(images) for images, _ in batches] == [4, 3, *[4] * 8]
    whole = list(FusionLoader(ImageFolder(str(image_folder), train_transform()), 4, seed=0))
    assert torch.equal(batches[1][0], whole[1][0][[0, 2, 3]])


def test_a_new_epoch_drops_what_was_on_its_way(image_folder, delivered_by_copies):
    dataset = ImageFolder(str(image_folder), train_transform())
    loader = FusionLoader(dataset, 4, num_workers=2, persistent_workers=True, seed=0)
    next(iter(loader))
    loader.set_epoch(3)
    ours = list(loader)
    reference = FusionLoader(dataset, 4, seed=0)
    reference.set_epoch(3)
    assert same_batches(ours, list(reference))


def strict_delivery(device):
    copies = CudaCopies(HOST, cuda=device, empty=device.empty)
    return DeviceDelivery(copies, DeviceRing(copies))


LAYOUT = Layout.of((torch.zeros(2, 3), 0))


def host_batch(value, count=4):
    owner = (ctypes.c_char * LAYOUT.batch_bytes(count))()
    images, targets = LAYOUT.batch(owner, count, count)
    images.fill_(value)
    targets.fill_(value)
    return owner


def test_copies_wait_for_training_to_be_done_with_memory_that_it_freed():
    device = StrictDevice()
    delivery = strict_delivery(device)
    activations = device.empty(LAYOUT.batch_bytes(4)).fill_(7)
    place, seen = (activations.data_ptr(), activations.nbytes), []
    device.training.enqueue(lambda: seen.append(set(ctypes.string_at(*place))))
    del activations
    arriving = delivery.begin(LAYOUT, host_batch(3.0), None, 4)
    device.run()
    assert seen == [{7}]
    assert bool(arriving.batch[0].eq(3.0).all())


def test_host_memory_is_there_until_the_copies_have_read_it():
    device = StrictDevice()
    delivery = strict_delivery(device)
    owner = host_batch(5.0)
    idle_when_freed = []
    weakref.finalize(owner, lambda: idle_when_freed.append(device.idle))
    arriving = delivery.begin(LAYOUT, owner, None, 4)
    del owner
    assert not idle_when_freed and not device.idle
    del arriving, delivery  # as when an epoch is left
    assert idle_when_freed == [True]


@pytest.mark.parametrize("kept", [0, 3])
def test_an_epoch_on_a_strict_device_is_the_epoch(image_folder, monkeypatch, kept):
    device = StrictDevice()
    monkeypatch.setattr(slot_iterator, "make_delivery", lambda _: strict_delivery(device))
    monkeypatch.setattr(slot_iterator, "CudaPageLocking", lambda: None)
    dataset = ImageFolder(str(image_folder), train_transform())
    arguments = {"batch_size": 7, "num_workers": 2, "seed": 1}
    seen, batches = [], []

    def train(batch):
        leaves = [torch.empty_like(leaf) for leaf in batch]
        seen.append(leaves)
        for leaf, copy in zip(batch, leaves, strict=True):
            places = copy.data_ptr(), leaf.data_ptr(), leaf.nbytes
            device.training.enqueue(lambda places=places: ctypes.memmove(*places))

    loader = FusionLoader(dataset, **arguments)
    for _ in range(2):
        for number, batch in enumerate(loader):
            train(batch)
            batches.append(batch)
            del batches[: max(0, len(batches) - kept)]
            if number % 3 == 2:
                device.run()
    device.run()
    monkeypatch.undo()
    plain = FusionLoader(dataset, **arguments)
    assert same_batches(seen, [batch for _ in range(2) for batch in plain])
