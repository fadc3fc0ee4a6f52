"""Limits that a shell or a batch system sets: descriptors, address space, stacks; and locales."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from served import PATH, run
from support.other_users import NOBODY, as_root
from support.waiting import PATIENCE

BEGIN = """
import resource, sys
from served import KINDS, loader, samples

root = sys.argv[1]

def limit(kind, most):
    resource.setrlimit(kind, (most, most))
"""


def test_many_workers_and_kept_batches_need_few_descriptors(image_folder):
    script = """
    limit(resource.RLIMIT_NOFILE, 64)
    for kind in KINDS[:2]:
        assert samples(loader(kind, root, num_workers=12)) == 40
    made = loader("rows", root)
    kept = [batch for _ in range(30) for batch in made]  # of two tensors each
    print(samples(kept))
    """
    assert run(script, image_folder, begin=BEGIN) == ["1200"]


def test_forked_workers_that_can_open_nothing_make_samples_of_memory(image_folder):
    script = """
    from torch.utils.data import Dataset
    from fusionloader import FusionLoader

    class Squares(Dataset):
        def __len__(self):
            return 40

        def __getitem__(self, index):
            return index * index

    def open_nothing(_):
        limit(resource.RLIMIT_NOFILE, 0)

    options = {"num_workers": 2, "worker_init_fn": open_nothing, "multiprocessing_context": "fork"}
    for collate in (None, list):
        loader = FusionLoader(Squares(), 8, collate_fn=collate, **options)
        print(sum(int(sample) for batch in loader for sample in batch))
    """
    assert run(script, image_folder, begin=BEGIN) == ["20540"] * 2


@pytest.mark.matrix
def test_two_loaders_need_few_descriptors(image_folder):
    script = """
    limit(resource.RLIMIT_NOFILE, 256)
    for kind in KINDS:
        two = [loader(kind, root, num_workers=4, prefetch_factor=4) for _ in range(2)]
        assert samples([*two[0], *two[1]]) == 80
    print("all")
    """
    assert run(script, image_folder, begin=BEGIN) == ["all"]


def test_an_address_space_with_little_room_is_enough(image_folder):
    script = """
    for kind in KINDS:  # what is imported takes room once
        samples(loader(kind, root))
    pages = int(open("/proc/self/statm").read().split()[0])
    limit(resource.RLIMIT_AS, (pages << 12) + (64 << 20))
    for kind in KINDS:
        assert samples(loader(kind, root)) == 40
    print("all")
    """
    assert run(script, image_folder, begin=BEGIN) == ["all"]


def test_an_address_space_that_is_full_is_an_error_that_says_so(image_folder):
    script = """
    import gc
    from fusionloader.system.shm.objects import SharedMemoryExhausted

    for kind in KINDS[:2]:
        samples(loader(kind, root))
        made = None
        gc.collect()  # what is unmapped later would be room
        pages = int(open("/proc/self/statm").read().split()[0])
        before = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, ((pages << 12) + (4 << 20), before[1]))
        made = loader(kind, root)
        try:
            samples(made)
        except SharedMemoryExhausted as error:
            assert "RLIMIT_AS" in str(error) and "ulimit -v unlimited" in str(error)
            print(kind)
        resource.setrlimit(resource.RLIMIT_AS, before)
        assert samples(made) == 40
    """
    assert run(script, image_folder, begin=BEGIN) == ["plan", "rows"]


@as_root  # whom this limit does not bind, so that the script becomes another user
def test_too_few_processes_are_an_error_that_says_so(image_folder):
    script = """
    import os
    from support.troubleshooting import NO_MORE_PROCESSES, matches

    for kind in KINDS:  # what is imported later may be in a folder of root's
        samples(loader(kind, root))
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    before = resource.getrlimit(resource.RLIMIT_NPROC)
    for kind in ("rows", "stream"):
        made = loader(kind, root)
        resource.setrlimit(resource.RLIMIT_NPROC, (1, before[1]))
        try:
            samples(made)
        except BlockingIOError as error:
            assert matches(NO_MORE_PROCESSES, str(error)), error
            print(kind)
        resource.setrlimit(resource.RLIMIT_NPROC, before)
        assert samples(made) == 40
    """
    begin = BEGIN + f"NOBODY = {NOBODY}\n"
    assert run(script, image_folder, begin=begin) == ["rows", "stream"]


@pytest.mark.parametrize("nbytes", [1 << 20, pytest.param(-1, marks=pytest.mark.matrix)])
def test_stacks_of_any_size(nbytes, image_folder):
    script = """
    limit(resource.RLIMIT_STACK, int(sys.argv[2]))
    for kind, method in [(KINDS[0], "spawn"), *((kind, "fork") for kind in KINDS)]:
        assert samples(loader(kind, root, multiprocessing_context=method)) == 40
    print("all")
    """
    assert run(script, image_folder, nbytes, begin=BEGIN) == ["all"]


@pytest.mark.matrix
def test_names_that_the_locale_cannot_spell(image_folder, tmp_path):
    script = """
import hashlib, os, sys
from served import loader

assert sys.getfilesystemencoding() == "ascii"
for root, method in zip(os.environb[b"ROOTS"].split(b":"), ("fork", "spawn", "fork")):
    made = loader("plan", os.fsdecode(root), multiprocessing_context=method)
    print(hashlib.sha256(b"".join(images.numpy().tobytes() for images, _ in made)).hexdigest())
"""
    named = tmp_path / "Bäume"
    for file in sorted(Path(image_folder).glob("*/*.jpg")):
        copy = named / f"{file.parent.name}-ö" / f"{file.stem} ü.jpg"
        copy.parent.mkdir(parents=True, exist_ok=True)
        os.link(file, copy)
    plain = {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C"}
    roots = f"{named}:{named}:{image_folder}"
    env = {**os.environ, **plain, "ROOTS": roots, "PYTHONPATH": os.pathsep.join(PATH)}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    found = done.stdout.split()
    assert len(found) == 3 and len(set(found)) == 1
