"""Counters as OpenTelemetry's observable instruments, read by the SDK."""

import gc

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, Sum

from fusionloader import FusionLoader
from fusionloader.addons.integrations import otel
from fusionloader.observe.statistics.counters import COUNTERS


@pytest.fixture
def reader():
    return InMemoryMetricReader()


@pytest.fixture
def provider(reader):
    made = MeterProvider([reader])
    yield made
    made.shutdown()


def collected(reader):
    data = reader.get_metrics_data()
    resources = data.resource_metrics if data is not None else []
    return {
        metric.name.removeprefix("fusionloader."): metric
        for resource in resources
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }


def values(metric):
    return {
        tuple(sorted(point.attributes.items())): point.value for point in metric.data.data_points
    }


def of(name="train", **labels):
    return tuple(sorted({"loader": name, "rank": "0", **labels}.items()))


def test_the_instruments_say_what_stats_says(train_set, reader, provider):
    loader = FusionLoader(train_set, 8, num_workers=2)
    otel.export(loader, meter_provider=provider)
    list(loader)
    told, found = loader.stats(), collected(reader)
    assert values(found["samples"]) == {of(): 40}
    assert values(found["wait_ratio"]) == {of(): told.wait_share}
    assert values(found["wait_seconds"]) == {of(): told.waits.seconds}
    assert values(found["waits"]) == {of(): 4}
    capacities = values(found["stage_capacity_samples_per_second"])
    assert capacities == {of(stage=stage.name): stage.capacity for stage in told.stages}
    assert set(found) <= {metric.name for metric in COUNTERS} | {"wait_seconds", "waits"}


def test_counters_are_sums_that_only_grow_and_units_are_ucum(train_set, reader, provider):
    otel.export(FusionLoader(train_set, 8), meter_provider=provider)
    loader = FusionLoader(train_set, 8)
    otel.export(loader, meter_provider=provider)
    list(loader)
    found = collected(reader)
    assert isinstance(found["samples"].data, Sum) and found["samples"].data.is_monotonic
    assert not isinstance(found["wait_ratio"].data, Sum)
    assert found["read_bytes"].unit == "By" and found["wait_seconds"].unit == "s"
    assert found["capacity_samples_per_second"].unit == "{sample}/s"
    assert found["batches"].unit == "{batches}"


def test_loaders_are_added_and_replaced_and_leave(train_set, reader, provider):
    first, other = FusionLoader(train_set, 8), FusionLoader(train_set, 20)
    otel.export({"train": first}, meter_provider=provider)
    otel.export({"val": other}, meter_provider=provider)
    list(other)
    assert values(collected(reader)["batches"]) == {of("train"): 0, of("val"): 2}
    second = FusionLoader(train_set, 4)
    otel.export({"train": second}, meter_provider=provider)
    del first  # whose name is another one's now
    gc.collect()
    list(second)
    assert values(collected(reader)["batches"])[of("train")] == 10
    del other
    gc.collect()
    assert values(collected(reader)["batches"]) == {of("train"): 10}


def test_what_is_no_loader_is_refused(provider):
    with pytest.raises(TypeError, match="'train' should be a FusionLoader"):
        otel.export([1], meter_provider=provider)
