"""What a trace costs: epochs with and without one, one after the other."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from statistics import median

from benchmarks.study import parser_of, publish
from fusionloader import FusionLoader
from fusionloader.cli.bench import setting_of
from fusionloader.cli.measure.processes import cpu_between, read_cpu
from fusionloader.cli.measure.workloads import IN_MEMORY, pil_dataset
from fusionloader.cli.progress import Progress
from fusionloader.options.aliases import AnyDataset


def datasets(root: Path) -> Iterator[tuple[str, AnyDataset]]:
    """Yields what is loaded: usual images, and samples that cost next to nothing each."""
    yield "default", pil_dataset(root, "default")
    tiny = IN_MEMORY["tiny"]
    yield "tiny", tiny.dataset(tiny.samples)


def epoch_costs(loader: FusionLoader[object], path: Path | None) -> tuple[float, float]:
    """Returns the wall and the CPU seconds of an epoch, traced into ``path`` if there is one.

    The file is written behind the epoch, and is no part of it.
    """
    with nullcontext() if path is None else loader.trace(path):
        before, start = read_cpu(), time.perf_counter()
        for _ in loader:
            pass
        wall = time.perf_counter() - start
        return wall, sum(cpu_between(before, read_cpu()))


def main() -> None:
    parser = parser_of(__doc__, rounds=30)
    options = parser.parse_args()
    setting, corpus = setting_of(options, "default")
    if setting.root is None:
        raise SystemExit("tracing: no images")
    rows, figures = [], {}
    for name, dataset in datasets(setting.root):
        loader = FusionLoader(
            dataset,
            setting.batch_size,
            shuffle=True,
            num_workers=setting.workers,
            persistent_workers=True,
        )
        with (
            loader,
            tempfile.TemporaryDirectory() as folder,
            Progress(name, options.rounds) as progress,
        ):
            path = Path(folder, "run.json")
            epoch_costs(loader, path)
            pairs = []
            for _ in range(options.rounds):
                pairs.append((epoch_costs(loader, None), epoch_costs(loader, path)))
                progress.advance()
        ratios = [[on[kind] / off[kind] for off, on in pairs] for kind in (0, 1)]
        quickest = min(on[0] for _, on in pairs) / min(off[0] for off, _ in pairs)
        rows.append((name, *(f"{median(each):.3f}" for each in ratios), f"{quickest:.3f}"))
        figures[name] = {"wall_and_cpu_seconds": pairs}
    header = (
        "samples",
        "time with ÷ without",
        "CPU time with ÷ without",
        "quickest with ÷ without",
    )
    publish(options, header, rows, workloads=figures, corpus=corpus)


if __name__ == "__main__":
    main()
