"""The sim command: figures of papers, simulated with the schedulers that the loader runs."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from fusionloader.cli.corpus import KINDS, ensure_corpus
from fusionloader.cli.counts import at_least
from fusionloader.cli.measure.report import table, write_json
from fusionloader.cli.measure.service_times import (
    EXECUTORS,
    measure_service_times,
    write_service_times,
)
from fusionloader.cli.measure.workloads import IMAGE_WORKLOADS
from fusionloader.cli.progress import elapsed
from fusionloader.cli.simulator.figures import FIGURES
from fusionloader.cli.simulator.plot import draw
from fusionloader.cli.simulator.times import load

TIMES = Path(__file__).parents[2] / "benchmarks" / "service_times"
DEFAULT_TIMES = TIMES / "torchvision-randaugment.json"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--fig", choices=FIGURES, help="simulate this figure")
    what.add_argument("--measure", type=Path, metavar="FILE", help="write service times to FILE")
    parser.add_argument(
        "--times", type=Path, default=DEFAULT_TIMES, help="service times (torchvision's, measured)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the simulation (0)")
    parser.add_argument("--output", type=Path, help="the picture (fig8.png and so on)")
    parser.add_argument("--json", type=Path, help="write the table to this file")
    measuring = parser.add_argument_group("with --measure")
    measuring.add_argument("--executor", default="native", choices=EXECUTORS, help="(native)")
    measuring.add_argument(
        "--workload", default="randaugment", choices=IMAGE_WORKLOADS, help="(randaugment)"
    )
    measuring.add_argument("--data", type=Path, help="your image folder (generated)")
    measuring.add_argument("--corpus", default="imagenet-like", choices=KINDS, help="to generate")
    measuring.add_argument(
        "--samples", type=at_least(1), default=1000, help="samples to measure (1000)"
    )


def run(options: argparse.Namespace) -> int:
    """Prints the table and draws the picture, or writes service times; returns the exit status."""
    return _measure(options) if options.measure else _simulate(options)


def _measure(options: argparse.Namespace) -> int:
    root = options.data or ensure_corpus(options.samples, kind=options.corpus).train
    found = measure_service_times(root, options.workload, options.executor, options.samples)
    write_service_times(found, options.measure)
    times = found["cpu"]["milliseconds"]
    mean = sum(times) / len(times)
    print(f"{options.measure}: {len(times)} samples, {mean:.2f} ms of CPU time each on average.")
    print(
        "The GPU's and the models' figures in it are assumptions; see docs/observe/simulation.md."
    )
    return 0


def _simulate(options: argparse.Namespace) -> int:
    try:
        times = load(options.times)
    except (OSError, ValueError) as error:
        print(f"fusionloader sim: {error}", file=sys.stderr)
        print("To measure service times: --measure FILE, then --times FILE", file=sys.stderr)
        return 2
    with elapsed(f"simulating figure {options.fig} with {options.times.name}"):
        figure = FIGURES[options.fig](times, options.seed)
    print(f"{figure.title} (SIMULATED, service times: {times.name})")
    print(table(figure.header, figure.rows))
    print(f"\n{figure.note}")
    output = options.output or Path(f"fig{options.fig}.png")
    draw(figure).save(output)
    print(f"drawn to {output}")
    rows = [dict(zip(figure.header, row, strict=True)) for row in figure.rows]
    report = {"simulated": True, "title": figure.title, "times": times.name, "table": rows}
    write_json({**report, "seed": options.seed, "note": figure.note}, options.json)
    return 0
