"""Which conversion tables are a multiplication and an addition. No DALI here."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fusionloader.plan.stages import Convert

# In units in the last place of the channel's largest value: what torch's three steps (divide,
# subtract, divide) and one multiplication and addition differ by is at most 2.
MOST_ULPS = 2.0


@dataclass(frozen=True, slots=True)
class Affine:
    """Per channel: a level becomes ``(level - mean) / deviation``; ``ulps`` is the largest error.

    The error is in units in the last place of each channel's largest value, in the table's type.
    """

    means: tuple[float, ...]
    deviations: tuple[float, ...]
    ulps: float


def affine_of(convert: Convert, channels: int) -> Affine | None:
    """The table's multiplication and addition, ``None`` where there is none that is near enough."""
    if convert.element_type not in ("float32", "float16"):
        return None
    table = np.frombuffer(convert.table, convert.element_type).reshape(channels, 256)
    values = table.astype(np.float64)
    deviations = 255.0 / (values[:, 255] - values[:, 0])
    if not np.isfinite(values).all() or not np.isfinite(deviations).all():
        return None
    means = -values[:, 0] * deviations
    ulps = _ulps(table, means.astype(np.float32), deviations)
    if ulps > MOST_ULPS:
        return None
    return Affine(tuple(means.tolist()), tuple(deviations.tolist()), ulps)


def _ulps(
    table: npt.NDArray[np.floating],
    means: npt.NDArray[np.float32],
    deviations: npt.NDArray[np.float64],
) -> float:
    levels = np.arange(256, dtype=np.float32)
    factors = np.float32(1) / deviations.astype(np.float32)
    made = ((levels - means[:, None]) * factors[:, None]).astype(table.dtype)
    unit = np.spacing(np.abs(table).max(axis=1)).astype(np.float64)
    distance = np.abs(made.astype(np.float64) - table.astype(np.float64))
    return float((distance / unit[:, None]).max())
