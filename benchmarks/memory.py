"""Private memory of a spawned worker on a compiled plan, and its growth over a long epoch."""

from __future__ import annotations

from argparse import Namespace
from itertools import chain, islice, repeat
from typing import Any

from torch.utils.data import DataLoader, Dataset

from benchmarks.study import parser_of, publish
from fusionloader import FusionLoader
from fusionloader.cli.bench import setting_of
from fusionloader.cli.measure.contenders import close_loader
from fusionloader.cli.measure.processes import MEGABYTE, ProcessMemory, descendants, read_workers
from fusionloader.cli.measure.workloads import pil_dataset

# The first reading is after this many samples: every worker has then seen all sizes of images.
SETTLED_SAMPLES = 2000


def worker_memory(
    kind: type[DataLoader[Any]], dataset: Dataset[Any], order: list[int], options: Namespace
) -> tuple[list[ProcessMemory], list[ProcessMemory]]:
    """Returns the workers' memory after ``SETTLED_SAMPLES``, and at the end of the epoch."""
    before = set(descendants())
    loader = kind(
        dataset,
        batch_size=options.batch_size,
        sampler=order,
        num_workers=options.workers,
        multiprocessing_context=options.start_method,
        persistent_workers=True,
    )
    settled: list[ProcessMemory] = []
    samples = 0
    try:
        for _, targets in loader:
            samples += len(targets)
            if samples >= SETTLED_SAMPLES and not settled:
                settled = read_workers(before)
        at_end = read_workers(before)
    finally:
        close_loader(loader)
    if samples != len(order) or not settled:
        raise RuntimeError(f"an epoch of {samples} samples is too short to see growth")
    return settled, at_end


def growth(settled: list[ProcessMemory], at_end: list[ProcessMemory]) -> float:
    """Returns the largest growth of a worker's private memory in MB."""
    first = {memory.pid: memory.uss for memory in settled}
    return max((m.uss - first[m.pid]) / MEGABYTE for m in at_end if m.pid in first)


def main() -> None:
    parser = parser_of(__doc__, rounds=1)
    parser.add_argument("--epoch-samples", type=int, default=100_000, help="(100,000)")
    parser.add_argument(
        "--torch-samples", type=int, default=10_000, help="the same for DataLoader (10,000)"
    )
    parser.set_defaults(start_method="spawn")
    options = parser.parse_args()
    setting, corpus = setting_of(options, "default")
    dataset = pil_dataset(setting.folder(), "default")
    rows, figures = [], {}
    kinds = ((FusionLoader, options.epoch_samples), (DataLoader, options.torch_samples))
    for kind, samples in kinds:
        everything = chain.from_iterable(repeat(range(len(dataset))))
        order = list(islice(everything, samples))
        settled, at_end = worker_memory(kind, dataset, order, options)
        rows.append(
            (
                kind.__name__,
                str(samples),
                f"{max(m.uss for m in at_end) / MEGABYTE:.1f}",
                f"{growth(settled, at_end):+.2f}",
                f"{max(m.pss for m in at_end) / MEGABYTE:.1f}",
                f"{max(m.peak_rss for m in at_end) / MEGABYTE:.1f}",
            )
        )
        figures[kind.__name__] = {"settled": settled, "at_end": at_end}
    header = ("loader", "samples", "worker USS MB", "growth MB", "PSS MB", "peak RSS MB")
    publish(options, header, rows, processes=figures, corpus=corpus)


if __name__ == "__main__":
    main()
