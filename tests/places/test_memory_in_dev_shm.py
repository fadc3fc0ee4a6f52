"""``memfd_create`` refused: shared memory lies in ``/dev/shm``, and nothing of it is left there."""

import os
import platform
import secrets
import sys
from pathlib import Path

import pytest
from chaos.campaign import missing
from chaos.registry import KINDS
from served import HERE, PATH, run
from support import warm_start
from support.mounts import in_mount_namespace

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="numbers of system calls")

BEGIN = """
import os, sys
import confined
from served import KINDS, Rows, loader, samples

root = sys.argv[1]
confined.refuse({**confined.DOCKER, **confined.MEMFD})

def names():
    return [name for name in os.listdir("/dev/shm") if f"-{os.getpid()}-" in name]
"""
needs_mounts = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")


def mounted(options):
    """The beginning of a script that has a ``/dev/shm`` of its own."""
    return in_mount_namespace(f"mount -t tmpfs -o {options} tmpfs /dev/shm") + BEGIN


def test_an_object_is_a_file_without_a_name_that_is_allocated(image_folder):
    script = """
    from fusionloader import _native
    from fusionloader.system.shm import objects
    from fusionloader.system.shm.slots import Arena

    fd, sparse = objects.create(1 << 20, "named"), objects.create(1 << 20, allocated=0)
    link, found = os.readlink(f"/proc/self/fd/{fd}"), os.fstat(fd)
    assert link.startswith(f"/dev/shm/fusionloader-{os.getpid()}-named-"), link
    assert link.endswith(" (deleted)") and found.st_nlink == 0 and not names()
    assert found.st_mode == 0o100600 and not os.get_inheritable(fd)
    assert (found.st_blocks << 9, os.fstat(sparse).st_blocks) == (1 << 20, 0)

    control = objects.create(_native.ManagerQueue.control_bytes(1, 4))
    arena = Arena()
    queue = _native.ManagerQueue(control, arena.fd, 1, 4)
    slots = arena.cut(1 << 20, queue, 2)
    before = os.fstat(arena.fd).st_blocks
    arena.discard(slots[0])
    assert (before - os.fstat(arena.fd).st_blocks) << 9 == 1 << 20
    arena.restore(slots[0])
    assert os.fstat(arena.fd).st_blocks == before
    print("all")
    """
    assert run(script, image_folder, begin=BEGIN) == ["all"]


def test_an_exception_at_any_moment_leaves_no_name(image_folder):
    script = """
    import signal
    from fusionloader.system.shm import objects

    def interrupt(*_):
        raise KeyboardInterrupt

    def create(pause):
        signal.setitimer(signal.ITIMER_REAL, pause)
        os.close(objects.create(4096))

    signal.signal(signal.SIGALRM, interrupt)
    create(0)
    interrupted = 0
    while interrupted < 40:
        for microseconds in range(10, 100, 3):
            try:
                create(microseconds / 1e6)
                signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                interrupted += 1
    assert not names(), names()
    print("all")
    """
    assert run(script, image_folder, begin=BEGIN) == ["all"]


def test_names_that_a_killed_process_has_left_are_removed(image_folder):
    shm, word = Path("/dev/shm"), secrets.token_hex(8)
    left = shm / f"fusionloader-1-slots-{word}"
    others = [shm / f"fusionloader-notes-{word}.txt", shm / f"fusionloader-2-slots-{word}"]
    left.touch(), others[0].touch(), others[1].write_text("what somebody else has written")
    try:
        script = """
        from fusionloader.system.shm import objects

        objects.create(4096)
        print(*(os.path.exists(name) for name in sys.argv[2:]))
        """
        found = run(script, image_folder, left, *others, begin=BEGIN)
        assert found == ["False", "True", "True"]
    finally:
        for file in (left, *others):
            file.unlink(missing_ok=True)


