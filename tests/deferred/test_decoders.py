"""OpenCV's and torchvision's decoders: the same arrays, errors and warnings."""

import warnings
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from PIL import Image
from support import encoded_images
from support.images import photo
from torch.utils.data import Dataset
from torchvision import io as vision

from fusionloader import FusionLoader
from fusionloader.data.deferred import counts
from fusionloader.data.deferred.scope import deferring


def _encoded(mode="RGB", kind="JPEG", orientation=None, **options):
    image = photo(np.random.default_rng(3), 53, 37).convert(mode)
    if orientation:
        exif = Image.Exif()
        exif[0x0112] = orientation
        options["exif"] = exif
    return encoded_images.encoded(image, kind, **options)


def _damaged(content, place):
    return content[:place] + bytes([content[place] ^ 0x55]) + content[place + 1 :]


PLAIN = _encoded(quality=90)


def _with_two_orientations():
    first, second = _encoded(orientation=6), _encoded(orientation=1)
    begin = first.index(b"\xff\xe1")
    end = begin + 2 + int.from_bytes(first[begin + 2 : begin + 4], "big")
    return second[:begin] + first[begin:end] + second[begin:]


FILES = {
    "turned, and upright": _with_two_orientations(),
    "baseline": PLAIN,
    "4:4:4": _encoded(subsampling=0),
    "progressive": _encoded(progressive=True),
    "grey": _encoded("L"),
    "cmyk": _encoded("CMYK"),
    "png": _encoded(kind="PNG"),
    "upright": _encoded(orientation=1),
    "turned": _encoded(orientation=6),
    "mirrored": _encoded(orientation=2),
    "cut off": PLAIN[: len(PLAIN) // 2],
    "no end": PLAIN[:-2],
    "damaged scan": _damaged(PLAIN, len(PLAIN) - 200),
    "damaged header": _damaged(PLAIN, 170),
    "not an image": b"not an image",
    "two bytes": b"\xff\xd8",
}


def _opencv(flags):
    return lambda path: cv2.imread(path, *flags)


def _memory(flag):
    return lambda path: cv2.imdecode(np.fromfile(path, np.uint8), flag)


def _bytes(path):
    return torch.from_numpy(np.fromfile(path, np.uint8))


CALLS = {
    "imread": _opencv([]),
    "imread color": _opencv([cv2.IMREAD_COLOR]),
    "imread RGB": _opencv([cv2.IMREAD_COLOR_RGB]),
    "imread unchanged": _opencv([cv2.IMREAD_UNCHANGED]),
    "imread as stored": _opencv([cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION]),
    "imread grey": _opencv([cv2.IMREAD_GRAYSCALE]),
    "imread reduced": _opencv([cv2.IMREAD_REDUCED_COLOR_2]),
    "imread of a named flag": lambda path: cv2.imread(path, flags=cv2.IMREAD_COLOR),
    "imread of nothing": lambda path: cv2.imread(path + ".missing"),
    "imread of a number": lambda path: cv2.imread(3),
    "imdecode": _memory(cv2.IMREAD_COLOR),
    "imdecode unchanged": _memory(cv2.IMREAD_UNCHANGED),
    "imdecode of bytes": lambda path: cv2.imdecode(Path(path).read_bytes(), 1),
    "imdecode of floats": lambda path: cv2.imdecode(np.fromfile(path, np.uint8).astype(float), 1),
    "imdecode of every other byte": lambda path: cv2.imdecode(np.fromfile(path, np.uint8)[::2], 1),
    "read_image": vision.read_image,
    "read_image RGB": lambda path: vision.read_image(path, vision.ImageReadMode.RGB),
    "read_image turned": lambda path: vision.read_image(path, apply_exif_orientation=True),
    "decode_image": lambda path: vision.decode_image(_bytes(path)),
    "decode_jpeg": lambda path: vision.decode_jpeg(_bytes(path)),
    "decode_jpeg grey": lambda path: vision.decode_jpeg(_bytes(path), "GRAY"),
    "decode_jpegs": lambda path: vision.decode_jpeg([_bytes(path)] * 2),
}
NATIVE = {
    "imread",
    "imread color",
    "imread RGB",
    "imread unchanged",
    "imread as stored",
    "imdecode",
    "imdecode unchanged",
    "read_image",
    "read_image RGB",
    "read_image turned",
    "decode_image",
    "decode_jpeg",
    "decode_jpegs",
}


@pytest.fixture
def paths(tmp_path):
    made = {}
    for name, content in FILES.items():
        (tmp_path / name).write_bytes(content)
        made[name] = str(tmp_path / name)
    return made


def _outcome(call, path):
    """What comes of a call: type, shape, strides and values, or the error; and its warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            made = call(path)
            results = made if isinstance(made, list) else [made]
            outcome = [_about(result) for result in results]
        except Exception as error:
            outcome = type(error), str(error)
    return outcome, [(each.category, str(each.message)) for each in caught]


def _about(result):
    if result is None:
        return None
    strides = result.stride() if isinstance(result, torch.Tensor) else result.strides
    values = np.asarray(result)
    return type(result), values.dtype, values.shape, strides, values.tobytes()


@pytest.mark.parametrize("name", CALLS)
def test_results_are_the_librarys(name, paths, capfd):
    expected = {file: _outcome(CALLS[name], path) for file, path in paths.items()}
    counts.take()
    with deferring():
        made = {file: _outcome(CALLS[name], path) for file, path in paths.items()}
    counted = counts.take()
    assert made == expected
    assert (counted.files > 0) is (name in NATIVE)


def test_operators_have_what_pytorch_gives_them(paths):
    with deferring():
        assert torch.ops.image.decode_jpeg.default is not None
        assert torch.ops.image.decode_jpeg.overloads()


def test_the_libraries_are_as_they_were_afterwards(paths):
    functions = cv2.imread, cv2.imdecode, torch.ops.image.decode_jpeg
    with deferring():
        assert cv2.imread is not functions[0]
    now = cv2.imread, cv2.imdecode, torch.ops.image.decode_jpeg
    assert all(a is b for a, b in zip(functions, now, strict=True))


class Arrays(Dataset):
    """Images as OpenCV users read them."""

    def __init__(self, path):
        self.path = path

    def __len__(self):
        return 16

    def __getitem__(self, index):
        return cv2.cvtColor(cv2.imread(self.path), cv2.COLOR_BGR2RGB), index


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_decodes_them_natively(paths, workers):
    dataset = Arrays(paths["baseline"])
    loader = FusionLoader(dataset, batch_size=4, num_workers=workers)
    images, _ = next(iter(loader))
    assert np.array_equal(images[0].numpy(), np.asarray(Image.open(paths["baseline"])))
    list(loader)
    assert loader.stats().deferred_images["results"]["array"] >= 16
    plain = FusionLoader(dataset, batch_size=4, num_workers=workers, deferred_images="off")
    assert torch.equal(next(iter(plain))[0], images)
