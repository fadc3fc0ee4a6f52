"""Warnings about refused CUDA calls. Training goes on by slower means."""

from __future__ import annotations

import warnings

from fusionloader.transforms.executors.device_errors import is_device_lost


def warn_refused(error: RuntimeError, instead: str, option: str) -> None:
    """Warns that a CUDA call was refused.

    Args:
        error: the error, which names the call and CUDA's reason.
        instead: what FusionLoader does instead.
        option: the loader's option that needs the call.

    Raises:
        RuntimeError: ``error`` itself, if the device has failed, because torch's calls fail too.
    """
    if is_device_lost(error):
        raise error
    text = f"CUDA refused what {option}= needs: {error}. FusionLoader goes on: {instead}"
    warnings.warn(text, RuntimeWarning, stacklevel=2)
