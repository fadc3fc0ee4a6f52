"""The copy of a model: written in place, whatever wraps the model."""

import threading

import pytest
import torch
from evaluations import by_hand, evaluate, loader_of, model_of, train
from support.frameworks import Lazy
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from fusionloader.addons.validation import OverlappedValidation
from fusionloader.addons.validation.replica import ModelReplica, tensors_of, unwrapped

accelerate = Lazy("accelerate")


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(8, 4)
        self.head = nn.Linear(4, 8, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("scale", torch.ones(3), persistent=False)


@pytest.mark.parametrize("make", [model_of, Tied, lambda: weight_norm(nn.Linear(3, 3))])
def test_later_copies_are_written_into_the_same_memory(make):
    model, replica = make(), ModelReplica(None, None)
    copied = replica.copy(model)
    places = {name: tensor.data_ptr() for name, tensor in tensors_of(copied).items()}
    assert not places.keys() - tensors_of(model).keys()
    for _ in range(3):
        with torch.no_grad():
            for tensor in tensors_of(model).values():
                tensor.add_(1)
        assert replica.copy(model) is copied
        for name, tensor in tensors_of(copied).items():
            assert torch.equal(tensor, tensors_of(model)[name])
            assert tensor.data_ptr() == places[name] != tensors_of(model)[name].data_ptr()


def test_tied_parameters_stay_tied():
    copied = ModelReplica(None, None).copy(Tied())
    assert copied.head.weight is copied.embed.weight
    assert list(tensors_of(copied)) == ["embed.weight", "scale"]


def test_a_given_module_and_a_factory_are_copied_into():
    model, given = model_of(1), model_of(2)
    for replica in (given, lambda made=given: made):
        assert ModelReplica(replica, None).copy(model) is given
        assert torch.equal(given[0].weight, model[0].weight)


def test_the_replica_is_on_the_device():
    copied = ModelReplica(None, torch.device("meta")).copy(model_of())
    assert {tensor.device.type for tensor in tensors_of(copied).values()} == {"meta"}


@pytest.mark.parametrize(
    "change, told",
    [
        (lambda model: setattr(model, "4", nn.Linear(16, 5)), r"4.bias is \(5,\) float32 and was"),
        (lambda model: model.append(nn.Linear(4, 4)), "5.bias is new; 5.weight is new"),
        (lambda model: model.pop(4), "4.bias is missing; 4.weight is missing"),
        (lambda model: model.half(), r"0.bias is \(16,\) float16 and was \(16,\) float32"),
    ],
    ids=["shape", "more", "fewer", "dtype"],
)
def test_a_model_that_has_changed_its_structure_is_refused(change, told):
    model, replica = model_of(), ModelReplica(None, None)
    replica.copy(model)
    change(model)
    with pytest.raises(ValueError, match=told):
        replica.copy(model)


def test_a_model_that_cannot_be_copied_needs_a_replica():
    model = model_of()
    model.lock = threading.Lock()
    with pytest.raises(TypeError, match=r"Sequential cannot be copied .*replica="):
        ModelReplica(None, None).copy(model)
    assert torch.equal(ModelReplica(model_of, None).copy(model)[0].weight, model[0].weight)


def test_compiled_models_are_unwrapped():
    model = model_of()
    compiled = torch.compile(model, backend="eager")
    assert unwrapped(compiled) is model
    with OverlappedValidation(evaluate, loader_of()) as validation:
        validation.start(compiled, 0)
    assert next(validation.results()).metrics == by_hand(model, loader_of())


@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_a_model_that_accelerate_has_prepared_is_copied(precision):
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerator = accelerate.Accelerator(cpu=True, mixed_precision=precision)
    model = accelerator.prepare(model_of())
    with OverlappedValidation(evaluate, loader_of(), parts=2) as validation:
        validation.start(model, 0)
        expected = by_hand(model, loader_of(), 2)
        train(model)
        validation.start(model, 1)
    first, second = validation.results()
    assert first.metrics == expected
    assert second.metrics == by_hand(model, loader_of(), 2) != expected
