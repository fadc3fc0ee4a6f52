"""What is said of how batches cross to a device."""

import pytest
import torch
from support.images import train_transform
from torchvision import transforms
from torchvision.datasets import ImageFolder

from fusionloader import FusionLoader
from fusionloader.transforms.executors.device import nvrtc


@pytest.mark.parametrize(
    ("last", "line"),
    [
        ([], "as 8-bit levels, and are converted there"),
        ([transforms.RandomErasing()], "as they are: RandomErasing changes elements"),
        ([torch.square], "as they are: samples are made in Python"),
    ],
)
def test_explain_says_how_batches_cross(image_folder, last, line):
    transform = transforms.Compose([train_transform(), *last])
    dataset = ImageFolder(str(image_folder), transform)
    loader = FusionLoader(dataset, 4, num_workers=1, device="cuda")
    assert f"batches cross to the device {line}" in loader.explain()
    assert "batches cross" not in FusionLoader(dataset, 4, num_workers=1).explain()


def test_without_a_compiler_batches_cross_as_they_are(train_set, monkeypatch):
    monkeypatch.setattr(nvrtc, "find_library", lambda: None)
    loader = FusionLoader(train_set, 4, num_workers=1, device="cuda")
    assert "as they are: CUDA's run-time compiler (libnvrtc) is missing: pip" in loader.explain()
