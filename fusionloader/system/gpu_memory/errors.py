"""Exceptions of ``fusionloader.system.gpu_memory``. All of them can be pickled."""

from __future__ import annotations


class MemorySharingError(RuntimeError):
    """Base of all errors of ``fusionloader.system.gpu_memory``."""


class CudaError(MemorySharingError):
    """A call of the CUDA driver failed; the message is the driver's.

    Attributes:
        code: number of the error (a ``CUresult``).
    """

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code: int = code

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (str(self), self.code)


class UnavailableError(MemorySharingError):
    """Memory cannot be shared: there is no CUDA driver, it is too old, or CUDA was forked."""


class DeviceError(MemorySharingError):
    """This process does not see the lender's GPU."""


class LedgerError(MemorySharingError):
    """The ledger is full, closed, damaged, or of another version."""


class PeerError(MemorySharingError):
    """The other process has ended, or belongs to another user."""


class SizeError(MemorySharingError, ValueError):
    """A size is zero, negative, or exceeds the block."""


class GrantError(MemorySharingError, ValueError):
    """A grant or mapping is forged, stale, or was returned already.

    Also raised for memory that cannot be lent: it is lent already, was freed while lent, or cannot
    be opened in another process.
    """


class NotOfferedError(MemorySharingError):
    """No block of the requested size is on offer."""


class NotReturnedError(MemorySharingError):
    """A borrower has not returned a block, which must be neither used nor freed before it does.

    Attributes:
        nbytes: bytes that were not returned.
    """

    def __init__(self, message: str, nbytes: int) -> None:
        super().__init__(message)
        self.nbytes: int = nbytes

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (str(self), self.nbytes)
