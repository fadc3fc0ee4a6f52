"""What the tables of 100 million samples in shards take of the training process's memory.

The ranges are real ones, of an image in a thousand files, so that batches can be made of them.
"""

from __future__ import annotations

import gc
import io
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image
from torchvision import transforms

from benchmarks.study import parser_of, publish
from fusionloader import FusionLoader
from fusionloader.cache.tiers.dataset_table import OFFSET_BITS
from fusionloader.cli.measure.report import announce
from fusionloader.data.sources import ByteRanges, EncodedImages
from fusionloader.data.sources.streams.order import ShuffleShape
from fusionloader.data.sources.streams.sampler import StreamSampler

FILES = 1000
BATCHES = 20
TRANSFORM = transforms.Compose([transforms.CenterCrop(32), transforms.ToTensor()])
SHAPE = ShuffleShape(window=4096, run=20, interleave=8)


def memory() -> dict[str, int]:
    """Returns the bytes of this process: its own, those that it shares, and the peak of both."""
    fields = {"RssAnon": "own", "RssShmem": "shared", "VmHWM": "peak"}
    lines = Path("/proc/self/status").read_text().splitlines()
    pairs = (line.split(":") for line in lines)
    return {fields[name]: 1024 * int(value.split()[0]) for name, value in pairs if name in fields}


def dataset_of(samples: int, folder: Path) -> EncodedImages:
    """Returns so many samples, evenly in files that are one image."""
    file = io.BytesIO()
    Image.new("RGB", (40, 40), (200, 30, 60)).save(file, "JPEG")
    first = folder / "shard-000"
    first.write_bytes(file.getvalue())
    files = [first, *(folder / f"shard-{number:03}" for number in range(1, FILES))]
    for path in files[1:]:
        path.hardlink_to(first)
    packed = np.arange(samples, dtype=np.uint64)
    packed //= np.uint64(-(-samples // FILES))
    packed <<= np.uint64(OFFSET_BITS)
    nbytes = np.full(samples, len(file.getvalue()), np.uint32)
    ranges = ByteRanges.of_packed(files, packed, nbytes)
    return EncodedImages(ranges, np.zeros(samples, np.int64), transform=TRANSFORM)


def sampler_of(samples: int) -> StreamSampler:
    """Returns a shuffled order that is computed as it goes."""
    each = -(-samples // FILES)
    counts = np.clip(samples - each * np.arange(FILES), 0, each)
    return StreamSampler(counts, SHAPE, num_replicas=1, rank=0)


def main() -> None:
    parser = parser_of(__doc__.splitlines()[0] if __doc__ else None, rounds=1)
    parser.set_defaults(workers=1)
    parser.add_argument("--table-samples", type=int, default=100_000_000, help="(100 million)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        # What every loader takes, whatever its dataset.
        for _ in FusionLoader(dataset_of(100, Path(tempfile.mkdtemp(dir=made))), 50, num_workers=1):
            pass
        gc.collect()
        stages = {"before": memory()}
        began = time.perf_counter()
        dataset = dataset_of(options.table_samples, Path(made))
        stages["arrays"] = memory()
        dataset.ranged.table()
        stages["tables"] = memory()
        announce(f"{options.table_samples:,} samples in {time.perf_counter() - began:.1f} s")
        loader: FusionLoader[object] = FusionLoader(
            dataset,
            options.batch_size,
            sampler=sampler_of(len(dataset)),
            num_workers=options.workers,
        )
        for number, _ in enumerate(loader, 1):
            if number == BATCHES:
                stages["in an epoch"] = memory()
                break
        loader.close()
    before, rows = stages["before"], []
    for name, each in stages.items():
        added = each["own"] + each["shared"] - before["own"] - before["shared"]
        sizes = (each["own"], each["shared"], each["peak"], added)
        told = [f"{nbytes / 1e9:.3f}" for nbytes in sizes]
        rows.append((name, *told, f"{added / options.table_samples:.2f}"))
    header = ("stage", "own GB", "shared GB", "peak GB", "added GB", "bytes a sample")
    publish(options, header, rows, stages=stages, samples=options.table_samples)


if __name__ == "__main__":
    main()
