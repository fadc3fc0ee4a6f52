"""When user code counts as the same in two ranks."""

import mmap
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from support.user_datasets import Opened

from fusionloader.sharing.compatibility import CodeTooLong, digest_code

TESTS = Path(__file__).parents[1]
SCRIPT = f"""
import sys
sys.path[:0] = [{str(TESTS)!r}, {str(TESTS / "ranks")!r}]
from test_compared_code import digest, values
print(digest(values()))
"""


def digest(value, most_bytes=1 << 20, own_memory=("numpy", "torch")):
    return digest_code(value, most_bytes=most_bytes, own_memory=own_memory, with_files=True)


def values():
    """What datasets have: tensors that share memory, parameters, arrays, functions."""
    table = torch.arange(12).reshape(3, 4)
    return {
        "dataset": Opened([("a.jpg", 1), ("b.jpg", 2)]),
        "tensors": [table, table.t(), table[1:], torch.empty(0), torch.nn.Parameter(torch.ones(2))],
        "arrays": (np.arange(5), np.float32(1)),
        "function": values,
    }


@pytest.mark.matrix
def test_equal_values_have_one_digest_in_all_processes():
    found = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == digest(values())


@pytest.mark.parametrize(
    "changed",
    [
        {"dataset": Opened([("a.jpg", 1), ("b.jpg", 3)])},
        {"tensors": [torch.arange(1, 13).reshape(3, 4)]},
        {"arrays": (np.arange(1, 6), np.float32(1))},
        {"function": digest},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_other_values_have_other_digests(changed):
    assert digest({**values(), **changed}) != digest(values())


def test_a_class_of_another_file_is_another_one(monkeypatch):
    before = digest(values())
    monkeypatch.setattr(sys.modules[Opened.__module__], "__file__", "/elsewhere/user_datasets.py")
    assert digest(values()) != before


def shared_array(_):
    return np.frombuffer(mmap.mmap(-1, 64), np.uint8)[8:16]


def mapped_file(path):
    path.write_bytes(bytes(64))
    return np.memmap(path, np.uint8, "r")


@pytest.mark.parametrize(
    "make",
    [
        shared_array,
        mapped_file,
        lambda _: torch.zeros(5).share_memory_()[1:],
        lambda path: torch.from_numpy(shared_array(path)),
    ],
    ids=["array", "file", "shared tensor", "tensor of an array"],
)
def test_memory_that_other_processes_may_change_cannot_be_compared(make, tmp_path):
    with pytest.raises(TypeError, match="shared memory"):
        digest({"values": make(tmp_path / "values")})


def test_tensors_that_were_sent_to_spawned_workers_can_be_compared():
    value = {"values": torch.zeros(5)}
    before = digest(value)
    value["values"].share_memory_()  # as torch does
    assert digest(value, own_memory=["numpy"]) == before


def test_an_array_that_is_too_long_is_not_copied():
    rows = np.lib.stride_tricks.as_strided(np.zeros(8), (1 << 40, 8), (0, 8))
    with pytest.raises(CodeTooLong):
        digest(rows)


@pytest.mark.parametrize("value", [np.zeros(200, np.uint8), torch.zeros(200), list(range(200))])
def test_a_long_pickle_is_given_up(value):
    with pytest.raises(CodeTooLong):
        digest(value, most_bytes=150)
