"""The operations of samples as a program for a CUDA device, run by one fused kernel."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fusionloader import _native
from fusionloader.executors.native import make_executor
from fusionloader.plan.operations import Operation
from fusionloader.plan.stages import Plan

LIBRARY = Path(__file__).parents[2] / "_cuda_ops.so"


class KernelError(RuntimeError):
    """The CUDA library is missing, or what the CUDA runtime said."""


@dataclass(frozen=True, slots=True)
class DeviceSample:
    """An image on the device, what is done to it, and where the result goes.

    Attributes:
        pixels: address of uint8 pixels, height x width x channels of the plan's images.
        height: of the image.
        width: of the image.
        operations: as ``Executor.draw`` returns them, less those done already.
        out: address of the row of the batch.
    """

    pixels: int
    height: int
    width: int
    operations: Sequence[Operation]
    out: int


class DeviceProgram:
    """Flattens operations of a plan into programs, and runs them.

    One per thread.
    """

    def __init__(self, plan: Plan) -> None:
        self._executor = make_executor(plan)
        self._batch = _native.DeviceBatch(self._executor)

    def launch(
        self,
        launcher: Launcher,
        samples: Sequence[DeviceSample],
        stream: int = 0,
        work: Callable[[int], int] | None = None,
    ) -> list[str | None]:
        """Runs the samples' programs on the launcher's device, in the order of ``stream``.

        Returns at once: images and results are to stay until the stream has come so far.

        Args:
            launcher: the device's.
            samples: of one launch.
            stream: a ``cudaStream_t`` as a number.
            work: returns the address of so many bytes of working memory, which is to stay too;
                without it the launcher has its own.

        Returns:
            For each sample ``None``, or in words why its operations do not fit it or no program can
            do them; then its row is not written.

        Raises:
            KernelError: what the CUDA runtime said.
        """
        batch, refused = self._batch, list[str | None]()
        batch.clear()
        for sample in samples:
            try:
                batch.add(sample.operations, sample.pixels, sample.width, sample.height, sample.out)
            except ValueError as error:
                refused.append(str(error))
            else:
                refused.append(None)
        if batch.samples > 0:
            launcher.launch(batch, stream, 0 if work is None else work(batch.work_bytes))
        return refused


class Launcher:
    """One device's staging and working memory. One per thread; ``close`` gives the memory back."""

    def __init__(self, device: int = 0) -> None:
        """Raises ``KernelError`` where there is no library or no such device."""
        self._library = load_library()
        made = ctypes.c_void_p()
        self._augmenter: ctypes.c_void_p | None = None
        check(self._library, self._library.fl_augmenter_create(device, ctypes.byref(made)))
        self._augmenter = made

    def launch(self, batch: _native.DeviceBatch, stream: int, work: int = 0) -> None:
        """Copies the batch's programs to the device and runs them, in the order of the stream.

        ``work`` is the address of working memory, 0 for the launcher's own.
        """
        if self._augmenter is None:
            raise KernelError("the launcher is closed")
        library, staging = self._library, ctypes.c_void_p()
        code = library.fl_augment_begin(self._augmenter, batch.nbytes, ctypes.byref(staging))
        check(library, code)
        batch.write(staging.value or 0)
        code = library.fl_augment_launch(
            self._augmenter, batch.samples, work, batch.work_bytes, ctypes.c_void_p(stream)
        )
        check(library, code)

    def close(self) -> None:
        """Waits for what was launched, then gives all memory back."""
        if self._augmenter is not None:
            self._library.fl_augmenter_destroy(self._augmenter)
            self._augmenter = None


def load_library() -> ctypes.CDLL:
    """Returns the CUDA library.

    Raises:
        KernelError: it was not built, or cannot be loaded.
    """
    try:
        library = ctypes.CDLL(str(LIBRARY))
    except OSError as error:
        how = "build it with `python setup.py build_cuda`, which needs the CUDA compiler nvcc"
        raise KernelError(f"the CUDA library cannot be loaded: {error}; {how}") from None
    number, size, pointer = ctypes.c_int, ctypes.c_size_t, ctypes.c_void_p
    for name, arguments in {
        "fl_error_text": (number,),
        "fl_device_count": (pointer,),
        "fl_augmenter_create": (number, pointer),
        "fl_augmenter_destroy": (pointer,),
        "fl_augment_begin": (pointer, size, pointer),
        "fl_augment_launch": (pointer, number, pointer, size, pointer),
        "fl_allocate": (size, pointer),
        "fl_free": (pointer,),
        "fl_copy": (pointer, pointer, size),
        "fl_synchronize": (),
    }.items():
        getattr(library, name).argtypes = arguments
    library.fl_error_text.restype = ctypes.c_char_p
    library.fl_augmenter_destroy.restype = None
    return library


def check(library: ctypes.CDLL, code: int) -> None:
    """Raises ``KernelError`` in the runtime's words unless ``code`` is 0."""
    if code != 0:
        raise KernelError(f"CUDA: {library.fl_error_text(code).decode()} (error {code})")


def device_count() -> int:
    """Returns how many CUDA devices there are.

    Raises:
        KernelError: the library is missing, or the driver says why there is none.
    """
    library, count = load_library(), ctypes.c_int()
    check(library, library.fl_device_count(ctypes.byref(count)))
    return count.value
