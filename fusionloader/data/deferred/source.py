"""The encoded bytes of a deferred image, decoded in part for each view, or once as a whole."""

from __future__ import annotations

import io
import os
import time
import weakref
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from fusionloader._native import Executor, OpenedJpeg, RunStatus
from fusionloader.data.deferred import activity, file_cache
from fusionloader.data.deferred.counts import counted_read, timed_decoding
from fusionloader.data.deferred.file_cache import KnownFile
from fusionloader.data.deferred.guard import comes_from_elsewhere
from fusionloader.data.deferred.pillow import PillowImage
from fusionloader.transforms.executors.native import MOST_ENCODED_BYTES, file_decoder
from fusionloader.transforms.plan.stages import Operation

Pixels = npt.NDArray[np.uint8]
Operations = tuple[Operation, ...]

# Decoding two windows takes about as long as the whole image, so the third view decodes it whole.
_VIEWS_OF_A_WHOLE = 3


def read_file(file: Any) -> bytes:
    """Returns the content of an open file.

    Raises:
        ValueError: not a binary file, or larger than ``MOST_ENCODED_BYTES``.
    """
    if type(file) is io.BytesIO:
        file.seek(0, io.SEEK_END)
        return file.getvalue()
    if is_too_large(file):
        raise ValueError("too large a file")
    file.seek(0)
    encoded = counted_read(file.read)
    if not isinstance(encoded, bytes):
        raise ValueError("not a binary file")
    return encoded


def is_too_large(file: Any) -> bool:
    """Whether an open file is larger than ``MOST_ENCODED_BYTES``."""
    try:
        return os.fstat(file.fileno()).st_size > MOST_ENCODED_BYTES
    except Exception:  # a file object of the user's own class
        return False


def read_known(opened: Any, file: KnownFile | None) -> bytes:
    """Returns the content of an open file, from the cache if ``file`` is in it.

    Raises:
        ValueError: not a binary file, or larger than ``MOST_ENCODED_BYTES``.
    """
    if file is None:
        return read_file(opened)
    cached = file.encoded()
    if cached is not None:
        return cached
    began = time.perf_counter()
    encoded = read_file(opened)
    file.was_read(encoded, time.perf_counter() - began)
    return encoded


def find_source(opened: OpenedJpeg, file: Any) -> EncodedSource | None:
    """Returns the source of an opened file, from the cache if the file is in it.

    ``file`` is the file object that it was opened by, ``None`` if it was opened by a path. The
    result is ``None`` if Pillow has to load the file.
    """
    if opened.is_whole and (type(file) is io.BytesIO or not file_cache.is_in_use()):
        return EncodedSource(opened.encoded, opened.size)
    if file is None:
        file = io.FileIO(opened.descriptor, closefd=False)
    known = file_cache.find_file(file)
    pixels = None if known is None else known.pixels()
    if pixels is not None and pixels.shape[1::-1] == opened.size:
        return EncodedSource(b"", opened.size, pixels, known)
    try:
        encoded = read_known(file, known)
    except (OSError, ValueError) as error:
        if comes_from_elsewhere(error):  # a signal handler's
            raise
        return None
    whole = OpenedJpeg.of(encoded)
    if whole is None or whole.size != opened.size:
        return None
    return EncodedSource(encoded, opened.size, file=known and known.if_whole(encoded))


class EncodedSource:
    """The encoded bytes of an image file, or the pixels of an image, from which views are made.

    Attributes:
        size: width and height.
    """

    __slots__ = ("_encoded", "_file", "_noted", "_uses", "_whole", "size")

    # Images in this process, and those with several views. If most have several, an image is
    # decoded whole for its first view, since a dataset's samples are alike.
    _made = _often = 0

    def __init__(
        self,
        encoded: bytes,
        size: tuple[int, int],
        whole: Pixels | None = None,
        file: KnownFile | None = None,
    ) -> None:
        """``whole`` has the pixels if they are known: RGB or RGBX, height x width x 3 or 4.

        ``file`` identifies the file if its content may be cached.
        """
        self._encoded, self.size, self._whole, self._file = encoded, size, whole, file
        self._uses = 0
        self._noted = activity.fetched_images()
        EncodedSource._made += whole is None

    @property
    def uses(self) -> int:
        """How often pixels were made of it."""
        return self._uses

    def track(self, image: PillowImage) -> None:
        """Remembers an image or enhancer that uses this source, for the end of the fetch.

        In a worker, for the next claims.
        """
        noted = activity.images_of_claim() if self._noted is None else self._noted
        if noted is not None:
            noted.append(weakref.ref(image))

    def run(self, operations: Operations, runner: Executor, out: Any) -> None:
        """Writes the result of the operations to ``out``.

        Raises:
            ValueError: the native executor refuses an operation.
        """
        with timed_decoding():
            self._run(operations, runner, out)

    def _run(self, operations: Operations, runner: Executor, out: Any) -> None:
        self._uses += 1
        EncodedSource._often += self._uses == _VIEWS_OF_A_WHOLE
        if self._whole is None:
            few = self._uses < _VIEWS_OF_A_WHOLE and 2 * EncodedSource._often <= EncodedSource._made
            if few and not self._is_to_be_cached() and self._run_window(operations, runner, out):
                if self._file is not None:
                    self._file.keep_bytes()
                return
            self._whole = self._decode()
        with self._measured("made_of_pixels"):
            runner.run_pixels_with(self._whole.data, operations, out)

    def _measured(self, what: str) -> AbstractContextManager[None]:
        """Measures a block, for the choice of the tier in which files are cached."""
        if self._file is None or not self._file.measuring:
            return nullcontext()
        measured: AbstractContextManager[None] = getattr(self._file, what)()
        return measured

    def _is_to_be_cached(self) -> bool:
        return self._file is not None and self._file.wants_pixels(self.size)

    def _run_window(self, operations: Operations, runner: Executor, out: Any) -> bool:
        if self._file is None:
            return runner.run_with(self._encoded, operations, out) is RunStatus.OK
        index = self._file.index(self._encoded, runner)
        with self._measured("made_of_bytes"):
            return runner.run_with(self._encoded, operations, out, index) is RunStatus.OK

    def replayed(self, operations: Operations) -> Image.Image:
        """Returns the result of Pillow, for operations that the native executor refuses."""
        from fusionloader.transforms.executors.replay import replay  # loads torchvision

        if self._whole is None:
            self._whole = self._decode()
        return replay(Image.fromarray(self._whole[..., :3]), operations)

    def rgba(self) -> Pixels:
        """Returns the pixels of an image with an alpha channel, height x width x 4."""
        assert self._whole is not None
        return self._whole

    def decode_natively(self) -> bool:
        """Decodes the whole file now; returns whether the native decoder could."""
        width, height = self.size
        pixels = np.empty((height, width, 3), np.uint8)
        with timed_decoding():
            if file_decoder().decode(self._encoded, pixels.data) is not RunStatus.OK:
                return False
        self._whole = pixels
        if self._file is not None:
            self._file.keep_pixels(pixels)
        return True

    def _decode(self) -> Pixels:
        if self.decode_natively():
            assert self._whole is not None
            return self._whole
        return self._decode_with_pillow()

    def _decode_with_pillow(self) -> Pixels:
        with activity.suspended(), Image.open(io.BytesIO(self._encoded)) as image:
            return np.asarray(image.convert("RGB"))
