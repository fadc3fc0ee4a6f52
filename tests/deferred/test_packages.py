"""Datasets of real packages, in their own layouts: deferred, and left to Pillow."""

import io
import json
import random
import tarfile

import numpy as np
import pytest
import torch
from deferred.test_loaders import epochs
from PIL import Image
from support.batches import equal
from support.frameworks import Lazy
from support.images import photo, train_transform
from torchvision import datasets as vision
from torchvision.transforms import v2

from fusionloader import FusionLoader
from fusionloader.data.deferred import counts

datasets, timm, webdataset = Lazy("datasets"), Lazy("timm"), Lazy("webdataset")
COUNT = 12


def photos(folder, kind="jpg"):
    folder.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(7)
    for number in range(COUNT):
        image = photo(generator, int(generator.integers(40, 90)), int(generator.integers(40, 90)))
        image.save(folder / f"{number:03}.{kind}")
    return sorted(folder.iterdir())


def food101(root):
    names = [f"pie/{path.stem}" for path in photos(root / "food-101/images/pie")]
    meta = root / "food-101/meta"
    meta.mkdir()
    (meta / "train.json").write_text(json.dumps({"pie": names}))
    return vision.Food101(str(root), "train", train_transform())


def pets(root):
    paths = photos(root / "oxford-iiit-pet/images")
    annotations = root / "oxford-iiit-pet/annotations"
    annotations.mkdir()
    lines = [f"{path.stem} {1 + number % 2} 1 1\n" for number, path in enumerate(paths)]
    (annotations / "trainval.txt").write_text("".join(lines))
    return vision.OxfordIIITPet(str(root), transform=train_transform())


def segmentation(root):
    base = root / "VOCdevkit/VOC2012"
    (base / "ImageSets/Segmentation").mkdir(parents=True)
    (base / "SegmentationClass").mkdir()
    paths = photos(base / "JPEGImages")
    for path in paths:
        size = Image.open(path).size
        Image.new("P", size, 3).save(base / "SegmentationClass" / f"{path.stem}.png")
    names = "\n".join(path.stem for path in paths)
    (base / "ImageSets/Segmentation/train.txt").write_text(names)
    steps = [v2.RandomHorizontalFlip(), v2.Resize((24, 24)), v2.ToImage()]
    dataset = vision.VOCSegmentation(str(root), transforms=v2.Compose(steps))
    return vision.wrap_dataset_for_transforms_v2(dataset)


def folder_with_a_custom_loader(root):
    photos(root / "class")
    return vision.ImageFolder(
        str(root), train_transform(), loader=lambda path: Image.open(path).convert("RGB")
    )


def of_timm(root):
    photos(root / "class")
    transform = timm.data.create_transform(32, is_training=True, color_jitter=0.4)
    return timm.data.ImageDataset(str(root), transform=transform)


def hugging_face(root):
    paths = [str(path) for path in photos(root)]
    table = datasets.Dataset.from_dict({"image": paths, "label": list(range(COUNT))})
    table = table.cast_column("image", datasets.Image())
    steps = train_transform()

    def transform(rows):
        images = [steps(image.convert("RGB")) for image in rows["image"]]
        return {"pixels": images, "label": rows["label"]}

    return table.with_transform(transform)


def shards(root):
    with tarfile.open(root / "0.tar", "w") as archive:
        for path in photos(root / "photos"):
            content = path.read_bytes()
            info = tarfile.TarInfo(path.name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    dataset = webdataset.WebDataset([str(root / "0.tar")], shardshuffle=False)
    return dataset.decode("pil").to_tuple("jpg").map_tuple(train_transform())


MAKERS = [food101, pets, segmentation, folder_with_a_custom_loader, of_timm, hugging_face, shards]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
@pytest.mark.few(3)
def test_a_packages_dataset_gives_the_same(make, workers, tmp_path):
    counts.take()
    dataset = make(tmp_path)

    def run(deferred):
        torch.manual_seed(4), random.seed(4)
        loader = FusionLoader(dataset, 4, num_workers=workers, seed=3, deferred_images=deferred)
        return epochs(loader), loader.stats().deferred_images

    (expected, _), (found, counted) = run("off"), run("auto")
    assert equal(found, expected)
    assert counted["files"] >= 2 * COUNT, counted
    # What a pipeline holds on to until it is asked for more.
    assert set(counted["ended_by"]) <= {"the end of the fetch"}, counted
