"""Time to the first batch of a new loader with spawned workers."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial

from benchmarks.study import interleaved, parser_of, publish
from fusionloader.cli.bench import setting_of
from fusionloader.cli.measure.contenders import contenders_for
from fusionloader.cli.measure.processes import wait_until_idle
from fusionloader.cli.measure.protocol import Contender

NAMES = ("torch-pil", "fusionloader")


def time_to_first_batch(contender: Contender) -> float:
    """Returns the seconds from the construction of a new loader to its first batch."""
    wait_until_idle()
    started = time.perf_counter()
    running = contender.start()
    try:
        next(running.epoch())
        return time.perf_counter() - started
    finally:
        running.close()


def main() -> None:
    parser = parser_of(__doc__, rounds=5)
    parser.set_defaults(workers=8, start_method="spawn")
    options = parser.parse_args()
    setting, corpus = setting_of(options, "default")
    measurements: dict[str, Callable[[], float]] = {
        contender.name: partial(time_to_first_batch, contender)
        for contender in contenders_for(setting, NAMES)
    }
    values = interleaved(measurements, options.rounds)
    base = values[NAMES[0]]
    rows = []
    for name, seconds in values.items():
        ratios = [ours / theirs for ours, theirs in zip(seconds, base, strict=True)]
        rows.append(
            (
                name,
                f"{statistics.median(seconds):.2f}",
                f"{min(seconds):.2f}-{max(seconds):.2f}",
                f"{statistics.median(ratios):.2f}",
            )
        )
    print(f"{setting.workers} workers, start method {setting.start_method}")
    header = ("contender", "first batch s", "range s", "share of torch's")
    publish(options, header, rows, seconds=values, corpus=corpus)


if __name__ == "__main__":
    main()
