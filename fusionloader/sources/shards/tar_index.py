"""The index of a tar archive: what its members are called, where they are, and small contents.

One file a shard, an uncompressed ``.npz`` of arrays. It has all members, so that it serves whatever
is asked for as image and as target. Written beside the shard as ``NAME.fusionloader-index``.
"""

from __future__ import annotations

import io
import threading
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fusionloader.sources.shards.tar_errors import UnreadableIndex
from fusionloader.sources.shards.tar_members import Member

SUFFIX = ".fusionloader-index"
VERSION = 1

_NOT_INLINE = -1
# NumPy parses headers as Python code, which fails at random if threads of CPython 3.11.7 and before
# do so at the same time (SystemError: AST constructor recursion depth mismatch).
_PARSING = threading.Lock()
_DAMAGED = (
    AttributeError,
    EOFError,
    IndexError,
    KeyError,
    OSError,
    TypeError,
    ValueError,
    zipfile.BadZipFile,
)
_ARRAYS = ("names", "name_ends", "offset", "nbytes", "inline", "inline_nbytes", "shard")


@dataclass(frozen=True, slots=True, eq=False)
class TarIndex:
    """The members of one archive, in their order.

    Attributes:
        shard_bytes: size of the archive.
        shard_version: what told it from other archives of its name, 0 where nothing did: of local
            files the time of modification in ns, of remote ones their ETag, hashed.
        names: uint8, the names one behind the other.
        name_ends: int64 of N, where each name ends.
        offset: uint64 of N, first bytes.
        nbytes: uint64 of N.
        inline: uint8, contents of small members.
        inline_nbytes: int32 of N, ``-1`` for members whose content is not here.
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
    def of_members(
        cls, members: Sequence[Member], shard_bytes: int, shard_version: int
    ) -> TarIndex:
        """Returns the index of scanned members."""
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

    def members(self) -> list[Member]:
        """Returns the members."""
        names, inline = self.names.tobytes(), self.inline.tobytes()
        found, name_begin, begin = [], 0, 0
        columns = (self.name_ends, self.offset, self.nbytes, self.inline_nbytes)
        for name_end, offset, nbytes, size in zip(*(c.tolist() for c in columns), strict=True):
            content = None if size == _NOT_INLINE else inline[begin : begin + size]
            found.append(Member(names[name_begin:name_end], offset, nbytes, content))
            name_begin, begin = name_end, begin + max(size, 0)
        return found

    def name_at(self, offset: int) -> str | None:
        """Returns the name of the member whose first byte is at ``offset``."""
        place = int(np.searchsorted(self.offset, np.uint64(offset)))
        if place == len(self.offset) or int(self.offset[place]) != offset:
            return None
        begin = int(self.name_ends[place - 1]) if place else 0
        return self.names[begin : int(self.name_ends[place])].tobytes().decode("utf-8", "replace")

    def to_bytes(self) -> bytes:
        """Returns the file's content."""
        shard = np.array([VERSION, self.shard_bytes, self.shard_version], np.int64)
        arrays = {name: getattr(self, name) for name in _ARRAYS if name != "shard"}
        file = io.BytesIO()
        np.savez(file, allow_pickle=False, shard=shard, **arrays)
        return file.getvalue()

    @classmethod
    def from_bytes(cls, data: bytes, where: str) -> TarIndex:
        """Undoes ``to_bytes``.

        Args:
            data: the file.
            where: its path or URL, for messages.

        Raises:
            UnreadableIndex: it is damaged or of another version.
        """
        try:
            with _PARSING, np.load(io.BytesIO(data), allow_pickle=False) as found:
                shard = found["shard"].tolist()
                if shard[0] != VERSION:
                    raise UnreadableIndex(
                        f"{where} is an index of version {shard[0]}, and this package reads "
                        f"{VERSION}: {_AGAIN}"
                    )
                arrays = {name: found[name] for name in _ARRAYS if name != "shard"}
        except UnreadableIndex:
            raise
        except _DAMAGED as error:
            raise UnreadableIndex(f"{where} is damaged or no index ({error}): {_AGAIN}") from error
        index = cls(shard[1], shard[2], **arrays)
        count = len(index.offset)
        if not len(index.name_ends) == len(index.nbytes) == len(index.inline_nbytes) == count:
            raise UnreadableIndex(f"{where} is damaged, its arrays do not fit together: {_AGAIN}")
        return index


_AGAIN = "write it again with `python -m fusionloader index SHARD`, or delete it"
