"""The copying thread: rows of tiny-batches as they complete, the GPU worker's left alone."""

import ctypes

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.control_blocks import ControlBlock
from support.fake_device import FakeDevice
from support.waiting import wait_until

from fusionloader._native import End, TinyBatchState, cuda
from fusionloader.system.gpu_memory.errors import CudaError

GPU = 2


class Queue(ControlBlock):
    """A manager, two CPU workers and a GPU worker, with rows in page-locked memory."""

    def __init__(self, row_bytes):
        super().__init__(3, 4, gpu=GPU)
        self.row_bytes = row_bytes
        self.locked = []

    def publish(self, rows, tiny_size):
        """Publishes mini-batch 0; ``rows`` in the order of tiny-batches."""
        samples = len(rows)
        super().publish(0, samples, tiny_size, payload_bytes=samples * self.row_bytes, rows=rows)
        self.descriptor, self.payload = self.slot_of[0], self.payload_of[0]
        payload = self.payload
        cuda.page_lock(0, payload.address, payload.nbytes)
        self.locked.append(payload.address)
        flat = (ctypes.c_ubyte * payload.nbytes).from_address(payload.address)
        self.rows = torch.frombuffer(flat, dtype=torch.uint8)[: samples * self.row_bytes]
        self.rows = self.rows.view(samples, self.row_bytes)
        self.rows.copy_(torch.randint(0, 256, self.rows.shape, dtype=torch.uint8))

    def claim(self, by_gpu):
        number = GPU if by_gpu else 0
        claim = self.workers[number].claim(End.LARGE if by_gpu else End.SMALL, 0, 1)
        return number, claim

    def finish(self, number, claim):
        assert self.workers[number].finish(claim, claim.first, TinyBatchState.COMPLETED)

    def close(self):
        for address in self.locked:
            cuda.page_unlock(0, address)
        super().close()


