"""Decoded pixels and entry indexes of files that user code opens, kept from epoch to epoch."""

import io
import itertools
import os
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from deferred.steps import STEPS
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from support.images import photo
from torch.utils.data import Dataset, IterableDataset

from fusionloader import Cache, DecodedCache, FusionLoader, WorkerPool, _native
from fusionloader.cache.tiers.file_store import FileStore
from fusionloader.data.deferred.file_cache import KnownFile, Store

FILES = 12
BUDGET = 4 << 20


class Photos(Dataset):
    """As most people write it."""

    def __init__(self, paths):
        self.paths = paths

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        return STEPS["jitter"](Image.open(self.paths[index]).convert("RGB")), index


class Pairs(Photos):
    """Two files a sample."""

    def __getitem__(self, index):
        other = (index + 1) % len(self)
        return [super(Pairs, self).__getitem__(each)[0] for each in (index, other)]


class Stream(IterableDataset):
    """Without a length."""

    def __init__(self, paths):
        self.photos = Photos(paths)

    def __iter__(self):
        worker = torch.utils.data.get_worker_info()
        for index in range(worker.id, FILES, worker.num_workers):
            torch.manual_seed(index)
            yield self.photos[index]


class Unpacked(Dataset):
    """Writes each image to the same file before it opens it, on a file system of whole seconds."""

    def __init__(self, paths):
        images = [Path(path).read_bytes() for path in paths]
        longest = max(map(len, images))
        self.images = [_with_comment(image, longest - len(image)) for image in images]
        self.folder = Path(paths[0]).parent

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        scratch = self.folder / f"scratch-{os.getpid()}.jpg"
        scratch.write_bytes(self.images[index])
        second = int(scratch.stat().st_mtime)
        os.utime(scratch, (second, second))
        return STEPS["jitter"](Image.open(scratch).convert("RGB")), index


def _with_comment(jpeg, nbytes):
    return jpeg[:2] + b"\xff\xfe" + (2 + nbytes).to_bytes(2, "big") + bytes(nbytes) + jpeg[2:]


@pytest.fixture
def paths(tmp_path):
    rng = np.random.default_rng(5)
    for number in range(FILES):
        photo(rng, 70 + number, 60).save(tmp_path / f"{number}.jpg", quality=90)
    return [str(tmp_path / f"{number}.jpg") for number in range(FILES)]


def _epochs(dataset, count=2, **options):
    """The batches of some epochs as lists of leaves, and what is kept then."""
    torch.manual_seed(3)
    loader = FusionLoader(dataset, batch_size=4, num_workers=2, seed=3, **options)
    epochs = [[_leaves(batch) for batch in loader] for _ in range(count)]
    return epochs, loader.stats()


def _leaves(value):
    if isinstance(value, (list, tuple)):
        return [leaf for each in value for leaf in _leaves(each)]
    return [np.asarray(value).tobytes()]


def _change_unseen(path):
    """Makes a file another one of the same size, inode and time."""
    info = os.stat(path)
    with open(path, "r+b") as file:
        content = bytearray(file.read())
        content[-1000:-2] = bytes(998)
        file.seek(0)
        file.write(content)
    os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))


def _collate(samples):
    return torch.stack([sample[0] for sample in samples]), [sample[1] for sample in samples]


WAYS = {
    "rows": lambda paths: (Photos(paths), {}),
    "whole batches": lambda paths: (Photos(paths), {"collate_fn": _collate}),
    "two files a sample": lambda paths: (Pairs(paths), {}),
    "stream": lambda paths: (Stream(paths), {}),
}
KEEPING = {
    "decoded_cache": lambda: {"cache": DecodedCache(BUDGET)},
    "jpeg_index": lambda: {"jpeg_index": "auto"},
}


@pytest.mark.parametrize("kept", KEEPING)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.few(1)
def test_epochs_are_those_without(way, kept, paths):
    dataset, options = WAYS[way](paths)
    expected, _ = _epochs(dataset, deferred_images="off", **options)
    made, stats = _epochs(dataset, **options, **KEEPING[kept]())
    assert made == expected
    assert getattr(stats, kept).images == FILES
    assert 0 < getattr(stats, kept).bytes <= getattr(stats, kept).budget


class Described(Photos):
    """Asks for what stands in a file's header, in some samples before the pixels are loaded."""

    def __getitem__(self, index):
        with open(self.paths[index], "rb") as file:
            image = Image.open(file if index % 3 == 0 else self.paths[index])
            early = index % 2 and (_described(image), file.tell())
            pixels, _ = STEPS["jitter"](image.convert("RGB")), image.load()
            after = _described(image), image.fp is None, file.tell()
        return pixels, repr((early, after)).ljust(300)[:300]


