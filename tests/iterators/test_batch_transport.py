"""Whole batches through slots: what a custom collate_fn or a stream makes arrives as it is."""

import gc
import os
import pickle
import re
import resource
import sys
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from support import warm_start
from support.waiting import PATIENCE
from torch.utils.data import DataLoader, Dataset, IterableDataset

from fusionloader import FusionLoader
from fusionloader.transforms.executors.batch_transport import BatchReceiver, Packed

ROWS = 5000  # enough for a slot


def values(index):
    return torch.full((ROWS,), float(index))


class Numbers(Dataset):
    def __init__(self, count=24):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return values(index)


class Stream(IterableDataset):
    def __iter__(self):
        return map(values, range(24))


class Marked(torch.Tensor):
    """As the images of torchvision's v2 are."""


def plain(batch):
    return torch.stack(batch)


def nested(batch):
    whole = torch.stack(batch)
    return {
        "image": whole,
        "same": whole,
        "half": (whole / 2).half(),
        "transposed": whole.t().contiguous().t(),
        "array": whole.numpy().copy(),
        "of objects": np.array([None, "text"]),
        "small": torch.arange(3),
        "text": "words",
        "grad": whole.clone().requires_grad_(),
        "sparse": torch.eye(100).to_sparse(),
        "empty": torch.empty(0, ROWS),
        "type": torch.nn.Parameter(whole.clone()),
        "subclass": Marked(whole.clone()),
    }


def views(batch):
    whole = torch.stack(batch)
    return whole, whole[0], whole[1:]


def offset(batch):
    whole = torch.stack(batch)
    return whole[-1:].expand_as(whole)


def small(batch):
    return [torch.tensor([float(sample[0])]) for sample in batch]


def growing(batch):
    first = int(batch[0][0])
    return torch.stack(batch).repeat(1 + first // 4, 1)


KEPT = []


def keeping(batch):
    """A collate_fn that goes on using what it has returned."""
    if KEPT:
        KEPT[-1].zero_()
    KEPT.append(torch.utils.data.default_collate(batch))
    return KEPT[-1].clone() if len(KEPT) % 2 else KEPT[-1]


def mapped():
    """Slots that are mapped in this process."""
    return len(re.findall(r"memfd:fusionloader-\d+-batch", Path("/proc/self/maps").read_text()))


def is_same(one, other):
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        if one.is_sparse:
            return torch.equal(one.to_dense(), other.to_dense())
        alike = one.stride() == other.stride() and one.requires_grad == other.requires_grad
        return alike and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, np.ndarray):
        alike = one.dtype == other.dtype and one.flags.writeable == other.flags.writeable
        return alike and np.array_equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(is_same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(is_same, one, other))
    return one == other


@pytest.mark.parametrize(
    ("collate", "method"),
    [
        *((each, "fork") for each in (plain, nested, views, offset, growing)),
        (nested, "forkserver"),
        pytest.param(nested, "spawn", marks=pytest.mark.matrix),
    ],
)
@pytest.mark.few(3)
def test_batches_are_torchs(collate, method):
    arguments = {"num_workers": 2, "collate_fn": collate, "multiprocessing_context": method}
    expected = list(DataLoader(Numbers(), 4, **arguments))
    found = list(FusionLoader(Numbers(), 4, **arguments))  # all of them are kept
    assert is_same(found, expected)


def test_what_is_one_object_stays_one():
    (batch, *_) = FusionLoader(Numbers(4), 4, num_workers=1, collate_fn=nested)
    assert batch["image"] is batch["same"]


def test_views_still_share_their_memory():
    ((whole, first, _),) = FusionLoader(Numbers(4), 4, num_workers=1, collate_fn=views)
    whole[0, 0] = 77
    assert first[0] == 77


@pytest.mark.parametrize("dataset", [Numbers(), Stream()], ids=["map", "stream"])
def test_a_delivered_batch_is_never_overwritten(dataset):
    loader = FusionLoader(
        dataset, 2, num_workers=1, collate_fn=plain, persistent_workers=True, prefetch_factor=2
    )
    parts = []
    for epoch in range(3):
        for number, batch in enumerate(loader):
            if (number + epoch) % 3 == 0:  # a view is enough to keep it
                parts.append((batch[0, 0].clone(), batch[0]))
            elif number % 2:
                batch.zero_()  # it is the user's
    del batch
    gc.collect()
    for value, part in parts:
        assert (part == value).all()


def odd_arrays(batch):
    whole = torch.stack(batch).numpy()
    read_only = np.frombuffer(whole.tobytes(), np.float32)
    return whole.astype(">f4"), read_only, read_only[:3], whole[::2], whole.T


def test_arrays_are_writeable_and_in_native_byte_order_as_by_torchs_workers():
    arguments = {"num_workers": 1, "collate_fn": odd_arrays}
    expected = list(DataLoader(Numbers(), 4, **arguments))
    assert is_same(list(FusionLoader(Numbers(), 4, **arguments)), expected)


def test_batches_without_a_slot_are_torchs():
    arguments = {"num_workers": 1, "collate_fn": nested}
    expected = list(DataLoader(Numbers(64), 4, **arguments))
    found = list(FusionLoader(Numbers(64), 4, **arguments))  # more than there are slots
    assert is_same(found, expected)


