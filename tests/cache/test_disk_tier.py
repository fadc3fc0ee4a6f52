"""What is kept on a disk: found by the next job, and read anew wherever it is not what it was."""

import os
import shutil
import subprocess

import pytest
from support import warm_start
from support.batches import same_batches
from support.images import train_transform
from support.mounts import in_mount_namespace
from torchvision.datasets import ImageFolder

from fusionloader import Cache, FusionLoader

COUNT = 40


def epoch(image_folder, disk, tiers=("encoded",), budget="64MiB", **options):
    dataset = ImageFolder(str(image_folder), train_transform())
    cache = Cache(budget, tiers=tiers, path=disk, **options)
    loader = FusionLoader(dataset, 5, num_workers=2, seed=3, cache=cache)
    return list(loader), loader


@pytest.fixture
def reference(image_folder):
    dataset = ImageFolder(str(image_folder), train_transform())
    return list(FusionLoader(dataset, 5, num_workers=2, seed=3))


@pytest.mark.few(1)
@pytest.mark.parametrize("tiers", [("encoded",), ("decoded",)])
def test_the_next_job_finds_it(image_folder, tmp_path, reference, tiers):
    _, loader = epoch(image_folder, tmp_path, tiers)
    assert loader.stats().cache.misses == COUNT
    del loader
    ours, loader = epoch(image_folder, tmp_path, tiers)
    assert same_batches(ours, reference)
    found = loader.stats().cache
    assert (found.hits, found.misses) == (COUNT, 0)
    assert found.disk_bytes <= found.disk_budget


def change_data(file):
    content = bytearray(file.read_bytes())
    begin = 128 + 64 * COUNT
    content[begin + 100 :: 997] = bytes(len(content[begin + 100 :: 997]))
    file.write_bytes(content)


def cut_data(file):
    os.truncate(file, 128 + 64 * COUNT + 5000)


def cut_table(file):
    os.truncate(file, 500)


def other_version(file):
    content = bytearray(file.read_bytes())
    content[:8] = b"FLstore0"
    file.write_bytes(content)


def nonsense(file):
    file.write_bytes(os.urandom(10_000))


def unfinished(file):
    """As a job leaves it that was killed while it filled every record."""
    content = bytearray(file.read_bytes())
    for item in range(COUNT):
        content[128 + 64 * item : 136 + 64 * item] = (12345).to_bytes(8, "little")
    file.write_bytes(content)


def header_word(number, value):
    def change(file):
        content = bytearray(file.read_bytes())
        content[8 * number : 8 * number + 8] = value.to_bytes(8, "little")
        file.write_bytes(content)

    change.__name__ = f"word_{number}"
    return change


def other_sizes(file):
    """Says of every image that it has other dimensions and another time."""
    content = bytearray(file.read_bytes())
    for item in range(COUNT):
        begin = 128 + 64 * item
        content[begin + 48 : begin + 56] = bytes(content[begin + 52 : begin + 56]) * 2
    file.write_bytes(content)


# Medium, records, data, capacity, bytes in use, and that the disk was full.
HEADER = [header_word(*change) for change in [(1, 0), (3, 1 << 40), (4, 64), (5, 0), (6, 1 << 60)]]
DAMAGES = [
    *(change_data, cut_data, cut_table, other_version, nonsense, unfinished, other_sizes),
    *(*HEADER, header_word(8, 1)),
]


# What differs between the tiers is their content; both have one header.
CASES = [
    pytest.param(
        tiers,
        damage,
        marks=pytest.mark.matrix if tiers == ("decoded",) and damage in HEADER else [],
    )
    for tiers in (("encoded",), ("decoded",))
    for damage in DAMAGES
]


@pytest.mark.parametrize(("tiers", "damage"), CASES)
@pytest.mark.few(2)
def test_damage_costs_a_read_and_no_pixel(image_folder, tmp_path, reference, tiers, damage):
    _, loader = epoch(image_folder, tmp_path, tiers)
    del loader
    (file,) = tmp_path.glob("*.cache")
    damage(file)
    # Files have no dimensions as they are, and a disk that was full once is looked at again.
    harmless = damage.__name__ == "word_8" or (damage is other_sizes and tiers == ("encoded",))
    for expected in (range(not harmless, COUNT + 1), range(1)):  # it is filled again
        ours, loader = epoch(image_folder, tmp_path, tiers)
        assert same_batches(ours, reference)
        assert loader.stats().cache.misses in expected
        del loader


def test_a_larger_budget_is_used_by_the_next_job(image_folder, tmp_path):
    _, loader = epoch(image_folder, tmp_path, budget="64KiB")
    before = loader.stats().cache
    assert before.tiers["disk_encoded"].images < COUNT
    del loader
    for _ in range(2):
        _, loader = epoch(image_folder, tmp_path)
        found = loader.stats().cache
        del loader
    assert (found.misses, found.tiers["disk_encoded"].images) == (0, COUNT)


