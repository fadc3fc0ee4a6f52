"""Images of opened JPEG files whose metadata Pillow parses when something asks for them.

Such an image is of Pillow's own class, and lacks the attributes that come from the file's segments.
``Image.__getattr__``, which Python calls for missing attributes, has Pillow parse the file then.
Images made of it, as by ``convert``, lack ``info`` in the same way.
"""

from __future__ import annotations

import io
import threading
from typing import Any

from PIL import Image, ImageFile, JpegImagePlugin

from fusionloader._native import OpenedJpeg
from fusionloader.data.deferred import activity
from fusionloader.data.deferred.pillow import PillowImage
from fusionloader.system.processes import renewed_in_children

UNPARSED = "_fusionloader_unparsed"
_lock = renewed_in_children(threading.RLock())
_names: frozenset[str] = frozenset()  # attributes that Pillow sets when it opens a file


class UnparsedFile:
    """A JPEG file that has been read, and that Pillow is known to open without an error.

    Attributes:
        opened: content of the file, and its descriptor if it was opened by path.
        path: path by which it was opened; empty for a file object of the program.
        file: that file object, or ``None``.
    """

    __slots__ = ("_parsed", "file", "opened", "path")

    def __init__(self, opened: OpenedJpeg, path: str, file: Any) -> None:
        self.opened, self.path, self.file = opened, path, file
        self._parsed: Any = None

    def is_untouched(self, attributes: dict[str, Any]) -> bool:
        """Whether an image, and a file of the program, are as they were when it was opened."""
        if self.file is None and "fp" in attributes:  # the program has it, or has closed it
            return False
        if attributes.get("fp") is not self.file or attributes["_size"] != self.opened.size:
            return False
        if attributes.get("palette") is not None:  # of ``putpalette``, which changes the mode
            return False
        if type(self.file) is io.BytesIO:  # its value is another object after a change
            if self.file.closed or self.file.getvalue() is not self.opened.encoded:
                return False
        elif self.file is not None and self.file.closed:
            return False
        if "tile" not in attributes:
            return True
        return attributes["tile"] == self._parse().tile and not attributes["decoderconfig"]

    def leave(self) -> None:
        """Leaves the file as it is after loading: closed, or read to its end."""
        if self.file is None:
            self.opened.close()
        else:
            self.file.seek(0, io.SEEK_END)
            self.file = None  # an image that is kept keeps no file open

    def info(self) -> dict[Any, Any]:
        """Returns a new copy of the image's ``info``."""
        return copy_info(self._parse())

    def supply(self, image: PillowImage, name: str) -> bool:
        """Sets a missing attribute of an image of this file, or made of it, if Pillow has it."""
        attributes = image.__dict__
        if not isinstance(image, ImageFile.ImageFile):
            if name == "info":
                attributes.setdefault("info", self.info())
            return name == "info"
        if name == "fp":
            self._supply_file(attributes)
        elif not _names or name in _names:
            self._fill(attributes)
        return name in attributes

    def settle(self, image: PillowImage) -> None:
        """Sets all attributes, so that the image needs no ``__getattr__``."""
        if not isinstance(image, ImageFile.ImageFile):
            self.supply(image, "info")
        else:
            if "fp" not in image.__dict__:
                self.supply(image, "fp")
            self._fill(image.__dict__)
        image.__dict__.pop(UNPARSED, None)

    def _fill(self, attributes: dict[str, Any]) -> None:
        parsed = self._parse()
        attributes.setdefault("info", parsed.info.copy())
        attributes.setdefault("tile", parsed.tile.copy())
        for name, value in vars(parsed).items():
            if name != "fp":
                attributes.setdefault(name, value)

    def _parse(self) -> Any:
        global _names
        with _lock:
            if self._parsed is None:
                with activity.suspended():
                    parsed = JpegImagePlugin.JpegImageFile(io.BytesIO(self.opened.encoded))
                _names = frozenset(vars(parsed))
                self._parsed = parsed
        return self._parsed

    def _supply_file(self, attributes: dict[str, Any]) -> None:
        """Sets ``fp`` to the file that was opened by path, at the place where Pillow leaves it."""
        with _lock:
            if "fp" not in attributes and self.path:
                descriptor = self.opened.take_descriptor()
                file = open(self.path, "rb", opener=lambda *_: descriptor)  # noqa: SIM115
                file.seek(self.opened.header_bytes)
                attributes["fp"] = file


def missing_attribute(self: PillowImage, name: str) -> Any:
    """Adds ``Image.__getattr__``: parses the file for the attributes that an image lacks."""
    unparsed = self.__dict__.get(UNPARSED)
    if unparsed is not None and unparsed.supply(self, name):
        return self.__dict__[name]
    return object.__getattribute__(self, name)  # raises Python's own error


def settle_attributes(image: PillowImage) -> None:
    """Sets all attributes of an image whose file may be unparsed."""
    unparsed = image.__dict__.get(UNPARSED)
    if unparsed is not None:
        unparsed.settle(image)


def is_transparent(image: PillowImage) -> bool:
    """Whether an image has a transparent color, which no JPEG file has."""
    return "transparency" in image.__dict__.get("info", ())


def copy_info(image: PillowImage) -> dict[Any, Any]:
    """Returns a copy of ``image.info``, as Pillow makes it for a new image."""
    if hasattr(image, "_copy_info"):  # since Pillow 13
        return image._copy_info()  # type: ignore[no-any-return]
    return image.info.copy()  # type: ignore[no-any-return]


def is_expected() -> bool:
    """Whether the installed Pillow's images have the attributes that are set here."""
    known = {"_im", "_mode", "_size", "palette", "info", "_readonly", "_exif"}
    jpeg = JpegImagePlugin.JpegImageFile
    return set(vars(Image.Image())) == known and not hasattr(jpeg, "__getattr__")
