"""Exceptions at any step of a ``Preprocessor``: each request is answered, rightly or not at all."""

import errno
import functools
import random
import threading

import pytest
import torch
from support.encoded_images import expected
from support.images import eval_transform
from support.raised_at import CALLS, Steps
from support.waiting import PATIENCE, wait_until

from fusionloader.addons.inference import Preprocessor, PreprocessorClosed

EVENTS = (*CALLS, "c_return")
ERRORS = {
    "KeyboardInterrupt": KeyboardInterrupt,
    "MemoryError": MemoryError,
    "EMFILE": lambda: OSError(errno.EMFILE, "Too many open files"),
}
MOST_STEPS = 120  # nearly all of a request
TRIALS = 40


def models(batch):
    return list(batch.flatten(1).sum(1))


def submit(prepare, images, as_list):
    return prepare(images) if as_list else list(map(prepare.submit, images))


def has_nothing_queued(prepare):
    return prepare.stats().queued == 0


@pytest.mark.parametrize("infer", [None, models], ids=["images", "model"])
@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.few(3)
def test_an_exception_while_images_are_submitted_spoils_no_other(jpegs, error, infer):
    images, draw = jpegs[:6], random.Random(len(error))
    tensors = [expected(eval_transform(), image) for image in images]
    wanted = tensors if infer is None else models(torch.stack(tensors))
    prepare, closed = None, 0
    for trial in range(TRIALS):
        if prepare is None:
            prepare = Preprocessor(eval_transform(), num_workers=1, max_batch=4, infer=infer)
        before = prepare.submit(images[0])
        raised = ERRORS[error]()
        ask = functools.partial(submit, prepare, images[:3], as_list=trial % 4 == 0)
        try:
            Steps("addons/inference", events=EVENTS).raise_at(
                draw.randrange(MOST_STEPS), raised, ask
            )
        except type(raised) as found:
            assert found is raised
        try:
            after = [before, *map(prepare.submit, images)]
            found = [future.result(PATIENCE) for future in after]
        except PreprocessorClosed:
            unmade = before.exception(PATIENCE)  # it is answered, rightly where it was made
            assert unmade is not None or torch.equal(before.result(), wanted[0])
            prepare.close()
            prepare, closed = None, closed + 1
            continue
        assert all(map(torch.equal, found, [wanted[0], *wanted])), trial
        wait_until(functools.partial(has_nothing_queued, prepare))
    if prepare is not None:
        prepare.close()
    assert closed < TRIALS // 2


@pytest.mark.parametrize("infer", [None, models], ids=["images", "model"])
def test_an_exception_in_a_thread_of_the_preprocessor_leaves_no_request_unanswered(jpegs, infer):
    draw, raised = random.Random(7), 0
    for _ in range(12):
        steps = Steps("addons/inference", events=EVENTS)
        threading.setprofile(steps.profile)
        try:
            prepare = Preprocessor(eval_transform(), num_workers=1, max_batch=4, infer=infer)
        finally:
            threading.setprofile(None)
        prepare(jpegs[:1])
        steps.arm(draw.randrange(300), MemoryError())
        futures = []
        try:
            futures += map(prepare.submit, jpegs[:10])
            prepare(jpegs[:3])
        except (PreprocessorClosed, MemoryError):
            pass
        for future in futures:
            error = future.exception(PATIENCE)
            assert error is None or isinstance(error, PreprocessorClosed | MemoryError)
        prepare.close()
        raised += steps.place is not None
    assert raised > 6


@pytest.mark.parametrize("infer", [None, models], ids=["images", "model"])
def test_a_callback_that_ends_its_thread_keeps_no_other_from_its_answer(make, jpegs, infer):
    prepare = make(infer=infer, max_batch=2)

    def leave(_):
        raise SystemExit

    for _ in range(3):
        first = prepare.submit(jpegs[0])
        first.add_done_callback(leave)
        others = [prepare.submit(image) for image in jpegs[1:5]]
        assert all(torch.is_tensor(each.result(PATIENCE)) for each in (first, *others))


def test_a_thread_that_is_interrupted_while_it_waits_tells_another_of_its_place(make, jpegs, gate):
    prepare = make(num_workers=1, max_queued=1, infer=models)
    first = prepare.submit(gate.image)
    gate.wait_until_begun()
    condition, answers = prepare._admission._condition, []
    wait = condition.wait

    def interrupted():
        condition.wait = wait
        wait()
        raise KeyboardInterrupt  # between its place and the next statement

    def ask(expected):
        try:
            answers.append(prepare.submit(jpegs[0]).result(PATIENCE))
        except expected:
            answers.append(None)

    condition.wait = interrupted
    threads = []
    for expected_error in (KeyboardInterrupt, ()):
        threads.append(threading.Thread(target=ask, args=(expected_error,)))
        threads[-1].start()
        wait_until(lambda: len(condition._waiters) == len(threads))
    gate.open()
    assert torch.is_tensor(first.result(PATIENCE))
    for thread in threads:
        thread.join(PATIENCE)
    assert len(answers) == 2 and prepare.stats().queued == 0


def test_a_preprocessor_that_cannot_start_its_thread_leaves_nothing(monkeypatch, children):
    start = threading.Thread.start

    def refuse(thread):
        if thread.name == "fusionloader-dispatch":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    before = children()
    for infer in (None, models):
        with pytest.raises(RuntimeError, match="can't start new thread"):
            Preprocessor(eval_transform(), num_workers=1, infer=infer)
    wait_until(lambda: children() <= before)
    wait_until(lambda: "fusionloader-infer" not in [t.name for t in threading.enumerate()])
