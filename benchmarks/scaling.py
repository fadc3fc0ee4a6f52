"""Throughput with no worker, one and two: the overhead of one, and the gain of the second."""

from __future__ import annotations

from dataclasses import replace

import torch

from benchmarks.study import parser_of, publish
from fusionloader.cli.bench import setting_of
from fusionloader.cli.measure.contenders import Setting, contenders_for
from fusionloader.cli.measure.protocol import Contender, measure
from fusionloader.cli.measure.report import announce, summary


def contender(name: str, setting: Setting, workers: int) -> Contender:
    """Returns a contender of the default workload with another number of workers."""
    (found,) = contenders_for(replace(setting, workers=workers), [name])
    return replace(found, name=f"{name}, {workers} workers")


def main() -> None:
    parser = parser_of(__doc__, rounds=5)
    parser.add_argument("--most", type=int, default=2, help="workers of the last line (2)")
    options = parser.parse_args()
    setting, corpus = setting_of(options, "default")
    # Without workers the figure would depend on torch's threads, which on a busy machine wait for
    # one another in every small operation.
    torch.set_num_threads(1)
    counts = [1, *range(2, options.most + 1)]
    contenders = [
        contender("torch-pil", setting, 0),
        *(contender("torch-pil", setting, workers) for workers in counts),
        *(contender("fusionloader", setting, workers) for workers in counts),
    ]
    results, _ = measure(contenders, options.rounds, retries=0, announce=announce)
    one = {r.contender.name.partition(",")[0]: r for r in results if ", 1 " in r.contender.name}
    rows = []
    for result in results:
        family = result.contender.name.partition(",")[0]
        figures = summary(result, results[0])
        rows.append(
            (
                result.contender.name,
                f"{figures['samples_per_second']:,.0f}",
                f"{figures['ratio']:.2f}x",
                f"{summary(result, one[family])['ratio']:.2f}x",
                f"{result.spread:.0%}{'!' if result.noisy else ''}",
            )
        )
    header = ("contender", "samples/s", "to torch, 0 workers", "to its 1 worker", "spread")
    summaries = [summary(result, results[0]) for result in results]
    publish(options, header, rows, contenders=summaries, corpus=corpus)


if __name__ == "__main__":
    main()
