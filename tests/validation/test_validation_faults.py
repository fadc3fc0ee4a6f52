"""Errors, endless evaluations and ends of all kinds: told of, and never a hang."""

import gc
import os
import signal
import threading
from pathlib import Path

import pytest
import torch
from evaluations import by_hand, evaluate, loader_of, model_of, points
from support import warm_start
from support.waiting import PATIENCE, wait_until
from torch import nn

from fusionloader import FusionLoader
from fusionloader.addons.validation import OverlappedValidation, validate

ROOT = Path(__file__).parents[2]


def raises(model, batches):
    next(batches)
    raise KeyError("no such class")


def notes(error):
    return getattr(error, "__notes__", ["In the validation of epoch 3."])  # Python 3.10 has none


def failed_epoch(validation, epoch=3):
    validation.start(model_of(), epoch)
    run = validation._runs.unread[-1]
    assert run.ended.wait(PATIENCE)


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("how", ["start", "results", "finish", "exit"])
def test_an_error_reaches_the_next_call_as_it_was(how, parts):
    def reads():
        if how == "exit":
            validation.__exit__(None, None, None)
        elif how == "start":
            validation.start(model_of(), 4)
        else:
            list(getattr(validation, how)())

    validation = OverlappedValidation(raises, loader_of(), parts=parts)
    failed_epoch(validation)
    with pytest.raises(KeyError, match="no such class") as caught:
        reads()
    assert notes(caught.value) == ["In the validation of epoch 3."]
    assert validation.finish() == []


def test_results_around_an_error_are_kept():
    model, calls = model_of(), []

    def second_fails(model, batches):
        calls.append(model)
        return raises(model, batches) if len(calls) == 2 else evaluate(model, batches)

    validation = OverlappedValidation(second_fails, loader_of())
    validation.start(model, 0)
    validation.start(model, 3)
    with pytest.raises(KeyError):
        validation.start(model, 4)
    validation.start(model, 4)
    results = validation.finish()
    assert [result.epoch for result in results] == [0, 4]
    assert results[1].metrics == by_hand(model, loader_of())


class Broken(torch.utils.data.Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, index):
        if index == 25:
            raise OSError("no such image")
        return torch.rand(8), index % 4


def test_an_error_of_the_loader_names_the_sample():
    loader = FusionLoader(Broken(), 10, num_workers=1, timeout=PATIENCE)
    validation = OverlappedValidation(evaluate, loader, parts=2)
    validation.start(model_of(), 3)
    with pytest.raises(OSError, match="no such image") as caught:
        validation.finish()
    assert "25" in str(caught.value) + str(notes(caught.value))
    assert "In the validation of epoch 3." in notes(caught.value)


def test_a_loader_that_cannot_begin_raises_at_start():
    class Unready:
        def __iter__(self):
            raise OSError("not mounted")

    validation = OverlappedValidation(evaluate, Unready())
    with pytest.raises(OSError, match="not mounted"):
        validation.start(model_of(), 0)
    assert validation.finish() == []


@pytest.mark.parametrize("how", ["start", "results", "finish"])
def test_an_evaluation_that_never_ends_is_given_up(how):
    gate = threading.Event()

    def endless(model, batches):
        next(batches)
        next(batches)
        gate.wait()
        return evaluate(model, batches)

    validation = OverlappedValidation(endless, loader_of(), timeout=0.2)
    validation.start(model_of(), 3)
    wait_until(lambda: validation.stats().batches == 2)
    told = r"validation of epoch 3 has not ended after 0\.2 s: of its batches part 0 took 2"
    with pytest.raises(TimeoutError, match=told):
        if how == "start":
            validation.start(model_of(), 4)
        elif how == "finish":
            validation.finish()
        else:
            wait_until(lambda: list(validation.results()))
    with pytest.raises(RuntimeError, match="epoch 3, which took too long, still evaluates"):
        validation.start(model_of(), 4)
    gate.set()
    wait_until(validation._runs._last.ended.is_set)
    validation.close()
    assert validation.start(model_of(), 4)
    validation.close()


def writes(model, batches):
    found = evaluate(model, batches)
    model[0].weight.mul_(2)
    return found


def replaces(model, batches):
    found = evaluate(model, batches)
    model[4].bias = nn.Parameter(torch.zeros(4))
    return found


def trains(model, batches):
    model.train()
    return evaluate(model, batches)


def switches(model, batches):
    model[3].train()
    return evaluate(model, batches)


