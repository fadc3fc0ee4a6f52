"""What the studies share: flags, interleaved measurements, the report around their rows."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fusionloader.cli.bench import add_common_arguments, flags_of
from fusionloader.cli.environment import provenance
from fusionloader.cli.measure.protocol import Contender, measure
from fusionloader.cli.measure.report import announce, summary, table, write_json


def parser_of(summary: str | None, *, rounds: int) -> argparse.ArgumentParser:
    """Returns a parser with the common flags of bench and ``--rounds``."""
    parser = argparse.ArgumentParser(description=summary)
    add_common_arguments(parser)
    parser.add_argument("--rounds", type=int, default=rounds, help=f"interleaved rounds ({rounds})")
    return parser


def interleaved(measure: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Calls every measurement ``rounds`` times, interleaved; returns the values."""
    values: dict[str, list[float]] = {name: [] for name in measure}
    for _ in range(rounds):
        for name, once in measure.items():
            values[name].append(once())
    return values


def compare(contenders: Sequence[Contender], options: argparse.Namespace) -> list[dict[str, Any]]:
    """Measures contenders in interleaved rounds; returns their figures, beside the first one's."""
    results, _ = measure(contenders, options.rounds, retries=0, announce=announce)
    return [summary(result, results[0]) for result in results]


def ratio_rows(told: Sequence[dict[str, Any]], digits: int = 3) -> list[tuple[str, ...]]:
    """Returns names, samples per second, ratios and processor seconds of what was compared."""
    return [
        (
            each["name"],
            f"{each['samples_per_second']:,.0f}",
            f"{each['ratio']:.{digits}f}",
            f"{each['cpu_seconds_per_1000']:.2f}",
        )
        for each in told
    ]


def append(file: Path | None, **case: Any) -> None:
    """Prints a case's figures and adds them to a file, one JSON line, before the next case begins.

    A study that ends by the clock has lost the figures of the case that it was at alone.
    """
    line = json.dumps(case, default=str)
    print(line, flush=True)
    if file is not None:
        with file.open("a") as lines:
            lines.write(line + "\n")


def publish(
    options: argparse.Namespace,
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    **figures: Any,
) -> None:
    """Prints the table and writes the JSON, if a file was asked for."""
    print(table(header, rows))
    report = {
        **provenance(),
        "flags": flags_of(options),
        "table": [dict(zip(header, row, strict=True)) for row in rows],
        **figures,
    }
    write_json(report, options.json)
