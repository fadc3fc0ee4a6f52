"""What ``explain()`` says of a dataset whose samples are at URLs."""

from __future__ import annotations

from torch.utils.data import SequentialSampler, Subset

from fusionloader.data.read_ahead.looking_ahead import read_settings
from fusionloader.data.sources.streams.sampler import StreamSampler
from fusionloader.options.aliases import AnyDataset


def explain(dataset: AnyDataset, sampler: object, why_one_by_one: str) -> str:
    """Returns how samples at URLs are asked for.

    Args:
        dataset: of them, or a subset of it.
        sampler: of single samples.
        why_one_by_one: why no process reads ahead; empty where one does.
    """
    if why_one_by_one:
        return f"URLs are read with a request for each sample: {why_one_by_one}"
    if read_settings(dataset) is None:
        return "URLs are read by the dataset's own remote_files()"
    text = "URLs are read ahead by a process, in the sampler's order"
    whole = type(dataset) is not Subset and callable(getattr(dataset, "sampler", None))
    if whole and not isinstance(sampler, (StreamSampler, SequentialSampler)):
        text += "; with sampler=dataset.sampler() neighbours come with one request"
    return text
