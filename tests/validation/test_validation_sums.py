"""What parts return is added exactly, in their order; metrics by their own reductions."""

import copy

import pytest
import torch
from evaluations import loader_of, model_of
from hypothesis import given
from hypothesis import strategies as st
from support.frameworks import Lazy

from fusionloader.addons.validation import OverlappedValidation
from fusionloader.addons.validation.sums import merged, metrics_of, read

torchmetrics = Lazy("torchmetrics")
floats = st.floats(-1e6, 1e6)


@given(st.lists(st.tuples(floats, st.integers(0, 2**40)), min_size=1))
def test_sums_and_counts_are_those_of_python(parts):
    total, count = parts[0]
    for more, others in parts[1:]:
        total, count = total + more, count + others
    found = merged([read({"loss": part, "count": part[1]}) for part in parts])
    assert found["loss"].sum.item() == total and found["loss"].count.item() == count
    assert metrics_of(found)["count"] == count
    if count:
        assert metrics_of(found)["loss"] == total / count


def test_uneven_parts_are_weighted():
    found = metrics_of(merged([read({"loss": (9.0, 9)}), read({"loss": (0.0, 1)})]))
    assert found == {"loss": 0.9}


def test_tensors_are_summed_in_the_widest_type_and_by_element():
    confusion = torch.eye(2, dtype=torch.int32)
    small = torch.tensor(0.1)
    found = merged([read({"confusion": confusion, "small": small, "flag": True})] * 3)
    assert found["confusion"].sum.dtype == torch.int64
    assert metrics_of(found)["confusion"].tolist() == [[3, 0], [0, 3]]
    assert metrics_of(found)["small"] == small.item() * 2 + small.item()
    assert metrics_of(found)["flag"] == 3
    assert torch.isnan(torch.tensor(metrics_of(read({"none": (0.0, 0)}))["none"]))


def test_what_is_returned_is_not_changed():
    sums = torch.zeros(2, dtype=torch.float64)
    found = merged([read({"x": sums}), read({"x": sums + 1})])
    assert sums.tolist() == [0, 0] and found["x"].sum.tolist() == [1, 1]


@pytest.mark.parametrize(
    "returned, told",
    [
        (None, "evaluate should return a mapping of names .* not None"),
        ({3: 1}, "a mapping of strings, and 3 is none"),
        ({"x": (1, 2, 3)}, r"returned 3 values for 'x': a \(sum, count\) pair"),
        ({"x": "much"}, "numbers or tensors, and 'x' is 'much'"),
    ],
)
def test_something_else_is_refused(returned, told):
    with pytest.raises(TypeError, match=told):
        read(returned)


@pytest.mark.parametrize(
    "second, told",
    [
        ({"y": 1}, r"returned \['x'\] of part 0 and \['y'\] of part 1"),
        ({"x": (1, 2)}, r"'x' as a total of shape \(\) and as a \(sum, count\) pair of shape"),
        ({"x": torch.ones(2)}, r"shape \(\) and as a total of shape \(2,\)"),
    ],
)
def test_parts_that_differ_are_refused(second, told):
    with pytest.raises(ValueError, match=told):
        merged([read({"x": 1}), read(second)])


def fed(metric, batches):
    for found, targets in batches:
        metric.update(found, targets)
    return metric


def batches(count=5):
    generator = torch.Generator().manual_seed(0)
    for size in range(1, count + 1):
        found = torch.randn(size, 3, generator=generator)
        yield found, torch.randint(0, 3, (size,), generator=generator)


def collection():
    return torchmetrics.MetricCollection(
        {
            "accuracy": torchmetrics.classification.MulticlassAccuracy(3, average="micro"),
            "recall": torchmetrics.classification.MulticlassRecall(3, average="micro"),
            "auroc": torchmetrics.classification.MulticlassAUROC(3),
        }
    )


def test_metrics_of_three_parts_are_those_of_all_batches():
    every = list(batches())
    expected = fed(collection(), every).compute()
    parts = [
        fed(collection(), every[:2]),
        fed(collection(), every[2:3]),
        fed(collection(), every[3:]),
    ]
    before = copy.deepcopy(parts[0]).compute()
    found = metrics_of(merged([read(part) for part in parts]))
    assert found == {name: value.item() for name, value in expected.items()}
    assert parts[0].compute() == before


def test_a_metric_that_was_computed_before_is_computed_anew():
    every = list(batches())
    parts = [fed(torchmetrics.MeanMetric(), [(found.mean(), 1)]) for found, _ in every[:2]]
    for part in parts:
        part.compute()
    expected = (every[0][0].mean() + every[1][0].mean()) / 2
    assert metrics_of(merged(parts)) == {"MeanMetric": expected.item()}


def test_concatenated_states_are_in_the_order_of_parts():
    parts = [torchmetrics.CatMetric() for _ in range(3)]
    for number, part in enumerate(parts):
        part.update(torch.tensor([number, number + 10]))
    assert metrics_of(merged(parts))["CatMetric"].tolist() == [0, 10, 1, 11, 2, 12]


def test_metrics_that_parts_share_or_that_cannot_be_merged_are_refused():
    class Averaged(torchmetrics.Metric):
        full_state_update = False

        def __init__(self):
            super().__init__()
            self.add_state("mean", torch.tensor(0.0), dist_reduce_fx="mean")

        def update(self, value):
            self.mean = value

        def compute(self):
            return self.mean

    shared = torchmetrics.SumMetric()
    with pytest.raises(ValueError, match="the same metric for two parts"):
        merged([shared, shared])
    with pytest.raises(ValueError, match="returned SumMetric.* of part 0 and MaxMetric.* of part"):
        merged([shared, torchmetrics.MaxMetric()])
    with pytest.raises(ValueError, match="Averaged cannot be merged exactly .* its state mean"):
        merged([Averaged(), Averaged()])
    with pytest.raises(ValueError, match="cannot be merged exactly .* the metric metric_a in it"):
        merged([torchmetrics.SumMetric() + 1, torchmetrics.SumMetric() + 1])


def test_parts_that_evaluate_may_return_metrics():
    def metric_of(model, given):
        metric = torchmetrics.classification.MulticlassAccuracy(4, average="micro")
        for data, targets in given:
            metric.update(model(data), targets)
        return metric

    model, loader = model_of(), loader_of()
    with OverlappedValidation(metric_of, loader, parts=3) as validation:
        validation.start(model, 0)
        validation.start(model, 1)
    results = list(validation.results())
    expected = metric_of(model.eval(), iter(loader)).compute().item()
    assert [result.metrics for result in results] == [{"MulticlassAccuracy": expected}] * 2
