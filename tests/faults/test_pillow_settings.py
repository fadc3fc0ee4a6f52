"""The training script's Pillow settings apply in workers however they are started."""

import numpy as np
import pytest
from PIL import Image, ImageFile
from support.batches import same_batches
from support.images import photo
from torch.utils.data import DataLoader
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder

from fusionloader import FusionLoader
from fusionloader.transforms import io
from fusionloader.transforms.executors.native import file_decoder


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


@pytest.fixture(params=["jpg", "png", "webp"])
def one_image(request, tmp_path):
    (tmp_path / "class").mkdir()
    path = tmp_path / "class" / f"one.{request.param}"
    photo(np.random.default_rng(1), 60, 40).save(path)
    return path


@pytest.mark.parametrize(("method", "workers"), [(None, 0), ("fork", 1), ("spawn", 1)])
@pytest.mark.few(3)
def test_a_lower_limit_of_pixels_is_kept_whoever_decodes(one_image, monkeypatch, method, workers):
    transform = v1.Compose([v1.Resize((8, 8)), v1.ToTensor()])
    dataset = ImageFolder(str(one_image.parents[1]), transform)

    def loader():
        return FusionLoader(dataset, num_workers=workers, multiprocessing_context=method)

    expected = list(DataLoader(dataset))
    whole = loader()
    assert same_batches(expected, whole) and whole.stats().pillow_samples == 0
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 60 * 40 // 2 - 1)  # refused at twice of it
    with pytest.raises(Image.DecompressionBombError, match="exceeds limit"):
        list(loader())
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    assert same_batches(expected, loader())


def test_what_pillow_warns_of_is_decoded_by_it(one_image, monkeypatch):
    transform = v1.Compose([v1.Resize((8, 8)), v1.ToTensor()])
    dataset = ImageFolder(str(one_image.parents[1]), transform)
    expected = list(DataLoader(dataset))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 60 * 40 - 1)
    loader = FusionLoader(dataset, num_workers=1)
    assert same_batches(expected, loader)
    assert loader.stats().pillow_samples == 1


def test_decoders_for_everybody_keep_a_lower_limit(one_image, monkeypatch):
    encoded = one_image.read_bytes()
    assert io.decode_jpeg(encoded).shape == (40, 60, 3)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    for decode in (
        io.encoded_size,
        io.decode_jpeg,
        lambda data: io.decode_window(data, (0, 0, 8, 8), (4, 4)),
    ):
        with pytest.raises(Image.DecompressionBombError):
            decode(encoded)
    monkeypatch.undo()
    assert file_decoder().image_size(encoded) == (60, 40)  # with which others decode