def test_files_that_have_changed_are_kept_anew(image_folder, tmp_path):
    images = tmp_path / "images"
    shutil.copytree(image_folder, images)
    _, loader = epoch(images, tmp_path / "disk")
    del loader
    for path in images.glob("*/*.jpg"):
        os.utime(path, (1, 1))
    for misses in (COUNT, 0):
        _, loader = epoch(images, tmp_path / "disk")
        assert loader.stats().cache.misses == misses
        del loader


def test_what_is_found_on_the_disk_goes_to_memory(image_folder, tmp_path, reference):
    _, loader = epoch(image_folder, tmp_path)
    del loader
    ours, loader = epoch(image_folder, tmp_path, memory="64MiB")
    assert same_batches(ours, reference)
    assert loader.stats().cache.tiers["encoded"].images == COUNT
    list(loader)
    assert loader.stats().cache.tiers["encoded"].hits == COUNT


def test_a_job_gets_no_tier_that_it_has_not_asked_for(image_folder, tmp_path):
    _, first = epoch(image_folder, tmp_path, ("encoded", "decoded"))
    _, second = epoch(image_folder, tmp_path, ("encoded",))
    assert "disk_decoded" not in second.stats().cache.tiers
    assert first.stats().cache.tiers["disk_encoded"] is not None


def test_other_files_get_a_store_of_their_own(image_folder, tmp_path, reference):
    disk = tmp_path / "disk"
    _, loader = epoch(image_folder, disk)
    del loader
    dataset = ImageFolder(str(image_folder), train_transform())
    dataset.samples = dataset.samples[::-1]
    loader = FusionLoader(dataset, 5, num_workers=2, seed=3, cache=Cache("64MiB", path=disk))
    list(loader)
    assert loader.stats().cache.misses == COUNT
    assert len({file.name.split("-")[0] for file in disk.iterdir()}) == 2


def test_memory_is_filled_before_the_disk(image_folder, tmp_path):
    _, loader = epoch(image_folder, tmp_path, memory="100KiB")
    found = loader.stats().cache
    memory, disk = found.tiers["encoded"], found.tiers["disk_encoded"]
    assert memory.images + disk.images == COUNT and memory.images > 5 and disk.images > 5
    assert found.bytes <= found.budget == 100 << 10


def test_a_folder_that_cannot_be_written_is_an_error(image_folder, tmp_path):
    file = tmp_path / "file"
    file.write_bytes(b"")
    with pytest.raises(OSError, match="file"):
        epoch(image_folder, file / "disk")


FILL = """
import sys
from support.images import train_transform
from torchvision.datasets import ImageFolder
from fusionloader import Cache, FusionLoader

images, disk = sys.argv[1:]
loader = FusionLoader(
    ImageFolder(images, train_transform()), 5, num_workers=2,
    cache=Cache("64MiB", tiers=("encoded",), path=disk),
)
for _ in range(2):
    batches = sum(1 for _ in loader)
found = loader.stats().cache
print(batches, *(found and (found.epoch_misses, found.tiers["disk_encoded"].images) or ()))
"""


def test_a_disk_without_room_for_the_folder_costs_the_cache_alone(image_folder, tmp_path):
    mount = f"mount -t tmpfs -o nr_inodes=1 tmpfs {tmp_path}"
    tried = subprocess.run(["unshare", "-m", "sh", "-c", mount], capture_output=True, text=True)
    if tried.returncode:
        pytest.skip(f"a small disk cannot be mounted: {tried.stderr.strip()}")
    code = in_mount_namespace(mount) + FILL
    done = warm_start.completed("-c", code, image_folder, tmp_path / "cache")
    assert done.stdout.split() == ["8"], done.stderr
    assert "is cached: [Errno 28] No space left on device" in done.stderr


def test_a_full_disk_ends_the_filling_and_nothing_else(image_folder, tmp_path):
    mount = f"mount -t tmpfs -o size=96k tmpfs {tmp_path}"
    tried = subprocess.run(["unshare", "-m", "sh", "-c", mount], capture_output=True, text=True)
    if tried.returncode:
        pytest.skip(f"a small disk cannot be mounted: {tried.stderr.strip()}")
    paths = os.pathsep.join([os.getcwd(), os.path.join(os.getcwd(), "tests")])
    fill = f"dd if=/dev/zero of={tmp_path}/other bs=1k count=60 2>/dev/null"
    code = in_mount_namespace(f"{mount} && {fill}") + FILL.replace("64MiB", "64KiB")
    done = warm_start.completed(
        *("-c", code, image_folder, tmp_path), env={**os.environ, "PYTHONPATH": paths}
    )
    assert done.returncode == 0, done.stderr
    batches, misses, kept = map(int, done.stdout.split())
    assert batches == 8 and misses == COUNT - kept and 0 <= kept < COUNT
    assert "the disk is full" in done.stderr