def _described(image):
    known = image.info.get("icc_profile", b""), image.info.get("progressive", 0)
    return (
        image.size,
        image.mode,
        *map(_hashed, (*known, image.quantization, dict(image.getexif()))),
    )


def _hashed(value):
    return zlib.crc32(repr(value).encode())


@pytest.fixture
def long_files(paths):
    """Files whose headers are read before the rest, with longer headers and damage among them."""
    rng = np.random.default_rng(6)
    for number, path in enumerate(paths):
        image = photo(rng, 260 + number, 200)
        more = [
            {},
            {"icc_profile": bytes(20_000)},
            {"progressive": True},
            {"exif": b"Exif\0\0" + bytes(40)},
        ][number % 4]
        image.save(path, quality=95, **more)
    with open(paths[4], "r+b") as file:
        file.truncate(os.path.getsize(paths[4]) - 3000)
    with open(paths[8], "r+b") as file:  # a table in the middle of the pixels
        file.seek(20_000)
        file.write(b"\xff\xc4\x00\x05")
    assert all(os.path.getsize(path) > 1 << 14 for path in paths)
    return paths


@pytest.mark.few(1)
@pytest.mark.parametrize("kept", [*KEEPING, "encoded"])
def test_files_that_are_read_in_two_parts_are_as_pillow_opens_them(kept, long_files):
    keeping = {**KEEPING, "encoded": lambda: {"cache": Cache(BUDGET, tiers=("encoded",))}}
    options = {"on_error": "skip"}
    expected, _ = _epochs(Described(long_files), deferred_images="off", **options)
    made, stats = _epochs(Described(long_files), **options, **keeping[kept]())
    assert made == expected
    assert stats.deferred_images["files"] > FILES


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", ["png", "webp"])
def test_other_formats_are_kept_too(kind, paths, tmp_path):
    made = []
    for number, path in enumerate(paths):
        made.append(str(tmp_path / f"{number}.{kind}"))
        with Image.open(path) as image:
            image.convert("RGBA" if number == 0 else "RGB").save(made[-1])
    expected, _ = _epochs(Photos(made), deferred_images="off")
    found, stats = _epochs(Photos(made), cache=DecodedCache(BUDGET))
    assert found == expected
    # Of one that has an alpha channel nothing is; WebP files say whether they use theirs.
    assert stats.decoded_cache.images == FILES - (kind == "png")


def test_workers_of_a_pool_keep_the_files_of_every_loader(paths):
    first, second = Photos(paths[:6]), Photos(paths[6:])
    with WorkerPool(2) as pool:
        loaders = [
            FusionLoader(part, 3, pool=pool, seed=1, cache=DecodedCache(BUDGET))
            for part in (first, second)
        ]
        for _ in range(2):
            made = [[_leaves(batch) for batch in loader] for loader in loaders]
        # They are found by what they are, so that one store has those of both; a hash gives each a
        # few places, which may all be taken.
        kept = [loader.stats().decoded_cache.images for loader in loaders]
        assert kept[0] == kept[1] > len(first)
    for part, batches in zip((first, second), made, strict=True):
        plain = FusionLoader(part, 3, num_workers=1, seed=1, deferred_images="off")
        list(plain)
        assert [_leaves(batch) for batch in plain] == batches


def test_kept_pixels_are_what_is_used(paths):
    loader = FusionLoader(Photos(paths), 4, num_workers=2, seed=3, cache=DecodedCache(BUDGET))
    list(loader)
    _change_unseen(paths[0])
    second = [_leaves(batch) for batch in loader]
    plain = FusionLoader(Photos(paths), 4, num_workers=2, seed=3, deferred_images="off")
    list(plain)
    assert [_leaves(batch) for batch in plain] != second


@pytest.mark.few(1)
@pytest.mark.parametrize("kept", KEEPING)
def test_a_changed_file_is_read_anew(kept, paths):
    options = {"batch_size": 4, "num_workers": 2, "seed": 3}
    loader = FusionLoader(Photos(paths), **options, **KEEPING[kept]())
    plain = FusionLoader(Photos(paths), **options, deferred_images="off")
    list(loader), list(plain)
    photo(np.random.default_rng(9), 90, 80).save(paths[2], quality=95)
    made = [_leaves(batch) for batch in loader]
    assert made == [_leaves(batch) for batch in plain]
    assert getattr(loader.stats(), kept).images == FILES + 1


def test_a_full_cache_changes_nothing(paths):
    small = DecodedCache(40_000)
    expected, _ = _epochs(Photos(paths), deferred_images="off")
    made, stats = _epochs(Photos(paths), cache=small)
    assert made == expected
    assert 0 < stats.decoded_cache.images < FILES
    assert stats.decoded_cache.bytes <= 40_000