@contextmanager
def no_more_files():
    """This process may open none."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def in_want_of_files(batch):
    """A collate_fn after which its worker may open no more files, until the next batches."""
    low = 3 if batch[0][0] < 80 else 1024
    resource.setrlimit(resource.RLIMIT_NOFILE, (low, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    return nested(batch)


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_a_worker_that_may_open_no_file_loses_no_batch(method):
    expected = list(DataLoader(Numbers(160), 4, collate_fn=nested))
    loader = FusionLoader(
        Numbers(160),
        4,
        num_workers=1,
        collate_fn=in_want_of_files,
        multiprocessing_context=method,
        timeout=PATIENCE,
    )
    assert all(map(is_same, loader, expected))


def test_training_that_may_open_no_file_loses_no_batch():
    expected = list(DataLoader(Numbers(), 1, collate_fn=nested))
    loader = FusionLoader(Numbers(), 1, num_workers=1, collate_fn=nested, timeout=PATIENCE)
    batches, found = iter(loader), []
    with no_more_files():
        found += [next(batches) for _ in range(12)]
    assert is_same(found + list(batches), expected)


def refused():
    raise ValueError("not here")


class Refused:
    """Cannot be unpickled."""

    def __reduce__(self):
        return refused, ()


def refused_by_training(batch):
    return plain(batch), Refused() if int(batch[0][0]) % 8 else None


def refused_by_worker(batch):
    return plain(batch), (lambda: None) if int(batch[0][0]) % 8 else None


@pytest.mark.parametrize(
    ("collate", "text"),
    [
        (refused_by_training, "not here"),
        (refused_by_worker, "worker process 0, which cannot send its batch"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_batch_that_cannot_be_sent_is_an_error_and_the_others_come(collate, text):
    loader = FusionLoader(Numbers(160), 4, num_workers=1, collate_fn=collate, timeout=PATIENCE)
    batches = iter(loader)
    receiver = batches._backend.receiver
    for first in range(0, 160, 8):
        batch = next(batches)[0]
        assert torch.equal(batch, plain([values(first + i) for i in range(4)]))
        del batch
        with pytest.raises(Exception, match=text):
            next(batches)
    assert not list(batches)
    receiver.slots.collect()
    slots = receiver.slots._mapped.values()
    assert slots and all(slot.is_free() for slot in slots)


def test_an_iterator_that_outlives_its_script_ends_without_a_word():
    done = warm_start.completed(
        "-c",
        "from fusionloader import FusionLoader\n"
        "batches = iter(FusionLoader([1] * 64, 4, num_workers=1, collate_fn=list))\n"
        "next(batches)",
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("collate", [small, views], ids=lambda f: f.__name__)
def test_a_batch_leaves_no_file_open(collate):
    def counted(batch):
        return collate(batch), len(os.listdir("/proc/self/fd"))

    loader = FusionLoader(Numbers(400), 2, num_workers=1, collate_fn=counted)
    descriptors = [count for _, count in loader]
    assert descriptors[-1] <= descriptors[20] + 4


def test_slots_are_used_again():
    loader = FusionLoader(Numbers(400), 2, num_workers=1, collate_fn=plain, persistent_workers=True)
    addresses = {batch.data_ptr() for batch in loader}
    assert len(addresses) <= 8
    before = mapped()
    for _ in loader:
        pass
    assert mapped() <= before + 2
    loader.close()


def test_a_worker_that_keeps_what_it_returned_harms_no_batch():
    KEPT.clear()
    expected = [torch.stack([values(i) for i in range(n, n + 4)]) for n in range(0, 24, 4)]
    loader = FusionLoader(Numbers(), 4, num_workers=1, collate_fn=keeping, prefetch_factor=1)
    found = [batch.clone() for batch in loader]
    copies = list(zip(found, expected, strict=True))[::2]  # every other is a copy of what is kept
    assert all(torch.equal(one, other) for one, other in copies)


def test_a_forked_child_frees_no_batch_of_its_parents():
    loader = FusionLoader(Numbers(40), 2, num_workers=1, collate_fn=plain, persistent_workers=True)
    batches = iter(loader)
    kept = next(batches)
    pid = os.fork()
    if pid == 0:
        del kept
        gc.collect()
        os._exit(0)
    os.waitpid(pid, 0)
    for _ in batches:
        pass
    assert torch.equal(kept, plain([values(0), values(1)]))


def test_nothing_is_left_in_shared_memory():
    gc.collect()
    before = mapped()
    batches = list(FusionLoader(Numbers(), 4, num_workers=2, collate_fn=plain))
    assert mapped() > before
    del batches
    gc.collect()
    assert mapped() == before


def test_an_error_comes_after_the_batches_before_it():
    def failing(batch):
        if batch[0][0] >= 12:
            raise KeyError("bad")
        return plain(batch)

    loader = FusionLoader(Numbers(), 4, num_workers=1, collate_fn=failing)
    found = []
    with pytest.raises(KeyError, match="bad"):
        for batch in loader:
            found.append(batch)
    assert len(found) == 3
    assert torch.equal(found[0], plain([values(i) for i in range(4)]))


@pytest.mark.parametrize("collate", [None, plain], ids=["rows", "whole"])
def test_no_python_code_runs_when_a_batch_is_dropped(collate):
    """It may be dropped by a thread that the interpreter's end is about to stop."""
    called = []
    batches = iter(FusionLoader(Numbers(), 4, num_workers=1, collate_fn=collate))
    for _ in range(3):
        batch = next(batches)
        sys.setprofile(lambda frame, event, _: called.append((event, frame.f_code.co_name)))
        del batch
        sys.setprofile(None)
    assert {name for event, name in called if event == "call"} == set()


def test_a_batch_of_an_ended_iterator_is_not_taken_for_one_of_another():
    """The next receiver has the address of the last one, often, and never its number."""
    packed = [Packed(BatchReceiver()._token, None, [], pickle.dumps("old")) for _ in range(5)]
    receiver = BatchReceiver()
    assert [pickle.loads(pickle.dumps(each)) for each in packed] == [None] * 5
    own = Packed(receiver._token, None, [], pickle.dumps("new"))
    assert pickle.loads(pickle.dumps(own)) == "new"
