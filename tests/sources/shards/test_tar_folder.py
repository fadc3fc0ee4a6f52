"""Tar archives: what is indexed once and when again, classes, and what is wrong with them."""

import json
import logging
import os
import resource
import subprocess
import sys

import pytest
from support.limits import limited
from support.other_users import without_home
from support.shard_writers import rows_of, write_tar, written

from fusionloader import FusionLoader
from fusionloader.data.sources import ShardChanged, TarFolder
from fusionloader.data.sources.shards import tar_folder
from fusionloader.data.sources.shards.tar_index import SUFFIX
from fusionloader.data.sources.shards.tar_members import BadTarSample, CorruptTar, ShardError
from fusionloader.data.sources.shards.tar_samples import group_samples


@pytest.fixture(autouse=True)
def users_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "fusionloader" / "indexes"


@pytest.fixture
def images(eval_set):
    return [data for data, _ in rows_of(eval_set)][:6]


@pytest.fixture
def shard(tmp_path, images):
    """An archive of six samples of two classes that have names."""
    (tmp_path / "data").mkdir()
    path = tmp_path / "data" / "train-000.tar"
    members = []
    for number, data in enumerate(images):
        label = {"label": number, "meta": {"kind": number % 2}}
        members += [
            (f"a/{number}.jpg", data),
            (f"a/{number}.cls", b"%d" % (number % 2)),
            (f"a/{number}.txt", [b"dog", b"cat"][number % 2]),
            (f"a/{number}.json", json.dumps(label).encode()),
        ]
    write_tar(path, members)
    return path


def index_of(shard):
    return shard.with_name(shard.name + SUFFIX)


def test_the_type_of_a_target_does_not_depend_on_other_shards(tmp_path, images):
    for name, target in (("0.tar", b"7"), ("1.tar", b"seven")):
        write_tar(tmp_path / name, [("a.jpg", images[0]), ("a.cls", target)])
    assert [target for _, target in TarFolder(tmp_path, target_transform=type)] == [int, str]


def test_texts_are_classes_and_keys_of_json_are_targets(shard):
    found = TarFolder(shard, target="txt")
    assert found.classes == ["cat", "dog"] and found.targets.tolist() == [1, 0] * 3
    assert found.class_to_idx == {"cat": 0, "dog": 1}
    assert TarFolder(shard, target="json:label").targets.tolist() == list(range(6))
    assert TarFolder(shard, target="json:meta.kind").targets.tolist() == [0, 1] * 3
    assert TarFolder(shard, target=None).targets.tolist() == [-1] * 6
    plain = TarFolder(shard, target="txt", target_transform=str.upper)
    assert plain[0][1] == "DOG" and plain.classes is None
    with pytest.raises(
        BadTarSample, match=r"train-000\.tar: .*no key 'kind', it has 'label', 'meta'"
    ):
        TarFolder(shard, target="json:kind")
    with pytest.raises(
        BadTarSample, match="targets are dict, and should be integers of 64 bits or texts"
    ):
        TarFolder(shard, target="json")


def test_samples_are_named_by_archive_and_member(shard):
    assert TarFolder(shard).name(3) == "train-000.tar: a/3.jpg"


def test_an_index_is_written_and_used(shard):
    first = TarFolder(shard)
    before = written(index_of(shard))
    assert TarFolder(shard).read_encoded(2) == first.read_encoded(2)
    assert written(index_of(shard)) == before


def test_an_archive_that_changed_is_indexed_again(shard, images):
    TarFolder(shard)
    write_tar(shard, [("b/7.jpg", images[0]), ("b/7.cls", b"7")])
    found = TarFolder(shard)
    assert found.read_encoded(0) == (images[0], 7) and len(found) == 1


def test_where_the_folder_cannot_be_written_to_the_users_cache_has_the_index(shard, users_cache):
    index_of(shard).mkdir()  # takes the place of the index, as a read-only folder does for others
    found = TarFolder(shard)
    (kept,) = users_cache.iterdir()
    before = written(kept)
    assert len(TarFolder(shard)) == 6 and written(kept) == before
    assert found.name(1) == "train-000.tar: a/1.jpg"


