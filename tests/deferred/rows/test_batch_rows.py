"""Batches made of rows: they are what stacking makes, and nothing else looks into them."""

import gc
import os
import weakref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.campaigns import examples
from torch.utils.data import default_collate

from fusionloader.data.deferred import collating, counts
from fusionloader.data.deferred.rows.memory import BatchRows
from fusionloader.system.shm import objects
from fusionloader.system.shm.descriptor import Descriptor
from fusionloader.transforms.executors.batch_transport import Sender, Sends

SHAPES = [(3, 20, 20), (1, 40, 40)]


class Worker:
    """What a worker does with samples, and the slots that it does it in."""

    def __init__(self, most=5):
        memory = objects.create(0, grows=True)
        weakref.finalize(self, os.close, memory)
        self.sender = Sender(Sends(0, Descriptor(memory), most))
        self.rows = BatchRows(self.sender)
        self.collate = collating.default_collate(self.rows)
        self.made = 0

    def sample(self, shape=SHAPES[0], dtype=torch.float32):
        self.made += 1
        return self.rows.empty(shape, dtype).fill_(self.made % 251)

    def batch(self, samples):
        """A batch as it is sent; the list of samples ends with the call, as in torch's loop."""
        made = self.collate(samples)
        samples.clear()
        self.rows.settle()
        return made

    def send(self, batch):
        """The offset of its slot; none where it is sent by value."""
        where = self.sender.pack(batch).where
        return None if where is None else where[1]

    def free(self, number):
        """What the training process does when a batch is gone."""
        for slot in self.sender._slots._slots:
            if slot.offset == number:
                slot.set_free(True)


@pytest.fixture(autouse=True)
def no_counts():
    counts.take()


def collated():
    return counts.counts().collated


def test_the_second_batch_is_made_of_its_rows():
    worker = Worker()
    for _ in range(5):
        samples = [worker.sample() for _ in range(8)]
        expected = default_collate(samples)
        found = worker.batch(samples)
        assert torch.equal(found, expected)
        assert found.is_contiguous()
        assert not found._is_view()
        del found, expected
    assert collated() == {"copied": 8, "in place": 32}


def test_a_batch_in_rows_is_sent_as_it_lies_there():
    worker = Worker()
    for _ in range(2):
        batch = worker.batch([worker.sample() for _ in range(8)])
    (opened,) = worker.sender._unsent
    assert batch.data_ptr() == opened.begin
    number = worker.send(batch)
    assert number == opened.slot.offset
    assert not opened.slot.is_free()


def test_slots_are_used_again_once_they_are_free():
    worker, numbers = Worker(), set()
    for _ in range(40):
        number = worker.send(worker.batch([worker.sample() for _ in range(8)]))
        numbers.add(number)
        worker.free(number)
    assert len(numbers) <= 3
    assert collated()["in place"] == 39 * 8


def test_where_there_is_no_slot_samples_have_memory_of_their_own():
    worker = Worker(most=1)
    batches = []
    for _ in range(4):
        samples = [worker.sample() for _ in range(8)]
        expected = default_collate(samples)
        batches.append((worker.batch(samples), expected))
    assert all(torch.equal(one, other) for one, other in batches)


def test_a_batch_that_is_sent_twice_is_sent_in_two_slots():
    worker = Worker()
    for _ in range(2):
        batch = worker.batch([worker.sample() for _ in range(8)])
    assert worker.send(batch) != worker.send(batch)


def test_a_batch_that_waits_shares_its_slot_with_no_other():
    worker = Worker()
    worker.batch([worker.sample() for _ in range(8)])
    waiting = worker.batch([worker.sample() for _ in range(8)])
    value = waiting.clone()
    other = worker.send(torch.full((5000,), 3.0))
    assert worker.send(waiting) != other
    assert torch.equal(waiting, value)


def test_a_dataset_that_keeps_batches_leaves_slots_for_the_others():
    worker, kept = Worker(most=6), []
    for _ in range(12):
        batch = worker.batch([worker.sample() for _ in range(8)])
        kept.append(batch)
        worker.free(worker.send(batch))
    free = [slot for slot in worker.sender._slots._slots if slot.is_free()]
    assert len(free) + worker.sender._sends.most - len(worker.sender._slots._slots) >= 2


def test_labels_beside_the_images_go_into_the_same_slot():
    worker = Worker()
    for _ in range(3):
        samples = [(worker.sample(), torch.arange(2000.0)) for _ in range(8)]
        expected = default_collate(samples)
        batch = worker.batch(samples)
        assert all(map(torch.equal, batch, expected))
        worker.free(worker.send(batch))
    assert collated()["in place"] == 16


def test_a_child_process_has_no_rows(monkeypatch):
    worker = Worker()
    worker.batch([worker.sample() for _ in range(8)])
    assert worker.rows.empty(SHAPES[0], torch.float32).untyped_storage().resizable() is False
    monkeypatch.setattr("os.getpid", lambda: -1)
    assert worker.rows.empty(SHAPES[0], torch.float32).untyped_storage().resizable()


STEPS = st.sampled_from(["keep", "drop", "view", "other", "resize", "swap", "again", "repeat"])


@pytest.mark.properties
@settings(max_examples=examples(10, 60))
@given(
    st.lists(
        st.tuples(st.integers(1, 6), st.lists(STEPS, max_size=3), st.booleans(), st.booleans()),
        min_size=2,
        max_size=8,
    )
)
def test_whatever_becomes_of_samples_batches_are_stacks_and_nobody_elses(program):
    worker, kept, delivered = Worker(), [], []
    for count, steps, two, sends in program:
        shapes = SHAPES if two else SHAPES[:1]
        samples = [[worker.sample(shape) for shape in shapes] for _ in range(count)]
        for step in steps:
            if step == "keep":
                kept.append((samples[-1][0], samples[-1][0].clone()))
            elif step == "view":
                kept.append((samples[0][0][0, 1:], samples[0][0][0, 1:].clone()))
            elif step == "drop" and len(samples) > 1:
                del samples[0]
            elif step == "other":
                samples[0] = [torch.full_like(tensor, 7.0) for tensor in samples[0]]
            elif step == "swap":
                samples.reverse()
            elif step == "again":
                samples.append(samples[0])
            elif step == "resize":
                samples = [[tensor[:, :9] for tensor in sample] for sample in samples]
        expected = default_collate(samples)
        if "repeat" in steps:
            repeated = worker.batch(list(samples))
        found = worker.batch(samples)
        assert all(map(torch.equal, found, expected))
        for tensor, value in kept:  # the batch is the trainer's, who may change it
            assert torch.equal(tensor, value)
        for tensor in found:
            tensor.add_(1)
        for tensor, value in kept:
            assert torch.equal(tensor, value)
        for tensor, _ in kept:
            tensor.mul_(2)
        kept = [(tensor, tensor.clone()) for tensor, _ in kept]
        assert all(torch.equal(one, other + 1) for one, other in zip(found, expected, strict=True))
        if "repeat" in steps:
            assert all(map(torch.equal, repeated, expected))
        number = worker.send(found)
        if sends:
            worker.free(number)
        else:
            delivered.append((found, [tensor.clone() for tensor in found]))
    for found, values in delivered:
        assert all(map(torch.equal, found, values))
    del found, delivered, kept
    gc.collect()
