"""Why the GPU worker leaves a sample to CPU workers, where the reason is the file's."""

from __future__ import annotations


class FileRefused(str):
    """A reason, in words, that holds for the file whatever its draws are and however often."""

    __slots__ = ()


class DecodeFailed(FileRefused):
    """What a library says of a damaged file, and of one alike for which it found no memory."""

    __slots__ = ()
