"""What has to be equal in processes whose workers make samples for each other."""

from __future__ import annotations

import bisect
import ctypes
import hashlib
import io
import os
import pickle
import sys
from typing import Any

import PIL
from PIL import Image, ImageFile


def pillow_settings() -> tuple[str, bool, int | None]:
    """Returns Pillow's version and the settings that change or refuse pixels."""
    return PIL.__version__, ImageFile.LOAD_TRUNCATED_IMAGES, Image.MAX_IMAGE_PIXELS


def digest_repr(value: object, nbytes: int) -> str:
    """Returns a digest of the ``repr`` of a value, as hexadecimal digits.

    Pickles of equal values may differ, because they depend on which parts are the same object.
    """
    return hashlib.blake2b(repr(value).encode(), digest_size=nbytes).hexdigest()


def digest_pickle(
    value: object, nbytes: int, most_bytes: int, tensors_were_sent: bool = False
) -> str:
    """Returns a digest of a value's pickle, and of where its classes and functions are defined.

    Values with equal digests have equal pickles. What a pickle lacks may differ: attributes of
    classes, global variables, what ``__getstate__`` leaves out. Equal values may have different
    digests, such as sets of strings, whose order differs between processes. With
    ``tensors_were_sent`` tensors may be in shared memory: torch moves them there when it spawns
    workers.

    Raises:
        PickleTooLong: the pickle is longer than ``most_bytes``.
        PicklingError: a tensor or array is on a device or in mapped memory, which may change.
        Exception: the value cannot be pickled.
    """
    stream = _Digest(nbytes, most_bytes)
    pickler = _DigestingPickler(stream, tensors_were_sent)
    pickler.dump(value)
    # Not the paths as they are written: ranks may have been started by different names.
    return digest_repr((stream.hash.hexdigest(), sorted(pickler.files)), nbytes)


class PickleTooLong(Exception):
    """A pickle is longer than it may be."""


class _Digest(io.RawIOBase):
    """A stream that keeps a digest of what is written to it."""

    def __init__(self, nbytes: int, most_bytes: int) -> None:
        self.hash = hashlib.blake2b(digest_size=nbytes)
        self.left = most_bytes

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        with memoryview(data) as view:
            self.left -= view.nbytes
            if self.left < 0:
                raise PickleTooLong
            self.hash.update(view)
            return view.nbytes


class _DigestingPickler(pickle.Pickler):
    """Writes pickles of equal values alike: without addresses, which torch's storages contain.

    Attributes:
        files: names and files of the modules that define the classes and functions in the pickle.
    """

    def __init__(self, stream: _Digest, tensors_were_sent: bool) -> None:
        super().__init__(stream, pickle.HIGHEST_PROTOCOL)
        self._stream = stream
        self._mapped, self._tensors_were_sent = _mapped_memory(), tensors_were_sent
        self.files: set[tuple[str, str]] = set()

    def reducer_override(self, value: Any) -> Any:
        torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
        if numpy is not None and isinstance(value, numpy.ndarray):
            if value.nbytes > self._stream.left:  # numpy would copy an array with gaps first
                raise PickleTooLong
            if value.nbytes:
                self._check_address(value.__array_interface__["data"][0])
        if torch is not None and isinstance(value, torch.storage.TypedStorage):
            return type(value), (str(value.dtype), value._untyped_storage)
        if torch is not None and isinstance(value, torch.UntypedStorage):
            if value.device.type != "cpu":
                raise pickle.PicklingError("a tensor on a device")
            if nbytes := value.nbytes():
                if not self._tensors_were_sent:
                    self._check_address(value.data_ptr())
                self._stream.write((ctypes.c_char * nbytes).from_address(value.data_ptr()))
            return type(value), (nbytes,)
        name = getattr(value, "__module__", None)
        if isinstance(name, str) and name in sys.modules:
            file = getattr(sys.modules[name], "__file__", None) or ""
            self.files.add((name, os.path.realpath(file)))
        return NotImplemented

    def _check_address(self, address: int) -> None:
        """Raises PicklingError for memory that other processes may change."""
        place = bisect.bisect_right(self._mapped, (address, sys.maxsize)) - 1
        if place >= 0 and address < self._mapped[place][1]:
            raise pickle.PicklingError("a tensor or array is in shared memory or a mapped file")


def _mapped_memory() -> list[tuple[int, int]]:
    """Returns begin and end of the mappings of files and shared memory, by address."""
    found = []
    with open("/proc/self/maps") as mappings:
        for mapping in mappings:
            addresses, _, _, _, inode = mapping.split(maxsplit=5)[:5]
            if inode != "0":
                begin, end = addresses.split("-")
                found.append((int(begin, 16), int(end, 16)))
    return found
