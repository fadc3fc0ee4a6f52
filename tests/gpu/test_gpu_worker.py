"""The GPU worker on DALI's CPU backend: the same process, queue, tasks and slots as on a device."""

import contextlib
import importlib.util
import os
import signal
import threading
import time

import numpy as np
import pytest
import torch
from support.images import NORMALIZE, photo, train_transform
from support.participants import participant
from support.waiting import PATIENCE, wait_until
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder
from torchvision.transforms import InterpolationMode

from fusionloader import FusionLoader, GpuWorker
from fusionloader.gpu import control, eligibility
from fusionloader.gpu.control import GpuControl
from fusionloader.gpu.eligibility import GpuChoice, memory_options, within
from fusionloader.observe.trace.files import read_timeline
from fusionloader.transforms.executors import nvjpeg
from fusionloader.transforms.executors.device import nvrtc

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("nvidia") is None or importlib.util.find_spec("nvidia.dali") is None,
    reason="DALI is not installed: pip install nvidia-dali-cuda120",
)
LEVEL = 1 / 255
POLICIES = [v1.RandAugment(), v1.AutoAugment(), v1.TrivialAugmentWide()]
BATCHES = [list(range(start, start + 20)) for start in range(0, 40, 20)] * 6


def with_gpu_worker(dataset, gpu_worker=None, **arguments):
    arguments = {"batch_sampler": BATCHES, "num_workers": 1, "seed": 5, **arguments}
    gpu_worker = gpu_worker or GpuWorker(device="cpu", sharing="spatial")
    return FusionLoader(dataset, gpu_worker=gpu_worker, persistent_workers=True, **arguments)


