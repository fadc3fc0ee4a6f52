"""A queue that is full: requests wait, or are refused; places come back."""

import asyncio
import threading

import pytest
import torch
from support.encoded_images import expected
from support.images import eval_transform
from support.waiting import wait_until

from fusionloader.addons.inference import BadImage, QueueFull

MOST = 3


@pytest.fixture
def full(make, jpegs, gate):
    """Fills a preprocessor of one worker until the gate is opened."""

    def fill(**options):
        prepare = make(num_workers=1, max_queued=MOST, **options)
        futures = [prepare.submit(gate.image), *map(prepare.submit, jpegs[: MOST - 1])]
        gate.wait_until_begun()
        return prepare, futures

    return fill


def test_more_than_the_queue_holds_is_refused_where_that_is_wanted(full, jpegs, gate):
    prepare, futures = full(when_full="raise")
    for ask in (prepare.submit, lambda i: prepare([i]), lambda i: asyncio.run(prepare.asubmit(i))):
        with pytest.raises(QueueFull, match="max_queued is 3"):
            ask(jpegs[0])
    gate.open()
    futures[-1].result()
    wait_until(lambda: prepare.stats().queued == 0)
    assert torch.equal(prepare.submit(jpegs[5]).result(), expected(eval_transform(), jpegs[5]))


def test_a_thread_waits_for_a_place(full, jpegs, gate):
    prepare, _ = full()
    answers = []
    threads = [
        threading.Thread(target=lambda i=image: answers.append(prepare.submit(i).result()))
        for image in jpegs[:10]
    ]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(prepare._admission._condition._waiters) == len(threads))
    assert prepare.stats().queued == MOST and not answers
    gate.open()
    for thread in threads:
        thread.join()
    assert len(answers) == 10


def test_an_event_loop_goes_on_while_its_tasks_wait_for_a_place(full, jpegs, gate):
    prepare, _ = full()

    async def ask():
        tasks = [asyncio.create_task(prepare.asubmit(image)) for image in jpegs[:10]]
        while len(prepare._admission._waiting_tasks) < len(tasks):
            await asyncio.sleep(0)
        tasks.pop().cancel()
        assert prepare.stats().queued == MOST
        gate.open()  # the loop runs: it comes to this
        return await asyncio.gather(*tasks)

    wanted = [expected(eval_transform(), image) for image in jpegs[:9]]
    assert all(map(torch.equal, asyncio.run(ask()), wanted))


def test_a_cancelled_request_frees_its_place_and_is_not_begun(full, jpegs, gate):
    prepare, futures = full(when_full="raise")
    assert futures[1].cancel() and futures[1].cancel()
    assert prepare.stats().queued == MOST - 1
    instead = prepare.submit(jpegs[7])
    with pytest.raises(QueueFull):
        prepare.submit(jpegs[7])
    gate.open()
    assert torch.equal(instead.result(), expected(eval_transform(), jpegs[7]))
    wait_until(lambda: prepare.stats().queued == 0)
    assert prepare.stats().cancelled == 1
    assert sum(worker.samples for worker in prepare.stats().workers) == MOST


def test_a_request_that_was_begun_can_be_cancelled(full, jpegs, gate):
    prepare, futures = full()
    assert futures[0].cancel()
    gate.open()
    assert torch.equal(futures[1].result(), expected(eval_transform(), jpegs[0]))


def test_cancelling_without_end_does_not_overrun_the_queue(full, jpegs, gate):
    prepare, futures = full(when_full="raise")
    for future in futures[1:]:
        future.cancel()
    refused = 0
    for _ in range(100):
        try:
            prepare.submit(jpegs[0]).cancel()
        except QueueFull:
            refused += 1
    assert 0 < refused < 100
    gate.open()
    futures[0].result()
    wait_until(lambda: prepare.stats().cancelled == 2 + 100 - refused)
    assert torch.equal(prepare.submit(jpegs[1]).result(), expected(eval_transform(), jpegs[1]))


def test_a_callback_that_submits_is_refused_rather_than_waiting_for_itself(full, jpegs, gate):
    prepare, futures = full()
    caught, done = [], threading.Event()

    def submit_more(_):
        try:
            prepare([jpegs[0]])
        except RuntimeError as error:
            caught.append(error)
        try:
            for _ in range(MOST + 1):
                prepare.submit(jpegs[0])
        except QueueFull as error:
            caught.append(error)
        done.set()

    futures[0].add_done_callback(submit_more)
    gate.open()
    assert done.wait(60)
    assert [type(error) for error in caught] == [RuntimeError, QueueFull]
    assert "another thread" in str(caught[0]) and "another thread" in str(caught[1])


def test_a_cancelled_task_withdraws_its_image(full, jpegs, gate):
    prepare, futures = full()
    futures[2].cancel()

    async def ask():
        task = asyncio.create_task(prepare.asubmit(jpegs[4]))
        while prepare.stats().queued < MOST:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(ask())
    assert prepare.stats().queued == MOST - 1
    gate.open()


def test_a_bad_image_frees_its_place(make):
    prepare = make(max_queued=1, when_full="raise")
    for _ in range(3):
        assert isinstance(prepare.submit(b"bad").exception(), BadImage)
        wait_until(lambda: prepare.stats().queued == 0)


def test_a_place_is_not_lost_to_a_task_whose_loop_was_closed(full, jpegs, gate):
    prepare, futures = full()
    closed = asyncio.new_event_loop()
    task = closed.create_task(prepare.asubmit(jpegs[0]))
    closed.run_until_complete(asyncio.sleep(0))
    closed.close()

    async def ask():
        asked = asyncio.create_task(prepare.asubmit(jpegs[1]))
        while len(prepare._admission._waiting_tasks) < 2:
            await asyncio.sleep(0)
        futures[1].cancel()  # one place; the task that has waited longest cannot have it
        assert not prepare._admission._waiting_tasks
        gate.open()
        return await asked

    assert torch.equal(asyncio.run(ask()), expected(eval_transform(), jpegs[1]))
    task._log_destroy_pending = False
