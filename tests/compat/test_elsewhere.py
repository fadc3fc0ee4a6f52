"""Where POSIX parts or the native part are missing: macOS and Windows, as far as Linux can show."""

import subprocess
import sys
from pathlib import Path

import pytest
from support.waiting import PATIENCE

ROOT = Path(__file__).parents[2]

HIDDEN = """
import os, sys, warnings
for name in {attributes!r}:
    delattr(os, name)
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name in {hidden!r}:
            raise ImportError(name + " is hidden")
sys.meta_path.insert(0, Hide())
"""
PROGRAM = """
import contextlib, threading, time, types, unittest.mock
import torch
import torch.utils.data.dataloader as torch_loader
from torch.utils.data import IterableDataset, TensorDataset
from fusionloader import FusionLoader, WorkerPool

class Faulty(IterableDataset):
    def __iter__(self):
        return map(read, range(12))

def read(number):
    if number == 4:
        raise ValueError("bad record")
    return number

class Late:
    def __len__(self):
        return 12

    def __getitem__(self, index):
        time.sleep(0.1 if index < 2 else 0)  # another worker's batch is there first, and stored
        return index

def taken(iterator):
    try:
        return next(iterator).tolist()
    except ValueError:
        return "failed"

if __name__ == "__main__":
    dataset = TensorDataset(torch.arange(20))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for workers in (0, 2, 0):
            loader = FusionLoader(dataset, 4, num_workers=workers)
            iterator = iter(loader)
            torchs = isinstance(iterator, torch_loader._MultiProcessingDataLoaderIter)
            assert torchs == (workers > 0)
            first = [next(iterator)[0].tolist(), next(iterator)[0].tolist()]
            again = FusionLoader(dataset, 4, num_workers=workers)
            again.load_state_dict(loader.state_dict())
            rest = [batch.tolist() for batch, in again]
            assert sum(first + rest, []) == list(range(20)), (first, rest)
            assert "is missing" in loader.explain()
            assert again.stats().processors.cores >= 1
        loader, again = (FusionLoader(Faulty(), 2, num_workers=1) for _ in range(2))
        iterator = iter(loader)
        assert [taken(iterator) for _ in range(4)] == [[0, 1], [2, 3], "failed", [5, 6]]
        again.load_state_dict(loader.state_dict())
        resumed = iter(again)
        assert taken(resumed) == "failed"  # again, and not counted
        assert [each.tolist() for each in resumed] == [each.tolist() for each in iterator]
        for leaves in (
            "torch.autograd.profiler.record_function.__exit__",  # the batch is a local variable
            "multiprocessing.queues._ForkingPickler.loads",  # it was read, and not stored
            "torch.utils.data.dataloader._MultiProcessingDataLoaderIter._try_put_index",  # taken
            "fusionloader.engine.iterators.torchs_workers.to_device",
        ):
            loader = FusionLoader(Late(), 2, num_workers=2)
            iterator = iter(loader)
            there = [next(iterator).tolist()]
            with contextlib.suppress(KeyboardInterrupt):
                with unittest.mock.patch(leaves, side_effect=KeyboardInterrupt):
                    there.extend(batch.tolist() for batch in iterator)
            assert loader.state_dict()["delivered"] == len(there) < 6, (leaves, there)
            with contextlib.suppress(RuntimeError):
                raise AssertionError((leaves, next(iterator)))
        iterator = iter(FusionLoader(range(4), 2, num_workers=1))
        assert [next(iterator).tolist() for _ in range(2)] == [[0, 1], [2, 3]]
        join = "multiprocessing.process.BaseProcess.join"
        with contextlib.suppress(KeyboardInterrupt):
            with unittest.mock.patch(join, side_effect=KeyboardInterrupt):
                raise AssertionError(next(iterator))  # it ends the workers
        assert next(iterator, "the end") == "the end"
        iterator, taken_there = iter(FusionLoader(range(6), 2, num_workers=1)), []
        turn, there = iterator._turn, lambda: taken_there.append(next(iterator).tolist())
        @contextlib.contextmanager
        def left():  # another thread calls before this one returns
            with turn.lock:
                yield
            iterator._turn = turn
            thread = threading.Thread(target=there)
            thread.start()
            thread.join()
        iterator._turn = types.SimpleNamespace(lock=left())
        assert next(iterator).tolist() == [0, 1] and taken_there == [[2, 3]]
        assert [each.tolist() for each in iterator] == [[4, 5]]
        with WorkerPool(2, multiprocessing_context="spawn") as pool:
            iterator = iter(FusionLoader(dataset, 4, pool=pool))
            assert [type(p).__name__ for p in iterator._workers] == ["SpawnProcess"] * 2
            assert len(list(iterator)) == 5
    told = [str(w.message) for w in said if "FusionLoader runs as" in str(w.message)]
    assert len(told) == 1 and {name!r} in told[0], told
    assert "fusionloader.system.shm.objects" not in sys.modules
    print("all there")
"""


@pytest.mark.parametrize(
    ("missing", "attributes", "modules"),
    [
        ("os.posix_fallocate", ["posix_fallocate", "sched_getaffinity"], ["fcntl", "resource"]),
        pytest.param(
            "fusionloader._native", [], ["fusionloader._native"], marks=pytest.mark.matrix
        ),
    ],
)
def test_torchs_workers_serve_where_a_part_is_missing(missing, attributes, modules, tmp_path):
    script = tmp_path / "script.py"
    program = PROGRAM.replace("{name!r}", repr(missing))
    script.write_text(HIDDEN.format(attributes=attributes, hidden=modules) + program)
    found = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
    )
    assert found.stdout.strip() == "all there", found.stderr[-2000:]
