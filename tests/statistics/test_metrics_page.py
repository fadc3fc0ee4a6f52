"""docs/observe/metrics.md lists what is exported."""

from pathlib import Path

from fusionloader.observe.statistics.table import COUNTERS

PAGE = (Path(__file__).parents[2] / "docs" / "observe/metrics.md").read_text()


def test_the_page_lists_every_metric():
    listed = [line for line in PAGE.splitlines() if line.startswith("| `") and ". |" in line]
    rows = {line.split("`")[1]: [cell.strip() for cell in line.split("|")[2:5]] for line in listed}
    assert rows.pop("wait_seconds")[0] == "histogram"
    kinds = {"sum": "counter", "gauge": "gauge"}
    assert rows == {
        metric.name: [
            kinds[metric.kind],
            ", ".join(f"`{name}`" for name in metric.labels),
            metric.help,
        ]
        for metric in COUNTERS
    }
