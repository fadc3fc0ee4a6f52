"""Time to import the package beyond that of torch, which every training imports anyway."""

from __future__ import annotations

import re
import statistics
import subprocess
import sys

from benchmarks.study import parser_of, publish
from fusionloader.cli.progress import Progress

# The last one is what a loader could not do without if it read transforms of every dataset.
STATEMENTS = (
    "import fusionloader",
    "from fusionloader import FusionLoader",
    "from fusionloader import FusionLoader; list(FusionLoader([0]))",
    "import torchvision",
)
# A module that no other one has imported: its name has one space before it.
_OUTERMOST = re.compile(r"^import time: +\d+ \| +(\d+) \| (\S+)$", re.MULTILINE)


def seconds_of(statement: str) -> tuple[float, float]:
    """Returns the seconds of torch, and of ``statement`` after it, in a fresh interpreter."""
    command = [sys.executable, "-X", "importtime", "-c", f"import torch\n{statement}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = [
        (name, int(microseconds) / 1e6) for microseconds, name in _OUTERMOST.findall(done.stderr)
    ]
    place = [name for name, _ in found].index("torch")
    return found[place][1], sum(seconds for _, seconds in found[place + 1 :])


def main() -> None:
    options = parser_of(__doc__, rounds=9).parse_args()
    values: dict[str, list[tuple[float, float]]] = {each: [] for each in STATEMENTS}
    with Progress("importing", options.rounds * len(STATEMENTS)) as progress:
        for _ in range(options.rounds):
            for statement, found in values.items():
                found.append(seconds_of(statement))
                progress.advance()
    rows = [
        (
            statement,
            f"{statistics.median(beyond for _, beyond in found):.4f}",
            f"{min(beyond for _, beyond in found):.4f}-{max(beyond for _, beyond in found):.4f}",
            f"{statistics.median(beyond / torch for torch, beyond in found):.2%}",
        )
        for statement, found in values.items()
    ]
    publish(options, ("statement", "s beyond torch", "range s", "share of torch's"), rows,
            seconds=values)  # fmt: skip


if __name__ == "__main__":
    main()