@pytest.mark.parametrize(
    "changes, told",
    [
        (writes, "evaluate changed 0.weight of the model"),
        (replaces, "evaluate changed 4.bias of the model"),
        (trains, "evaluate changed 1.num_batches_tracked of the model"),
        (switches, "evaluate switched 3 between training and evaluation mode"),
    ],
)
def test_an_evaluation_that_changes_the_model_is_refused(changes, told):
    model, change = model_of(), [True]

    def sometimes(model, batches):
        return changes(model, batches) if change else evaluate(model, batches)

    validation = OverlappedValidation(sometimes, loader_of())
    validation.start(model, 0)
    with pytest.raises(RuntimeError, match=told):
        validation.finish()
    change.clear()
    validation.start(model, 1)
    [result] = validation.finish()
    assert result.metrics == by_hand(model, loader_of())
    with pytest.raises(RuntimeError, match=told):
        validate(changes, model_of(), loader_of())


def test_an_evaluation_that_leaves_batches_is_refused():
    def early(model, batches):
        next(batches)
        return {"loss": (0.0, 1)}

    validation = OverlappedValidation(early, loader_of(), parts=2)
    validation.start(model_of(), 0)
    with pytest.raises(RuntimeError, match="returned after 1 batches of part [01], and there are"):
        validation.finish()


def test_an_evaluation_that_reads_all_and_no_end_is_whole():
    def counted(model, batches):
        return {"samples": sum(len(next(batches)[0]) for _ in range(21))}

    validation = OverlappedValidation(counted, loader_of())
    validation.start(model_of(), 0)
    assert validation.finish()[0].metrics == {"samples": 203}


def test_an_error_within_the_block_ends_it_at_once():
    gate = threading.Event()

    def endless(model, batches):
        for _ in batches:
            gate.wait(0.01)
        return {}

    with pytest.raises(ZeroDivisionError), OverlappedValidation(endless, Endless()) as validation:
        validation.start(model_of(), 0)
        raise ZeroDivisionError
    assert list(validation.results()) == []


class Endless:
    def __iter__(self):
        while True:
            yield points(4)[:4]


def test_results_that_nobody_reads_are_warned_of():
    validation = OverlappedValidation(evaluate, loader_of())
    for epoch in (3, 4):
        validation.start(model_of(), epoch)
    team = validation._runs.team
    with pytest.warns(UserWarning, match="results of epochs 3, 4 were not read"):
        del validation
        gc.collect()
    assert not any(worker.is_alive() for worker in (team.reader, *team.parts))


def ended(body):
    return warm_start.completed(
        "-c",
        f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n"
        f"sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "import os, signal, threading\nfrom evaluations import *\n"
        "from fusionloader.addons.validation import OverlappedValidation, run\n" + body,
    )


def test_a_process_that_does_not_finish_ends_and_warns():
    body = """
def endless(model, batches):
    threading.Event().wait()
run._END_SECONDS = 0.5
validation = OverlappedValidation(endless, loader_of())
validation.start(model_of(), 5)
"""
    done = ended(body)
    assert done.returncode == 0, done.stderr
    assert "results of epochs 5 were not read: call finish()" in done.stderr


def test_ctrl_c_ends_a_wait_for_a_validation():
    body = """
waited = threading.Event()
def endless(model, batches):
    waited.wait()
    os.kill(os.getpid(), signal.SIGINT)
    for _ in batches:
        pass
    threading.Event().wait()
# A shell's jobs in the background ignore it, and so does what they start.
signal.signal(signal.SIGINT, signal.default_int_handler)
validation = OverlappedValidation(endless, loader_of())
validation.start(model_of(), 5)
try:
    waited.set()
    validation.finish()
except KeyboardInterrupt:
    print("interrupted")
"""
    done = ended(body)
    assert (done.returncode, done.stdout) == (0, "interrupted\n"), done.stderr


def test_a_fork_is_told_to_make_its_own():
    validation = OverlappedValidation(evaluate, loader_of())
    validation.start(model_of(), 0)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            validation.finish()
        except RuntimeError as error:
            os.write(write, str(error).encode())
        finally:
            validation.close()
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert f"belongs to process {os.getpid()}" in os.read(read, 1000).decode()
    os.close(read), os.close(write)
    assert len(validation.finish()) == 1


def test_no_signal_is_handled_otherwise():
    before = signal.getsignal(signal.SIGINT)
    with OverlappedValidation(evaluate, loader_of()) as validation:
        validation.start(model_of(), 0)
    assert signal.getsignal(signal.SIGINT) is before
    assert len(validation.finish()) == 1
