"""What CUDA refuses costs speed and no batch: every epoch is whole, and a warning says why."""

import json
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support import warm_start
from support.batches import same_batches
from support.fake_device import FakeDevice, delivery
from torchvision import transforms
from torchvision.datasets import ImageFolder

from fusionloader import FusionLoader, GpuWorker
from fusionloader.engine.iterators import slot_iterator
from fusionloader.gpu import eligibility

TESTS = Path(__file__).parents[1]


def test_every_epoch_is_whole_whatever_call_is_refused(image_folder, fake_library):
    done = warm_start.completed(
        *("-m", "support.refused_epochs", image_folder),
        env={**os.environ, "PYTHONPATH": str(TESTS)},
    )
    assert done.returncode == 0, done.stderr
    given_up = set()
    for call, before, (whole, warned, explained, _) in json.loads(done.stdout.splitlines()[-1]):
        assert whole, (call, before, warned)
        # One says that batches do not cross as levels, another that torch copies them.
        assert len(warned) == len(set(warned)) <= 2, warned
        for text in warned:
            assert re.search(r"device= needs: cu\w+ failed: CUDA_ERROR_\w+ \(\d+\): ", text), text
        copied_by_torch = any("torch copies batches to the device" in text for text in warned)
        assert ("torch copies batches to the device: cu" in explained) is copied_by_torch
        if copied_by_torch:
            given_up.add(call.partition("_")[0])
    assert given_up >= {"cuInit", "cuMemHostRegister", "cuStreamCreate", "cuMemcpyHtoDAsync"}
    assert given_up >= {"cuEventRecord", "cuEventQuery", "cuStreamWaitEvent", "cuLaunchKernel"}


@pytest.mark.parametrize(
    ("where", "call"), [("thread", "cuMemAlloc_v2"), ("process", "cuIpcGetMemHandle")]
)
def test_cpu_workers_do_it_where_the_gpu_worker_s_buffers_are_refused(
    image_folder, fake_cuda, monkeypatch, where, call
):
    transform = transforms.Compose([transforms.CenterCrop(40), transforms.ToTensor()])
    dataset = ImageFolder(str(image_folder), transform)
    expected = list(FusionLoader(dataset, 7, num_workers=1, seed=1))
    monkeypatch.setattr(slot_iterator, "make_delivery", lambda _: delivery(fake_cuda, False))
    real = eligibility.gpu_options
    monkeypatch.setattr(eligibility, "gpu_options", lambda *given: replace(real(*given), buffers=3))
    gpu_worker = GpuWorker(device="cpu", where=where, decoder="torchvision", sharing="spatial")
    loader = FusionLoader(dataset, 7, num_workers=1, seed=1, gpu_worker=gpu_worker)
    fake_cuda.refuse(call)
    seen = []
    with pytest.warns(RuntimeWarning, match=f"gpu_worker= needs: {call.partition('_')[0]} failed"):
        for batch in loader:
            fake_cuda.run()
            seen.append([leaf.clone() for leaf in batch])
    assert same_batches(seen, expected)


def test_torch_pins_batches_where_page_locking_is_refused(train_set, fake_cuda, monkeypatch):
    pinned = []

    def pin(batch, device):
        pinned.append(batch)
        return batch

    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(slot_iterator, "CudaDevice", lambda _: FakeDevice(fake_cuda))
    monkeypatch.setattr(slot_iterator, "pin_memory", pin)
    expected = list(FusionLoader(train_set, 4, num_workers=1, seed=1))
    fake_cuda.refuse("cuMemHostRegister_v2", before=1)  # the first slots are locked together
    with pytest.warns(RuntimeWarning, match="pin_memory= needs: cuMemHostRegister failed"):
        kept = list(FusionLoader(train_set, 4, num_workers=1, seed=1, pin_memory=True))
    assert same_batches(kept, expected)
    assert 0 < len(pinned) < len(kept)
