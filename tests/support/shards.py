"""The files of an image folder in shards: the same bytes, one after the other."""

import os
import pathlib

from fusionloader.data.sources import ByteRanges, EncodedImages

GAP = b"between samples"


class KeyNames:
    """Names samples by the files that they were."""

    def __init__(self, keys):
        self.keys = keys

    def name(self, file, offset, item):
        return f"{os.path.basename(file)}: {self.keys[file, offset]}"


def shards_of(images, folder, count=3, **options):
    """Writes the samples of an ``ImageFolder`` to shards, in turn; returns the dataset of them."""
    files = [folder / f"train-{number}.bin" for number in range(count)]
    shards = [bytearray() for _ in files]
    columns, keys = [], {}
    for index, (path, _) in enumerate(images.samples):
        shard = shards[index % count]
        shard += GAP
        data = pathlib.Path(path).read_bytes()
        columns.append((index % count, len(shard), len(data)))
        keys[str(files[index % count]), len(shard)] = os.path.relpath(path, images.root)
        shard += data
    for file, shard in zip(files, shards, strict=True):
        file.write_bytes(shard)
    ranges = ByteRanges(files, *zip(*columns, strict=True))
    given = {"transform": images.transform, "names": KeyNames(keys), **options}
    return EncodedImages(ranges, [target for _, target in images.samples], **given)
