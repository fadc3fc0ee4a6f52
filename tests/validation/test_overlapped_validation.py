"""Validation beside training has the results of serial validation, and loses none."""

import threading

import pytest
import torch
from evaluations import by_hand, evaluate, loader_of, model_of, points, train
from support.waiting import PATIENCE

from fusionloader import FusionLoader, WorkerPool
from fusionloader.addons.validation import OverlappedValidation, validate


class Gated:
    """Evaluates once it may."""

    def __init__(self):
        self.gate = threading.Event()
        self.models = []

    def __call__(self, model, batches):
        self.models.append(model)
        assert self.gate.wait(PATIENCE)
        return evaluate(model, batches)


@pytest.mark.few(2)
@pytest.mark.parametrize("parts", [1, 2, 3, 30])
def test_every_epoch_has_the_result_of_a_serial_validation_to_the_last_bit(parts):
    model, loader = model_of(), loader_of()
    validation = OverlappedValidation(evaluate, loader, parts=parts)
    expected = []
    for epoch in range(3):
        train(model)
        expected.append(by_hand(model, loader, parts))
        assert validate(evaluate, model, loader, parts=parts).metrics == expected[-1]
        model.train()
        assert validation.start(model, epoch)
    results = validation.finish()
    assert [result.epoch for result in results] == [0, 1, 2]
    assert [result.metrics for result in results] == expected
    assert all(result.batches == 21 and result.samples == 203 for result in results)
    assert len({result.metrics["loss"] for result in results}) == 3


def test_training_that_goes_on_does_not_change_the_model_that_is_validated():
    model, loader, gated = model_of(), loader_of(), Gated()
    with OverlappedValidation(gated, loader) as validation:
        expected = by_hand(model, loader)
        validation.start(model, 0)
        train(model)
        assert list(validation.results()) == []
        gated.gate.set()
    [result] = validation.results()
    assert result.metrics == expected != by_hand(model, loader)
    assert list(validation.results()) == []


def test_training_draws_the_same_numbers_with_either_validation():
    def drawn(validated):
        model, loader = model_of(), loader_of(num_workers=1)
        found = []
        for epoch in range(2):
            validated(model, loader, epoch)
            found.append(torch.rand(3).tolist())
        return found

    kept = []

    def overlapped(model, loader, epoch):
        if not kept:
            kept.append(OverlappedValidation(evaluate, loader))
        kept[0].start(model, epoch)

    found = drawn(overlapped)
    kept[0].finish()
    assert found == drawn(lambda model, loader, epoch: validate(evaluate, model, loader))


def test_start_waits_for_the_validation_before():
    model, gated = model_of(), Gated()
    validation = OverlappedValidation(gated, loader_of())
    validation.start(model, 0)
    opener = threading.Timer(1.0, gated.gate.set)
    opener.start()
    assert validation.start(model, 1)
    assert gated.gate.is_set()
    assert [result.epoch for result in validation.finish()] == [0, 1]
    stats = validation.stats()
    assert (stats.started, stats.finished, stats.copies, stats.waits) == (2, 2, 2, 1)
    assert stats.wait_seconds > 0 and stats.copy_seconds > 0
    assert stats.batches == 42 and stats.samples == 406 and len(stats.seconds_by_part) == 1
    assert "2 of 2 ended" in validation.explain() and "1 times" in validation.explain()


def test_a_busy_validation_may_have_the_next_one_skipped():
    model, gated = model_of(), Gated()
    validation = OverlappedValidation(gated, loader_of(), when_busy="skip")
    assert validation.start(model, 0)
    assert not validation.start(model, 1)
    gated.gate.set()
    results = validation.finish()
    assert [(result.epoch, result.skipped) for result in results] == [(0, False), (1, True)]
    assert results[1].metrics == {}
    assert validation.start(model, 2)
    assert [result.epoch for result in validation.finish()] == [2]
    assert validation.stats().skipped == 1


def test_parts_run_at_the_same_time():
    together = threading.Barrier(2, timeout=PATIENCE)

    def meets(model, batches):
        together.wait()
        return evaluate(model, batches)

    model, loader = model_of(), loader_of()
    with OverlappedValidation(meets, loader, parts=2) as validation:
        validation.start(model, 0)
    [result] = validation.results()
    assert result.metrics == by_hand(model, loader, 2)


def test_evaluation_computes_no_gradients_and_no_dropout():
    seen = []

    def looks(model, batches):
        modes = {module.training for module in model.modules()}
        gradients = {parameter.requires_grad for parameter in model.parameters()}
        seen.append((modes, gradients, torch.is_grad_enabled()))
        return evaluate(model, batches)

    model = model_of().train()
    with OverlappedValidation(looks, loader_of()) as validation:
        validation.start(model, 0)
    assert seen == [({False}, {False}, False)]
    assert model.training and all(parameter.requires_grad for parameter in model.parameters())


def test_serial_validation_leaves_the_model_as_it_was():
    model = model_of().train()
    model[1].eval()
    result = validate(evaluate, model, loader_of(), epoch=7)
    assert result.epoch == 7
    assert model.training and not model[1].training and model[3].training


@pytest.mark.parametrize("in_pool", [False, True], ids=["own workers", "a pool's"])
def test_a_fusionloader_delivers_to_the_parts(in_pool):
    with WorkerPool(1) as pool:
        workers = {"pool": pool.background()} if in_pool else {"num_workers": 1}
        loader = FusionLoader(points(), 10, persistent_workers=True, timeout=PATIENCE, **workers)
        train_loader = FusionLoader(points(60), 10, pool=pool, timeout=PATIENCE)
        model = model_of()
        with OverlappedValidation(evaluate, loader, parts=2) as validation:
            for epoch in range(2):
                for _ in train_loader:
                    train(model, steps=1)
                expected = by_hand(model, loader_of(), 2)
                validation.start(model, epoch)
        assert [result.epoch for result in validation.results()] == [0, 1]
        assert validate(evaluate, model, loader, parts=2).metrics == expected
        loader.close()


def test_autocast_is_up_to_evaluate_and_parameters_stay_float32():
    kinds = set()

    def half(model, batches):
        kinds.update(parameter.dtype for parameter in model.parameters())
        with torch.autocast("cpu", torch.bfloat16):
            kinds.add(model[0](next(iter([points()[:4][0]]))).dtype)
            return evaluate(model, batches)

    model = model_of()
    with torch.autocast("cpu", torch.bfloat16), OverlappedValidation(half, loader_of()) as it:
        it.start(model, 0)
    [result] = it.results()
    assert kinds == {torch.float32, torch.bfloat16}
    assert result.metrics["loss"] != by_hand(model, loader_of())["loss"]


def test_batches_are_moved_to_the_device():
    def looks(model, batches):
        assert next(model.parameters()).device.type == "meta"
        return {"on": ([data.device.type for data, _ in batches].count("meta"), 1)}

    with OverlappedValidation(looks, loader_of(), device="meta") as validation:
        validation.start(model_of(), 0)
    [result] = validation.results()
    assert result.metrics == {"on": 21}


def test_an_empty_loader_has_an_empty_result():
    with OverlappedValidation(evaluate, [], parts=2) as validation:
        validation.start(model_of(), 0)
    [result] = validation.results()
    assert (result.metrics, result.batches, result.skipped) == ({}, 0, False)


def test_after_close_it_begins_anew():
    model, loader = model_of(), loader_of()
    validation = OverlappedValidation(evaluate, loader)
    for epoch in range(2):
        validation.start(model, epoch)
        team = validation._runs.team
        [result] = validation.finish()
        assert result.metrics == by_hand(model, loader)
        validation.close()
        assert not any(worker.is_alive() for worker in (team.reader, *team.parts))


@pytest.mark.parametrize(
    "options, told",
    [
        ({"parts": 0}, "parts should be a positive int, not 0"),
        ({"threads_per_part": True}, "threads_per_part should be a positive int, not True"),
        ({"when_busy": "drop"}, "when_busy should be one of .*, not 'drop'"),
        ({"timeout": 0}, "timeout should be a positive number of seconds or None, not 0"),
    ],
)
def test_an_option_out_of_range_is_refused(options, told):
    with pytest.raises(ValueError, match=told):
        OverlappedValidation(evaluate, loader_of(), **options)


def test_what_is_no_function_no_loader_and_no_module_is_refused():
    with pytest.raises(TypeError, match="evaluate should be a function"):
        OverlappedValidation(3, loader_of())
    with pytest.raises(TypeError, match="iterated once for each validation"):
        OverlappedValidation(evaluate, iter([]))
    with pytest.raises(TypeError, match="replica should be a module"):
        OverlappedValidation(evaluate, loader_of(), replica=3)
