"""How the GPU worker's process begins on a device, and what is said where it cannot."""

import importlib.util

import numpy as np
import pytest
import torch
from support.cropped_epochs import wait_while_it_is_built
from support.images import photo
from support.waiting import wait_until
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder

from fusionloader import FusionLoader, GpuWorker
from fusionloader.gpu import worker
from fusionloader.system import processes
from fusionloader.transforms.executors.device import launch_memory
from fusionloader.transforms.executors.device.make_task import HeadOptions

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("nvidia") is None or importlib.util.find_spec("nvidia.dali") is None,
    reason="DALI is not installed: pip install nvidia-dali-cuda120",
)


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    (folder / "class").mkdir()
    generator = np.random.default_rng(1)
    for number in range(40):
        photo(generator, 90, 80).save(folder / "class" / f"{number:02}.jpg")
    transform = v1.Compose([v1.CenterCrop(64), v1.RandAugment(), v1.ToTensor()])
    return ImageFolder(str(folder), transform)


@pytest.fixture
def through_the_driver(fake_library, monkeypatch):
    """Workers launch through the fake driver."""

    start = processes.BareProcess

    def with_driver(module, *arguments):
        ours = module == "fusionloader.gpu.worker"
        return start("support.fake_cuda_worker" if ours else module, *arguments)

    monkeypatch.setattr(processes, "BareProcess", with_driver)


def loader_of(images, **arguments):
    arguments = {"batch_size": 20, "num_workers": 1, "seed": 5, **arguments}
    return FusionLoader(images, persistent_workers=True, **arguments)


def is_same(batches, expected):
    return all(torch.equal(a[0], b[0]) for a, b in zip(batches, expected, strict=True))


@pytest.mark.usefixtures("through_the_driver")
def test_launches_through_the_driver_give_the_bits_of_the_cpu_workers(images):
    expected = list(loader_of(images))
    gpu_worker = GpuWorker(device="cpu", sharing="spatial")
    with loader_of(images, gpu_worker=gpu_worker) as loader:

        def some_by_gpu():
            loader.set_epoch(0)
            assert is_same(loader, expected)
            wait_while_it_is_built(loader)
            return loader.stats().gpu_worker.get("samples", 0) > 20

        wait_until(some_by_gpu)


@pytest.mark.usefixtures("through_the_driver")
@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("FAKE_CUDA_TOO_OLD", "driver does not take the fused kernel.*update NVIDIA's driver"),
        ("WITHOUT_NVRTC", r"\(libnvrtc\) is missing: pip install nvidia-cuda-nvrtc"),
    ],
)
@pytest.mark.few(1)
def test_without_what_the_kernel_needs_training_goes_on_on_the_cpu(
    images, monkeypatch, setting, said
):
    expected = list(loader_of(images))
    monkeypatch.setenv(setting, "1")
    gpu_worker = GpuWorker(device="cpu", sharing="spatial")
    with loader_of(images, gpu_worker=gpu_worker) as loader:

        def gone():
            loader.set_epoch(0)
            assert is_same(loader, expected)
            wait_while_it_is_built(loader)
            return loader.stats().gpu_worker["gone"]

        with pytest.warns(RuntimeWarning, match=f"goes on without its GPU worker(.|\n)*{said}"):
            wait_until(gone)
        assert loader.stats().gpu_worker["restarts"] == 0


class Queue:
    wake_manager = None


def test_its_device_is_set_before_anything_is_made_on_one(monkeypatch):
    calls = []
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: calls.append(("set", device)))
    monkeypatch.setattr(worker, "_launch_memory", lambda *_: calls.append("memory"))
    monkeypatch.setattr(worker.DatasetTable, "of_descriptor", lambda *_: None)
    monkeypatch.setattr(worker, "make_task", lambda *_: calls.append("task"))

    def opened():
        calls.append("buffer")
        return torch.zeros(8, dtype=torch.uint8)

    config = worker.GpuWorkerConfig(
        worker=1,
        parent=0,
        control_fd=-1,
        data_fd=-1,
        table_fd=-1,
        table_bytes=0,
        message_fd=-1,
        plan=None,
        row_bytes=4,
        slot_row_bytes=4,
        device_id=3,
        tiny_batch_size=1,
        most_samples=4,
        fixed_group=False,
        buffers=[(opened, ())],
        head=HeadOptions(),
        memory=worker.BorrowedMemory(-1, launch_memory.TorchPool, False),
    )
    worker.GpuWorkerLoop(config, Queue())
    assert calls == [("set", 3), "memory", "task", "buffer"]