def test_it_says_that_shared_memory_is_full(paths, monkeypatch, caplog):
    monkeypatch.setattr(FileStore, "closed", True)
    _epochs(Photos(paths), cache=DecodedCache(BUDGET))
    assert caplog.text.count("the memory is full: the cache stays at") == 1


def test_damaged_files_are_not_kept(paths):
    content = open(paths[1], "rb").read()  # noqa: SIM115
    with open(paths[1], "wb") as file:
        file.write(content[: len(content) // 2])
    options = {"on_error": "skip"}
    expected, _ = _epochs(Photos(paths), deferred_images="off", **options)
    made, stats = _epochs(Photos(paths), cache=DecodedCache(BUDGET), **options)
    assert made == expected
    assert stats.decoded_cache.images == FILES - 1


class PartOfFile(io.BufferedReader):
    """A part of a file that says it is the file."""

    def __init__(self, raw, begin, nbytes):
        super().__init__(raw)
        raw.seek(begin)
        self.content = io.BytesIO(raw.read(nbytes))

    def read(self, *count):
        return self.content.read(*count)

    def seek(self, *where):
        return self.content.seek(*where)

    def tell(self):
        return self.content.tell()


class Shard(Photos):
    """Files in one file."""

    def __init__(self, paths, shard):
        super().__init__(paths)
        contents = [Path(path).read_bytes() for path in paths]
        self.places = list(itertools.accumulate(map(len, contents), initial=0))
        self.shard = shard
        Path(shard).write_bytes(b"".join(contents))

    def __getitem__(self, index):
        begin, end = self.places[index : index + 2]
        with PartOfFile(io.FileIO(self.shard), begin, end - begin) as part:
            return STEPS["jitter"](Image.open(part).convert("RGB")), index


@pytest.mark.few(1)
@pytest.mark.parametrize("kept", KEEPING)
def test_parts_of_a_file_are_not_taken_for_it(kept, paths, tmp_path):
    dataset = Shard(paths, str(tmp_path / "shard"))
    expected, _ = _epochs(dataset, deferred_images="off")
    made, stats = _epochs(dataset, **KEEPING[kept]())
    assert made == expected
    assert getattr(stats, kept).images == 0


class Unsized(Photos):
    """Says that it has no length as its author thought right."""

    def __len__(self):
        raise NotImplementedError


def test_a_dataset_without_a_length_is_kept_too(paths):
    options = {"sampler": list(range(FILES))}
    expected, _ = _epochs(Unsized(paths), deferred_images="off", **options)
    made, stats = _epochs(Unsized(paths), cache=DecodedCache(BUDGET), **options)
    assert made == expected
    assert stats.decoded_cache.images == FILES


class _Info:
    def __init__(self, inode, nbytes, time):
        self.st_dev, self.st_ino, self.st_size, self.st_mtime_ns = 1, inode, nbytes, time


@settings(max_examples=60, deadline=None)
@given(
    files=st.lists(st.tuples(st.integers(0, 9), st.integers(1, 3), st.integers(0, 2)), max_size=30),
    places=st.integers(1, 12),
)
def test_a_store_gives_back_what_was_put_for_a_file(files, places):
    memory = FileStore(places, 4096 + 64 * places + 64 * 30)
    store = Store(_native.FileStoreView(memory.fd, memory.mapped))
    put = {}
    for description in files:
        file = KnownFile(None, _Info(*description))
        found = store.find(file)
        assert (found is not None) is (description in put)
        if found is not None:
            assert found.data == put[description]
        elif store.can_put(file, 16):
            put[description] = repr(description).encode().ljust(16)
            store.put(file, (1, 2), put[description])
    assert memory.kept == len(put) <= places
    # Eight places are tried for a file, so that eight files find one.
    assert len(put) == len(set(files)) or places < 8 or len(set(files)) > 8
    memory.close()


@pytest.mark.parametrize("filled", ["same", "other"])
def test_a_file_goes_behind_one_that_is_being_filled_unless_it_is_the_same(filled):
    memory = FileStore(8, 4096 + 64 * 8 + 64 * 30)
    view, file = _native.FileStoreView(memory.fd, memory.mapped), KnownFile(None, _Info(1, 2, 3))
    store, place = Store(view), file.stamp % 8
    view.begin(place, file.nbytes, file.stamp + (filled == "other"))
    assert store.put(file, (1, 2), b"pixels") is (filled == "other")
    assert (store.find(file) is not None) is (filled == "other")
    memory.close()


def test_a_file_that_is_written_again_within_a_second_is_read_again(paths):
    dataset = Unpacked(paths)
    plain, _ = _epochs(dataset)
    cached, _ = _epochs(dataset, jpeg_index="auto")
    assert plain == cached
