"""The files of an image folder as others keep them, written by the packages that people use.

Each function takes an ``ImageFolder`` and an empty folder, and returns a function of transform and
other options that opens what was written.
"""

import functools
import io
import pathlib
import tarfile

import pytest
from PIL import Image

from fusionloader.data import sources

SHARDS = 3


def rows_of(images):
    """Gives the encoded bytes and the target of every file."""
    for path, target in images.samples:
        yield pathlib.Path(path).read_bytes(), target


def parts_of(rows, count=SHARDS):
    """Returns the rows in so many lists, the first ones first."""
    rows = list(rows)
    each = -(-len(rows) // count)
    return [rows[first : first + each] for first in range(0, len(rows), each)]


def hugging_face_rows(images, folder):
    """Returns a ``datasets.Dataset`` on disk."""
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=images.classes)}
    )
    made = datasets.Dataset.from_dict(
        {
            "image": [{"bytes": data, "path": None} for data, _ in rows_of(images)],
            "label": [target for _, target in rows_of(images)],
        },
        features=features,
    )
    made.save_to_disk(str(folder), num_shards=SHARDS)
    return datasets.load_from_disk(str(folder))


def hugging_face(images, folder):
    return functools.partial(_of_rows, hugging_face_rows(images, folder))


def _of_rows(rows, transform, **options):
    return sources.from_hugging_face(rows, transform, **options)


def hugging_face_paths(images, folder):
    """A dataset of paths, as ``load_dataset("imagefolder")`` makes it."""
    datasets = pytest.importorskip("datasets")
    made = datasets.Dataset.from_dict(
        {"image": [path for path, _ in images.samples], "label": images.targets},
        features=datasets.Features(
            {"image": datasets.Image(), "label": datasets.ClassLabel(names=images.classes)}
        ),
    )
    return functools.partial(_of_rows, made)


def hugging_face_shuffled(images, folder):
    """A dataset whose rows are written in another order, and selected back into the folder's."""
    datasets = pytest.importorskip("datasets")
    rows = list(rows_of(images))
    order = list(range(1, len(rows), 2)) + list(range(0, len(rows), 2))
    made = datasets.Dataset.from_dict(
        {
            "image": [{"bytes": rows[row][0], "path": None} for row in order],
            "label": [rows[row][1] for row in order],
        },
        features=datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")}),
    )
    made.save_to_disk(str(folder))
    back = [order.index(row) for row in range(len(rows))]
    return functools.partial(_of_rows, datasets.load_from_disk(str(folder)).select(back))


def arrow(images, folder):
    """Files of plain binary values, in Arrow's file format."""
    pa = pytest.importorskip("pyarrow")
    for number, rows in enumerate(parts_of(rows_of(images))):
        table = pa.table(
            {"picture": [data for data, _ in rows], "kind": [target for _, target in rows]}
        )
        with pa.ipc.new_file(folder / f"{number}.arrow", table.schema) as writer:
            writer.write_table(table, max_chunksize=5)
    return functools.partial(_arrow, folder)


def _arrow(folder, transform, **options):
    return sources.ArrowImages(
        folder, image="picture", target="kind", transform=transform, **options
    )


def parquet(images, folder):
    """Compressed files of several row groups."""
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    for number, rows in enumerate(parts_of(rows_of(images))):
        table = pa.table(
            {"image": [data for data, _ in rows], "label": [target for _, target in rows]}
        )
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=5)
    return functools.partial(_parquet, folder)


def parquet_structs(images, folder):
    """A file that ``datasets`` wrote."""
    rows = hugging_face_rows(images, folder / "rows")
    rows.to_parquet(str(folder / "all.parquet"))
    return functools.partial(_parquet, folder)


def _parquet(folder, transform, **options):
    return sources.ParquetImages(
        folder / "*.parquet", transform=transform, unpack_to=folder / "unpacked", **options
    )


def mds(images, folder, compression=None, encoding="jpeg"):
    streaming = pytest.importorskip("streaming", exc_type=ImportError)
    columns = {"image": encoding, "label": "int", "key": "str", "weight": "float32"}
    where = folder / "mds"
    with streaming.MDSWriter(
        columns=columns, out=str(where), compression=compression, size_limit=1 << 15
    ) as writer:
        for number, (path, target) in enumerate(images.samples):
            image = Image.open(path) if encoding == "jpeg" else pathlib.Path(path).read_bytes()
            writer.write({"image": image, "label": target, "key": f"{number}", "weight": 1.0})
    return functools.partial(_mds, where, folder / "unpacked")


def mds_zstd(images, folder):
    return mds(images, folder, "zstd:3", "bytes")


def _mds(where, unpack_to, transform, **options):
    return sources.MDSImages(where, transform=transform, unpack_to=unpack_to, **options)


def litdata(images, folder):
    """Chunks of samples, as LitData writes images."""
    _write_litdata(folder, [{"image": Image.open(p), "label": t} for p, t in images.samples])
    return functools.partial(_litdata, folder)


def litdata_rows(images, folder):
    """Chunks of Arrow, as LitData writes plain dictionaries."""
    _write_litdata(folder, [{"image": data, "label": target} for data, target in rows_of(images)])
    return functools.partial(_litdata, folder)


def _write_litdata(folder, items):
    cache = pytest.importorskip("litdata.streaming.cache").Cache(str(folder), chunk_size=15)
    for number, item in enumerate(items):
        cache[number] = item
    cache.done()
    cache.merge()


def _litdata(folder, transform, **options):
    return sources.LitDataImages(folder, transform=transform, **options)


def lmdb(images, folder):
    made = pytest.importorskip("lmdb").open(str(folder), map_size=1 << 26)
    with made.begin(write=True) as transaction:
        for number, (data, target) in enumerate(rows_of(images)):
            transaction.put(b"image-%09d" % number, data)
            transaction.put(b"label-%09d" % number, b"%d" % target)
    made.close()
    return functools.partial(_lmdb, folder)


def _lmdb(folder, transform, **options):
    return sources.LMDBImages(
        folder, image="image-*", target="label-*", transform=transform, **options
    )


def write_tar(path, members):
    """Writes members, (name, bytes) each."""
    with tarfile.open(path, "w") as archive:
        for name, data in members:
            header = tarfile.TarInfo(name)
            header.size = len(data)
            archive.addfile(header, io.BytesIO(data))


def tar(images, folder):
    """Archives as WebDataset has them, with the class in a member of its own."""
    for shard, rows in enumerate(parts_of(rows_of(images))):
        members = []
        for number, (data, target) in enumerate(rows):
            members += [(f"cats/{number}.jpg", data), (f"cats/{number}.cls", b"%d" % target)]
        write_tar(folder / f"train-{shard:03}.tar", members)
    return functools.partial(_tar, folder / "train-{000..002}.tar")


def _tar(where, transform, **options):
    return sources.TarFolder(where, transform=transform, **options)


FAMILIES = {
    made.__name__: made
    for made in (
        hugging_face,
        hugging_face_paths,
        hugging_face_shuffled,
        arrow,
        parquet,
        parquet_structs,
        mds,
        mds_zstd,
        litdata,
        litdata_rows,
        lmdb,
        tar,
    )
}


def written(path):
    """What tells one writing of a file from another; when it was read does not matter."""
    found = path.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns
