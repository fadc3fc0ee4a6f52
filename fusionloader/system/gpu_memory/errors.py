"""What can go wrong when GPU memory is lent, as types.

They travel between processes: each one can be pickled.
"""

from __future__ import annotations


class MemorySharingError(RuntimeError):
    """Base of all errors of ``fusionloader.system.gpu_memory``."""


class CudaError(MemorySharingError):
    """A call of the CUDA driver failed; the message is the driver's.

    Attributes:
        code: CUDA's number of the error (a ``CUresult``).
    """

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code: int = code

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (str(self), self.code)


class UnavailableError(MemorySharingError):
    """Memory cannot be shared here: no CUDA driver, too old a one, or CUDA was forked."""


class DeviceError(MemorySharingError):
    """The lender's GPU is not among those this process sees."""


class LedgerError(MemorySharingError):
    """The ledger is full, closed, damaged, or of another version."""


class PeerError(MemorySharingError):
    """The other process has ended, or belongs to another user."""


class SizeError(MemorySharingError, ValueError):
    """Zero, negative, or more bytes than the block has."""


class GrantError(MemorySharingError, ValueError):
    """A grant or mapping that is forged, stale, or was given back already.

    Also memory that cannot be lent: it is lent already, was freed while it was lent, or cannot be
    opened in another process.
    """


class NotOfferedError(MemorySharingError):
    """No block of so many bytes is on offer now."""


class NotReturnedError(MemorySharingError):
    """A block is still with its borrower. It must not be used, nor freed; it may come back later.

    Attributes:
        nbytes: how much is still out.
    """

    def __init__(self, message: str, nbytes: int) -> None:
        super().__init__(message)
        self.nbytes: int = nbytes

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (str(self), self.nbytes)
