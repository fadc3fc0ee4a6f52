"""fusionloader.compile_plan: draws and results one can look at, those of a loader."""

import os
import pickle
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from support.images import photo
from support.waiting import gone, wait_until
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder

from fusionloader import FusionLoader, compile_plan
from fusionloader.transforms.executors.native import make_executor
from fusionloader.transforms.plan import stages
from fusionloader.transforms.plan.stages import Plan

IMAGE = photo(np.random.default_rng(1), 90, 70)
TRAIN = [v1.RandomResizedCrop(32), v1.RandAugment(), v1.ToTensor(), v1.RandomErasing(0.5)]


def test_what_is_drawn_and_applied_is_what_a_loader_gives(image_folder):
    dataset = ImageFolder(str(image_folder), v1.Compose(TRAIN))
    loader = FusionLoader(dataset, 1, shuffle=True, num_workers=1, seed=9)
    loader.set_epoch(4)
    compiled = compile_plan(dataset.transform)
    seen = []
    for images, _ in loader:
        seen.append(images[0])
    for index, (path, _) in enumerate(dataset.samples):
        image = dataset.loader(path)
        operations = compiled.draw(*image.size, seed=9, epoch=4, index=index)
        result = compiled.apply(image, operations)
        assert any(torch.equal(result, one) for one in seen)


def test_operations_can_be_written_by_hand():
    compiled = compile_plan(v1.Compose([v1.Resize((70, 90)), v1.ToTensor()]))
    dark = compiled.apply(IMAGE, [("brightness", 0.0)])
    assert dark.shape == (3, 70, 90) and dark.abs().max() == 0
    with pytest.raises(ValueError, match="unknown"):
        compiled.apply(IMAGE, [("brightnes", 0.0)])
    with pytest.raises(ValueError, match="the plan says"):
        compiled.apply(IMAGE, [("resize", 10, 10, "bilinear")])
    with pytest.raises(ValueError, match="more arguments"):
        compiled.apply(IMAGE, [("resize", 10)])


def test_a_tail_runs_on_the_native_result():
    compiled = compile_plan(v1.Compose([v1.CenterCrop(20), v1.Lambda(lambda image: image.size)]))
    assert compiled.apply(IMAGE, compiled.draw(90, 70)) == (20, 20)
    assert compiled.picture(IMAGE, compiled.draw(90, 70)).size == (20, 20)
    assert "python" in compiled.explain() and "python" in repr(compiled)


def test_results_of_any_size_and_arrays():
    compiled = compile_plan(v1.Compose([v1.Resize(30), v1.ToTensor()]))
    assert compiled.apply(np.asarray(IMAGE), compiled.draw(90, 70)).shape == (3, 30, 38)
    with pytest.raises(ValueError, match="uint8"):
        compiled.apply(np.zeros((5, 5, 3), np.float32), [])


def test_a_compiled_plan_is_pickled():
    compiled = pickle.loads(pickle.dumps(compile_plan(v1.Compose(TRAIN))))
    operations = compiled.draw(90, 70, index=3)
    assert compiled.apply(IMAGE, operations).shape == (3, 32, 32)


def test_threads_may_share_a_plan():
    compiled = compile_plan(v1.Compose([v1.Resize((50, 60)), v1.RandomAffine(20), v1.ToTensor()]))
    operations = compiled.draw(90, 70)
    expected = compiled.apply(IMAGE, operations)
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda _: compiled.apply(IMAGE, operations), range(200)))
    assert all(torch.equal(one, expected) for one in made)


def test_a_child_that_is_forked_while_a_thread_uses_the_plan_may_use_it():
    # The result is small: torch's own threads, which work on large ones, hang in forked children.
    steps = [v1.Resize(900), v1.RandomAffine(20), v1.CenterCrop(64), v1.PILToTensor()]
    compiled = compile_plan(v1.Compose(steps))
    ended = threading.Event()

    def make():
        return compiled.apply(IMAGE, compiled.draw(*IMAGE.size)).numpy()

    def keep_busy():
        while not ended.is_set():
            make()

    expected, thread = make(), threading.Thread(target=keep_busy)
    thread.start()
    try:
        for _ in range(12):
            if (pid := os.fork()) == 0:
                os._exit(0 if np.array_equal(make(), expected) else 1)
            try:
                wait_until(lambda pid=pid: gone(pid), "the child hangs", seconds=20)
            finally:
                os.kill(pid, signal.SIGKILL)
                status = os.waitpid(pid, 0)[1]
            assert status == 0
    finally:
        ended.set()
        thread.join()


def test_nothing_follows_the_erasing_of_a_result():
    compiled = compile_plan(v1.Compose([v1.Resize((70, 90)), *TRAIN[2:]]))
    erase = ("erase", 0, 0, 1, 1, b"", True, 1)
    with pytest.raises(ValueError, match="follow erasing"):
        compiled.apply(IMAGE, [erase, ("invert",)])


@pytest.mark.parametrize("alpha", [1e-3, 0.05])
@pytest.mark.parametrize("mixing", ["sum", "over", "successive"])
def test_a_tiny_alpha_mixes_all_the_same(alpha, mixing):
    step = stages.PolicyStep("invert")
    policy = stages.RandomPolicy(((step,),), 1, ("nearest",), (0, 0, 0))
    executor = make_executor(Plan((stages.AugMix(policy, 3, 1, alpha, mixing),), None, None, None))
    pixels = np.full((4, 4, 3), 200, np.uint8)
    for index in range(500):
        operations = executor.draw(0, 0, index, 0, 4, 4)
        made, _ = executor.pixels_with(pixels, operations)
        assert 54 <= made[0] <= 200  # between the image and what the chains make of it


def test_every_perspective_is_possible():
    executor = make_executor(
        Plan((stages.RandomPerspective(0.9, "bilinear", (0, 0, 0)),), None, None, None)
    )
    pixels = np.zeros((32, 32, 3), np.uint8)
    for index in range(5000):
        executor.pixels_of_pixels(pixels, 0, 0, index, 0)
