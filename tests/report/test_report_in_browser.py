"""The page in a real browser: one start of it for all checks, which is what takes time."""

import re

import pytest
from support.timelines import synthetic_timeline
from support.waiting import PATIENCE

from benchmarks.browser import NAMES, browser_path, chromium
from fusionloader.cli.drawn_report.page import report_page

WIDE, PHONE = {"width": 1280, "height": 800}, {"width": 390, "height": 844}
DRAWN = "html[data-state=drawn]"
# Marks that show something: with an extent, and not the invisible ones of a legend's areas.
MARKS = """chart => [...chart.querySelectorAll('.mark-rect path, .mark-area path, .mark-line path')]
    .filter(mark => mark.getBBox().width > 0 || mark.getBBox().height > 0).length"""
FOCUSABLE = "a[href], select, summary, [tabindex='0']"
# What has the focus, by its place among all that can have it and are shown.
FOCUSED = f"""() => [...document.querySelectorAll("{FOCUSABLE}")]
    .filter(each => each.checkVisibility()).indexOf(document.activeElement)"""
SHOWN = f"""() => [...document.querySelectorAll("{FOCUSABLE}")]
    .filter(each => each.checkVisibility()).length"""
CONTRAST = """selector => {
    const element = document.querySelector(selector);
    const light = color => {
        const parts = color.match(/[\\d.]+/g).slice(0, 3).map(part => {
            const share = part / 255;
            return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
        });
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
    };
    let ground = element;
    while (getComputedStyle(ground).backgroundColor === "rgba(0, 0, 0, 0)") {
        ground = ground.parentElement;
    }
    const pair = [getComputedStyle(element).color, getComputedStyle(ground).backgroundColor];
    const [low, high] = pair.map(light).sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
}"""


@pytest.fixture
def path(tmp_path):
    found = tmp_path / "report.html"
    found.write_text(report_page(synthetic_timeline(60, 4), "run.pftrace"), encoding="utf-8")
    return found


@pytest.mark.skipif(browser_path() is None, reason=f"none of {', '.join(NAMES)} is installed")
def test_the_page_works_in_a_browser(path):
    said: list[str] = []
    asked: list[str] = []
    with chromium() as browser:
        page = browser.new_page(viewport=WIDE, color_scheme="light")
        page.set_default_timeout(PATIENCE * 1000)
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(path.as_uri())
        page.wait_for_selector(DRAWN)
        print(f"drawn after {page.evaluate('performance.now()'):.0f} ms")
        assert_every_picture_is_drawn_and_has_a_text(page)
        assert_it_is_used_by_keyboard(page)
        assert_it_follows_the_color_scheme(page)
        for viewport in (WIDE, PHONE):
            assert_it_fits(page, viewport)
    assert said == []
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []


def assert_every_picture_is_drawn_and_has_a_text(page):
    charts = page.query_selector_all(".chart")
    assert len(charts) >= 7
    for chart in charts:
        assert chart.evaluate(MARKS) > 0, chart.get_attribute("id")
        assert chart.get_attribute("role") == "graphics-document"
        assert len(chart.get_attribute("aria-label")) > 20
    assert page.get_by_role("heading", name=re.compile("Training waits")).is_visible()


def assert_it_is_used_by_keyboard(page):
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "verdict"
    page.evaluate("document.activeElement.blur(); document.querySelector('.skip').focus()")
    order = [page.evaluate(FOCUSED)]
    for _ in range(page.evaluate(SHOWN) - 1):
        page.keyboard.press("Tab")
        order.append(page.evaluate(FOCUSED))
    assert order == list(range(len(order)))
    assert_the_moment_to_look_at_is_chosen(page)
    assert_a_table_is_opened(page)


def assert_the_moment_to_look_at_is_chosen(page):
    before = page.get_attribute("#detail-chart", "aria-label")
    page.focus("#detail-chart-choice")
    page.keyboard.press("ArrowDown")
    page.wait_for_function(
        "before => document.querySelector('#detail-chart').getAttribute('aria-label') !== before",
        arg=before,
    )


def assert_a_table_is_opened(page):
    table = page.query_selector("details table")
    assert not table.is_visible()
    page.focus("summary")
    page.keyboard.press("Enter")
    assert table.is_visible()


def assert_it_follows_the_color_scheme(page):
    grounds, labels = [], []
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        color = page.evaluate(
            "getComputedStyle(document.documentElement).getPropertyValue('--muted')"
        )
        page.wait_for_selector(f"#capacity-chart svg text[fill='{color}']")
        grounds.append(page.evaluate("getComputedStyle(document.body).backgroundColor"))
        labels.append(color)
        for selector in ("h1", "#headline", "#verdict p", ".facts dt", "nav a", "summary"):
            assert page.evaluate(CONTRAST, selector) >= 4.5, (scheme, selector)
    assert grounds[0] != grounds[1]
    assert labels[0] != labels[1]


def assert_it_fits(page, viewport):
    page.set_viewport_size(viewport)
    narrower = "() => [...document.querySelectorAll('.chart svg')].every("
    page.wait_for_function(f"{narrower}svg => svg.getBoundingClientRect().right <= innerWidth)")
    assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]
