"""The training script's Pillow settings apply in workers however they are started."""

import pytest
from PIL import ImageFile
from support.batches import same_batches
from torch.utils.data import DataLoader
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder

from fusionloader import FusionLoader


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_truncated_files_are_loaded_where_that_is_allowed(
    image_folder, tmp_path, monkeypatch, method
):
    whole = min(image_folder.glob("*/*.jpg")).read_bytes()
    (tmp_path / "class").mkdir()
    (tmp_path / "class" / "half.jpg").write_bytes(whole[: len(whole) // 2])
    transform = v1.Compose([v1.Resize((8, 8)), v1.ToTensor()])
    dataset = ImageFolder(str(tmp_path), transform)
    ours = FusionLoader(dataset, num_workers=1, multiprocessing_context=method)
    with pytest.raises(OSError, match="truncated"):
        list(ours)
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    assert same_batches(DataLoader(dataset), ours)
