"""OpenCV's, torchvision's and torchcodec's decoders: the same results, errors and warnings."""

import struct
import warnings
import zlib
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
from fusionloader.data.deferred import array_decoders, counts
from fusionloader.data.deferred.scope import deferring

try:
    import torchcodec
    from torchcodec import decoders as codecs
except ImportError:
    codecs = None
else:
    if tuple(map(int, torchcodec.__version__.split(".")[:2])) < (0, 17):
        codecs = None  # 0.16 crashes on some of these files, and earlier ones decode no images


def _encoded(mode="RGB", kind="JPEG", orientation=None, size=(53, 37), **options):
    image = photo(np.random.default_rng(3), *size).convert(mode)
    if orientation:
        exif = Image.Exif()
        exif[0x0112] = orientation
        options["exif"] = exif
    return encoded_images.encoded(image, kind, **options)


def _damaged(content, place):
    return content[:place] + bytes([content[place] ^ 0x55]) + content[place + 1 :]


PLAIN = _encoded(quality=90)


def _exif(content):
    """Returns the EXIF segment of a JPEG, and its place."""
    begin = content.index(b"\xff\xe1")
    end = begin + 2 + int.from_bytes(content[begin + 2 : begin + 4], "big")
    return content[begin:end], begin


def _with_segment(content, segment):
    """Returns a JPEG with a segment in front of its EXIF."""
    _, begin = _exif(content)
    return content[:begin] + segment + content[begin:]


def _application(data):
    return b"\xff\xe1" + (len(data) + 2).to_bytes(2, "big") + data


def _chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _before(content, kind, chunk):
    """Returns a PNG with a chunk in front of the first one of a kind."""
    place = content.index(kind) - 4
    return content[:place] + chunk + content[place:]


UPRIGHT, TURNED = _encoded(orientation=1), _encoded(orientation=6)
PNG, GRAY_PNG = _encoded(kind="PNG"), _encoded("L", "PNG")
TIFF = _exif(TURNED)[0][10:]

