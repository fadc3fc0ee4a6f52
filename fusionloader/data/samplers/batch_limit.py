"""Limits of a batch: its samples, and its cost after padding."""

from __future__ import annotations

from dataclasses import dataclass
from operator import index as as_integer
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Keys = NDArray[Any]
Oversized = Literal["raise", "alone"]


@dataclass(frozen=True, slots=True)
class BatchLimit:
    """The largest size of a batch.

    Attributes:
        batch_size: largest number of samples; ``None`` for no limit.
        budget: largest cost after padding; ``None`` for no limit.
        unit: unit of the budget: ``"tokens"``, ``"pixels"``, or ``""`` without a budget.
        oversized: treatment of a sample above the budget, see ``BucketSampler``.
    """

    batch_size: int | None
    budget: int | None
    unit: Literal["tokens", "pixels", ""]
    oversized: Oversized

    @classmethod
    def of(
        cls,
        batch_size: int | None,
        max_tokens: int | None,
        max_pixels: int | None,
        oversized: Oversized,
    ) -> BatchLimit:
        """Returns the limit that a sampler's arguments give.

        Raises:
            ValueError: no limit is given, or an argument is out of range.
        """
        given = {"batch_size": batch_size, "max_tokens": max_tokens, "max_pixels": max_pixels}
        for name, value in given.items():
            if value is not None and as_integer(value) < 1:
                raise ValueError(f"{name} should be a whole number from 1 on, not {value!r}")
        if all(value is None for value in given.values()):
            raise ValueError("batches need a limit: give batch_size, max_tokens or max_pixels")
        if batch_size is not None:
            batch_size = as_integer(batch_size)  # a state is JSON
        if max_tokens is not None and max_pixels is not None:
            raise ValueError("max_tokens is for lengths and max_pixels for sizes: give one of them")
        if oversized not in ("raise", "alone"):
            raise ValueError(f"oversized should be 'raise' or 'alone', not {oversized!r}")
        if max_tokens is not None:
            return cls(batch_size, as_integer(max_tokens), "tokens", oversized)
        if max_pixels is not None:
            return cls(batch_size, as_integer(max_pixels), "pixels", oversized)
        return cls(batch_size, None, "", oversized)

    def check(self, keys: Keys) -> None:
        """Checks shape, type and values of the keys of samples.

        Raises:
            ValueError: the keys do not fit the budget; the message says what was expected.
        """
        if len(keys.shape) not in (1, 2) or keys.shape[1:] not in ((), (2,)) or not len(keys):
            raise ValueError(
                "keys should be one number per sample, or a width and a height (n x 2), of at "
                f"least one sample, not an array of shape {keys.shape}"
            )
        if keys.dtype.kind not in "iuf":
            raise ValueError(f"keys should be numbers, not of type {keys.dtype}")
        needs = {"tokens": "lengths, one number per sample", "pixels": "sizes, an array of n x 2"}
        if self.unit and (keys.dtype.kind == "f" or keys.ndim != 1 + (self.unit == "pixels")):
            raise ValueError(
                f"max_{self.unit} needs {needs[self.unit]}, as whole numbers, not an array of "
                f"shape {keys.shape} and type {keys.dtype}"
            )
        wrong = ~np.isfinite(keys)
        if self.unit or keys.ndim == 2:
            wrong |= keys <= 0
        if wrong.any():
            place = int(np.argwhere(wrong)[0][0])
            raise ValueError(
                f"keys[{place}] is {keys[place].tolist()}: lengths and sizes should be above 0, "
                "other keys finite"
            )

    def above(self, keys: Keys) -> NDArray[np.bool_]:
        """Returns a mask of the samples that exceed the budget on their own."""
        if self.budget is None:
            return np.zeros(len(keys), np.bool_)
        return costs(keys) > self.budget

    def refusal(self, place: int, key: Keys) -> ValueError:
        """Returns the error about sample number ``place``, whose ``key`` exceeds the budget."""
        cost = int(costs(key[np.newaxis])[0])
        return ValueError(
            f"sample {place} ({key.tolist()}) costs {cost} {self.unit}, and a batch may have "
            f"{self.budget}: raise max_{self.unit}, leave the sample out, or give "
            'oversized="alone", which makes it a batch by itself'
        )

    def samples(self, keys: Keys) -> int:
        """Returns how many samples fit in a batch, for any choice among those with ``keys``."""
        allowed = [] if self.batch_size is None else [self.batch_size]
        if self.budget is not None:
            padded = keys.max(axis=0, keepdims=True)
            allowed.append(max(self.budget // int(costs(padded)[0]), 1))
        return min(allowed)


def costs(keys: Keys) -> NDArray[Any]:
    """Returns the cost of each sample: tokens of a length, or pixels of a size."""
    return keys if keys.ndim == 1 else keys[:, 0].astype(np.int64) * keys[:, 1]
