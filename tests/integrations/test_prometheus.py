"""Counters for Prometheus: over HTTP, in a text file, of several loaders, until they are gone."""

import gc
import importlib
import sys
import urllib.request

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from support.torchrun import port
from support.waiting import PATIENCE

from fusionloader import DecodedCache, FusionLoader
from fusionloader.addons.integrations import prometheus
from fusionloader.observe.statistics.counters import COUNTERS


@pytest.fixture
def registry():
    return CollectorRegistry()


def samples_of(text):
    """The values of all samples, by name and labels."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def exported(registry):
    return samples_of(generate_latest(registry).decode())


def key(name, loader="train", rank="0", **labels):
    return f"fusionloader_{name}", tuple(sorted({"loader": loader, "rank": rank, **labels}.items()))


def test_what_stats_says_is_exported(train_set, registry):
    loader = FusionLoader(train_set, 8, num_workers=2, cache=DecodedCache("64MiB"))
    prometheus.export(loader, registry=registry)
    list(loader)
    list(loader)
    told, found = loader.stats(), exported(registry)
    assert found[key("samples_total")] == told.samples == 80
    assert found[key("wait_ratio")] == told.wait_share
    assert found[key("step_seconds_total")] == told.waits.step_seconds
    assert found[key("cache_hits_total")] == 40
    assert found[key("store_images", store="decoded_cache")] == 40
    for stage in told.stages:
        name = "stage_capacity_samples_per_second"
        assert found[key(name, stage=stage.name)] == stage.capacity
    for worker in told.workers:
        labels = {"kind": "native", "worker": str(worker.number)}
        assert found[key("worker_samples_total", **labels)] == worker.samples
        assert found[key("worker_busy_ratio", **labels)] == pytest.approx(worker.busy_share)


def test_the_histogram_has_cumulative_buckets_that_stay(train_set, registry):
    loader = FusionLoader(train_set, 4)
    prometheus.export(loader, registry=registry)

    def buckets():
        return [
            (float(dict(labels)["le"]), value)
            for (name, labels), value in exported(registry).items()
            if name == "fusionloader_wait_seconds_bucket"
        ]

    before = buckets()
    list(loader)
    waits, after = loader.stats().waits, buckets()
    assert [bound for bound, _ in before] == [bound for bound, _ in after]
    assert len(after) == 30 and after[-1] == (float("inf"), 9)
    assert after == sorted(after) and tuple(after) == waits.cumulative()
    found = exported(registry)
    assert found[key("wait_seconds_sum")] == waits.seconds
    assert found[key("wait_seconds_count")] == 9


def test_loaders_are_told_apart_until_they_are_gone(train_set, eval_set, registry):
    loaders = {"train": FusionLoader(train_set, 8), "val": FusionLoader(eval_set, 20)}
    exporter = prometheus.export(loaders, registry=registry)
    list(loaders["val"])
    assert exported(registry)[key("batches_total", "train")] == 0
    assert exported(registry)[key("batches_total", "val")] == 2
    del loaders["val"]
    gc.collect()
    assert {dict(labels)["loader"] for _, labels in exported(registry)} == {"train"}
    exporter.close()
    assert not exported(registry)


def test_each_rank_of_a_machine_has_its_port(train_set, registry, monkeypatch):
    loader = FusionLoader(train_set, 8)
    with prometheus.export(loader, registry=registry, port=0, address="127.0.0.1") as exporter:
        url = f"http://127.0.0.1:{exporter.port}/metrics"
        with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
            assert samples_of(answer.read().decode())[key("batches_total")] == 0
    assert exporter.port is None
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("RANK", "5")
    free = port()
    arguments = {"registry": registry, "port": free - 1, "address": "127.0.0.1"}
    with prometheus.export(loader, **arguments) as exporter:
        assert exporter.port == free
        assert exported(registry)[key("batches_total", rank="5")] == 0


def test_a_text_file_for_a_node_exporter(train_set, registry, tmp_path):
    loader = FusionLoader(train_set, 8)
    exporter = prometheus.export(loader, registry=registry)
    exporter.write_textfile(tmp_path / "train.prom")
    assert samples_of((tmp_path / "train.prom").read_text()) == exported(registry)
    assert [path.name for path in tmp_path.iterdir()] == ["train.prom"]
    with pytest.raises(FileNotFoundError, match=r"nowhere/train\.prom"):
        exporter.write_textfile(tmp_path / "nowhere" / "train.prom")


def test_bad_arguments_are_refused(train_set, registry):
    loader = FusionLoader(train_set, 8)
    with pytest.raises(ValueError, match="no loaders to export"):
        prometheus.export({}, registry=registry)
    with pytest.raises(TypeError, match="'val' should be a FusionLoader, not 3"):
        prometheus.export({"train": loader, "val": 3}, registry=registry)
    with pytest.raises(ValueError, match=r"port should be in 0 \.\.\. 65535, not 70000"):
        prometheus.export(loader, registry=registry, port=70000)
    with prometheus.export(loader, registry=registry) as exporter:
        with pytest.raises(ValueError, match="pass all of them to one export"):
            prometheus.export(loader, registry=registry)
        exporter.serve(0, "127.0.0.1")
        other = CollectorRegistry()
        with pytest.raises(OSError, match="in use"):
            prometheus.export(loader, registry=other, port=exporter.port, address="127.0.0.1")
        assert not exported(other)


def test_names_follow_prometheus():
    for metric in COUNTERS:
        assert metric.help.endswith(".") and "total" not in metric.name
        unit = {"samples/second": "samples_per_second"}.get(metric.unit, metric.unit)
        assert metric.name.endswith(unit.replace("-", "_")) or metric.unit in (
            "samples",
            "restarts",
            "workers",
            "images",
            "files",
        )
    assert len({metric.name for metric in COUNTERS}) == len(COUNTERS)


@pytest.mark.parametrize(
    "module, package",
    [("prometheus", "prometheus_client"), ("otel", "opentelemetry"), ("nvtx", "nvtx")],
)
def test_a_missing_package_is_named_with_the_command(module, package, monkeypatch):
    module = f"fusionloader.addons.integrations.{module}"
    for name in [*sys.modules]:
        if name == module or name.startswith(f"{package}."):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=f"{module} needs {package}: pip install 'fusionloader"):
        importlib.import_module(module)


@pytest.mark.parametrize("options", [{}, {"collate_fn": len}, {"persistent_workers": True}])
def test_an_exported_loader_ends_with_its_last_reference(options, train_set, registry):
    loader = FusionLoader(train_set, 8, num_workers=1, **options)
    prometheus.export(loader, registry=registry)
    iterator = iter(loader)
    next(iterator)
    processes = [*iterator._workers]
    exported(registry)
    del loader, iterator
    gc.collect()
    assert not exported(registry)
    assert not any(process.is_alive() for process in processes)
