"""Accuracy after training with both loaders, over seeds: digits, and the demo's corpus."""

from __future__ import annotations

import statistics

from benchmarks.study import parser_of, publish
from fusionloader import FusionLoader
from fusionloader.cli.bench import setting_of
from fusionloader.cli.measure.same_training import compare, corpus_task, digits_task


def main() -> None:
    parser = parser_of(__doc__, rounds=5)
    parser.set_defaults(images=1000)
    parser.add_argument("--epochs", type=int, default=8, help="of each training (8)")
    options = parser.parse_args()
    setting, corpus = setting_of(options, "default")
    tasks = {
        "digits": digits_task(2000, options.epochs),
        "corpus": corpus_task(setting.root, options.epochs),
    }
    rows, figures = [], {}
    for name, task in tasks.items():
        compared = compare(task, FusionLoader, seeds=options.rounds, workers=options.workers)
        figures[name] = {"torch": compared.theirs, "fusionloader": compared.ours}
        rows.append(
            (
                name,
                f"{statistics.mean(compared.theirs):.3f}",
                f"{statistics.mean(compared.ours):.3f}",
                f"{compared.difference:+.3f}",
                f"{compared.spread:.3f}",
            )
        )
    header = ("task", "DataLoader", "FusionLoader", "difference", "DataLoader's spread")
    publish(options, header, rows, accuracies=figures, corpus=corpus)


if __name__ == "__main__":
    main()
