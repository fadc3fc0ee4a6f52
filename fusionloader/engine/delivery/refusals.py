"""What CUDA refuses does not end training: something slower takes its place, with a warning."""

from __future__ import annotations

import warnings

from fusionloader.transforms.executors.device_errors import is_device_lost


def warn_of(error: RuntimeError, instead: str, option: str) -> None:
    """Warns that a call of CUDA's was refused.

    Args:
        error: says which call, and what CUDA says.
        instead: what FusionLoader does now.
        option: of the loader that asked for it.

    Raises:
        RuntimeError: ``error`` itself, if the device has failed: torch's calls fail, too.
    """
    if is_device_lost(error):
        raise error
    text = f"CUDA refused what {option}= needs: {error}. FusionLoader goes on: {instead}"
    warnings.warn(text, RuntimeWarning, stacklevel=2)