FILES = {
    "turned, and upright": _with_segment(UPRIGHT, _exif(TURNED)[0]),
    "upright, and turned": _with_segment(TURNED, _exif(UPRIGHT)[0]),
    "turned twice": _with_segment(TURNED, _exif(TURNED)[0]),
    "XMP, and turned": _with_segment(TURNED, _application(b"http://ns.adobe.com/xap/1.0/\0<x/>")),
    "TIFF, and turned": _with_segment(TURNED, _application(b"other\0" + TIFF)),
    "an asterisk, and turned": _with_segment(TURNED, _application(b"http:/n*\0\0")),
    "EXIF of another name": TURNED.replace(b"Exif\0\0", b"Exif\0 "),
    "damaged EXIF": TURNED.replace(TIFF[:4], b"XX\0*"),
    "EXIF of no such orientation": _encoded(orientation=9),
    "baseline": PLAIN,
    "4:4:4": _encoded(subsampling=0),
    "4:2:2": _encoded(subsampling=1),
    "RGB": _encoded(keep_rgb=True, quality=90),
    "progressive": _encoded(progressive=True),
    "grey": _encoded("L"),
    "grey, progressive": _encoded("L", progressive=True),
    "grey, turned": _encoded("L", orientation=8),
    "cmyk": _encoded("CMYK"),
    "one pixel": _encoded(size=(1, 1)),
    "one column": _encoded(size=(1, 9), orientation=6),
    "png": PNG,
    "png, grey": GRAY_PNG,
    "png, palette": _encoded("P", "PNG"),
    "png, transparent palette": _encoded("P", "PNG", transparency=0),
    "png, transparent grey": _encoded("L", "PNG", transparency=7),
    "png, RGBA": _encoded("RGBA", "PNG"),
    "png, LA": _encoded("LA", "PNG"),
    "png, 1 bit": _encoded("1", "PNG"),
    "png, 16 bits": _encoded("I;16", "PNG"),
    "png, one pixel": _encoded("L", "PNG", size=(1, 1)),
    "png, turned": _encoded(kind="PNG", orientation=6),
    "png, grey, mirrored": _encoded("L", kind="PNG", orientation=2),
    "png, turned behind the pixels": _before(PNG, b"IEND", _chunk(b"eXIf", TIFF)),
    "png, turned twice": _before(PNG, b"IDAT", 2 * _chunk(b"eXIf", TIFF)),
    "png, damaged EXIF": _before(PNG, b"IDAT", _chunk(b"eXIf", TIFF[:9])),
    "png, brighter": _before(PNG, b"IDAT", _chunk(b"gAMA", struct.pack(">I", 99000))),
    "png, of a background": _before(GRAY_PNG, b"IDAT", _chunk(b"bKGD", b"\0\7")),
    "png, of a useless palette": _before(GRAY_PNG, b"IDAT", _chunk(b"PLTE", bytes(6))),
    "png, animated": _encoded(
        kind="PNG", save_all=True, append_images=[Image.new("RGB", (53, 37))]
    ),
    "png, cut off": PNG[: len(PNG) // 2],
    "png, no end": PNG[:-12],
    "png, damaged": _damaged(PNG, len(PNG) // 2),
    "png, damaged sum": _damaged(PNG, len(PNG) - 15),
    "png, damaged header": _damaged(PNG, 19),
    "webp": _encoded(kind="WEBP"),
    "webp, RGBA": _encoded("RGBA", kind="WEBP", lossless=True),
    "webp, turned": _encoded(kind="WEBP", orientation=6),
    "gif": _encoded("P", "GIF"),
    "cut off": PLAIN[: len(PLAIN) // 2],
    "no end": PLAIN[:-2],
    "damaged scan": _damaged(PLAIN, len(PLAIN) - 200),
    "damaged header": _damaged(PLAIN, 170),
    "not an image": b"not an image",
    "two bytes": b"\xff\xd8",
    "empty": b"",
    **{f"orientation {each}": _encoded(orientation=each) for each in range(1, 9)},
}


def _opencv(flags):
    return lambda path: cv2.imread(path, *flags)


def _memory(flag):
    return lambda path: cv2.imdecode(np.fromfile(path, np.uint8), flag)


def _bytes(path):
    return torch.from_numpy(np.fromfile(path, np.uint8))


OPENCV = {
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
}
VISION = {
    "read_image": vision.read_image,
    "read_image RGB": lambda path: vision.read_image(path, vision.ImageReadMode.RGB),
    "read_image turned": lambda path: vision.read_image(path, apply_exif_orientation=True),
    "decode_image": lambda path: vision.decode_image(_bytes(path)),
    "decode_jpeg": lambda path: vision.decode_jpeg(_bytes(path)),
    "decode_jpeg grey": lambda path: vision.decode_jpeg(_bytes(path), "GRAY"),
    "decode_jpegs": lambda path: vision.decode_jpeg([_bytes(path)] * 2),
    "decode_jpeg turned": lambda path: vision.decode_jpeg(
        _bytes(path), apply_exif_orientation=True
    ),
    "decode_png": lambda path: vision.decode_png(_bytes(path)),
    "decode_png RGBA": lambda path: vision.decode_png(_bytes(path), "RGB_ALPHA"),
    "decode_png turned": lambda path: vision.decode_png(_bytes(path), apply_exif_orientation=True),
    **{
        f"decode_image {mode.name}": lambda path, mode=mode: vision.decode_image(path, mode)
        for mode in vision.ImageReadMode
    },
}
MODES = ("UNCHANGED", "GRAY", "GRAY_ALPHA", "RGB", "RGB_ALPHA")
CODECS = {
    "path": lambda path: codecs.decode_image(path),
    "Path": lambda path: codecs.decode_image(Path(path)),
    "missing": lambda path: codecs.decode_image(path + ".missing"),
    "bytes": lambda path: codecs.decode_image(Path(path).read_bytes()),
    "bytearray": lambda path: codecs.decode_image(bytearray(Path(path).read_bytes())),
    "tensor": lambda path: codecs.decode_image(_bytes(path)),
    "every other byte": lambda path: codecs.decode_jpeg(_bytes(path).repeat_interleave(2)[::2]),
    "floats": lambda path: codecs.decode_jpeg(_bytes(path).float()),
    "two dimensions": lambda path: codecs.decode_png(_bytes(path)[None]),
    "memoryview": lambda path: codecs.decode_image(memoryview(Path(path).read_bytes())),
    "list": lambda path: codecs.decode_jpeg([path, Path(path).read_bytes()]),
    "jpeg": lambda path: codecs.decode_jpeg(path),
    "png": lambda path: codecs.decode_png(path),
    "webp": lambda path: codecs.decode_webp(path),
    "no such mode": lambda path: codecs.decode_image(path, mode="CMYK"),
    "no such type": lambda path: codecs.decode_image(path, output_dtype=torch.float32),
    "member of an enumeration": lambda path: codecs.decode_image(
        path, mode=codecs.ImageReadMode.GRAY
    ),
    **{
        f"{mode} {elements}": lambda path, mode=mode, elements=elements: codecs.decode_image(
            path, mode=mode, output_dtype=elements
        )
        for mode in MODES
        for elements in (torch.uint8, torch.uint16, "auto")
    },
}
CALLS = OPENCV | VISION | {f"torchcodec: {name}": call for name, call in CODECS.items()}
# Where torchvision itself crashes, or gives uninitialized memory.
UNDEFINED = {"png, damaged", "png, damaged sum", "png, palette"}
LEFT = {
    "imread reduced",
    "imread of a named flag",
    "imread of nothing",
    "imread of a number",
    "imdecode of bytes",
    "imdecode of floats",
    "imdecode of every other byte",
    "decode_image GRAY_ALPHA",
    "torchcodec: missing",
    "torchcodec: every other byte",
    "torchcodec: floats",
    "torchcodec: two dimensions",
    "torchcodec: memoryview",
    "torchcodec: webp",
    "torchcodec: no such mode",
    "torchcodec: no such type",
}


@pytest.fixture
def paths(tmp_path):
    made = {}
    for name, content in FILES.items():
        made[name] = str(tmp_path / f"{name}.jpg")  # whatever it is
        Path(made[name]).write_bytes(content)
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


WITH_TORCHCODEC = pytest.mark.skipif(codecs is None, reason="torchcodec is not installed")


def _call(name):
    return pytest.param(name, marks=WITH_TORCHCODEC) if name.startswith("torchcodec") else name


@pytest.mark.parametrize("name", [_call(name) for name in CALLS])
def test_results_are_the_librarys(name, paths, capfd):
    if name in VISION:
        paths = {file: path for file, path in paths.items() if file not in UNDEFINED}
    expected = {file: _outcome(CALLS[name], path) for file, path in paths.items()}
    counts.take()
    with deferring():
        made = {file: _outcome(CALLS[name], path) for file, path in paths.items()}
    counted = counts.take()
    assert made == expected
    assert (counted.files > 0) is (name not in LEFT)
    assert not counted.failed


def test_operators_have_what_pytorch_gives_them(paths):
    with deferring():
        assert torch.ops.image.decode_jpeg.default is not None
        assert torch.ops.image.decode_jpeg.overloads()


def _functions():
    found = [cv2.imread, cv2.imdecode, torch.ops.image.decode_jpeg, torch.ops.image.decode_png]
    if codecs is not None:
        found += [codecs._image_decoders._decode_jpeg, codecs._image_decoders._decode_png]
    return found


def test_the_libraries_are_as_they_were_afterwards(paths):
    functions = _functions()
    with deferring():
        assert not any(a is b for a, b in zip(_functions(), functions, strict=True))
    assert all(a is b for a, b in zip(_functions(), functions, strict=True))


def _read_by_opencv(path):
    return cv2.cvtColor(cv2.imread(path), cv2.COLOR_BGR2RGB)


@WITH_TORCHCODEC
def test_torchs_warning_is_hidden_after_a_read_that_failed_before_it(monkeypatch):
    view = torch.frombuffer

    def fail(*_, **__):
        raise MemoryError

    def warn(*arguments, **named):
        warnings.warn("The given buffer is not writable", UserWarning, stacklevel=2)
        return view(*arguments, **named)

    read = array_decoders.reading(codecs._image_decoders._source_to_tensor)
    with deferring():
        monkeypatch.setattr(torch, "frombuffer", fail)
        with pytest.raises(MemoryError):
            read(PLAIN)
        monkeypatch.setattr(torch, "frombuffer", warn)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert read(PLAIN).shape == (len(PLAIN),)


def _read_by_torchcodec(path):
    return codecs.decode_image(path).permute(1, 2, 0)


class Arrays(Dataset):
    """Images as users of these libraries read them."""

    def __init__(self, path, read):
        self.path, self.read = path, read

    def __len__(self):
        return 16

    def __getitem__(self, index):
        return self.read(self.path), index


@pytest.mark.few(4)
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    ("read", "kind"),
    [
        (_read_by_opencv, "array"),
        pytest.param(_read_by_torchcodec, "tensor", marks=WITH_TORCHCODEC),
    ],
)
@pytest.mark.parametrize("file", ["baseline", "png"])
def test_a_loader_decodes_them_natively(file, read, kind, workers, paths):
    dataset = Arrays(paths[file], read)
    loader = FusionLoader(dataset, batch_size=4, num_workers=workers)
    images, _ = next(iter(loader))
    assert np.array_equal(images[0].numpy(), np.asarray(Image.open(paths[file])))
    list(loader)
    assert loader.stats().deferred_images["results"][kind] >= 16
    assert f"run for: {kind} " in loader.explain()
    plain = FusionLoader(dataset, batch_size=4, num_workers=workers, deferred_images="off")
    assert torch.equal(next(iter(plain))[0], images)
