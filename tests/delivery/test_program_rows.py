"""Batches that a device augments: CPU workers decode, crop and resize (``decoder="workers"``).

The device is the fake driver's, whose kernel has the body of the real one.
"""

import ctypes
import json
import pickle
import random
import re
from dataclasses import replace
from itertools import count

import numpy as np
import pytest
import torch
from support.batches import same_batches
from support.campaigns import SEED
from support.fake_device import read_epoch
from support.images import NORMALIZE, photo
from support.raised_at import CALLS, Steps
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder

from fusionloader import FusionLoader, GpuWorker, compile_plan
from fusionloader.data.sources.tables import layout_of
from fusionloader.engine.delivery import cuda_device, program_rows
from fusionloader.engine.delivery.host_batches import without_rows
from fusionloader.engine.iterators import slot_iterator
from fusionloader.engine.manager.batch_memory import BatchMemory
from fusionloader.gpu import augmentation
from fusionloader.sharing.ranks.sharing_offer import SharingOffers
from fusionloader.transforms.executors.device.split import split_plan
from fusionloader.transforms.executors.native import make_executor
from fusionloader.transforms.plan.stages import SplitPlan

ARGUMENTS = {"batch_size": 7, "num_workers": 2, "seed": 1}
ON_DEVICE = {"device": "cuda:0", "gpu_worker": GpuWorker(decoder="workers")}
CONVERT = [v1.ToTensor(), v1.Normalize(*NORMALIZE)]
CROP = [v1.RandomResizedCrop(33), v1.RandomHorizontalFlip()]