@needs_mounts
def test_loaders_with_all_that_shares_memory_work_in_64_mib(image_folder, tmp_path):
    script = """
    import gc
    from pathlib import Path
    from support.images import eval_transform
    from support.waiting import wait_until
    from torch.utils.data import default_collate
    from fusionloader import Cache, DecodedCache, WorkerPool
    from fusionloader.addons.inference import Preprocessor

    def check(kind, **arguments):
        made = loader(kind, root, **arguments)
        assert samples(made) == samples(made) == 40, (kind, arguments)
        made.close()

    def used():
        return (stat := os.statvfs("/dev/shm")).f_blocks - stat.f_bfree

    def use_all():  # and drop all
        check("rows", collate_fn=lambda rows: default_collate(rows))
        for cache in (Cache("16MiB"), DecodedCache("16MiB")):
            check("plan", cache=cache)
        with WorkerPool(2) as pool:
            for kind in KINDS[:2]:
                check(kind, pool=pool, num_workers=0, persistent_workers=False)
        made = loader("plan", root, persistent_workers=False)
        with made.trace(os.path.join(os.environ["XDG_CACHE_HOME"], "timeline.json")):
            assert samples(made) == 40
        check("plan", share=f"in-dev-shm-{os.getpid()}", persistent_workers=False)
        with Preprocessor(eval_transform(), num_workers=2) as prepare:
            images = [file.read_bytes() for file in Path(root).glob("*/*.jpg")]
            assert len(prepare(images)) == 40

        for kind in KINDS[:2]:
            iterator = iter(loader(kind, root, persistent_workers=False))
            got = samples([next(iterator)])
            for process in iterator._workers:
                process.kill()
            assert got + samples(iterator) == 40

    use_all()
    gc.collect()
    wait_until(lambda: used() == 0, "memory is left")
    print("all", *os.listdir("/dev/shm"))
    """
    folders = {"XDG_RUNTIME_DIR": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}
    assert run(script, image_folder, begin=mounted("size=64m"), **folders) == ["all"]


@needs_mounts
def test_too_small_a_dev_shm_is_an_error_in_words(image_folder):
    script = """
    import torch
    from support.images import eval_transform
    from torchvision.datasets import ImageFolder
    from fusionloader import FusionLoader
    from fusionloader.system.shm.objects import SharedMemoryExhausted

    class Large(torch.utils.data.Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, index):
            return torch.zeros(1 << 20)

    def attempts():
        plan = ImageFolder(root, eval_transform(224, 224))
        yield FusionLoader(plan, 20, num_workers=2)  # batches of 11 MiB
        yield FusionLoader(Large(), 4, num_workers=2)  # of 16

    for attempt in attempts():
        try:
            list(attempt)
            print("no error")
        except SharedMemoryExhausted as error:
            for said in ("/dev/shm (8.0 MiB)", "memfd_create", "--shm-size", "batch_size"):
                assert said in str(error), error
    print("all")
    """
    assert run(script, image_folder, begin=mounted("size=8m")) == ["all"]


@needs_mounts
def test_without_a_dev_shm_to_write_to_an_error_says_so(image_folder):
    script = """
    for kind in KINDS[:2]:
        try:
            next(iter(loader(kind, root)))
        except OSError as error:
            for said in ("memfd_create", "/dev/shm cannot be used", "num_workers=0"):
                assert said in str(error), error
        made = loader(kind, root, num_workers=0, persistent_workers=False)
        print(samples(made))
    """
    assert run(script, image_folder, begin=mounted("ro")) == ["40", "40"]


CAMPAIGN = """
import sys
import confined

confined.refuse(confined.MEMFD)
from chaos.__main__ import main

sys.exit(main())
"""


@pytest.mark.matrix
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", KINDS)
def test_kills_lose_no_sample_and_leave_nothing(kind):
    if lacking := missing(KINDS[kind]):
        pytest.skip(f"not installed: {', '.join(lacking)}")
    command = ["-c", CAMPAIGN, "--kind", kind, "--runs", "1", "--steps", "24", "--only-kills"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(PATH)}
    done = warm_start.completed(*command, cwd=HERE.parent, env=env)
    sys.stderr.write(done.stderr)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
