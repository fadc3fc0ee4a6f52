"""Archives that change, vanish or are cut off while they are trained on, and old indexes."""

import logging
import os
import shutil

import pytest
from support.images import eval_transform
from support.tar_shards import image_shards, tar_of

from fusionloader import FusionLoader
from fusionloader.data.sources import ShardChanged, TarFolder
from fusionloader.data.sources.shards import tar_index
from fusionloader.data.sources.shards.tar_members import ShardError

COUNTS = (70, 40, 70)
SHARD = "train-001.tar"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "data").mkdir()
    for name, data in image_shards(COUNTS).items():
        (tmp_path / "data" / name).write_bytes(data)
    return tmp_path / "data"


def modify(path):
    shutil.copy(path, path.with_suffix(".new"))  # the same bytes, later
    os.utime(path.with_suffix(".new"), ns=(0, 1))
    os.replace(path.with_suffix(".new"), path)


CHANGES = {
    "vanished": (os.unlink, "is gone"),
    "modified": (modify, "was modified after it was indexed"),
    "cut off": (lambda path: os.truncate(path, 3000), "has 3000 bytes, and had"),
}
changes = pytest.mark.parametrize("change", CHANGES)


def in_mid_epoch(folder, change, **options):
    """Yields batches of an epoch; the second of three shards changes after the first batch.

    Mini-batches of the shard's end are published later than that.
    """
    dataset = TarFolder(folder, transform=eval_transform())
    loader = FusionLoader(dataset, 4, num_workers=1, prefetch_factor=2, seed=1, **options)
    for number, (_, targets) in enumerate(loader):
        if number == 0:
            CHANGES[change][0](folder / SHARD)
        yield loader, targets.tolist()


@changes
def test_the_error_names_archive_member_and_remedy(folder, change):
    with pytest.raises(ShardChanged) as caught:
        list(in_mid_epoch(folder, change))
    said = str(caught.value)
    assert SHARD in said and CHANGES[change][1] in said
    assert f"{SHARD}: 000" in said and "put back the file, or index it again" in said


@changes
@pytest.mark.few(3)
@pytest.mark.parametrize("on_error", ["skip", "substitute"])
def test_the_epoch_goes_on_without_what_is_lost(folder, change, on_error):
    found = list(in_mid_epoch(folder, change, on_error=on_error))
    loader, targets = found[0][0], [target for _, batch in found for target in batch]
    stats = loader.stats()
    lost = stats.skipped + stats.substituted
    assert 0 < lost <= COUNTS[1]
    others = {*range(70), *range(110, 180)}
    assert others <= set(targets) and len(set(targets)) == sum(COUNTS) - lost
    assert len(targets) == sum(COUNTS) - (lost if on_error == "skip" else 0)
    assert any(SHARD in text and "index it again" in text for text in stats.errors)


def test_an_index_of_another_version_is_made_again(folder, monkeypatch, caplog):
    with monkeypatch.context() as patch:
        patch.setattr(tar_index, "VERSION", 99)
        TarFolder(folder)
    with caplog.at_level(logging.WARNING, "fusionloader.sources"):
        assert TarFolder(folder).targets.tolist() == list(range(sum(COUNTS)))
    assert f"{SHARD}{tar_index.SUFFIX} is an index of version 99" in caplog.text
    caplog.clear()
    assert len(TarFolder(folder)) == sum(COUNTS) and not caplog.text


@pytest.mark.parametrize(
    ("data", "told"),
    [(b"", "the archive is empty"), (tar_of([("1.jpg", bytes(3000))])[:1000], "it was cut off")],
)
def test_an_archive_that_is_empty_or_cut_off_is_named_with_what_to_do(folder, data, told):
    (folder / SHARD).write_bytes(data)
    with pytest.raises(ShardError, match=rf"(?s){SHARD}.*{told}.*again"):
        TarFolder(folder)
