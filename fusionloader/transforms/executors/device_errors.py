"""Why a device cannot do some work: memory ran out, the device is lost, or a file is refused."""

from __future__ import annotations


class FileRefused(str):
    """A reason, in words, why a file cannot be decoded, now or later and whatever is drawn."""

    __slots__ = ()


class DecodeFailed(FileRefused):
    """A library's message about a damaged file; it may be the same where memory ran out."""

    __slots__ = ()


# Names in the runtime and the driver, without underscores, and texts of torch.
_SIGNS = (
    "illegaladdress",
    "illegal memory access",
    "illegalinstruction",
    "illegal instruction",
    "misalignedaddress",
    "misaligned address",
    "launchfailure",
    "launchfailed",
    "unspecified launch failure",
    "launchtimeout",
    "launch timed out",
    "hardwarestackerror",
    "hardware stack error",
    "eccuncorrectable",
    "uncorrectable ecc",
    "deviceunavailable",
    "devicesunavailable",
    "busy or unavailable",
    "cudaerrorassert",
    "device-side assert",
    "nodevice",
    "no cuda-capable device",
    "devicelost",
    "invalidaddressspace",
    "global/shared address space",
    "invalidpc",
    "invalid program counter",
    "tensormemoryleak",
    "tensor memory not completely freed",
    "cudaerrorcontained",
    "gpu memory over nvlink",
    "mpsclientterminated",
    "mps client has been terminated",
    "externaldevice",
    "error has occured in external entity",  # as CUDA spells it
    "cudaerrorunknown",
    "cuda unknown error",
)
_SHORTAGES = (
    "out of memory",
    "bad_alloc",
    "cudaerrormemoryallocation",
    "cuda_error_out_of_memory",
    "can't allocate",
)


def is_device_lost(error: BaseException) -> bool:
    """Whether an error of CUDA means that all later calls of the process fail, too.

    Only the text says so: DALI and the runtime have no type for it.
    """
    text = str(error).lower()
    plain = text.replace("_", "")
    return (
        isinstance(error, RuntimeError)
        and "cuda" in text
        and any(sign in text or sign in plain for sign in _SIGNS)
    )


def is_shortage(error: BaseException) -> bool:
    """Whether an error of Python, torch, DALI or CUDA means that memory ran out.

    Only the text says so: DALI and CUDA have no type for it.
    """
    if isinstance(error, MemoryError):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and any(sign in text for sign in _SHORTAGES)
