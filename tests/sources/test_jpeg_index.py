"""An entry index: the same batches, begun to decode near the crop."""

import os
import random
import re
import shutil
from pathlib import Path

import pytest
from support.images import train_transform
from test_decoded_cache import assert_same, epochs, kinds_of_files
from torchvision.datasets import ImageFolder

from fusionloader import DecodedCache, FusionLoader


@pytest.fixture
def folder(tmp_path):
    return kinds_of_files(tmp_path / "files")


@pytest.mark.few(1)
@pytest.mark.parametrize("options", [{}, {"cache": DecodedCache(200 << 10)}, {"decode": "fast"}])
def test_every_epoch_has_the_batches_that_it_has_without_one(folder, options):
    dataset = ImageFolder(str(folder), train_transform())
    decode = {name: value for name, value in options.items() if name == "decode"}
    reference, _ = epochs(dataset, 3, **decode)
    ours, loader = epochs(dataset, 3, jpeg_index="auto", **options)
    assert_same(ours, reference)
    # What Pillow decodes has none, and what the cache keeps needs none.
    found = loader.stats().jpeg_index
    assert 0 < found.images <= 18 and found.bytes < found.budget
    assert (found.images == 18) == ("cache" not in options)


def test_a_saved_index_is_what_the_next_loader_begins_with(folder, tmp_path):
    saved = tmp_path / "index"
    dataset = ImageFolder(str(folder), train_transform())
    reference, _ = epochs(dataset, 2)
    ours, first = epochs(dataset, 2, jpeg_index=saved)
    assert_same(ours, reference)
    before = os.stat(saved).st_mtime_ns
    ours, second = epochs(dataset, 2, jpeg_index=str(saved))
    assert_same(ours, reference)
    assert os.stat(saved).st_mtime_ns == before
    assert second.stats().jpeg_index == first.stats().jpeg_index


@pytest.mark.few(1)
@pytest.mark.parametrize("damage", [b"", b"nonsense"])
def test_a_damaged_or_foreign_index_is_made_anew(folder, tmp_path, damage, caplog):
    saved = tmp_path / "index"
    saved.write_bytes(damage)
    dataset = ImageFolder(str(folder), train_transform())
    reference, _ = epochs(dataset, 1)
    ours, _ = epochs(dataset, 1, jpeg_index=saved)
    assert_same(ours, reference)
    assert "the entry index is made anew" in caplog.text and "is no saved index" in caplog.text
    caplog.clear()
    dataset.samples.pop()
    epochs(dataset, 1, jpeg_index=saved)
    assert "was saved for other files" in caplog.text


def test_an_index_that_cannot_be_saved_is_used_all_the_same(folder, tmp_path, caplog):
    dataset = ImageFolder(str(folder), train_transform())
    reference, _ = epochs(dataset, 2)
    (place := tmp_path / "removed later").mkdir()
    loader = FusionLoader(dataset, 5, num_workers=2, seed=3, jpeg_index=place / "index")
    place.rmdir()
    ours = [list(loader) for _ in range(2)]
    assert_same(ours, reference)
    assert "the entry index is not saved" in caplog.text
    assert loader.stats().jpeg_index.images == 18


def test_files_that_changed_do_not_use_their_old_entries(folder, tmp_path):
    saved = tmp_path / "index"
    dataset = ImageFolder(str(folder), train_transform())
    epochs(dataset, 1, jpeg_index=saved)
    paths = [Path(path) for path, _ in dataset.samples if path.endswith("jpg")]
    contents = [path.read_bytes() for path in paths]
    random.Random(1).shuffle(contents)
    for path, content in zip(paths, contents, strict=True):
        path.write_bytes(content)
    reference, _ = epochs(dataset, 2)
    ours, _ = epochs(dataset, 2, jpeg_index=saved)
    assert_same(ours, reference)


def test_an_index_of_files_that_were_written_again_is_made_anew(folder, tmp_path, caplog):
    saved = tmp_path / "index"
    dataset = ImageFolder(str(folder), train_transform())
    epochs(dataset, 1, jpeg_index=saved)
    for path, _ in dataset.samples:
        os.utime(path, ns=(1, 1))
    before = saved.read_bytes()
    epochs(dataset, 1, jpeg_index=saved)
    assert "the entry index is made anew: 18 of 18 files" in caplog.text
    assert saved.read_bytes() != before
    caplog.clear()
    _, loader = epochs(dataset, 1, jpeg_index=saved)
    assert loader.stats().jpeg_index.images == 18 and not caplog.text


def test_a_folder_that_was_moved_with_its_times_keeps_its_index(folder, tmp_path):
    saved = tmp_path / "index"
    transform = train_transform()
    epochs(ImageFolder(str(folder), transform), 1, jpeg_index=saved)
    before = os.stat(saved).st_mtime_ns
    moved = shutil.copytree(folder, tmp_path / "moved")
    reference, _ = epochs(ImageFolder(str(moved), transform), 1)
    ours, _ = epochs(ImageFolder(str(moved), transform), 1, jpeg_index=saved)
    assert_same(ours, reference)
    assert os.stat(saved).st_mtime_ns == before


def test_explain_says_whether_it_is_used(image_folder):
    dataset = ImageFolder(str(image_folder), train_transform())
    for workers, expected in ((2, "entry index: epochs"), (0, "no entry index: samples are")):
        text = FusionLoader(dataset, 4, num_workers=workers, jpeg_index="auto").explain()
        assert expected in text and "decoded cache" not in text


def test_what_is_no_path_is_refused(image_folder):
    dataset = ImageFolder(str(image_folder), train_transform())
    with pytest.raises(ValueError, match="jpeg_index should be"):
        FusionLoader(dataset, jpeg_index=True)


def test_an_index_that_could_not_be_saved_is_refused_at_once(image_folder, tmp_path):
    dataset = ImageFolder(str(image_folder), train_transform())
    (tmp_path / "file").touch()
    for path, why in (
        ("missing/index", f"{tmp_path / 'missing'} is no folder: make it first"),
        ("file/index", f"{tmp_path / 'file'} is no folder: make it first"),
        (".", "should be a file"),
    ):
        with pytest.raises(ValueError, match=re.escape(why)):
            FusionLoader(dataset, jpeg_index=tmp_path / path)
    FusionLoader(dataset, jpeg_index=tmp_path / "file")
