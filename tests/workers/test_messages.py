"""Messages of workers, which other threads than the one that waits for them may take out."""

import os
import threading
import time

import pytest
import torch
from torch.utils.data import Dataset

from fusionloader import FusionLoader, WorkerPool
from fusionloader.workers import sample_errors
from fusionloader.workers.messages import Receiver, SamplesSpilled, send

COUNT = 200


class Odd(Dataset):
    """Samples of which some do not fit the layout, and are larger than a pipe."""

    def __len__(self):
        return 240

    def __getitem__(self, index):
        return torch.full((200, 200), index) if index // 4 % 2 else torch.tensor(index)


@pytest.fixture
def pipe():
    read, write = os.pipe()
    receiver = Receiver(read)
    yield receiver, write
    receiver.close()


def test_what_others_have_taken_out_arrives_whole_and_in_order(pipe):
    receiver, write = pipe
    ended = threading.Event()

    def write_all():
        for number in range(COUNT):
            send(write, SamplesSpilled(number, 0, bytes([number]) * (number * 997)))
        os.close(write)

    def drain():
        while not ended.is_set():
            receiver.drain()

    threads = [threading.Thread(target=write_all)]
    threads += [threading.Thread(target=drain) for _ in range(2)]
    for thread in threads:
        thread.start()
    found = []
    try:
        deadline = time.monotonic() + 120
        while len(found) < COUNT and time.monotonic() < deadline:
            receiver.handle(found.append)
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    assert [message.sequence for message in found] == list(range(COUNT))
    assert all(m.samples == bytes([m.sequence]) * (m.sequence * 997) for m in found)


def test_a_message_is_kept_until_it_was_handled(pipe):
    receiver, write = pipe
    for number in range(3):
        send(write, SamplesSpilled(number, 0, b""))
    handled = []

    def interrupted(message):
        handled.append(message.sequence)
        if len(handled) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        receiver.handle(interrupted)
    receiver.handle(interrupted)
    assert handled == [0, 1, 1, 2]
    os.close(write)


def test_nothing_is_taken_out_of_a_pipe_that_was_closed(pipe):
    receiver, write = pipe
    receiver.close()
    read, other = os.pipe()  # has the number of the closed one
    os.write(other, b"another's")
    receiver.drain()
    assert os.read(read, 100) == b"another's"
    for fd in (read, write, other):
        os.close(fd)


def test_threads_that_wait_for_loaders_of_one_pool_get_each_its_own():
    found = {}
    with WorkerPool(2) as pool:

        def iterate(number):
            loader = FusionLoader(Odd(), 4, pool=pool, prefetch_factor=8, timeout=300)
            found[number] = [batch.flatten()[0].item() for _ in range(3) for batch in loader]

        threads = [threading.Thread(target=iterate, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == dict.fromkeys(range(3), 3 * list(range(0, 240, 4)))


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (
            RuntimeError("CUDA error: it failed\nFor debugging consider ..."),
            "CUDA error: it failed",
        ),
        (
            RuntimeError(
                "Critical error in pipeline:\n  File x\n\nencountered:\n\nIt failed (7):\n"
            ),
            "It failed (7):",
        ),
    ],
)
def test_the_summary_of_an_error_is_one_line(error, line):
    assert sample_errors.summary(error) == f"RuntimeError: {line}"


def test_the_summary_of_an_error_without_text_is_its_type():
    assert sample_errors.summary(MemoryError()) == "MemoryError"


def test_a_forked_worker_has_not_the_managers_end(pipe):
    """Else it would write to its own pipe for ever, once training has closed that."""
    receiver, _ = pipe
    fd = receiver.fd
    child = os.fork()
    if child == 0:
        try:
            os.fstat(fd)
        except OSError:
            os._exit(0)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    os.fstat(fd)
