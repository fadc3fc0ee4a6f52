"""Corrupt files of six formats through real workers: Pillow's pixels, or its error, and no harm.

`make corrupt` reads 10,000 of them. What each is depends on its format, kind and number alone.
"""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from faults.corrupt_epochs import (
    MOST_FILES,
    PillowsView,
    allowed_bytes,
    read_by_loader,
    read_by_pillow,
    written,
)
from faults.corrupt_files import KINDS, corrupt_file, is_large_bomb
from faults.whole_images import FORMATS, SUFFIXES
from support.campaigns import CORRUPT_FILES, SEED

FEW = 6  # of each format and kind
COUNT = max(FEW, -(-CORRUPT_FILES // (len(FORMATS) * len(KINDS))))
OUTCOMES = ("same pixels", "same error", "differs")
LONGEST_SECONDS = 5.0  # of processor time, for one file


def outcome_of(ours: torch.Tensor | str | None, theirs: PillowsView) -> str:
    if ours is None or isinstance(ours, str) != isinstance(theirs.outcome, str):
        return "differs"
    if isinstance(ours, str):
        return "same error" if ours == theirs.outcome else "differs"
    return "same pixels" if torch.equal(ours, theirs.outcome) else "differs"


@pytest.mark.corrupt
@pytest.mark.timeout(300 + COUNT * 6)
@pytest.mark.parametrize("image_format", FORMATS)
@pytest.mark.few(4)
def test_corrupt_files_have_pillows_pixels_or_its_error(image_format, tmp_path):
    names = [(kind, SEED + number) for number in range(COUNT) for kind in KINDS]
    names.sort(key=lambda name: is_large_bomb(*name))  # which may take more memory than others
    counts, different, heavy, native = Counter(), [], [], 0
    most_bytes, longest = 0, 0.0
    for chunk, begin in enumerate(range(0, len(names), MOST_FILES)):
        part = names[begin : begin + MOST_FILES]
        files = [corrupt_file(image_format, *name, large=COUNT > FEW) for name in part]
        folder, suffix, plan = tmp_path / str(begin), SUFFIXES[image_format], chunk % 2
        paths = written(folder, files, suffix)
        epoch = read_by_loader(folder, suffix, plan)
        views = [read_by_pillow(path, number, plan) for number, path in enumerate(paths)]
        for number, ((kind, _), theirs) in enumerate(zip(part, views, strict=True)):
            outcome = outcome_of(epoch.outcomes.get(number), theirs)
            counts[kind, outcome] += 1
            if outcome == "differs":
                different.append((part[number], plan, epoch.outcomes.get(number), theirs.outcome))
        if epoch.peak_bytes > allowed_bytes(views) or epoch.longest_seconds > LONGEST_SECONDS:
            heavy.append((part, plan, epoch.peak_bytes, epoch.longest_seconds))
        native += epoch.native
        most_bytes = max(most_bytes, epoch.peak_bytes)
        longest = max(longest, epoch.longest_seconds)
    for kind in KINDS:
        told = ", ".join(f"{counts[kind, each]} {each}" for each in OUTCOMES)
        print(f"{image_format} {kind}: {told}")
    print(
        f"{image_format}: {native} of {len(names)} decoded natively, at most "
        f"{most_bytes >> 20} MB and {longest:.1f} s of processor time"
    )
    assert not different
    assert not heavy
