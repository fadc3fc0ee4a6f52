"""The table of observe/metrics.md, from the table of counters.

Run from the root of the repository: ``python -m docs.metrics_table`` writes it into the page.
"""

from __future__ import annotations

import re
from pathlib import Path

from fusionloader.observe.statistics.counters import COUNTERS, WAIT_HELP, WAIT_HISTOGRAM

PAGE = Path(__file__).parent / "observe/metrics.md"
KINDS = {"sum": "counter", "gauge": "gauge"}  # as Prometheus calls them
HEAD = "| name | kind | labels | |\n|---|---|---|---|\n"


def written(page: str) -> str:
    """Returns the page with the table of today in it."""
    rows = [f"| `{WAIT_HISTOGRAM}` | histogram | | {WAIT_HELP} |\n"]
    for counter in COUNTERS:
        labels = ", ".join(f"`{label}`" for label in counter.labels)
        cells = (f"`{counter.name}`", KINDS[counter.kind], labels, counter.help)
        rows.append("|" + "".join(f" {cell} |" if cell else " |" for cell in cells) + "\n")
    table = HEAD + "".join(rows)
    return re.sub(re.escape(HEAD) + r"(\|.*\n)*", lambda _: table, page, count=1)


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
