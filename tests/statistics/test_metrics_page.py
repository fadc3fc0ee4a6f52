"""docs/observe/metrics.md lists what is exported."""

from docs import metrics_table


def test_the_page_lists_every_metric():
    page = metrics_table.PAGE.read_text()
    assert metrics_table.written(page) == page, "run python -m docs.metrics_table"
    assert page.count(metrics_table.HEAD) == 1