def epochs(loader, epoch=7):
    """The batches of the same epoch again and again, as long as patience lasts."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        loader.set_epoch(epoch)
        yield list(loader)
    raise AssertionError(f"it has not come to that: {loader.stats().gpu_worker}")


def epoch_with_gpu(loader):
    """The batches of an epoch in which CPU workers wait until the GPU worker has had its part."""
    next(batches for batches in epochs(loader) if loader._iterator._manager.queue.gpu_is_ready)
    manager = loader._iterator._manager

    def made_by_gpu():
        return manager.queue.worker(participant(manager, GpuControl).first).samples

    before = made_by_gpu()
    cpu_workers = [process.pid for process in loader._iterator._workers[: loader.num_workers]]
    signal_all(cpu_workers, signal.SIGSTOP)

    def go_on():
        with contextlib.suppress(AssertionError):
            wait_until(lambda: made_by_gpu() - before > 8)
        signal_all(cpu_workers, signal.SIGCONT)

    going_on = threading.Thread(target=go_on)
    going_on.start()
    loader.set_epoch(7)
    batches = list(loader)
    going_on.join()
    assert made_by_gpu() - before > 8, "the GPU worker took no part"
    return batches


def signal_all(pids, number):
    for pid in pids:
        os.kill(pid, number)


def epoch_without(dataset, epoch=7, **arguments):
    arguments = {"batch_sampler": BATCHES, "seed": 5, **arguments}
    loader = FusionLoader(dataset, gpu_worker=None, num_workers=1, **arguments)
    loader.set_epoch(epoch)
    return list(loader)


def distances(first, second):
    """For every image of two epochs the mean absolute difference; targets are the same."""
    for (_, ours), (_, theirs) in zip(first, second, strict=True):
        assert torch.equal(ours, theirs)
    return torch.cat(
        [(a - b).abs().flatten(1).mean(1) for (a, _), (b, _) in zip(first, second, strict=True)]
    )


TRANSFORMS = {
    "windows": [v1.RandomCrop(40, pad_if_needed=True), v1.RandomHorizontalFlip()],
    "up and down": [v1.RandomResizedCrop(96), v1.RandomHorizontalFlip(), v1.ColorJitter(0.4)],
    "evaluation": [v1.Resize(40, InterpolationMode.LANCZOS), v1.CenterCrop(48)],
    "policies": [v1.RandomResizedCrop(48, interpolation=InterpolationMode.BICUBIC), *POLICIES],
    "a policy first": [*POLICIES, v1.Resize((48, 48), InterpolationMode.BOX)],
}
FIRST = {"windows", "policies", "a policy first"}  # the others by `make matrix`


@pytest.fixture(scope="module")
def all_kinds_of_jpeg(tmp_path_factory):
    """Sequential and progressive ones of all usual samplings, of odd sizes, and grey ones."""
    folder = tmp_path_factory.mktemp("kinds") / "class"
    folder.mkdir()
    generator = np.random.default_rng(1)
    for number in range(40):
        image = photo(generator, *map(int, generator.integers(45, 220, 2)))
        if number % 5 == 4:
            image = image.convert("L")
        options = {} if image.mode == "L" else {"subsampling": number % 5 % 3}
        image.save(folder / f"{number:02}.jpg", progressive=number % 2 == 0, **options)
    return folder.parent


@pytest.mark.parametrize(
    "steps", [pytest.param(s, marks=[] if s in FIRST else pytest.mark.matrix) for s in TRANSFORMS]
)
@pytest.mark.few(1)
def test_its_pixels_are_those_of_cpu_workers_bit_for_bit(all_kinds_of_jpeg, steps):
    last = [v1.ToTensor(), v1.Normalize(*NORMALIZE), v1.RandomErasing(0.5)]
    dataset = ImageFolder(str(all_kinds_of_jpeg), v1.Compose([*TRANSFORMS[steps], *last]))
    with with_gpu_worker(dataset) as loader:
        assert "its pixels are those of the CPU workers" in loader.explain()
        apart = distances(epoch_with_gpu(loader), epoch_without(dataset))
    assert apart.max() == 0


@pytest.mark.parametrize("sharing", ["spatial", pytest.param("temporal", marks=pytest.mark.matrix)])
def test_a_timeline_shows_its_samples_and_the_threshold(image_folder, sharing, tmp_path):
    dataset = ImageFolder(str(image_folder), train_transform())
    with with_gpu_worker(dataset, GpuWorker(device="cpu", sharing=sharing)) as loader:
        with loader.trace(tmp_path / "a.json"):
            batches = epoch_with_gpu(loader)
        assert distances(batches, epoch_without(dataset)).max() == 0
    timeline = read_timeline(tmp_path / "a.json")
    (gpu,) = (worker.number for worker in timeline.meta.workers if worker.kind == "gpu")
    assert sum(span.samples for span in timeline.spans if span.worker == gpu) > 8
    assert "threshold" in {counter.name for counter in timeline.counters}


@pytest.mark.parametrize(
    "group_size", [4, *(pytest.param(n, marks=pytest.mark.matrix) for n in (1, 13, 200))]
)
def test_groups_of_any_size_fill_the_right_rows(image_folder, group_size):
    dataset = ImageFolder(str(image_folder), v1.Compose([v1.CenterCrop(32), v1.PILToTensor()]))
    gpu_worker = GpuWorker(device="cpu", sharing="spatial", group_size=group_size)
    with with_gpu_worker(dataset, gpu_worker, tiny_batch_size=3) as loader:
        ours = epoch_with_gpu(loader)
        assert loader.stats().gpu_worker["group"] == max(group_size // 3, 1) * 3
    for (images, _), (expected, _) in zip(ours, epoch_without(dataset), strict=True):
        assert torch.equal(images, expected)


def test_files_that_dali_is_not_trusted_with_go_back_to_cpu_workers(tmp_path):
    generator = np.random.default_rng(1)
    (tmp_path / "class").mkdir()
    for number in range(20):
        photo(generator, 90, 80).save(tmp_path / "class" / f"{number:02}.jpg")
    photo(generator, 90, 80).save(tmp_path / "class" / "20.png")
    photo(generator, 90, 80).convert("CMYK").save(tmp_path / "class" / "21.jpg")
    dataset = ImageFolder(str(tmp_path), v1.Compose([v1.CenterCrop(64), v1.ToTensor()]))
    assert len(dataset) == 22
    arguments = {"batch_sampler": [list(range(22))] * 6}
    with with_gpu_worker(dataset, **arguments) as loader:
        ours = epoch_with_gpu(loader)
    assert distances(ours, epoch_without(dataset, **arguments)).max() == 0


def test_a_damaged_file_is_reported_by_name_and_skipped_when_asked(tmp_path):
    generator = np.random.default_rng(1)
    (tmp_path / "class").mkdir()
    for number in range(40):
        photo(generator, 90, 80).save(tmp_path / "class" / f"{number:02}.jpg", quality=95)
    dataset = ImageFolder(str(tmp_path), v1.Compose([v1.CenterCrop(64), v1.ToTensor()]))
    with with_gpu_worker(dataset, on_error="skip") as loader:
        epoch_with_gpu(loader)
        damaged = tmp_path / "class" / "39.jpg"
        damaged.write_bytes(damaged.read_bytes()[:1500])
        images = [len(images) for images, _ in loader]
        assert images == [20, 19] * 6
        assert "39.jpg" in loader.stats().errors[0]
    with with_gpu_worker(dataset) as loader, pytest.raises(OSError, match=r"39\.jpg"):
        list(loader)


def stop_within_a_launch(loader):
    """Stops the GPU worker's process while it has tiny-batches."""
    queue, pid = loader._iterator._manager.queue, loader._iterator._workers[-1].pid

    def stopped_inside():
        os.kill(pid, signal.SIGSTOP)
        time.sleep(0.001)
        if queue.gpu_is_inside:
            return True
        os.kill(pid, signal.SIGCONT)
        return False

    wait_until(stopped_inside)