@pytest.fixture(autouse=True)
def a_device_that_is_counted(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(augmentation, "why_missing", lambda: None)
    monkeypatch.setattr(slot_iterator, "to_device", lambda batch, device: batch)


def folder_of(image_folder, *steps):
    return ImageFolder(str(image_folder), v1.Compose(steps))


@pytest.fixture
def augmented_set(image_folder):
    return folder_of(image_folder, *CROP, v1.RandAugment(), *CONVERT, v1.RandomErasing(0.5))


# ---- batches -----------------------------------------------------------------------------------

PLANS = {
    "default and erasing": [*CROP, *CONVERT, v1.RandomErasing(p=0.8, value=(0.1, 0.2, 0.3))],
    "noise of a channel": [*CROP, *CONVERT, v1.RandomErasing(p=0.8, value=0.5)],
    "RandAugment": [*CROP, v1.RandAugment(), *CONVERT],
    "AutoAugment": [*CROP, v1.AutoAugment(interpolation=v1.InterpolationMode.BILINEAR), *CONVERT],
    "TrivialAugment": [v1.Resize(40), v1.CenterCrop(33), v1.TrivialAugmentWide(), *CONVERT],
    "jitter": [*CROP, v1.ColorJitter(0.4, 0.4, 0.4, 0.1), *CONVERT],
    "as in SimCLR": [
        *CROP,
        v1.RandomApply([v1.ColorJitter(0.8, 0.8, 0.8, 0.2)], p=0.8),
        v1.RandomGrayscale(p=0.2),
        v1.RandomApply([v1.GaussianBlur(9)], p=0.5),
        *CONVERT,
    ],
    "warps": [
        v1.Resize((30, 41)),
        v1.RandomRotation(30),
        v1.RandomAffine(20, (0.1, 0.1), (0.8, 1.2), 5),
        v1.RandomPerspective(p=0.7),
        v1.RandomVerticalFlip(),
        *CONVERT,
    ],
    "grey": [v1.Resize((24, 24)), v1.Grayscale(), v1.RandomInvert(), v1.ToTensor()],
    "half": [*CROP, v1.RandomSolarize(128), v1.ToTensor(), v1.ConvertImageDtype(torch.float16)],
    "8 bits": [*CROP, v1.RandomPosterize(3), v1.PILToTensor()],
    "rows that wait": [v1.Resize((9, 9)), v1.RandomEqualize(), v1.RandomAutocontrast(), *CONVERT],
}


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.few(3)
def test_the_batches_are_those_of_cpu_workers(image_folder, to_fake_device, name):
    dataset = folder_of(image_folder, *PLANS[name])
    plain = FusionLoader(dataset, **ARGUMENTS)
    expected = [batch for _ in range(2) for batch in plain]
    made = to_fake_device()
    loader = FusionLoader(dataset, **ARGUMENTS, **ON_DEVICE)
    assert same_batches([*read_epoch(loader, made), *read_epoch(loader, made)], expected)
    assert loader.stats().gpu_worker == {
        **{"mode": "delivery", "profiling": False, "decoder": "workers"},
        **{"samples": 40, "gone": None},
    }


def test_pixels_cross_with_their_programs(augmented_set, to_fake_device):
    made = to_fake_device()
    loader = FusionLoader(augmented_set, **ARGUMENTS, **ON_DEVICE)
    read_epoch(loader, made)
    row_bytes = loader.stats().copied_bytes / 40 - 8  # without its label
    assert 3 * 33 * 33 < row_bytes < 3 * 33 * 33 + 1200
    assert f"{row_bytes:.0f} bytes of a sample cross to it" in loader.explain()


def test_launches_share_working_memory(augmented_set, to_fake_device, monkeypatch):
    expected = list(FusionLoader(augmented_set, 40, num_workers=2, seed=1))
    monkeypatch.setattr(program_rows, "_WORK_BYTES", 1)  # 32 rows at once
    made = to_fake_device()
    loader = FusionLoader(augmented_set, 40, num_workers=2, seed=1, **ON_DEVICE)
    assert same_batches(read_epoch(loader, made), expected)


@pytest.mark.parametrize("copies_first", [True, False])
def test_the_batches_of_a_late_device_are_those_of_cpu_workers(
    augmented_set, to_fake_device, fake_cuda, copies_first
):
    plain = FusionLoader(augmented_set, 4, num_workers=2, seed=1)
    expected = [batch for _ in range(2) for batch in plain]
    made = to_fake_device()
    fake_cuda.be_late(last_made_first=copies_first)
    loader = FusionLoader(
        augmented_set, 4, num_workers=2, seed=1, persistent_workers=True, **ON_DEVICE
    )
    seen = []
    for _ in range(2):
        for number, batch in enumerate(loader):
            device = made[-1].device
            seen.append([device.read(leaf) for leaf in batch])
            if number % 3 == 1 and copies_first:
                fake_cuda.wait(device.copy_stream)
            if number % 3 == 2:
                fake_cuda.wait(device.stream)
    fake_cuda.run()
    assert same_batches(seen, expected)


def test_batches_out_of_order_are_the_same(augmented_set, to_fake_device):
    expected = list(FusionLoader(augmented_set, **ARGUMENTS))
    made = to_fake_device()
    loader = FusionLoader(augmented_set, in_order=False, **ARGUMENTS, **ON_DEVICE)
    seen = read_epoch(loader, made)
    for batches in (seen, expected):
        batches.sort(key=lambda batch: float(batch[0].double().sum()))
    assert same_batches(seen, expected)


def test_an_epoch_that_is_resumed_goes_on_with_the_same_batches(augmented_set, to_fake_device):
    torch.manual_seed(3)
    expected = list(FusionLoader(augmented_set, shuffle=True, **ARGUMENTS))
    made = to_fake_device()
    torch.manual_seed(3)
    first = FusionLoader(augmented_set, shuffle=True, **ARGUMENTS, **ON_DEVICE)
    iterator = iter(first)
    next(iterator), next(iterator)
    state = json.loads(json.dumps(first.state_dict()))
    del iterator
    second = FusionLoader(augmented_set, shuffle=True, **ARGUMENTS, **ON_DEVICE)
    second.load_state_dict(state)
    assert same_batches(read_epoch(second, made), expected[2:])


@pytest.mark.usefixtures("any_may_die")
def test_workers_that_are_killed_lose_no_sample(augmented_set, to_fake_device, fake_cuda):
    arguments = {"batch_sampler": [[n % 40, n % 7] for n in range(60)], "num_workers": 2, "seed": 1}
    expected = list(FusionLoader(augmented_set, **arguments))
    made = to_fake_device()
    loader = FusionLoader(augmented_set, **arguments, **ON_DEVICE)
    seen, iterator = [], iter(loader)
    for number, batch in enumerate(iterator):
        seen.append([made[-1].device.read(leaf) for leaf in batch])
        if number in (5, 30):
            for worker in iterator._workers:
                worker.kill()
    fake_cuda.run()
    assert same_batches(seen, expected)
    assert loader.stats().worker_restarts >= 2


@pytest.mark.parametrize("late", [False, True])
def test_an_exception_at_any_step_of_next_loses_no_batch(
    augmented_set, to_fake_device, fake_cuda, late
):
    sampler = [[n % 40, n % 7] for n in range(24)]
    arguments = {"batch_sampler": sampler, "num_workers": 2, "seed": 1}
    expected = list(FusionLoader(augmented_set, **arguments))
    made, generator, places, whole = to_fake_device(), random.Random(SEED), set(), 0
    fake_cuda.be_late(late)
    loader = FusionLoader(augmented_set, **arguments, **ON_DEVICE)
    for epoch in count():
        if epoch >= 4 and whole and len(places) >= 20:
            break
        loader.set_epoch(0)
        iterator, seen = iter(loader), []
        for call in count():
            steps = Steps(events=(*CALLS, "c_return"))
            at = generator.randrange((30, 100, 300, 600)[epoch % 4]) if call % 2 else -1
            error = generator.choice([KeyboardInterrupt, MemoryError, OSError])("planted")
            try:
                batch = steps.raise_at(at, error, lambda it=iterator: next(it))
            except StopIteration:
                whole += 1
                assert len(seen) == len(expected)
                break
            except RuntimeError as ended:  # the sampler was left
                assert "draws no more batches" in str(ended), steps.place
                break
            except (KeyboardInterrupt, MemoryError, OSError) as raised:
                assert "planted" in str(raised), steps.place
                places.add(steps.place)
            else:
                seen.append([made[-1].device.read(leaf) for leaf in batch])
        fake_cuda.run()
        assert same_batches(seen, expected[: len(seen)])


@pytest.mark.parametrize("has_kernel", [True, False])
def test_an_exception_while_a_plan_is_sent_leaves_other_ranks_no_other_plan(
    augmented_set, to_fake_device, monkeypatch, has_kernel
):
    to_fake_device()
    backend = iter(FusionLoader(augmented_set, **ARGUMENTS, **ON_DEVICE))._backend
    monkeypatch.setattr(backend, "_offers", SharingOffers(None))
    plan = backend._choice.split if has_kernel else backend._compiled.plan
    steps = Steps("route/native_backend.py", events=(*CALLS, "c_return"))
    for position in count():
        backend.send_converted(lambda kernel: not has_kernel)
        try:
            steps.raise_at(
                position,
                KeyboardInterrupt(),
                lambda: backend.send_converted(lambda kernel: has_kernel),
            )
            break
        except KeyboardInterrupt:
            backend.send_converted(lambda kernel: has_kernel)
            assert backend.layout == layout_of(plan), steps.place
            assert pickle.loads(backend._offer.pickled_plan) == plan, steps.place


def leave_alone(worker):
    pass


@pytest.mark.parametrize("steps", [PLANS["RandAugment"], [*CROP, *CONVERT]])
def test_a_worker_init_fn_that_leaves_the_dataset_alone_leaves_the_plan_alone(
    image_folder, to_fake_device, steps
):
    dataset = folder_of(image_folder, *steps)
    expected = list(FusionLoader(dataset, **ARGUMENTS))
    made = to_fake_device()
    loader = FusionLoader(dataset, **ARGUMENTS, **ON_DEVICE, worker_init_fn=leave_alone)
    assert same_batches(read_epoch(loader, made), expected)
    assert "worker_init_fn changes the dataset" not in loader.explain()


def test_skipped_samples_leave_no_row(
    augmented_set, tmp_path, to_fake_device, fake_cuda, monkeypatch
):
    whole = list(FusionLoader(augmented_set, 4, num_workers=1, seed=0))
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(b"no image")
    dataset = ImageFolder(augmented_set.root, augmented_set.transform)
    dataset.samples[5] = (str(broken), 0)
    to_fake_device()
    acquire = BatchMemory._acquire_rows

    def with_rows_of_before(*arguments):  # which are no programs
        slot = acquire(*arguments)
        ctypes.memmove(slot.address, b"\1\0\0\0" * (slot.nbytes // 4), slot.nbytes // 4 * 4)
        return slot

    monkeypatch.setattr(BatchMemory, "_acquire_rows", with_rows_of_before)

    def when_done(*arguments):  # a device would do it in the order of the stream
        fake_cuda.run()
        return without_rows(*arguments)

    monkeypatch.setattr(slot_iterator, "without_rows", when_done)
    loader = FusionLoader(dataset, 4, num_workers=1, on_error="skip", seed=0, **ON_DEVICE)
    batches = list(loader)
    fake_cuda.run()
    assert [len(images) for images, _ in batches] == [4, 3, *[4] * 8]
    assert torch.equal(batches[1][0], whole[1][0][[0, 2, 3]])


def test_files_that_pillow_decodes_are_augmented_too(tmp_path, to_fake_device):
    generator = np.random.default_rng(3)
    (tmp_path / "a").mkdir()
    for number in range(12):
        suffix = ("gif", "bmp", "jpg")[number % 3]
        photo(generator, 50, 60).save(tmp_path / "a" / f"{number}.{suffix}")
    dataset = folder_of(tmp_path, *PLANS["RandAugment"])
    expected = list(FusionLoader(dataset, **ARGUMENTS))
    made = to_fake_device()
    loader = FusionLoader(dataset, **ARGUMENTS, **ON_DEVICE)
    assert same_batches(read_epoch(loader, made), expected)


@pytest.mark.parametrize("refused", ["cuModuleLoadData", "cuLaunchKernel"])
def test_cpu_workers_augment_where_cuda_refuses(augmented_set, to_fake_device, fake_cuda, refused):
    expected = list(FusionLoader(augmented_set, **ARGUMENTS))
    to_fake_device()
    cuda_device._conversions.clear()
    fake_cuda.refuse(refused)
    loader, seen = FusionLoader(augmented_set, **ARGUMENTS, **ON_DEVICE), []
    with pytest.warns(RuntimeWarning, match=f"device= needs: {refused} failed"):
        for batch in loader:
            fake_cuda.run()
            seen.append([leaf.clone() for leaf in batch])
    cuda_device._conversions.clear()
    assert same_batches(seen, expected)


# ---- the split ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("steps", "device_stages"),
    [
        (PLANS["default and erasing"], 2),
        (PLANS["RandAugment"], 2),
        ([v1.RandomHorizontalFlip(), *CROP, v1.RandomInvert(), *CONVERT], 2),
        ([*CROP, v1.AugMix(), v1.RandomInvert(), *CONVERT], 1),
        ([*CROP, v1.RandomApply([v1.AugMix()]), v1.RandomInvert(), *CONVERT], 1),
        ([*CROP, v1.RandomInvert(), v1.RandomCrop(20), v1.RandomEqualize(), *CONVERT], 1),
        ([*CROP, v1.Pad(2), v1.RandomInvert(), *CONVERT], 1),
    ],
)
def test_a_device_has_the_last_stages_that_keep_the_size(steps, device_stages):
    split = split_plan(compile_plan(v1.Compose(steps)).plan)
    assert isinstance(split, SplitPlan)
    assert split.device_stages == device_stages


@pytest.mark.parametrize(
    ("steps", "why"),
    [
        ([*CROP, *CONVERT], "nothing but flips.*RandomResizedCrop may change the size"),
        ([*CROP, v1.RandAugment(), v1.AugMix(), *CONVERT], "AugMix mixes several images"),
        ([*CROP, *CONVERT, v1.RandomErasing(value="random")], "RandomErasing with noise"),
        ([*CROP, v1.RandAugment()], "not tensors of one shape"),
        ([v1.RandAugment(), *CROP, *CONVERT], "RandomResizedCrop may change the size"),
    ],
)
def test_why_a_plan_is_not_split(steps, why):
    found = split_plan(compile_plan(v1.Compose(steps)).plan)
    assert isinstance(found, str)
    assert re.search(why, found)


EXTREMES = [
    v1.ColorJitter(1, 1, 1, 0.5),
    v1.GaussianBlur((31, 5), (0.1, 8)),
    v1.RandomRotation(180, v1.InterpolationMode.BILINEAR),
    v1.RandomPerspective(0.9, 1),
    v1.RandomErasing(1, (0.02, 0.9), value=(1, 2, 3)),
    v1.AutoAugment(),
    v1.RandAugment(9, 30),
    v1.TrivialAugmentWide(),
    v1.RandomOrder([v1.RandomInvert(), v1.ColorJitter(0.5), v1.GaussianBlur(3)]),
    v1.RandomChoice([v1.RandAugment(4), v1.RandomEqualize(1)]),
]


@pytest.mark.parametrize("element", [torch.float32, torch.float64])
@pytest.mark.parametrize("side", [(32, 32), (40, 37)])
def test_programs_have_room(element, side):
    """Whatever is drawn: a program that took more would be an error."""
    image = np.asarray(photo(np.random.default_rng(1), 70, 60))
    erasing = [each for each in EXTREMES if isinstance(each, v1.RandomErasing)]
    others = [each for each in EXTREMES if each not in erasing]
    for one in [[each] for each in others] + [others]:
        steps = [v1.Resize(side), *one, v1.ToTensor(), v1.ConvertImageDtype(element), *erasing]
        split = split_plan(compile_plan(v1.Compose(steps)).plan)
        assert isinstance(split, SplitPlan)
        executor, row = make_executor(split), bytearray(split.row_bytes)
        assert executor.result_bytes == split.row_bytes
        for index in range(100):
            executor.run_pixels(image, 5, 0, index, 0, row)


def test_a_program_without_room_is_an_error():
    split = split_plan(compile_plan(v1.Compose(PLANS["RandAugment"])).plan)
    image = np.asarray(photo(np.random.default_rng(1), 70, 60))
    for lacking in ({"program_bytes": 224}, {"work_bytes": 16}):
        executor = make_executor(small := replace(split, **lacking))
        with pytest.raises(RuntimeError, match="a program takes"):
            for index in range(20):
                executor.run_pixels(image, 5, 0, index, 0, bytearray(small.row_bytes))


# ---- what is said ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [
        {"device": "cpu"},
        {"where": "thread"},
        {"memory": "own"},
        {"memory_limit": "2GiB"},
        {"group_size": 4},
        {"threads": 2},
        {"decoder_timeout": 5.0},
    ],
)
def test_settings_of_a_gpu_worker_have_no_meaning(settings):
    name = next(iter(settings))
    with pytest.raises(ValueError, match=f'decoder="workers" starts no GPU worker, so {name}='):
        GpuWorker(decoder="workers", **settings)


