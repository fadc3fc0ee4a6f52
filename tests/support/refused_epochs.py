"""Two epochs over the fake driver for each call that it may refuse, each pair in a fresh process.

It is forked from one that has imported everything and called nothing of CUDA.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from pathlib import Path

from torchvision.datasets import ImageFolder

from fusionloader import FusionLoader
from fusionloader.engine.iterators import slot_iterator
from support.batches import same_batches
from support.fake_cuda import FakeCuda
from support.fake_device import delivery
from support.images import train_transform

ARGUMENTS = {"batch_size": 4, "num_workers": 1, "seed": 1, "multiprocessing_context": "fork"}
AT_ONCE = 8


def dataset_in(folder):
    dataset = ImageFolder(folder, train_transform(48))
    del dataset.samples[16:]
    return dataset


def epochs(folder, expected, call, before):
    """Whether the batches are right, what was warned of and explained, and the calls."""
    fake = FakeCuda(Path(os.environ["FUSIONLOADER_LIBCUDA"]))
    with fake.by_torch():
        fake.stream()  # torch has made the context
    fake.refuse(call, before)

    def deliver(_):
        with fake.by_torch():
            return delivery(fake)

    slot_iterator.make_delivery = deliver
    loader = FusionLoader(dataset_in(folder), **ARGUMENTS)
    seen = []
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for _ in range(2):
            for batch in loader:
                fake.run()
                seen.append([leaf.clone() for leaf in batch])
    texts = [str(each.message) for each in warned if each.category is RuntimeWarning]
    return same_batches(seen, expected), texts, loader.explain(), fake.calls


def begin(*arguments):
    """Runs epochs in a child; returns what its outcome is read from."""
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.close(reading)
        try:
            found = epochs(*arguments)
        except BaseException as error:
            found = (False, [repr(error)], "", {})
        os.write(writing, json.dumps(found).encode())
        os._exit(0)
    os.close(writing)
    return reading


def end(reading):
    with os.fdopen(reading) as pipe:
        found = pipe.read()
    os.wait()
    return json.loads(found) if found else (False, ["the process died"], "", {})


def main(folder):
    loader = FusionLoader(dataset_in(folder), **ARGUMENTS)
    expected = [batch for _ in range(2) for batch in loader]
    undisturbed = end(begin(folder, expected, "", 0))
    # At once, and in the middle of an epoch.
    wanted = [(call, 0) for call in undisturbed[3]]
    wanted += [(call, made // 4) for call, made in undisturbed[3].items() if made > 8]
    found = [("", 0, undisturbed)]
    for first in range(0, len(wanted), AT_ONCE):
        some = wanted[first : first + AT_ONCE]
        begun = [begin(folder, expected, *each) for each in some]
        found += [(*each, end(reading)) for each, reading in zip(some, begun, strict=True)]
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
