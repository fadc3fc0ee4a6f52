"""Two jobs, one after the other, use one cache: the second decodes nothing.

    python examples/shared_cache.py

The script serves a cache while they run, as `python -m fusionloader cache serve` does in another
terminal.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from sample_images import data_folder, parser_of
from torchvision import transforms
from torchvision.datasets import ImageFolder

from fusionloader import Cache, FusionLoader

COMMAND = [sys.executable, "-m", "fusionloader", "cache"]


@contextlib.contextmanager
def served(size: str) -> Iterator[None]:
    """Serves a cache until the end of the block, with Ctrl-C's signal."""
    process = subprocess.Popen([*COMMAND, "serve", "--size", size])
    try:
        while f"served by pid {process.pid}" not in held() and process.poll() is None:
            time.sleep(0.1)  # a job that begins before would have a cache of its own
        yield
    finally:
        process.send_signal(signal.SIGINT)
        process.wait()


def held() -> str:
    return subprocess.run([*COMMAND, "ls"], capture_output=True, text=True, check=True).stdout


def job(folder: Path, epochs: int) -> None:
    """Goes through the images, as a training does."""
    steps = [transforms.RandomResizedCrop(64), transforms.ToTensor()]
    dataset = ImageFolder(str(folder), transforms.Compose(steps))
    loader = FusionLoader(dataset, 16, shuffle=True, num_workers=2, cache=Cache("1GiB"))
    for epoch in range(epochs):
        begin = time.perf_counter()
        samples = sum(len(targets) for _, targets in loader)
        print(f"  epoch {epoch}: {samples} samples in {time.perf_counter() - begin:.2f} s")


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--epochs", type=int, default=2, help="of each job (2)")
    parser.add_argument("--job", type=Path, metavar="FOLDER", help="be one of the jobs")
    options = parser.parse_args()
    if options.job:
        job(options.job, options.epochs)
        return
    folder = data_folder(options)
    with served("1GiB"):
        for number in range(2):
            print(f"job {number}", flush=True)
            again = [sys.executable, __file__, "--job", str(folder)]
            subprocess.run([*again, "--epochs", str(options.epochs)], check=True)
        print(held())


if __name__ == "__main__":
    main()
