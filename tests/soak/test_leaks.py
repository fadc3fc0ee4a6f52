"""Loaders leave nothing behind in the process that has used them."""

from collections import Counter

from chaos.registry import KINDS
from support.campaigns import LOADERS

from soak.__main__ import epochs_of
from soak.held import anonymous_bytes, held
from soak.loaders import drop_some

WARM_UP = 8
ALLOWED_BYTES = 4000  # for each loader: far below what one has, and above an allocator's noise


def test_loaders_that_are_made_and_dropped_leave_nothing(image_folder):
    few = 8
    count = max(few, LOADERS)
    for number in range(WARM_UP):
        drop_some(str(image_folder), number)
    before, memory = held(), anonymous_bytes()
    for number in range(count):
        drop_some(str(image_folder), number)
    assert held() - before == Counter()  # what a test before this one held may go meanwhile
    if count > few:
        grown = anonymous_bytes() - memory
        print(f"{count} loaders, {grown} bytes more: {grown / count:.0f} for each")
        assert grown < ALLOWED_BYTES * count


def test_epochs_of_a_kind_that_writes_leave_nothing(image_folder, tmp_path):
    (tmp_path / "images").symlink_to(image_folder)
    epochs_of(KINDS["trace"], str(tmp_path), 0)
    before = held()
    epochs_of(KINDS["trace"], str(tmp_path), 1)
    assert held() - before == Counter()
