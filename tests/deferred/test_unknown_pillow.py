"""A Pillow that the patches are not for: nothing is deferred, and user code runs as it is."""

import pytest
from PIL import Image
from support.batches import same_batches
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder

from fusionloader import FusionLoader
from fusionloader.data.deferred import patches


@pytest.fixture
def unknown(monkeypatch):
    monkeypatch.setattr(patches, "_SUPPORTED", range(99, 100))
    patches._made.cache_clear()
    yield
    patches._made.cache_clear()


def turned(image):
    return image.rotate(5).crop((2, 2, 30, 30))


class Own(Dataset):
    def __init__(self, folder):
        self.samples, self.transform = folder.samples, folder.transform

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        path, target = self.samples[index]
        return self.transform(Image.open(path).convert("RGB")), target


@pytest.mark.parametrize(
    "options", [{}, {"num_workers": 1}, {"num_workers": 1, "multiprocessing_context": "spawn"}]
)
@pytest.mark.parametrize("kind", [lambda folder: folder, Own])
@pytest.mark.few(3)
def test_batches_are_dataloader_s(image_folder, unknown, kind, options):
    steps = [v1.Resize((32, 32)), v1.Lambda(turned), v1.ToTensor()]
    dataset = kind(ImageFolder(str(image_folder), v1.Compose(steps)))
    assert same_batches(DataLoader(dataset, 8), FusionLoader(dataset, 8, **options))