def test_on_a_full_disk_there_is_no_index_and_the_same_samples(shard, users_cache, caplog):
    with limited(resource.RLIMIT_FSIZE, 0):
        found = TarFolder(shard)
    assert "cannot be kept: no folder for it can be written to" in caplog.text
    assert not index_of(shard).exists() and not list(users_cache.iterdir())
    assert list(shard.parent.iterdir()) == [shard]
    read = [found.read_encoded(index) for index in range(6)]
    assert read == [TarFolder(shard).read_encoded(index) for index in range(6)]


def test_a_damaged_index_is_made_again(shard, caplog):
    TarFolder(shard)
    index_of(shard).write_bytes(b"nothing of the kind")
    with caplog.at_level(logging.WARNING, "fusionloader.sources"):
        assert len(TarFolder(shard)) == 6
    assert "damaged or no index" in caplog.text
    caplog.clear()
    assert len(TarFolder(shard)) == 6 and not caplog.text


def test_a_target_that_an_index_lacks_is_read_again(shard, images):
    write_tar(shard, [("0.jpg", images[0]), ("0.grade", b"4"), ("0.cls", b"1")])
    assert TarFolder(shard).targets.tolist() == [1]
    assert TarFolder(shard, target="grade").targets.tolist() == [4]


def test_a_target_that_is_too_large_for_an_index_is_refused(shard, images):
    write_tar(shard, [("0.jpg", images[0]), ("0.txt", bytes(1025))])
    with pytest.raises(BadTarSample, match=r"1025 bytes .* of at most 1024: use smaller targets$"):
        TarFolder(shard, target="txt")


def test_an_archive_that_is_replaced_while_others_are_indexed_has_changed(
    shard, images, monkeypatch
):
    def group_and_replace(*args):
        found = group_samples(*args)
        write_tar(shard, [("b.cls", b"1"), ("b.jpg", images[0] + bytes(2 * sum(map(len, images))))])
        return found

    monkeypatch.setattr(tar_folder, "group_samples", group_and_replace)
    dataset = TarFolder(shard)
    with pytest.raises(ShardChanged, match="train-000.tar"):
        dataset.read_encoded(0)


def wds2idx(shard, index):
    pytest.importorskip("wds2idx")
    command = [sys.executable, "-c", "import wds2idx; wds2idx.main()", str(shard), str(index)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def test_an_index_of_wds2idx_is_used(shard, images):
    index = shard.with_name("train-000.idx")
    wds2idx(shard, index)
    lines = [line for line in index.read_text().splitlines() if "a/4" not in line]
    index.write_text("\n".join(["v1.2 5", *lines[1:]]))  # so that it shows that it was used
    found = TarFolder(shard, target="txt")
    assert [found.read_encoded(i)[0] for i in range(5)] == images[:4] + images[5:]
    assert found.name(4) == "train-000.tar: a/5.jpg"


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("v1.2 6", "v1.2 7"),
        lambda text: text.replace("v1.2", "v9.9"),
        lambda text: text.replace("a/1.jpg", "a/1 b.jpg"),
        lambda text: text.replace("jpg ", "jpg 99999999"),
    ],
)
def test_an_index_of_wds2idx_that_cannot_be_used_is_not(shard, change, caplog):
    index = shard.with_name("train-000.idx")
    wds2idx(shard, index)
    index.write_text(change(index.read_text()))
    with caplog.at_level(logging.WARNING, "fusionloader.sources"):
        assert len(TarFolder(shard)) == 6
    assert "is read instead" in caplog.text


def test_an_index_of_wds2idx_that_is_older_than_its_archive_is_not_used(shard):
    index = shard.with_name("train-000.idx")
    wds2idx(shard, index)
    index.write_text(index.read_text().replace("a/1", "a/x"))
    os.utime(index, ns=(0, 0))
    assert TarFolder(shard).name(1) == "train-000.tar: a/1.jpg"