def test_sharing_has_no_meaning():
    with pytest.raises(ValueError, match="augments on delivery, so sharing='spatial'"):
        GpuWorker(decoder="workers", sharing="spatial")


def test_it_needs_a_device(augmented_set):
    with pytest.raises(ValueError, match="pass device='cuda' to the loader$"):
        iter(FusionLoader(augmented_set, **ARGUMENTS, gpu_worker=GpuWorker(decoder="workers")))


def test_explain_says_what_the_device_does(image_folder, augmented_set):
    told = FusionLoader(augmented_set, **ARGUMENTS, **ON_DEVICE).explain()
    assert "cuda:0 runs RandomHorizontalFlip, RandomPolicy, RandomErasing and the conv" in told
    assert "batches cross" not in told
    nested = FusionLoader(folder_of(image_folder, *PLANS["as in SimCLR"]), **ARGUMENTS, **ON_DEVICE)
    told = nested.explain()
    assert "runs RandomHorizontalFlip, ColorJitter, grayscale, GaussianBlur and the conv" in told
    plain = FusionLoader(folder_of(image_folder, *CROP, *CONVERT), **ARGUMENTS, **ON_DEVICE)
    told = plain.explain()
    assert "no augmentation on the device (decoder='workers'): nothing but flips" in told
    assert "batches cross to the device as 8-bit levels" in told


def test_sharing_off_leaves_all_to_cpu_workers(augmented_set, to_fake_device):
    expected = list(FusionLoader(augmented_set, **ARGUMENTS))
    made = to_fake_device()
    worker = GpuWorker(decoder="workers", sharing="off")
    loader = FusionLoader(augmented_set, **ARGUMENTS, device="cuda:0", gpu_worker=worker)
    assert same_batches(read_epoch(loader, made), expected)
    assert loader.stats().gpu_worker == {}


@pytest.mark.parametrize("steps", [[*CROP, *CONVERT], [*CROP, *CONVERT, torch.square]])
def test_loaders_whose_plan_is_not_split_go_on_as_without(image_folder, to_fake_device, steps):
    dataset = folder_of(image_folder, *steps)
    expected = list(FusionLoader(dataset, **ARGUMENTS))
    made = to_fake_device()
    loader = FusionLoader(dataset, **ARGUMENTS, **ON_DEVICE)
    assert same_batches(read_epoch(loader, made), expected)
    assert loader.stats().gpu_worker == {}
