"""Datasets and files that from_hugging_face and ArrowImages accept, and those they refuse."""

import os
import shutil

import pytest
from support.frameworks import Lazy
from support.shard_writers import hugging_face_rows, rows_of

from fusionloader.data.sources import ArrowImages, from_hugging_face

datasets = Lazy("datasets")
pa = pytest.importorskip("pyarrow")


@pytest.fixture
def rows(eval_set, tmp_path):
    return hugging_face_rows(eval_set, tmp_path / "rows")


def test_images_are_ranges_of_the_arrow_files(rows, eval_set):
    found = from_hugging_face(rows).byte_ranges()
    assert {os.path.realpath(path) for path in found.files} == {
        os.path.realpath(file["filename"]) for file in rows.cache_files
    }
    for row, (data, _) in enumerate(rows_of(eval_set)):
        place = found.at(row)
        with open(place.file, "rb") as file:
            assert os.pread(file.fileno(), place.nbytes, place.offset) == data


def test_rows_are_those_of_shuffles_filters_and_slices(rows, eval_set):
    chosen = rows.shuffle(3).filter(lambda row: row["label"] == 1).select(range(2, 9))
    found = from_hugging_face(chosen)
    assert len(found) == 7
    plain = chosen.cast_column("image", datasets.Image(decode=False))
    for index, row in enumerate(plain):
        assert found.read_encoded(index) == (row["image"]["bytes"], row["label"])


def test_slices_and_concatenations_keep_their_places(rows):
    joined = datasets.concatenate_datasets([rows.select(range(5, 20)), rows.select(range(3))])
    found = from_hugging_face(joined)
    whole = from_hugging_face(rows)
    assert [found.read_encoded(i) for i in range(18)] == [
        whole.read_encoded(i) for i in (*range(5, 20), 0, 1, 2)
    ]


def test_columns_are_chosen(rows):
    renamed = rows.rename_column("image", "picture").rename_column("label", "kind")
    with pytest.raises(ValueError, match="no column 'image': its columns are .*picture.*kind"):
        from_hugging_face(renamed)
    found = from_hugging_face(renamed, image="picture", target=None)
    assert set(found.targets) == {-1}
    assert from_hugging_face(renamed, image="picture.bytes", target="kind").targets[33] == 1


def test_texts_are_targets_with_a_transform(rows):
    named = rows.add_column("word", [f"word {i}" for i in range(len(rows))]).select(range(30, 40))
    with pytest.raises(ValueError, match="'word' .* are string, not integers: give a target_trans"):
        from_hugging_face(named, target="word")
    found = from_hugging_face(named, target="word", target_transform=lambda word: int(word[5:]))
    assert [found[i][1] for i in range(10)] == list(range(30, 40))


def test_truth_values_are_targets(rows):
    flagged = rows.add_column("flag", [i % 3 == 0 for i in range(len(rows))])
    assert from_hugging_face(flagged, target="flag").targets[:4].tolist() == [1, 0, 0, 1]


def test_images_in_memory_are_refused_with_a_remedy(eval_set):
    made = datasets.Dataset.from_dict({"image": [data for data, _ in rows_of(eval_set)]})
    with pytest.raises(ValueError, match="in memory, not in an uncompressed.*save_to_disk"):
        from_hugging_face(made, target=None)


def test_a_dataset_of_splits_is_an_error(rows):
    with pytest.raises(TypeError, match=r"has splits \('train', 'test'\).*dataset\['train'\]$"):
        from_hugging_face(datasets.DatasetDict(train=rows, test=rows))


def test_streams_and_others_are_refused(rows, eval_set):
    with pytest.raises(TypeError, match="IterableDataset has no index.*without streaming=True"):
        from_hugging_face(rows.to_iterable_dataset())
    with pytest.raises(TypeError, match=r"takes a datasets\.Dataset, not ImageFolder"):
        from_hugging_face(eval_set)


