"""What can be wrong with a shard: each says which shard, which sample, and what to do."""

from __future__ import annotations


class ShardError(ValueError):
    """A shard cannot be used; the text names it, its sample and what to do."""


class CorruptTar(ShardError):
    """The archive is damaged, cut off, or no tar."""


class UnsupportedTar(ShardError):
    """The archive has what cannot be read by ranges: sparse files, compression."""


class BadTarSample(ShardError):
    """A sample lacks a member, has it twice, or its target cannot be understood."""


class UnreadableIndex(ShardError):
    """An index is damaged, of another version, or of another shard."""