@pytest.mark.parametrize("sharing", ["spatial", pytest.param("temporal", marks=pytest.mark.matrix)])
def test_a_hung_gpu_worker_is_killed_and_its_work_done(image_folder, sharing, monkeypatch):
    dataset = ImageFolder(str(image_folder), v1.Compose([v1.CenterCrop(32), v1.ToTensor()]))
    expected = epoch_without(dataset)
    with with_gpu_worker(dataset, GpuWorker(device="cpu", sharing=sharing)) as loader:
        epoch_with_gpu(loader)

        def hang():
            stop_within_a_launch(loader)
            monkeypatch.setattr(control, "HUNG_SECONDS", 0.5)

        hanging = threading.Thread(target=hang)
        hanging.start()
        with pytest.warns(RuntimeWarning, match="GPU worker.*started again"):
            # Not in every epoch is it stopped within a launch.
            for batches in epochs(loader):
                assert distances(batches, expected).max() == 0
                if loader.stats().gpu_worker["restarts"]:
                    break
        hanging.join()


def test_a_profiling_phase_ends_with_a_decision(image_folder):
    dataset = ImageFolder(str(image_folder), train_transform())
    with with_gpu_worker(dataset, GpuWorker(device="cpu")) as loader:
        for _ in epochs(loader):
            stats = loader.stats().gpu_worker
            # Off alone was measured if this process had no core while workers went ahead.
            if not stats["profiling"] and len(stats["rates"]) > 1:
                break
        assert set(stats["rates"]) == {"off", "temporal", "spatial"}
        assert stats["mode"] in stats["rates"]


def test_explain_says_what_keeps_a_plan_from_the_gpu_worker(image_folder):
    def explained(*steps, **arguments):
        dataset = ImageFolder(str(image_folder), v1.Compose([*steps, v1.ToTensor()]))
        return with_gpu_worker(dataset, **arguments).explain().splitlines()[-1]

    assert "takes the largest samples" in explained(v1.RandomResizedCrop(32), v1.RandAugment())
    assert 'decode="fast" resizes by another filter' in explained(
        v1.RandomResizedCrop(32), decode="fast"
    )
    assert "takes the largest samples" in explained(v1.RandomCrop(32), decode="fast")
    assert "Python" in explained(v1.CenterCrop(32), v1.Lambda(lambda image: image))


def test_a_loader_on_the_host_has_no_gpu_worker_by_itself(image_folder):
    dataset = ImageFolder(str(image_folder), train_transform())
    loader = FusionLoader(dataset, 20, num_workers=1)
    assert "GPU worker" not in loader.explain()
    list(loader)
    assert loader.stats().gpu_worker == {}


def test_a_loader_on_a_device_has_none_by_itself_either(image_folder):
    dataset = ImageFolder(str(image_folder), train_transform())
    text = FusionLoader(dataset, 20, num_workers=1, device="cuda").explain()
    assert "no GPU worker: off by default" in text
    assert 'gpu_worker="auto" would try one, and its pixels differ' in text


