"""The page as text: whole, small, and without anything that a trace could slip in."""

import json
import re
import sys
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from support.timelines import synthetic_timeline
from support.training_timelines import span, steps_of, timeline

from fusionloader.cli.drawn_report.document import drawing_library
from fusionloader.cli.drawn_report.page import report_page
from fusionloader.observe.trace.timeline import CounterValue, Instant, Worker

EVIL = "</script><img src=x onerror=alert(1)> @text `b` <!--"


class Elements(HTMLParser):
    """The elements of a page, with their attributes, and the text of some."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, str] = {}
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))

    def handle_data(self, data):
        tag, attributes = self.found[-1] if self.found else ("", {})
        name = attributes.get("id") or tag
        self.texts[name] = self.texts.get(name, "") + data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.found if name == tag]


def charts_of(text: str) -> dict:
    return json.loads(Elements(text).texts["charts"])


@pytest.fixture(scope="module")
def whole() -> str:
    return report_page(synthetic_timeline(30, 3), "run.pftrace")


def test_the_page_asks_for_nothing_elsewhere(whole):
    elements = Elements(whole)
    policy = next(each for each in elements.all("meta") if each.get("http-equiv"))
    assert "default-src 'none'" in policy["content"]
    assert [each for each in elements.all("script") if "src" in each] == []
    linked = [each["href"] for _, each in elements.found if "href" in each]
    assert [link for link in linked if not link.startswith(("#", "data:"))] == []
    assert elements.all("img") == elements.all("iframe") == []


def test_the_verdict_comes_first(whole):
    assert whole.index("Training waits") < whole.index('class="chart"')


def test_every_picture_has_a_name_and_its_figures_as_text(whole):
    elements = Elements(whole)
    drawn = [each["id"] for each in elements.all("div") if each.get("class") == "chart"]
    charts = charts_of(whole)
    assert drawn == list(charts)
    assert len(drawn) >= 7
    assert all(chart["label"] for chart in charts.values())
    sections = re.findall(r"<section.*?</section>", whole, re.DOTALL)
    pictured = [section for section in sections if 'class="chart"' in section]
    assert pictured
    assert all(len(re.findall("<tr>", section)) > 1 for section in pictured)


def test_text_of_a_trace_stays_text():
    found = synthetic_timeline(20, 2)
    at = found.steps[3].asked_ns
    meta = replace(found.meta, notes=(EVIL,), steps_only=EVIL)
    instants = (*found.instants, Instant(at, "restart", EVIL, 0))
    counters = (*found.counters, CounterValue(at, EVIL, 3))
    text = report_page(
        replace(found, meta=meta, instants=instants, counters=counters), f"{EVIL}.pftrace"
    )
    elements = Elements(text)
    assert elements.all("img") == []
    assert len(elements.all("script")) == 3
    assert EVIL in charts_of(text)["workers-chart"]["choices"][0]["data"]["events"]["text"]


def test_a_thousand_steps_of_sixteen_workers_stay_small():
    small = len(report_page(synthetic_timeline(100, 16), "run").encode())
    large = len(report_page(synthetic_timeline(2000, 16), "run").encode())
    assert large < 3e6
    assert large - small < 0.5e6


@pytest.mark.parametrize(
    "found",
    [
        timeline(steps_of([(1, None)] * 4), workers=(), steps_only="torch's own loop makes them"),
        timeline(steps_of([(1, 1)] * 3), [span(0, 0, 9, 400)], workers=(Worker(0, "gpu"),)),
        timeline(steps_of([(1, 1)])),
        timeline(steps_of([(0, 0)] * 3, training=0), [span(0, 0, 0)]),
        timeline(steps_of([(1, 1)] * 3), [span(7, 5, 5, 10, read=4), span(7, 1, 9, 0, python=20)]),
    ],
    ids=[
        "steps only",
        "a GPU worker alone",
        "one step",
        "no time",
        "overlaps and parts longer than the whole",
    ],
)
def test_traces_with_little_in_them_are_reported(found):
    text = report_page(found, "run.pftrace")
    assert "NaN" not in json.dumps(charts_of(text))
    assert "Infinity" not in json.dumps(charts_of(text))


def test_steps_only_says_why_no_worker_is_seen():
    found = timeline(
        steps_of([(1, None)] * 4), workers=(), steps_only="torch's own loop makes them"
    )
    text = report_page(found, "run.pftrace")
    assert "No worker is seen in this trace (torch&#39;s own loop makes them)" in text
    assert set(charts_of(text)) == {"waits-chart"}


def test_lost_spans_are_told():
    found = timeline(steps_of([(1, 1)] * 3), [span(0, 0, 9)], lost=1234)
    assert "1,234 spans of workers had no room" in report_page(found, "run.pftrace")


@pytest.mark.parametrize("package", ["jinja2", "vl_convert"])
def test_a_missing_package_is_named_with_what_installs_it(package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    drawing_library.cache_clear()
    with pytest.raises(ImportError, match=r"pip install 'fusionloader\[report\]'"):
        report_page(synthetic_timeline(5, 1), "run")
