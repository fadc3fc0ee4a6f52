"""However a training process ends, nothing of the loader is left."""

import gc
import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest
from ends import assert_nothing_is_left_of
from support.datasets import Nested
from support.waiting import gone, wait_until, wait_until_nothing_is_left

from fusionloader import FusionLoader

BEGIN = """
import sys, time
from ends import end
from torch.utils.data import Dataset
from fusionloader import FusionLoader, WorkerPool

class Slow(Dataset):
    def __len__(self): return 1000
    def __getitem__(self, index):
        time.sleep(0.05)
        return index

if __name__ == "__main__":
    from torchvision.datasets import ImageFolder
    from support.images import eval_transform, train_transform
    kind, method, root = sys.argv[2:]
    dataset = Slow() if kind == "objects" else ImageFolder(root, train_transform(224))
    workers = {"num_workers": 2, "multiprocessing_context": method}
    if kind == "pool":
        workers = {"pool": WorkerPool(2, multiprocessing_context=method)}
        beside = iter(FusionLoader(ImageFolder(root, eval_transform()), 8, **workers))
        next(beside)
    iterator = iter(FusionLoader(dataset, 8, **workers))
    next(iterator)
    end(iterator)
"""


ENDS = ["SIGKILL", "SIGTERM", "SIGINT", "exception", "exit"]
METHODS = ["fork", "spawn", "forkserver"]


# Every end, and every method where nobody can clean up. `make matrix` has the other ends of other
# methods: workers that import torch are dear.
@pytest.mark.parametrize(
    ("how", "method", "kind"),
    [
        pytest.param(
            *case, marks=[] if case[1] == "fork" or how == "SIGKILL" else pytest.mark.matrix
        )
        for number, (how, method) in enumerate(itertools.product(ENDS, METHODS))
        for case in ((how, method, ("plan", "objects")[number % 2]), (how, method, "pool"))
    ],
)
@pytest.mark.few(6)
def test_nothing_is_left(tmp_path, image_folder, how, method, kind):
    assert_nothing_is_left_of(tmp_path, BEGIN, how, kind, method, str(image_folder))


@pytest.mark.parametrize("kind", ["plan", "objects"])
def test_nothing_is_left_where_memory_lies_in_dev_shm(tmp_path, image_folder, kind):
    before = set(os.listdir("/dev/shm"))
    places = Path(__file__).parents[1] / "places"
    refuse = f"import sys; sys.path.append({str(places)!r})\nimport confined\n"
    script = f"{refuse}confined.refuse(confined.MEMFD)\n{BEGIN}"
    assert_nothing_is_left_of(tmp_path, script, "SIGKILL", kind, "fork", str(image_folder))
    wait_until(lambda: not [n for n in set(os.listdir("/dev/shm")) - before if "fusionl" in n])


WITH_A_CACHE = """
import sys
from torchvision.datasets import ImageFolder
from fusionloader import Cache, FusionLoader
from support.images import train_transform

dataset = ImageFolder(sys.argv[1], train_transform(64))
loader = FusionLoader(dataset, 8, num_workers=1, cache=Cache("64MiB"))
list(loader)
"""


def test_a_global_loader_with_a_cache_ends_without_a_word(image_folder):
    """In an interpreter of its own: what is cleared first depends on who has imported it."""
    done = subprocess.run(
        [sys.executable, "-c", WITH_A_CACHE, str(image_folder)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join((os.getcwd(), "tests"))},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_loader_that_is_collected_in_mid_epoch_ends_its_workers():
    iterator = iter(FusionLoader(Nested(), 4, num_workers=2))
    next(iterator)
    pids = [process.pid for process in iterator._workers]
    del iterator
    gc.collect()
    wait_until(lambda: all(map(gone, pids)))
    wait_until_nothing_is_left()


def test_a_forked_child_does_not_end_its_parents_workers():
    iterator = iter(FusionLoader(Nested(), 4, num_workers=2))
    next(iterator)
    pid = os.fork()
    if pid == 0:
        iterator._shutdown_workers()
        inner = sum(len(batch["tensor"]) for batch in FusionLoader(Nested(), 4, num_workers=1))
        os._exit(0 if inner == 23 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert sum(1 for _ in iterator) == 5