def test_explain_says_what_an_automatic_worker_would_need(image_folder, monkeypatch):
    dataset = ImageFolder(str(image_folder), train_transform())

    def explained(*arguments, dataset=dataset, **options):
        loader = FusionLoader(dataset, *arguments, device="cuda", num_workers=1, **options)
        return loader.explain().splitlines()[-1]

    assert 'gpu_worker="auto" would have none either: the size' in explained(batch_sampler=BATCHES)
    made = ImageFolder(str(image_folder), v1.Compose([v1.Lambda(lambda image: image)]))
    assert "none either: a part of the transforms runs in Python" in explained(20, dataset=made)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert "none either: DALI is not installed: pip install nvidia-dali" in explained(20)


def test_a_worker_that_starts_in_every_epoch_is_said_to_want_persistent_workers(
    image_folder, caplog
):
    eligibility._say_once.cache_clear()
    dataset = ImageFolder(str(image_folder), v1.Compose([v1.CenterCrop(32), v1.ToTensor()]))
    gpu_worker = GpuWorker(device="cpu", sharing="spatial")
    loader = FusionLoader(dataset, 20, num_workers=1, gpu_worker=gpu_worker)
    assert "persistent_workers=True" in loader.explain()
    for _ in range(2):
        list(loader)
    said = [record for record in caplog.records if "persistent_workers=True" in record.message]
    assert len(said) == 1
    with with_gpu_worker(dataset) as loader:
        assert "persistent_workers" not in loader.explain()


def test_an_explicit_worker_says_what_is_missing(image_folder, monkeypatch):
    dataset = ImageFolder(str(image_folder), train_transform())
    with pytest.raises(ValueError, match="device='cuda'"):
        iter(FusionLoader(dataset, num_workers=1, gpu_worker=GpuWorker()))
    with pytest.raises(ValueError, match="num_workers"):
        FusionLoader(dataset, gpu_worker=GpuWorker(device="cpu"))
    with pytest.raises(ValueError, match="gpu_worker"):
        FusionLoader(dataset, gpu_worker="always")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match="pip install nvidia-dali-cuda1[23]0"):
        iter(FusionLoader(dataset, num_workers=1, gpu_worker=GpuWorker(device="cpu")))


@pytest.mark.parametrize(
    ("device", "loaders", "told"),
    [
        ("cuda", None, "pass device='cuda' to the loader"),
        ("cuda:1", "cpu", "pass device='cuda' to the loader"),
        ("cuda", "cuda:1", "not on the loader's device, cuda:1: leave"),
        ("cuda:1", "cuda", "not on the loader's device, cuda:0: leave"),
        ("cuda:0", "cuda", None),
        ("cuda", 0, None),
        ("cpu", "cuda:1", None),
    ],
)
def test_a_worker_for_another_device_than_the_loader_s_is_refused(
    image_folder, monkeypatch, device, loaders, told
):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    dataset = ImageFolder(str(image_folder), train_transform())
    worker = GpuWorker(device=device)
    loader = FusionLoader(dataset, 4, num_workers=1, device=loaders, gpu_worker=worker)
    if told is None:
        assert "GPU worker" in loader.explain()
    else:
        with pytest.raises(ValueError, match=told):
            loader.explain()


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("sharing", "both"),
        ("group_size", 0),
        ("threads", 0),
        ("hw_decoder_load", 0.65),
        ("memory_limit", "2 potatoes"),
        ("memory_limit", 0),
        ("memory", "borrow"),
        ("share_limit", "a lot"),
        ("share_limit", 0),
    ],
)
def test_options_out_of_range_are_refused(option, value):
    with pytest.raises(ValueError, match=option):
        GpuWorker(**{option: value})


