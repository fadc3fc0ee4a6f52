"""A loader that delivers to a CUDA device, with and without a GPU worker."""

import threading
import time

import pytest
import torch
from support.batches import same_batches
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder

from fusionloader import FusionLoader, GpuWorker

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
LEVEL = 1 / 255


def transform(side=64):
    return v1.Compose(
        [v1.RandomResizedCrop(side), v1.RandomHorizontalFlip(), v1.ColorJitter(0.4), v1.ToTensor()]
    )


def loader_of(image_folder, gpu_worker, **arguments):
    dataset = ImageFolder(str(image_folder), transform())
    arguments = {"num_workers": 2, "seed": 5, "persistent_workers": True, **arguments}
    return FusionLoader(dataset, 20, device="cuda", gpu_worker=gpu_worker, **arguments)


def expected(image_folder, epoch):
    dataset = ImageFolder(str(image_folder), transform())
    loader = FusionLoader(dataset, 20, seed=5)
    loader.set_epoch(epoch)
    return list(loader)


def epochs(loader, epoch, seconds=60):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        loader.set_epoch(epoch)
        before = loader.stats().gpu_worker.get("samples", 0)
        batches = list(loader)
        told = loader.stats().gpu_worker
        assert told.get("gone") is None, told
        yield batches, told.get("samples", 0) - before
    pytest.fail(f"the GPU worker has done next to nothing: {loader.stats().gpu_worker}")


def on_host(batches):
    return [[leaf.cpu() for leaf in batch] for batch in batches]


def test_batches_of_cpu_workers_arrive_on_the_device_bit_by_bit(image_folder):
    with loader_of(image_folder, None) as loader:
        loader.set_epoch(3)
        batches = list(loader)
    assert all(leaf.is_cuda for batch in batches for leaf in batch)
    assert same_batches(on_host(batches), expected(image_folder, 3))


def test_the_device_augments_to_the_bit_what_cpu_workers_crop(image_folder):
    steps = [
        *(v1.RandomResizedCrop(64), v1.RandomHorizontalFlip(), v1.AutoAugment()),
        *(v1.RandomApply([v1.ColorJitter(0.4, 0.4, 0.4, 0.1), v1.GaussianBlur(9)]), v1.ToTensor()),
        *(v1.Normalize((0.4, 0.5, 0.6), (0.2, 0.3, 0.25)), v1.RandomErasing(0.5)),
    ]
    dataset = ImageFolder(str(image_folder), v1.Compose(steps))
    wanted = list(FusionLoader(dataset, 20, num_workers=2, seed=5))
    worker = GpuWorker(decoder="workers")
    loader = FusionLoader(dataset, 20, num_workers=2, seed=5, device="cuda", gpu_worker=worker)
    assert same_batches(on_host(loader), wanted)
    assert loader.stats().gpu_worker["samples"] == len(dataset)


PACKAGES = {"dali": "nvidia.dali", "nvjpeg": "nvidia.nvimgcodec", "torchvision": "torchvision"}


@pytest.mark.parametrize("decoder", PACKAGES)
@pytest.mark.parametrize(
    ("sharing", "where"), [("spatial", "process"), ("temporal", "process"), ("spatial", "thread")]
)
def test_the_gpu_worker_s_rows_are_within_the_rounding_of_the_decoder(
    image_folder, decoder, sharing, where
):
    pytest.importorskip(PACKAGES[decoder])
    worker = GpuWorker(sharing=sharing, where=where, decoder=decoder)
    with loader_of(image_folder, worker) as loader:
        batches, done = next(found for found in epochs(loader, 3) if found[1] > 8)
    for (images, targets), (wanted, labels) in zip(
        on_host(batches), expected(image_folder, 3), strict=True
    ):
        assert torch.equal(targets, labels)
        apart = (images - wanted).abs().flatten(1).mean(1)
        assert apart.max() < 4 * LEVEL
        if decoder != "torchvision":  # which repeats chroma
            assert apart.mean() < LEVEL


def test_a_kept_batch_is_not_written_again(image_folder):
    pytest.importorskip("nvidia.dali")
    with loader_of(image_folder, GpuWorker(sharing="spatial")) as loader:
        next(found for found in epochs(loader, 3) if found[1] > 8)
        kept = next(iter(loader))[0]
        before = kept.clone()
        for _ in range(5):
            list(loader)
        assert torch.equal(kept, before)


def test_in_temporal_mode_the_worker_stays_off_a_busy_device(image_folder):
    pytest.importorskip("nvidia.dali")
    with loader_of(image_folder, GpuWorker(sharing="temporal"), num_workers=1) as loader:
        next(found for found in epochs(loader, 3) if found[1] > 8)
        iterator = iter(loader)
        next(iterator)
        queue = iterator._manager.queue
        passed = torch.cuda.Event()
        torch.cuda._sleep(2_000_000_000)  # about a second
        passed.record()
        seen = []

        def watch():
            while not passed.query():
                seen.append(queue.gpu_is_inside and not passed.query())
                time.sleep(0.0005)

        watcher = threading.Thread(target=watch)
        watcher.start()
        for _ in range(len(loader) - 1):
            next(iterator)
        watcher.join()
        assert seen and not any(seen)


def test_the_loader_s_memory_on_the_device_is_bounded(image_folder):
    """As the driver counts it: torch's counters know of no memory that is not torch's."""
    dataset = ImageFolder(str(image_folder), transform(512))
    batch_bytes = 20 * 3 * 512 * 512 * 4
    with FusionLoader(dataset, 20, num_workers=2, device="cuda", persistent_workers=True) as loader:

        def free_after(epochs):
            for _ in range(epochs):
                for _ in loader:
                    pass
            torch.cuda.synchronize()
            return torch.cuda.mem_get_info()[0]

        before = free_after(3)
        assert free_after(10) > before - 2 * batch_bytes  # of 20 batches