@pytest.fixture
def queues(fake_cuda):
    made = []

    def make(row_bytes):
        made.append(Queue(row_bytes))
        return made[-1]

    yield make
    fake_cuda.be_late(False)
    for queue in made:
        queue.close()


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_rows_come_through_the_slot_but_those_of_the_gpu_worker(queues, fake_cuda, data):
    samples = data.draw(st.integers(1, 40))
    tiny_size = data.draw(st.integers(1, 6))
    row_bytes = data.draw(st.sampled_from([8, 4096, 5000]))
    rows = data.draw(st.permutations(range(samples)))
    with_levels = data.draw(st.booleans())
    device, queue = FakeDevice(fake_cuda), queues(row_bytes)
    queue.publish(rows, tiny_size)
    element = 4 if with_levels else 1
    result, staging = (
        device.empty((samples * row_bytes * each,), torch.uint8) for each in (element, 1)
    )
    table = torch.rand(row_bytes // 2 and 2, 256)
    on_device = device.upload(table.numpy().tobytes())
    result.fill_(0x7F)
    kernel = (device.conversion_kernel(), on_device.data_ptr(), row_bytes // 2, 4)
    fake_cuda.be_late(data.draw(st.booleans()))
    copier = cuda.Copier(queue.manager, 0, device.copy_stream, GPU, kernel if with_levels else None)
    leaves = [(queue.payload.address, result.data_ptr(), row_bytes)]
    staged = staging.data_ptr() if with_levels else 0
    ticket = copier.begin(queue.descriptor.number, leaves, staged)
    by_gpu, open_claims = set(), []
    for _ in range(-(-samples // tiny_size)):
        worker, claim = queue.claim(data.draw(st.booleans()))
        if worker == GPU:
            by_gpu |= set(rows[claim.first * tiny_size : (claim.first + 1) * tiny_size])
        open_claims.insert(data.draw(st.integers(0, len(open_claims))), (worker, claim))
    for worker, claim in open_claims:
        queue.finish(worker, claim)
    copier.finish(ticket)
    with pytest.raises(ValueError, match="no such mini-batch"):
        copier.finish(ticket)
    copier.close()
    cuda.synchronize(0, device.copy_stream)
    got = result.clone()
    if with_levels:
        got = got.view(torch.float32).view(samples, row_bytes)
        halves = queue.rows.long().view(samples, 2, -1)
        expected = torch.stack([table[n][halves[:, n]] for n in (0, 1)], 1).view(samples, -1)
    else:
        got, expected = got.view(samples, row_bytes), queue.rows
    for row in range(samples):
        if row in by_gpu:
            assert bool((got[row].view(torch.uint8) == 0x7F).all())
        else:
            assert torch.equal(got[row], expected[row])


def copier_of(queue, fake_cuda, nbytes=8 * 4096):
    """Returns a copier, room for a mini-batch on the device, and the stream of copies."""
    device = FakeDevice(fake_cuda)
    copier = cuda.Copier(queue.manager, 0, device.copy_stream)
    return copier, device.empty((nbytes,), torch.uint8), device.copy_stream


def test_a_tiny_batch_is_copied_while_others_are_made(queues, fake_cuda):
    queue = queues(4096)
    queue.publish(list(range(8)), 2)
    copier, result, _ = copier_of(queue, fake_cuda)
    leaves = [(queue.payload.address, result.data_ptr(), 4096)]
    _ticket = copier.begin(queue.descriptor.number, leaves)
    for done in range(1, 4):
        queue.finish(*queue.claim(False))
        wait_until(lambda done=done: copier.copied_bytes == done * 2 * 4096)


def test_rows_that_are_made_a_second_time_are_copied_again(queues, fake_cuda):
    queue = queues(4096)
    queue.publish(range(4), 2)
    copier, result, stream = copier_of(queue, fake_cuda, 4 * 4096)
    ticket = copier.begin(
        queue.descriptor.number, [(queue.payload.address, result.data_ptr(), 4096)]
    )
    _, claim = queue.claim(by_gpu=False)
    assert queue.workers[0].finish(claim, 0, TinyBatchState.SKIPPED)
    wait_until(lambda: copier.copied_bytes == 2 * 4096)
    queue.manager.repeat(queue.descriptor.number, 0, 0)
    queue.rows[:2] += 1
    for _ in range(2):
        queue.finish(*queue.claim(by_gpu=False))
    copier.finish(ticket)
    copier.close()
    cuda.synchronize(0, stream)
    assert torch.equal(result.clone().view(4, 4096), queue.rows)


def test_what_nobody_holds_any_more_is_left_alone(queues, fake_cuda):
    """As when an exception comes between the call and its caller."""
    queue = queues(4096)
    queue.publish(list(range(8)), 2)
    copier, result, stream = copier_of(queue, fake_cuda)
    leaves = [(queue.payload.address, result.data_ptr(), 4096)]
    ticket = copier.begin(queue.descriptor.number, leaves)
    queue.finish(*queue.claim(False))
    del ticket
    cuda.synchronize(0, stream)
    copied = copier.copied_bytes
    queue.finish(*queue.claim(False))
    copier.close()
    assert copier.copied_bytes == copied


def test_a_copy_that_was_refused_is_not_measured_for_ever(queues, fake_cuda):
    queue = queues(1 << 16)
    queue.publish([0], 1)
    copier, result, stream = copier_of(queue, fake_cuda, 1 << 16)
    queue.finish(*queue.claim(False))
    leaves = [(queue.payload.address, result.data_ptr(), 1 << 16)]
    fake_cuda.refuse("cuMemcpyHtoDAsync_v2")
    with pytest.raises(CudaError, match="cuMemcpyHtoDAsync failed"):
        copier.begin(queue.descriptor.number, leaves)
    fake_cuda.refuse("")
    copier.finish(copier.begin(queue.descriptor.number, leaves))
    cuda.synchronize(0, stream)
    wait_until(lambda: copier.timed[0] == 1 << 16)