def test_memory_is_shared_in_temporal_sharing_on_a_cuda_device_alone():
    with pytest.raises(ValueError, match='sharing="temporal"'):
        GpuWorker(sharing="spatial", memory="share")
    with pytest.raises(ValueError, match="CPU backend"):
        GpuWorker(device="cpu", memory="share")

    def options(device_id=0, **values):
        return memory_options(GpuChoice(GpuWorker(**values), device_id))

    assert options(memory="own") is None
    assert options(sharing="spatial") is None
    assert options(device_id=None, device="cpu") is None
    assert not options().always
    shared = options(memory="share", share_limit="2GiB")
    assert (shared.always, shared.limit, shared.device) == (True, 2 << 30, 0)
    assert (
        "it may borrow 2GiB"
        in GpuChoice(GpuWorker(memory="share", share_limit="2GiB"), 0).explain()
    )


def test_a_memory_limit_makes_launches_smaller_or_is_refused():
    assert within(2 << 30, 0, 64, on_gpu=False) == (64, 0)
    assert within(1 << 30, 100 << 20, 64, on_gpu=True) == (32, 5)
    assert within(1 << 30, 200 << 20, 64, on_gpu=True) == (32, 2)
    assert within(1 << 30, 200 << 20, 64, on_gpu=True, groups=2) == (16, 2)
    with pytest.raises(ValueError, match="memory_limit"):
        within(16 << 20, 0, 64, on_gpu=False)
    with pytest.raises(ValueError, match="memory_limit"):
        within(1 << 30, 600 << 20, 64, on_gpu=True)


def test_without_dali_an_automatic_worker_says_how_to_get_it(image_folder, monkeypatch, caplog):
    dataset = ImageFolder(str(image_folder), train_transform())
    loader = FusionLoader(dataset, 4, num_workers=1, device="cuda", gpu_worker="auto")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert "DALI is not installed: pip install nvidia-dali" in loader.explain()
    loader.explain()
    assert len([r for r in caplog.records if "pip install" in r.message]) == 1


def on_a_device(dataset, monkeypatch, gpu_worker="auto"):
    """A loader as it would be explained where a CUDA device is."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    return FusionLoader(dataset, 4, num_workers=1, device="cuda", gpu_worker=gpu_worker)


@pytest.mark.parametrize(
    ("version", "decoder", "text"),
    [
        ((13, 3), "dali", "DALI with nvJPEG 13.3 (hw_decoder_load=1), sharing"),
        ((12, 4), "nvjpeg", "nvImageCodec with nvJPEG 12.4 (hw_decoder_load=1), sharing"),
        (None, "dali", "DALI on the CPU, because nvJPEG is missing (pip install nvidia-nvimgcodec"),
        (None, "torchvision", "torchvision, sharing"),
    ],
)
def test_explain_names_the_nvjpeg_that_decodes(image_folder, monkeypatch, version, decoder, text):
    monkeypatch.setattr(nvjpeg, "version", lambda: version)
    dataset = ImageFolder(str(image_folder), train_transform())
    loader = on_a_device(dataset, monkeypatch, GpuWorker(decoder=decoder))
    assert f"decoded by {text}" in loader.explain()


def test_without_nvrtc_there_is_no_gpu_worker(image_folder, monkeypatch, caplog):
    loader = on_a_device(ImageFolder(str(image_folder), train_transform()), monkeypatch)
    assert "by the rounding of nvJPEG (docs/how/fidelity.md)" in loader.explain()
    monkeypatch.setattr(nvrtc, "find_library", lambda: None)
    for _ in range(2):
        text = loader.explain()
        assert "no GPU worker: CUDA's run-time compiler (libnvrtc) is missing: pip install" in text
    assert len([r for r in caplog.records if "pip install" in r.message]) == 1


def test_the_cpu_backend_needs_no_nvrtc(image_folder, monkeypatch):
    monkeypatch.setattr(nvrtc, "find_library", lambda: None)
    dataset = ImageFolder(str(image_folder), train_transform())
    with with_gpu_worker(dataset) as loader:
        text = "the CPU takes the largest samples, decoded by DALI, sharing='spatial'"
        assert text in loader.explain()
        assert "instead" not in loader.explain()


def test_noise_that_a_device_would_round_otherwise_is_left_to_cpu_workers(image_folder):
    steps = [v1.CenterCrop(64), v1.ToTensor(), v1.RandomErasing(value="random")]
    dataset = ImageFolder(str(image_folder), v1.Compose(steps))
    with with_gpu_worker(dataset) as loader:
        assert "no GPU worker: RandomErasing with noise" in loader.explain()
