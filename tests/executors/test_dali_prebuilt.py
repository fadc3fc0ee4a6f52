"""Prebuilt pipelines: dropped with their memory, and there again when they are run."""

import io
import os
import subprocess
import sys
import weakref
from contextlib import nullcontext

import dali_or_skip  # noqa: F401
import numpy as np
import pytest
from nvidia.dali import fn, types
from PIL import Image
from support import encoded_images
from support.dali_runs import decode, run
from support.waiting import PATIENCE

from fusionloader.cli.dead_leaves import paint
from fusionloader.transforms.executors.dali.head import Backend, DaliHead
from fusionloader.transforms.executors.dali.memory import borrowing
from fusionloader.transforms.executors.dali.prebuilt import Prebuilt, drop_all
from fusionloader.transforms.executors.device.make_task import HeadOptions, make_task
from fusionloader.transforms.executors.device.memory import of_buffer
from fusionloader.transforms.executors.device.task import EncodedSample, GpuTask, rows_in
from fusionloader.transforms.plan.stages import Plan

WINDOW = (3, 5, 60, 50)
PLAN = Plan((), None, 64, 64)  # the size of the images of a warm-up


@pytest.fixture
def encoded():
    file = io.BytesIO()
    Image.fromarray(paint(5, 90, 70, np.random.default_rng(8))).save(file, "JPEG")
    return file.getvalue()


def test_what_was_dropped_is_gone_at_once_and_gives_the_same_pixels_again(encoded):
    head = DaliHead(None, 2)

    def pixels():
        return np.asarray(decode(head, [encoded], [WINDOW])[0].image)

    before = pixels()
    threads = len(os.listdir("/proc/self/task"))
    drop_all()
    assert len(os.listdir("/proc/self/task")) < threads  # its pipelines' threads end with them
    after = pixels()
    assert np.array_equal(before, after)


def test_one_that_has_failed_is_not_used_again(encoded):
    defined = []

    def define():
        pipeline = Backend(max_batch=4).pipeline()
        with pipeline:
            files = fn.external_source(name="encoded", dtype=types.UINT8, ndim=1)
            pipeline.set_outputs(fn.decoders.image(files))
        defined.append(weakref.ref(pipeline))
        return pipeline

    prebuilt = Prebuilt(define)
    good = np.frombuffer(encoded, np.uint8)
    for files in ([good], [good, good], [np.zeros(50, np.uint8)], [good]):
        with pytest.raises(RuntimeError) if files[0] is not good else nullcontext():
            (images,) = run(prebuilt, encoded=files)
    assert np.asarray(images[0]).shape == (70, 90, 3)
    first, second = defined
    assert first() is None
    assert second() is not None


def test_one_that_was_dropped_while_it_ran_says_that_memory_was_short(encoded):
    """So that its launch is repeated, and no file is blamed."""
    head = DaliHead(None, 2)
    head.begin([encoded], [WINDOW])
    drop_all()
    with pytest.raises(MemoryError, match="dropped while it ran"):
        head.finish()
    assert decode(head, [encoded], [WINDOW])[0].image is not None


def test_a_task_has_built_a_pipeline_for_each_group_in_flight(monkeypatch):
    built, define = [], Prebuilt.__init__
    monkeypatch.setattr(
        Prebuilt, "__init__", lambda self, *given: built.append(1) or define(self, *given)
    )
    task = make_task(PLAN, None, 2, HeadOptions(groups=2))
    assert len(built) == 2
    task.finish(task.begin([]))
    assert len(built) == 2


