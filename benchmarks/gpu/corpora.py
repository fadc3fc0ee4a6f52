"""Paints the images that later steps measure with, which find them in the user's cache.

python3 -m benchmarks.gpu.corpora --images 1500 --json FILE
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from benchmarks.study import append
from fusionloader.cli.corpus import ensure_corpus


def main() -> None:
    """Paints them, and writes what they are and what it took."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--images", type=int, default=1500)
    options = parser.parse_args()
    began = time.perf_counter()
    corpus = ensure_corpus(options.images)
    seconds = round(time.perf_counter() - began, 1)
    facts = {"mean_bytes": corpus.mean_bytes, "mean_pixels": corpus.mean_pixels}
    append(options.json, kind=corpus.kind, images=options.images, seconds=seconds, **facts)


if __name__ == "__main__":
    main()
