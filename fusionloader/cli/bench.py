"""The bench command: FusionLoader and other loaders on the same files, side by side in one run."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from torchvision.datasets import ImageFolder

from fusionloader.cli.corpus import KINDS, Corpus, ensure_corpus
from fusionloader.cli.counts import at_least
from fusionloader.cli.dead_leaves import CLASSES
from fusionloader.cli.environment import JsonObject
from fusionloader.cli.measure.contenders import Setting, contenders_for
from fusionloader.cli.measure.protocol import measure
from fusionloader.cli.measure.report import comparison, report_of, write_json
from fusionloader.cli.measure.workloads import IMAGE_WORKLOADS, WORKLOADS
from fusionloader.cli.progress import Progress


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags that bench and the studies in benchmarks/ share."""
    add_common_arguments(parser)
    parser.add_argument("--workload", default="default", choices=WORKLOADS, help="(default)")
    parser.add_argument("--epochs", type=at_least(1), default=5, help="counted epochs each (5)")
    parser.add_argument(
        "--contenders", type=lambda text: text.split(","), help="names, separated by commas"
    )
    parser.add_argument(
        "--retries", type=at_least(0), default=1, help="repetitions of a noisy measurement (1)"
    )


def add_common_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags for corpus, workers, batch size, start method and the JSON file."""
    parser.add_argument("--data", type=Path, help="your image folder (generated)")
    parser.add_argument("--corpus", default="imagenet-like", choices=KINDS, help="what to generate")
    parser.add_argument(
        "--images", type=at_least(CLASSES), default=2000, help="generated images (2000)"
    )
    parser.add_argument("--cache", type=Path, help="folder of generated images (user's cache)")
    parser.add_argument("--samples", type=at_least(1), help="samples of an in-memory epoch")
    parser.add_argument("--workers", type=at_least(0), default=2, help="worker processes (2)")
    parser.add_argument("--batch-size", type=at_least(1), default=64, help="samples a batch (64)")
    parser.add_argument(
        "--start-method", choices=("fork", "forkserver", "spawn"), help="of the workers (Python's)"
    )
    parser.add_argument("--json", type=Path, help="write all figures to this file")


def setting_of(options: argparse.Namespace, workload: str) -> tuple[Setting, JsonObject]:
    """Returns the setting of a workload, and figures of its corpus, which is made if missing."""
    root: Path | None = None
    facts: JsonObject = {}
    if workload in IMAGE_WORKLOADS:
        root, facts = _images(options)
    setting = Setting(
        workload, options.workers, options.batch_size, root, options.start_method, options.samples
    )
    return setting, facts


def _images(options: argparse.Namespace) -> tuple[Path, JsonObject]:
    if options.data is None:
        corpus = ensure_corpus(options.images, kind=options.corpus, folder=options.cache)
        return corpus.train, _corpus_facts(corpus)
    try:
        files = [path for path, _ in ImageFolder(options.data).samples]
    except FileNotFoundError as error:  # no folder, none in it, or one without images
        raise SystemExit(f"bench: {error}") from None
    mean_bytes = sum(map(os.path.getsize, files)) / len(files)
    return options.data, {"kind": "given", "files": len(files), "mean_bytes": mean_bytes}


def _corpus_facts(corpus: Corpus) -> JsonObject:
    return {
        "kind": corpus.kind,
        "files": corpus.train_images,
        "mean_bytes": corpus.mean_bytes,
        "mean_pixels": corpus.mean_pixels,
    }


def flags_of(options: argparse.Namespace) -> JsonObject:
    """Returns the flags as a report shows them; folders by name, without their parents."""
    return {
        name: value.name if isinstance(value, Path) else value
        for name, value in vars(options).items()
        if name not in ("run", "command", "json")
    }


def run(options: argparse.Namespace) -> int:
    """Measures, prints the table, writes the JSON; returns the exit status."""
    try:  # before images are made, which takes minutes
        contenders_for(Setting(options.workload, 0, 1, Path()), options.contenders)
    except ValueError as error:
        raise SystemExit(f"bench: {error}") from error
    setting, corpus = setting_of(options, options.workload)
    contenders = contenders_for(setting, options.contenders)
    epochs = len(contenders) * (1 + options.epochs)
    with Progress("measuring", epochs, patience=0) as progress:
        results, repeated = measure(
            contenders,
            options.epochs,
            retries=options.retries,
            announce=lambda text: progress.advance(note=text),
        )
    report = report_of(results, flags_of(options), corpus=corpus, repeated=repeated)
    print(f"workload {options.workload}, {setting.workers} workers, batch {setting.batch_size}")
    print(comparison(report))
    if repeated:
        print(f"Measured again {repeated} time(s) because of noise; the last measurement is shown.")
    write_json(report, options.json)
    return 0