def test_groups_that_run_out_of_memory_leave_nothing_in_the_decoder(monkeypatch):
    """Neither the first ones, at the start, nor later ones: what is repeated has its own result."""
    outputs, short = Prebuilt.outputs, [True, True]

    def run_out(prebuilt):
        if short and short.pop(0):
            prebuilt.drop()
            raise RuntimeError("CUDA out of memory")
        return outputs(prebuilt)

    monkeypatch.setattr(Prebuilt, "outputs", run_out)
    monkeypatch.setattr(borrowing, "_installed", {None})
    task = make_task(PLAN, None, 2, HeadOptions(groups=2, timeout=5.0))
    assert not task._head._open
    rows = rows_in(of_buffer(np.zeros(4 * 64 * 64 * 3, np.uint8)), 4)
    file = encoded_images.encoded(Image.new("RGB", (64, 64), (9, 9, 9)))
    samples = [EncodedSample(file, 0, 0, n, 0, 0, row, n) for n, row in enumerate(rows)]
    for failing in ([True], [True, False], [True, True]):
        first, second = task.begin(samples[:2]), task.begin(samples[2:])
        short.extend(failing)
        with pytest.raises(RuntimeError, match="out of memory"):
            task.finish(first)
        task.give_up(second)
        short.clear()
        assert not task._head._open
        assert task.run(samples[:2]) == [None, None]
        assert task.run(samples[2:]) == [None, None]


def test_a_plan_whose_images_have_no_size_is_no_task():
    """Its rows would have none, and be written all the same."""
    with pytest.raises(ValueError, match="no size"):
        make_task(Plan((), None, None, None), None, 2, HeadOptions("torchvision"))


def test_one_that_could_not_be_built_is_not_used_either(tmp_path, encoded):
    folder = tmp_path / "images"

    def define():
        pipeline = Backend(max_batch=1).pipeline()
        with pipeline:
            files, _ = fn.readers.file(file_root=str(folder))
            pipeline.set_outputs(fn.decoders.image(files))
        return pipeline

    prebuilt = Prebuilt(define)
    with pytest.raises(RuntimeError, match="images"):
        prebuilt.build()
    (folder / "class").mkdir(parents=True)
    (folder / "class" / "image.jpg").write_bytes(encoded)
    prebuilt.build()
    (images,) = run(prebuilt)
    assert np.asarray(images[0]).shape == (70, 90, 3)


SHORT_OF_MEMORY = """
import io
import resource
from PIL import Image
from fusionloader.transforms.executors.dali.memory import borrowing
from fusionloader.transforms.executors.dali.head import DaliHead
from fusionloader.transforms.executors.device_errors import is_shortage

def encoded(side):
    file = io.BytesIO()
    Image.new("L", (side, side), 9).save(file, "JPEG")
    return file.getvalue()

def decode(head, files, windows):
    head.begin(files, windows)
    return head.finish()

files = [encoded(64), encoded(8000)]  # of which the second one takes 192 MB
windows = [(0, 0, side, side) for side in (64, 8000)]
head = DaliHead(None, 2)
decode(head, files[:1], windows[:1])
pages = int(open("/proc/self/statm").read().split()[0])
limit = pages * resource.getpagesize() + (100 << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
print([decoded.reason for decoded in decode(head, files, windows)])
borrowing._installed.add(None)  # the CPU backend, as if its memory could be borrowed
try:
    decode(head, files, windows)
except RuntimeError as error:
    print(is_shortage(error))
with borrowing.nothing_to_borrow():
    print([decoded.reason for decoded in decode(head, files, windows)])
print([decoded.reason for decoded in decode(head, files[:1], windows[:1])])
"""


def test_a_head_without_memory_does_what_it_can_unless_more_can_be_borrowed():
    done = subprocess.run(
        [sys.executable, "-c", SHORT_OF_MEMORY], capture_output=True, text=True, timeout=PATIENCE
    )
    in_halves = "['', 'std::bad_alloc']"
    assert done.stdout.splitlines() == [in_halves, "True", in_halves, "['']"], done.stderr


@pytest.mark.parametrize("borrows", [True, False])
def test_a_warm_up_without_memory_is_left_to_launches_if_they_can_borrow(monkeypatch, borrows):
    def warm_up(task, encoded, groups):
        raise RuntimeError("CUDA out of memory")

    monkeypatch.setattr(GpuTask, "warm_up", warm_up)
    monkeypatch.setattr(borrowing, "_installed", {None} if borrows else set())
    with nullcontext() if borrows else pytest.raises(RuntimeError, match="out of memory"):
        make_task(PLAN, None, 2, HeadOptions())
