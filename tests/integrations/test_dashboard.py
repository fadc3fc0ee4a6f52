"""The Grafana dashboard asks for nothing but what is exported."""

import itertools
import json
import re
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from fusionloader import FusionLoader
from fusionloader.addons.integrations import prometheus
from fusionloader.observe.statistics.counters import COUNTERS

DASHBOARD = json.loads(
    (Path(__file__).parents[2] / "examples" / "grafana_dashboard.json").read_text()
)
QUERIES = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
VARIABLES = [each["query"]["query"] for each in DASHBOARD["templating"]["list"][1:]]
SUFFIXES = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}


@pytest.fixture(scope="module")
def exported():
    """Names of everything that is exported, as Prometheus stores them."""
    registry = CollectorRegistry()
    with prometheus.export(FusionLoader([1]), registry=registry):
        types = re.findall(r"# TYPE (\w+) (\w+)", generate_latest(registry).decode())
    return {name.removesuffix("_total") + end for name, kind in types for end in SUFFIXES[kind]}


@pytest.mark.parametrize("query", [*QUERIES, *VARIABLES])
def test_every_name_is_exported(query, exported):
    asked = set(re.findall(r"fusionloader_\w+", query))
    assert asked and asked <= exported
    assert query.count("(") == query.count(")") and query.count("{") == query.count("}")


def test_every_label_is_one_of_the_metric():
    labels = {f"fusionloader_{metric.name}": set(metric.labels) for metric in COUNTERS}
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            name = re.search(r"fusionloader_\w+", target["expr"])[0].removesuffix("_total")
            known = labels.get(name, set()) | {"loader", "rank", "le"}
            used = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            grouped = re.findall(r"by \(([^)]*)\)", target["expr"])
            assert used | set(", ".join(grouped).split(", ")) - {""} <= known, target


def test_the_wait_comes_first_and_panels_do_not_overlap():
    first, *_ = DASHBOARD["panels"]
    assert "wait_seconds_sum" in first["targets"][0]["expr"]
    for one, other in itertools.combinations(DASHBOARD["panels"], 2):
        a, b = one["gridPos"], other["gridPos"]
        beside = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"]
        assert beside or a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"]
    assert all(panel["title"] and panel["description"] for panel in DASHBOARD["panels"])
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
