"""Errors about damaged MDS shards, LitData chunks and LMDB databases."""

import contextlib
import copy
import functools
import json
import operator
import os
import re

import pytest
from support import warm_start
from support.shard_writers import litdata, litdata_rows, mds
from support.shard_writers import lmdb as write_lmdb

from fusionloader import FusionLoader
from fusionloader.data.sources import LitDataImages, LMDBImages, MDSImages


def changed(path, change):
    index = json.loads(path.read_text())
    change(index)
    path.write_text(json.dumps(index))


@pytest.fixture
def mds_folder(eval_set, tmp_path):
    mds(eval_set, tmp_path)
    return tmp_path / "mds"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"image": "img"},
            r"no column 'img' of images, which are jpeg, .*its fields are 'image' \(",
        ),
        ({"image": "weight"}, "no column 'weight' of images"),
        ({"target": "key"}, r"no column 'key' of targets.* give a target_transform for str"),
        ({"target": "weight"}, "no column 'weight' of targets, which are int"),
    ],
)
def test_mds_columns_that_do_not_fit_are_named(mds_folder, options, message):
    with pytest.raises(ValueError, match=message):
        MDSImages(mds_folder, **options)


def test_mds_texts_are_targets_with_a_transform(mds_folder):
    found = MDSImages(mds_folder, target="key", target_transform=int)
    assert [found[i][1] for i in range(40)] == list(range(40))
    assert set(MDSImages(mds_folder, target=None).targets) == {-1}


def test_mds_samples_are_named_by_shard_and_number(mds_folder):
    found = MDSImages(mds_folder)
    counts = [
        shard["samples"] for shard in json.loads((mds_folder / "index.json").read_text())["shards"]
    ]
    assert len(counts) > 2 and found.name(counts[0] + 1) == "shard.00001.mds: sample 1"


def test_an_mds_shard_that_is_cut_off_or_missing_is_named(mds_folder):
    shard = mds_folder / "shard.00001.mds"
    os.truncate(shard, shard.stat().st_size - 100)
    with pytest.raises(ValueError, match=r"shard\.00001\.mds.* bytes, expected .*: download"):
        MDSImages(mds_folder)
    shard.unlink()
    with pytest.raises(FileNotFoundError, match=r"shard\.00001\.mds' of index\.json is not there"):
        MDSImages(mds_folder)


def test_a_damaged_mds_shard_is_named(mds_folder):
    shard = mds_folder / "shard.00001.mds"
    data = bytearray(shard.read_bytes())
    data[8:12] = bytes([255] * 4)
    shard.write_bytes(data)
    with pytest.raises(ValueError, match=r"shard\.00001\.mds' is cut off or damaged"):
        MDSImages(mds_folder)


def test_an_mds_index_that_does_not_describe_its_samples_is_seen(mds_folder):
    changed(
        mds_folder / "index.json", lambda index: index["shards"][0].update(column_sizes=[None] * 4)
    )
    with pytest.raises(ValueError, match=r"shard\.00000\.mds': the fields of its samples do not"):
        MDSImages(mds_folder)


def test_mds_formats_and_compressions_that_are_unknown_are_named(mds_folder, eval_set, tmp_path):
    mds(eval_set, tmp_path / "snappy", "snappy")
    with pytest.raises(ValueError, match="compressed by 'snappy', expected zstd"):
        MDSImages(tmp_path / "snappy" / "mds")
    changed(mds_folder / "index.json", lambda index: index["shards"][0].update(format="json"))
    with pytest.raises(ValueError, match="format 'json' of version 2, expected 'mds'"):
        MDSImages(mds_folder)
    with pytest.raises(FileNotFoundError, match=r"has no index\.json: give the folder that MDSW"):
        MDSImages(tmp_path)


def test_a_damaged_compressed_mds_shard_is_named(eval_set, tmp_path):
    mds(eval_set, tmp_path, "zstd")
    (shard, *_) = sorted((tmp_path / "mds").glob("*.zstd"))
    data = bytearray(shard.read_bytes())
    data[len(data) // 2 :] = b"x" * (len(data) - len(data) // 2)
    shard.write_bytes(data)
    with pytest.raises(ValueError, match=r"shard\.00000\.mds\.zstd' cannot be decompressed"):
        MDSImages(tmp_path / "mds", unpack_to=tmp_path / "unpacked")
    assert not list((tmp_path / "unpacked").glob("*.part"))


@pytest.mark.parametrize("write", [litdata, litdata_rows])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"image": "img"}, "no leaf 'img' of images, .*its fields are 'image'"),
        ({"image": "label"}, "no leaf 'label' of images, which are jpeg, image, bytes"),
        ({"target": "image"}, "no leaf 'image' of targets, which are int, bool"),
    ],
)
def test_litdata_leaves_that_do_not_fit_are_named(eval_set, tmp_path, write, options, message):
    write(eval_set, tmp_path)
    with pytest.raises(ValueError, match=message):
        LitDataImages(tmp_path, **options)


@pytest.mark.parametrize("write", [litdata, litdata_rows])
def test_a_litdata_chunk_that_is_cut_off_or_missing_is_named(eval_set, tmp_path, write):
    write(eval_set, tmp_path)
    assert set(LitDataImages(tmp_path, target=None).targets) == {-1}
    chunk = tmp_path / "chunk-0-1.bin"
    os.truncate(chunk, chunk.stat().st_size - 100)
    with pytest.raises(ValueError, match=r"chunk-0-1\.bin' (is|has .*) .*damaged"):
        LitDataImages(tmp_path)
    os.truncate(chunk, 0)
    with pytest.raises(ValueError, match=r"chunk-0-1\.bin' is empty"):
        LitDataImages(tmp_path)
    chunk.unlink()
    with pytest.raises(FileNotFoundError, match=r"chunk-0-1\.bin' of index\.json is not there"):
        LitDataImages(tmp_path)