def test_an_index_of_wds2idx_of_another_archive_is_not_used(tmp_path, images, caplog):
    for number, some in enumerate((images[:3], images[3:])):
        members = [(f"{name}.jpg", data) for name, data in enumerate(some)]
        write_tar(tmp_path / f"cc.{number}.tar", members)
    wds2idx(tmp_path / "cc.0.tar", tmp_path / "cc.idx")
    found = TarFolder(tmp_path, target=None)
    assert [found.read_encoded(index)[0] for index in range(6)] == images
    assert "cc.idx is not used" in caplog.text and "cc.0.tar is read" not in caplog.text


def test_a_list_of_shards_by_wids_is_taken_and_checked(shard):
    listed = shard.with_name("shards.json")
    entries = [{"url": "train-000.tar", "nsamples": 6}]
    listed.write_text(json.dumps({"wids_version": 1, "shardlist": entries}))
    assert len(TarFolder(listed)) == 6
    entries[0]["nsamples"] = 7
    listed.write_text(json.dumps({"wids_version": 1, "shardlist": entries}))
    with pytest.raises(ShardError, match=r"train-000\.tar: has 6 samples, and the list says 7"):
        TarFolder(listed)
    listed.write_text("{}")
    with pytest.raises(ShardError, match="no list of shards by wids"):
        TarFolder(listed)


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ([("0.jpg", b"i")], r"train-000\.tar: the sample '0' .* no member 'cls': add it"),
        (
            [("0.cls", b"1"), ("1.jpg", b"i"), ("1.cls", b"1")],
            "'0' has a target 'cls' and no image",
        ),
        ([("0.jpg", b"i"), ("0.jpg", b"i"), ("0.cls", b"1")], "'0' has two members 'jpg'"),
        ([], r"train-000\.tar: the archive is empty"),
        ([("0.gif", b"i"), ("0.cls", b"1")], r"no member has .*an image \(jpg;jpeg;png;webp\)"),
    ],
)
def test_what_is_wrong_with_samples_is_said(shard, members, message):
    write_tar(shard, members)
    with pytest.raises(ShardError, match=message):
        TarFolder(shard)


def test_an_archive_that_is_cut_off_is_named(shard):
    os.truncate(shard, shard.stat().st_size // 2)
    with pytest.raises(CorruptTar, match=r"train-000\.tar, byte .*copy or write it again"):
        TarFolder(shard)


def test_an_archive_that_is_cut_off_later_can_be_skipped(shard, images, eval_set):
    write_tar(shard.with_name("first.tar"), [("0.jpg", images[0]), ("0.cls", b"1")])
    found = TarFolder(shard.parent, transform=eval_set.transform)
    os.truncate(shard, shard.stat().st_size // 2)
    with pytest.raises(ShardChanged, match=r"train-000\.tar' has .*a/0\.jpg.*index it again"):
        found[1]
    with pytest.raises(OSError, match=r"(?s)index 1.*train-000\.tar.*index it again"):
        list(FusionLoader(found, 2, num_workers=1))
    loader = FusionLoader(found, 7, num_workers=1, on_error="skip")
    assert [len(targets) for _, targets in loader] == [1]


def test_bad_images_of_an_archive_are_skipped(tmp_path, images, eval_set):
    members = [
        (f"{i}.{kind}", data)
        for i, image in enumerate([*images[:3], b"no image"])
        for kind, data in (("jpg", image), ("cls", b"%d" % i))
    ]
    write_tar(tmp_path / "train.tar", members)
    found = TarFolder(tmp_path / "train.tar", transform=eval_set.transform)
    loader = FusionLoader(found, 4, num_workers=1, on_error="skip")
    assert [targets.tolist() for _, targets in loader] == [[0, 1, 2]]


def test_a_user_without_a_home_has_archives_indexed(shard, monkeypatch):
    without_home(monkeypatch)
    assert len(TarFolder(shard)) == 6
    assert index_of(shard).exists()
    index_of(shard).unlink()
    index_of(shard).mkdir()  # so that none can be written
    assert len(TarFolder(shard)) == len(TarFolder(shard)) == 6
