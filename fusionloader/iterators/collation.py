"""Samples of one mini-batch that do not go together: torch's error, and which samples they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch.utils.data._utils.collate import default_collate

from fusionloader.aliases import Batch, Sample
from fusionloader.executors.layout import Layout


def collate_named(samples: Sequence[Sample], name: Callable[[int], str]) -> Batch:
    """Returns ``default_collate(samples)``.

    Args:
        samples: of a mini-batch.
        name: gives the name of a sample by its place.

    Raises:
        Exception: what ``default_collate`` raises, its message followed by the names of two samples
            that differ and what to do.
    """
    try:
        return default_collate(list(samples))  # type: ignore[no-untyped-call]
    except Exception as error:
        hint = _hint(samples, name)
        if not hint:
            raise
        try:
            told = type(error)(f"{error}\n{hint}")
        except Exception:  # its constructor wants something else
            raise error from None
        raise told from error


def _hint(samples: Sequence[Sample], name: Callable[[int], str]) -> str:
    described = [_describe(sample) for sample in samples]
    odd = next((i for i, text in enumerate(described) if text != described[0]), None)
    if odd is None:
        return ""
    return (
        f"{name(0)} is {described[0]}, {name(odd)} is {described[odd]}. Samples of a mini-batch "
        "need one structure and shape: end the transforms with a crop or resize to one size, or "
        "give the loader a collate_fn that puts such samples together."
    )


def _describe(sample: Sample) -> str:
    layout = Layout.of(sample)
    return layout if isinstance(layout, str) else layout.describe()