def test_litdata_folders_that_cannot_be_read_in_place_are_refused(eval_set, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no index\.json: give the folder that litdata"):
        LitDataImages(tmp_path)
    litdata(eval_set, tmp_path)
    index = tmp_path / "index.json"
    changed(index, lambda found: found["config"].update(compression="zstd"))
    with pytest.raises(ValueError, match="have compression zstd: optimize the data again"):
        LitDataImages(tmp_path)
    changed(index, lambda found: found["config"].update(compression=None, item_loader="Tokens"))
    with pytest.raises(ValueError, match="are of Tokens, expected PyTreeLoader"):
        LitDataImages(tmp_path)
    index.write_text("{}")
    with pytest.raises(ValueError, match="no config or no chunks"):
        LitDataImages(tmp_path)


def test_lmdb_keys_that_are_not_there_are_named(eval_set, tmp_path):
    write_lmdb(eval_set, tmp_path)
    with pytest.raises(ValueError, match=r"no keys 'img-\*'; it has 'image-000000000', "):
        LMDBImages(tmp_path, image="img-*")
    with pytest.raises(ValueError, match="no key b'y-000000000' for image b'image-000000000'"):
        LMDBImages(tmp_path, image="image-*", target="y-*")
    with pytest.raises(ValueError, match="\"images\" has not one|'images' has not one"):
        LMDBImages(tmp_path, image="images")
    with pytest.raises(ValueError, match="are no integers .*: give a target_transform"):
        LMDBImages(tmp_path, image="image-*", target="image-*")


def test_lmdb_files_that_are_none_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"data\.mdb' is not there"):
        LMDBImages(tmp_path)
    (tmp_path / "data.mdb").write_bytes(bytes(9000))
    with pytest.raises(ValueError, match=r"data\.mdb' is no LMDB database"):
        LMDBImages(tmp_path)


ODD = (None, -1, 1 << 31, 10**30, "", "\0", "\ud800", "x" * 5000, [], {}, [[]], {"a": 1}, 1.5)


def places_in(found, path=()):
    inner = found.items() if isinstance(found, dict) else enumerate(found)
    for key, value in inner:
        yield (*path, key)
        if isinstance(value, (dict, list)):
            yield from places_in(value, (*path, key))


@pytest.mark.parametrize("kind", ["mds", "litdata"])
def test_an_index_of_other_structure_is_named(eval_set, tmp_path, kind):
    """Each place of a real index, with values of all types in it."""
    (mds if kind == "mds" else litdata)(eval_set, tmp_path)
    folder = tmp_path / "mds" if kind == "mds" else tmp_path
    whole = json.loads((folder / "index.json").read_text())
    for key in ("shards", "chunks"):
        del whole.get(key, [])[1:]
    (folder / "index.json").write_text(json.dumps(whole))
    opened = MDSImages if kind == "mds" else LitDataImages
    opened(folder)
    for number, path in enumerate(places_in(whole)):
        for odd in ODD[number % 3 :: 3]:
            index = copy.deepcopy(whole)
            at = functools.reduce(operator.getitem, path[:-1], index)
            at[path[-1]] = odd
            (folder / "index.json").write_text(json.dumps(index))
            with contextlib.suppress(OSError):  # there is no such file
                try:
                    opened(folder)  # some things matter to nobody
                except ValueError as error:
                    assert str(folder) in str(error), (path, odd)
    for text in ("[" * 100_000, "[]", "{", "\xff"):
        (folder / "index.json").write_text(text, "latin-1")
        with pytest.raises(ValueError, match=re.escape(f"{folder}/index.json")):
            opened(folder)


CUT_OFF = """
import os, sys
from fusionloader.data.sources import LMDBImages

path, whole = sys.argv[1], os.path.getsize(sys.argv[1])
for part in (15, 8):
    os.truncate(path, whole * part // 16)
    try:
        LMDBImages(path, image="image-*", target="label-*")
    except ValueError as error:
        print(error)
"""


def test_an_lmdb_database_that_is_cut_off_is_an_error_and_ends_no_process(eval_set, tmp_path):
    write_lmdb(eval_set, tmp_path)
    path = {**os.environ, "PYTHONPATH": os.getcwd()}
    found = warm_start.completed("-c", CUT_OFF, tmp_path / "data.mdb", env=path)
    assert found.returncode == 0, found.stderr
    said = found.stdout.splitlines()
    assert len(said) == 2
    assert all("data.mdb' has" in line or "data.mdb', which has" in line for line in said), said


def test_an_lmdb_database_in_one_file_has_its_values(eval_set, tmp_path):
    write_lmdb(eval_set, tmp_path)
    os.rename(tmp_path / "data.mdb", tmp_path / "one.lmdb")
    found = LMDBImages(tmp_path / "one.lmdb", image="image-*", target="label-*")
    assert found.read_encoded(39)[1] == 1 and found.name(39) == "one.lmdb: image-000000039"


def test_an_lmdb_database_that_is_written_to_later_is_an_error(eval_set, tmp_path):
    write_lmdb(eval_set, tmp_path)
    found = LMDBImages(tmp_path, image="image-*", target="label-*", transform=eval_set.transform)
    import lmdb

    with lmdb.open(str(tmp_path), map_size=1 << 26) as made, made.begin(write=True) as transaction:
        transaction.put(b"another", b"value")
    with pytest.raises(OSError, match=r"data\.mdb' .*index it again"):
        list(FusionLoader(found, 8, num_workers=1))