def test_a_transform_of_rows_is_refused(rows):
    with pytest.raises(ValueError, match=r"with_transform.*with_format\(None\)"):
        from_hugging_face(rows.with_transform(lambda row: row))


def test_a_row_without_an_image_is_named(tmp_path, eval_set):
    data = [data for data, _ in rows_of(eval_set)][:4]
    data[2] = None
    made = datasets.Dataset.from_dict({"image": data, "label": [0, 0, 0, 0]})
    made.save_to_disk(str(tmp_path / "rows"))
    with pytest.raises(ValueError, match="row 2 of .* has no image in 'image'"):
        from_hugging_face(datasets.load_from_disk(str(tmp_path / "rows")))


def test_rows_that_were_filtered_out_may_lack_images_and_targets(tmp_path, eval_set):
    data = [data for data, _ in rows_of(eval_set)][:5]
    made = datasets.Dataset.from_dict(
        {"image": [data[0], None, *data[2:]], "label": [0, 1, None, 3, 4]}
    )
    made.save_to_disk(str(tmp_path / "rows"))
    found = from_hugging_face(datasets.load_from_disk(str(tmp_path / "rows")).select([4, 0, 3]))
    assert [found.read_encoded(row) for row in range(3)] == [
        (data[4], 4),
        (data[0], 0),
        (data[3], 3),
    ]


@pytest.mark.parametrize("missing", ["image", "label"])
def test_what_lies_below_a_missing_struct_is_missing(missing, tmp_path):
    below = {
        "image": {"bytes": pa.array([b"a", b"b"]), "path": pa.array(["", ""])},
        "label": {"kind": pa.array([1, 2])},
    }
    structs = {
        name: pa.StructArray.from_arrays(
            list(fields.values()), list(fields), mask=pa.array([False, name == missing])
        )
        for name, fields in below.items()
    }
    arrow_file(tmp_path / "a.arrow", structs)
    with pytest.raises(ValueError, match="row 1 of .* has no"):
        ArrowImages(tmp_path, target="label.kind")


def test_a_file_that_was_replaced_is_seen(rows):
    path = rows.cache_files[1]["filename"]
    shutil.copy(path, path + ".new")
    os.replace(path + ".new", path)
    with pytest.raises(FileNotFoundError, match=r"arrow' was deleted or replaced .* load it again"):
        from_hugging_face(rows)


def arrow_file(path, columns, **options):
    table = pa.table(columns)
    with pa.ipc.new_file(path, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as file:
        file.write_table(table)


def test_compressed_arrow_files_are_refused(tmp_path):
    arrow_file(tmp_path / "a.arrow", {"image": [bytes(5000)], "label": [0]}, compression="zstd")
    with pytest.raises(ValueError, match=r"a\.arrow are in memory, not in an uncompressed Arrow"):
        ArrowImages(tmp_path)


def test_files_of_two_kinds_are_refused(tmp_path):
    arrow_file(tmp_path / "a.arrow", {"image": [b"1"], "label": [0]})
    arrow_file(tmp_path / "cache-1.arrow", {"indices": [1]})
    with pytest.raises(ValueError, match=r"cache-1\.arrow' has the columns indices.*by a pattern"):
        ArrowImages(tmp_path)


def test_a_file_that_is_cut_off_is_refused(tmp_path):
    arrow_file(tmp_path / "a.arrow", {"image": [bytes(5000)], "label": [0]})
    os.truncate(tmp_path / "a.arrow", 3000)
    with pytest.raises(ValueError, match=r"a\.arrow' is no whole Arrow file"):
        ArrowImages(tmp_path)


def test_images_of_another_type_are_refused(tmp_path):
    arrow_file(tmp_path / "a.arrow", {"image": [1.5], "label": [0]})
    with pytest.raises(ValueError, match="are double: encoded images are binary values"):
        ArrowImages(tmp_path)
