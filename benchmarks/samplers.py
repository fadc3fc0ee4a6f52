"""Batches by rule: CPU time to make a sampler and to form an epoch, memory, and padding saved.

Lengths are log-normal, as those of sentences and clips are. Random batches of torch's samplers, of
as many samples as a bucketed batch has on average, are the baseline of the padding.
"""

from __future__ import annotations

import statistics
import time
import tracemalloc
from argparse import Namespace
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import BatchSampler, RandomSampler

from benchmarks.study import interleaved, parser_of, publish
from fusionloader.data.samplers import BucketSampler, MixSampler

_LONGEST = 4096


def lengths_of(samples: int) -> NDArray[np.int32]:
    drawn = np.random.default_rng(0).lognormal(5, 0.7, samples)
    return np.clip(drawn, 1, _LONGEST).astype(np.int32)


def mix_of(samples: int, **its: Any) -> MixSampler:
    return MixSampler([samples, samples // 2, samples // 4], [5, 3, 2], stop=samples, **its)


def cpu_seconds(call: Callable[[], object]) -> float:
    """Returns the CPU time of a call of one thread: other work on the machine counts less."""
    started = time.process_time()
    call()
    return time.process_time() - started


def peak_bytes(call: Callable[[], object]) -> int:
    """Returns the most that a call holds of memory besides what there was."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def padding(batches: Iterable[list[int]], lengths: NDArray[np.int32]) -> float:
    """Returns the share of tokens that are padding."""
    filled = total = 0
    for batch in batches:
        found = lengths[batch]
        filled += int(found.sum())
        total += int(found.max()) * len(found)
    return 1 - filled / total


def padding_saved(options: Namespace) -> dict[str, float]:
    lengths = lengths_of(options.padded_samples)
    budget = BucketSampler(lengths, max_tokens=options.tokens)
    size = max(len(lengths) // len(budget), 1)
    return {
        "torch, random": padding(BatchSampler(RandomSampler(lengths), size, False), lengths),
        "16 quantiles": padding(BucketSampler(lengths, batch_size=size), lengths),
        "token budget": padding(budget, lengths),
    }


def main() -> None:
    parser = parser_of(__doc__, rounds=3)
    parser.add_argument("--epoch-samples", type=int, default=10_000_000, help="(10,000,000)")
    parser.add_argument("--padded-samples", type=int, default=200_000, help="(200,000)")
    parser.add_argument("--tokens", type=int, default=16_384, help="budget of a batch (16,384)")
    options = parser.parse_args()
    count, lengths = options.epoch_samples, lengths_of(options.epoch_samples)
    buckets = BucketSampler(lengths, max_tokens=options.tokens)
    mixes = {
        "even": mix_of(count, batch_size=options.batch_size),
        "random": mix_of(count, batch_size=options.batch_size, order="random"),
        "per batch": mix_of(count, batch_size=options.batch_size, per="batch"),
    }
    runs: dict[str, Callable[[], object]] = {
        "torch, permutation alone": lambda: next(iter(RandomSampler(lengths))),
        "BucketSampler, made": lambda: BucketSampler(lengths, max_tokens=options.tokens),
        "BucketSampler, an epoch": lambda: buckets.form(0),
        **{f"MixSampler, {name}": lambda mix=mix: mix.form(0) for name, mix in mixes.items()},
    }
    measured = interleaved(
        {name: lambda run=run: cpu_seconds(run) for name, run in runs.items()}, options.rounds
    )
    memory = {name: peak_bytes(run) / count for name, run in runs.items()}
    saved = padding_saved(options)
    rows = [
        (name, f"{statistics.median(values):.2f}", f"{memory[name]:.1f}")
        for name, values in measured.items()
    ]
    rows += [(f"padding: {name}", f"{share:.1%}", "-") for name, share in saved.items()]
    publish(
        options,
        ("what", "CPU seconds", "peak bytes a sample"),
        rows,
        cpu_seconds=measured,
        peak_bytes_per_sample=memory,
        padding=saved,
    )


if __name__ == "__main__":
    main()
