"""Ten million ranges: 20 bytes each in shared memory, and almost nothing beside it."""

import os
import subprocess
import sys

import pytest

SCRIPT = """
import io, pathlib, sys
import numpy as np
from PIL import Image
from torchvision import transforms
from fusionloader import FusionLoader
from fusionloader.data.sources import ByteRanges, EncodedImages

COUNT = 10_000_000
shard = pathlib.Path(sys.argv[1])
file = io.BytesIO()
Image.new("RGB", (40, 40), (200, 30, 60)).save(file, "JPEG")
shard.write_bytes(file.getvalue())
transform = transforms.Compose([transforms.CenterCrop(32), transforms.ToTensor()])


def memory(name):
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def made():
    packed, nbytes = np.full(COUNT, 0, np.uint64), np.full(COUNT, len(file.getvalue()), np.uint32)
    ranges = ByteRanges.of_packed([shard], packed, nbytes)
    return EncodedImages(ranges, np.arange(COUNT), transform=transform)


made().ranged.table()  # what is allocated once
before = memory("RssAnon")
dataset = made()
held = memory("RssAnon") - before
pathlib.Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
resident = memory("VmRSS")
table = dataset.ranged.table()
print(table.nbytes / COUNT, held / COUNT, (memory("RssAnon") - before) / COUNT)
print((memory("VmHWM") - resident) / COUNT)
places = [0, 5_000_000, COUNT - 1]
with FusionLoader(dataset, 3, sampler=places, num_workers=1) as loader:
    (images, targets), = loader
    expected = [dataset[place] for place in places]
assert targets.tolist() == places and all(
    bool((image == other).all()) for image, (other, _) in zip(images, expected)
)
"""


@pytest.mark.matrix
def test_ten_million_ranges_take_twenty_bytes_each_and_only_once(tmp_path):
    here = os.path.dirname(os.path.dirname(__file__))
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "shard")],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": here},
    )
    assert ended.returncode == 0, ended.stderr
    shared, before, beside, peak = map(float, ended.stdout.split())
    assert 20 <= shared < 20.001
    assert 19.5 < before < 20.5  # so much is moved, and nothing of it is left
    assert beside < 0.5
    assert peak < 10  # one column is there twice at a time
