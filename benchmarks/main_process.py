"""CPU time per sample in the training process itself: its share of the loader's work."""

from __future__ import annotations

from benchmarks.study import parser_of, publish
from fusionloader.cli.bench import setting_of
from fusionloader.cli.measure.contenders import contenders_for
from fusionloader.cli.measure.protocol import measure
from fusionloader.cli.measure.report import announce, summary

NAMES = ("torch-pil", "torch-v2", "fusionloader")


def main() -> None:
    options = parser_of(__doc__, rounds=5).parse_args()
    setting, corpus = setting_of(options, "default")
    results, _ = measure(
        contenders_for(setting, NAMES), options.rounds, retries=0, announce=announce
    )
    rows = []
    for result in results:
        shares = [epoch.cpu_main / epoch.samples * 1e3 for epoch in result.epochs]
        rows.append(
            (
                result.contender.name,
                f"{result.median(lambda e: e.cpu_main / e.samples * 1e3):.4f}",
                f"{min(shares):.4f}-{max(shares):.4f}",
                f"{result.median(lambda e: e.cpu_workers / e.samples * 1e3):.3f}",
            )
        )
    header = ("contender", "main ms/sample", "range", "workers ms/sample")
    figures = [summary(result, results[0]) for result in results]
    publish(options, header, rows, contenders=figures, corpus=corpus)


if __name__ == "__main__":
    main()
