"""The index of a tar archive: names and places of its members, and the contents of small ones.

The index of a shard is an uncompressed ``.npz`` of arrays, written beside the shard as
``NAME.fusionloader-index``. It has all members, so it serves any choice of images and targets.
"""

from __future__ import annotations

import io
import threading
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fusionloader.data.sources.shards.tar_members import TarMember, UnreadableIndex
from fusionloader.system.processes import renewed_in_children

SUFFIX = ".fusionloader-index"
VERSION = 1

_NOT_INLINE = -1
# NumPy parses headers as Python code. In several threads at a time this fails at random before
# CPython 3.11.8 (SystemError: AST constructor recursion depth mismatch).
_PARSING = renewed_in_children(threading.RLock())
_ARRAYS: dict[str, type[np.generic]] = {
    "names": np.uint8,
    "name_ends": np.int64,
    "offset": np.uint64,
    "nbytes": np.uint64,
    "inline": np.uint8,
    "inline_nbytes": np.int32,
    "shard": np.int64,
}


@dataclass(frozen=True, slots=True, eq=False)
class TarIndex:
    """The N members of one archive, in order.

    Attributes:
        shard_bytes: size of the archive.
        shard_version: version of the archive: time of modification in ns of a local file, hash of
            the ETag of a remote one; 0 if unknown.
        names: uint8, the concatenated names.
        name_ends: int64 of N, end of each name in ``names``.
        offset: uint64 of N, first byte of each member.
        nbytes: uint64 of N, size of each member.
        inline: uint8, the concatenated contents of small members.
        inline_nbytes: int32 of N, size of each content in ``inline``; -1 for other members.
    """

    shard_bytes: int
    shard_version: int
    names: npt.NDArray[np.uint8]
    name_ends: npt.NDArray[np.int64]
    offset: npt.NDArray[np.uint64]
    nbytes: npt.NDArray[np.uint64]
    inline: npt.NDArray[np.uint8]
    inline_nbytes: npt.NDArray[np.int32]

    @classmethod
    def from_members(
        cls, members: Sequence[TarMember], shard_bytes: int, shard_version: int
    ) -> TarIndex:
        names = [member.name for member in members]
        contents = [member.content for member in members]
        sizes = [_NOT_INLINE if content is None else len(content) for content in contents]
        return cls(
            shard_bytes,
            shard_version,
            np.frombuffer(b"".join(names), np.uint8),
            np.cumsum([len(name) for name in names], dtype=np.int64),
            np.array([member.offset for member in members], np.uint64),
            np.array([member.nbytes for member in members], np.uint64),
            np.frombuffer(b"".join(content or b"" for content in contents), np.uint8),
            np.array(sizes, np.int32),
        )

    def members(self) -> list[TarMember]:
        names, inline = self.names.tobytes(), self.inline.tobytes()
        found, name_begin, begin = [], 0, 0
        columns = (self.name_ends, self.offset, self.nbytes, self.inline_nbytes)
        for name_end, offset, nbytes, size in zip(*(c.tolist() for c in columns), strict=True):
            content = None if size == _NOT_INLINE else inline[begin : begin + size]
            found.append(TarMember(names[name_begin:name_end], offset, nbytes, content))
            name_begin, begin = name_end, begin + max(size, 0)
        return found

    def name_at(self, offset: int) -> str | None:
        """Returns the name of the member at ``offset``; ``None`` if there is none."""
        place = int(np.searchsorted(self.offset, np.uint64(offset)))
        if place == len(self.offset) or int(self.offset[place]) != offset:
            return None
        begin = int(self.name_ends[place - 1]) if place else 0
        return self.names[begin : int(self.name_ends[place])].tobytes().decode("utf-8", "replace")

    def to_bytes(self) -> bytes:
        shard = np.array([VERSION, self.shard_bytes, self.shard_version], np.int64)
        arrays = {name: getattr(self, name) for name in _ARRAYS if name != "shard"}
        file = io.BytesIO()
        np.savez(file, allow_pickle=False, shard=shard, **arrays)
        return file.getvalue()

    @classmethod
    def from_bytes(cls, data: bytes, where: str) -> TarIndex:
        """Returns the index in the content of a file.

        Args:
            data: content of the file.
            where: path or URL of the file, for messages.

        Raises:
            UnreadableIndex: the file is damaged or of another version.
        """
        try:
            with _PARSING, np.load(io.BytesIO(data), allow_pickle=False) as found:
                if not _is_stored(found.zip, len(data)):
                    raise UnreadableIndex(f"{where} is packed, and no index: {_AGAIN}")
                version, shard_bytes, shard_version, *_ = found["shard"].tolist()
                if version != VERSION:
                    raise UnreadableIndex(
                        f"{where} is an index of version {version}, and this package reads "
                        f"{VERSION}: {_AGAIN}"
                    )
                arrays = {name: found[name] for name in _ARRAYS}
                odd = [name for name, kind in _ARRAYS.items() if not _is(arrays[name], kind)]
        except UnreadableIndex:
            raise
        except Exception as error:  # a damaged file can raise any exception in NumPy and zipfile
            raise UnreadableIndex(f"{where} is damaged or no index ({error}): {_AGAIN}") from error
        if odd:
            raise UnreadableIndex(f"{where} is damaged, in {', '.join(odd)}: {_AGAIN}")
        del arrays["shard"]
        index = cls(shard_bytes, shard_version, **arrays)
        if not index._fits():
            raise UnreadableIndex(f"{where} is damaged, its arrays do not fit together: {_AGAIN}")
        return index

    def _fits(self) -> bool:
        """Whether the arrays have matching lengths, and all members are within the archive."""
        count = len(self.offset)
        if not len(self.name_ends) == len(self.nbytes) == len(self.inline_nbytes) == count:
            return False
        ends = np.concatenate([[0], self.name_ends, [len(self.names)]])
        contents = np.maximum(self.inline_nbytes, 0).sum(dtype=np.int64)
        most = np.uint64(max(self.shard_bytes, 0))
        return bool(
            (np.diff(ends) >= 0).all()
            and (self.inline_nbytes >= _NOT_INLINE).all()
            and contents == len(self.inline)
            and (self.offset <= most).all()
            and (self.nbytes <= most - self.offset).all()
        )


def _is(array: npt.NDArray[Any], kind: type[np.generic]) -> bool:
    return bool(array.dtype == kind and array.ndim == 1)


def _is_stored(archive: zipfile.ZipFile | None, nbytes: int) -> bool:
    """Whether a zip file's members are uncompressed and together no longer than the file."""
    members = [] if archive is None else archive.infolist()
    stored = all(member.compress_type == zipfile.ZIP_STORED for member in members)
    return stored and sum(member.file_size for member in members) <= nbytes


_AGAIN = "write it again with `python -m fusionloader index SHARD`, or delete it"
