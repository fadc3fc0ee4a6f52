"""Results as a table for people and as JSON for programs."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

from fusionloader.cli.environment import JsonObject, provenance
from fusionloader.cli.measure.processes import MEGABYTE, ProcessMemory
from fusionloader.cli.measure.protocol import NOISY_SPREAD, Result, per_round_ratios


def announce(text: str) -> None:
    """Prints the progress of a measurement to standard error, apart from the table."""
    print(f"  {text}", file=sys.stderr, flush=True)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns a text table: left-aligned first column, right-aligned others."""
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]
    lines = []
    for row in [header, *rows]:
        cells = [
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)


def summary(result: Result, baseline: Result) -> JsonObject:
    """Returns the figures of one contender: medians over the counted epochs, and every epoch."""
    ratios = per_round_ratios(result, baseline)
    workers = result.workers
    return {
        "name": result.contender.name,
        "description": result.contender.description,
        "limit": result.contender.limit,
        "samples_per_second": result.median(lambda e: e.rate),
        "samples_per_second_whole_epoch": result.median(lambda e: e.whole_rate),
        "ratio": statistics.median(ratios),
        "ratios": ratios,
        "spread": result.spread,
        "noisy": result.noisy,
        "first_batch_cold_seconds": result.cold_first_batch,
        "first_batch_seconds": result.median(lambda e: e.first_batch),
        "cpu_seconds_per_1000": result.median(lambda e: e.cpu_per_1000),
        "main_cpu_ms_per_sample": result.median(lambda e: e.cpu_main / e.samples * 1e3),
        "worker_memory": [asdict(memory) for memory in workers],
        "peak_rss_per_worker_mb": _most(workers, "peak_rss"),
        "uss_per_worker_mb": _most(workers, "uss"),
        "pss_per_worker_mb": _most(workers, "pss"),
        "shared_memory_mb": result.shared_bytes / MEGABYTE,
        "epochs": [{**asdict(e), "samples_per_second": e.rate} for e in result.epochs],
    }


def _most(workers: Sequence[ProcessMemory], name: str) -> float | None:
    """Returns the largest worker's figure in MB, ``None`` for a contender without processes."""
    return max((getattr(w, name) for w in workers), default=0) / MEGABYTE if workers else None


def report_of(results: Sequence[Result], flags: JsonObject, **facts: Any) -> JsonObject:
    """Returns all that a reader needs to judge the figures and to repeat them."""
    return {
        **provenance(),
        "flags": dict(flags),
        **facts,
        "baseline": results[0].contender.name,
        "contenders": [summary(result, results[0]) for result in results],
    }


def comparison(report: JsonObject) -> str:
    """Returns the table of a report, with the meaning of its columns below."""
    header = (
        "contender", "samples/s", "ratio", "spread", "whole epoch", "first cold s", "first s",
        "CPU s/1000", "main ms", "worker USS MB", "peak RSS MB",
    )  # fmt: skip
    rows = [
        (
            entry["name"],
            f"{entry['samples_per_second']:,.0f}",
            f"{entry['ratio']:.2f}x",
            f"{entry['spread']:.0%}{'!' if entry['noisy'] else ''}",
            f"{entry['samples_per_second_whole_epoch']:,.0f}",
            f"{entry['first_batch_cold_seconds']:.2f}",
            f"{entry['first_batch_seconds']:.3f}",
            f"{entry['cpu_seconds_per_1000']:.2f}",
            f"{entry['main_cpu_ms_per_sample']:.3f}",
            _megabytes(entry["uss_per_worker_mb"]),
            _megabytes(entry["peak_rss_per_worker_mb"]),
        )
        for entry in report["contenders"]
    ]
    notes = [f"{entry['name']}: {entry['description']}" for entry in report["contenders"]]
    notes.append(
        "Medians of interleaved epochs; ratio: median of the per-round ratios to "
        f"{report['baseline']}; samples/s: between the first and the last batch."
    )
    if any(entry["noisy"] for entry in report["contenders"]):
        notes.append(f"! the epochs differ by more than {NOISY_SPREAD:.0%} of the median: noisy.")
    return "\n".join([table(header, rows), "", *notes])


def _megabytes(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"


def write_json(report: JsonObject, path: Path | None) -> None:
    """Writes a report, if a file was asked for."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_lines(json.loads(json.dumps(report, default=_plain)), 2) + "\n")


def _lines(value: Any, levels: int, indent: str = "") -> str:
    """Returns JSON in which each value of the first levels has a line."""
    if not levels or not value or not isinstance(value, dict | list):
        return json.dumps(value)
    inner = f"{indent}  "
    if isinstance(value, dict):
        parts = [f"{json.dumps(key)}: {_lines(value[key], levels - 1, inner)}" for key in value]
    else:
        parts = [_lines(each, levels - 1, inner) for each in value]
    begin, end = "{}" if isinstance(value, dict) else "[]"
    return f"{begin}\n{inner}" + f",\n{inner}".join(parts) + f"\n{indent}{end}"


def _plain(value: object) -> JsonObject | str:
    """Returns values as JSON can represent them: dataclasses as objects, others as text."""
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return str(value)
