"""Throughput of all loaders on every workload, in one run."""

from __future__ import annotations

from benchmarks.study import parser_of, publish
from fusionloader.cli.bench import setting_of
from fusionloader.cli.measure.contenders import contenders_for
from fusionloader.cli.measure.protocol import measure
from fusionloader.cli.measure.report import announce, summary
from fusionloader.cli.measure.workloads import WORKLOADS

USUAL = ("default", "tiny", "tabular", "mnist", "handmade")


def main() -> None:
    parser = parser_of(__doc__, rounds=5)
    parser.add_argument("--workloads", nargs="+", default=USUAL, choices=WORKLOADS)
    options = parser.parse_args()
    rows, figures = [], {}
    for workload in options.workloads:
        announce(workload)
        setting, corpus = setting_of(options, workload)
        results, _ = measure(contenders_for(setting), options.rounds, retries=1, announce=announce)
        found = [summary(result, results[0]) for result in results]
        figures[workload] = {"corpus": corpus, "contenders": found}
        rows += [
            (
                workload,
                entry["name"],
                f"{entry['samples_per_second']:,.0f}",
                f"{entry['ratio']:.2f}x",
                f"{entry['spread']:.0%}{'!' if entry['noisy'] else ''}",
                f"{entry['cpu_seconds_per_1000']:.2f}",
            )
            for entry in found
        ]
    header = ("workload", "contender", "samples/s", "ratio", "spread", "CPU s/1000")
    publish(options, header, rows, workloads=figures)


if __name__ == "__main__":
    main()
