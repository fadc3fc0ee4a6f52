"""WebDataset pipelines as people write them: batches are DataLoader's, and made natively."""

import io
import os
import random

import numpy as np
import pytest
import torch
from PIL import Image
from support.batches import same_batches
from support.encoded_images import encoded
from support.images import photo, train_transform
from torch.utils.data import DataLoader, IterableDataset, default_collate
from torchvision import transforms
from torchvision.transforms import functional

from fusionloader import FusionLoader

wds = pytest.importorskip("webdataset", reason="pip install webdataset")

SHARDS, PER_SHARD = 4, 14
TRANSFORM = train_transform(32)


def sample(number, generator):
    """An image of one of the kinds that shards have, most of them JPEGs."""
    image = photo(generator, *(int(side) for side in generator.integers(40, 90, 2)))
    kinds = {
        3: ("png", lambda: encoded(image, "png")),
        5: ("webp", lambda: encoded(image, "webp")),
        7: ("jpg", lambda: encoded(image.convert("L"))),
        9: ("jpg", lambda: encoded(image.convert("CMYK"))),
        11: ("png", lambda: encoded(image.convert("RGBA"), "png")),
    }
    name, make = kinds.get(number % 14, ("jpg", lambda: encoded(image, quality=90)))
    return {"__key__": f"{number:05}", name: make(), "cls": number, "json": {"number": number}}


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    root, generator = tmp_path_factory.mktemp("shards"), np.random.default_rng(5)
    with wds.ShardWriter(str(root / "%02d.tar"), maxcount=PER_SHARD, verbose=0) as writer:
        for number in range(SHARDS * PER_SHARD):
            writer.write(sample(number, generator))
    return sorted(str(path) for path in root.glob("*.tar"))


@pytest.fixture(scope="module")
def broken(tmp_path_factory):
    """A shard in which some images are cut off, are none, or have a marker that libjpeg refuses."""
    path = tmp_path_factory.mktemp("broken") / "0.tar"
    generator = np.random.default_rng(6)
    with wds.TarWriter(str(path)) as writer:
        for number in range(40):
            content = encoded(photo(generator, 60, 50), quality=90, progressive=number % 2 == 0)
            middle = len(content) // 2
            content = {
                4: content[:middle],
                9: b"no image",
                15: content[:200] + b"\xff\xc4\x00\x03\xff" + content[200:],
                22: content[:middle] + b"\xff\xc4\x00\x03\xff" + content[middle:],
            }.get(number, content)
            writer.write({"__key__": f"{number:05}", "jpg": content, "cls": number})
    return [str(path)]


def begun(shards, **options):
    return wds.WebDataset(shards, shardshuffle=False, **options)


def both(image):
    return TRANSFORM(image), functional.to_tensor(image.resize((20, 20)))


def halved(batch):
    images, labels = batch
    return images.mul_(0.5), labels


def from_array(pixels):
    return torch.from_numpy(np.ascontiguousarray(pixels[:32, :32].transpose(2, 0, 1)))


def evaluated(pixels):
    return transforms.functional.resize(pixels, [24, 24], antialias=True)


class Repeated:
    """A stage of user code that goes on using what it has yielded."""

    def __call__(self, samples):
        for image, label in samples:
            yield image, label
            yield image.neg_(), -label


IMAGE = "jpg;png;webp"
PIPELINES = {
    "pil": lambda s: begun(s).decode("pil").to_tuple(IMAGE, "cls").map_tuple(TRANSFORM, int),
    "pilrgb": lambda s: begun(s).decode("pilrgb").to_tuple(IMAGE, "cls").map_tuple(TRANSFORM),
    "dict": lambda s: (
        begun(s)
        .shuffle(20, initial=10, seed=3)
        .decode("pil", handler=wds.warn_and_continue)
        .rename(image=IMAGE, label="cls")
        .map_dict(image=TRANSFORM)
        .map(lambda sample: {"image": sample["image"], "label": sample["label"]})
    ),
    "two views": lambda s: begun(s).decode("pil").to_tuple(IMAGE, "cls").map_tuple(both),
    "pill": lambda s: (
        begun(s)
        .decode("pill")
        .to_tuple(IMAGE, "json")
        .map_tuple(transforms.Compose([transforms.Resize((30, 30)), transforms.ToTensor()]))
    ),
    "rgb8": lambda s: begun(s).decode("rgb8").to_tuple(IMAGE, "cls").map_tuple(from_array),
    "torchrgb": lambda s: begun(s).decode("torchrgb").to_tuple(IMAGE, "cls").map_tuple(evaluated),
    "torch": lambda s: begun(s).decode("torch").to_tuple(IMAGE, "cls").map_tuple(evaluated),
    "shuffled behind": lambda s: (
        begun(s).decode("pil").to_tuple(IMAGE, "cls").map_tuple(TRANSFORM).shuffle(15, seed=3)
    ),
    "repeated": lambda s: (
        begun(s).decode("pil").to_tuple(IMAGE, "cls").map_tuple(TRANSFORM).compose(Repeated())
    ),
}
HANDLERS = ["warn_and_continue", "ignore_and_continue", "reraise_exception"]
BATCHED = {
    "batched": lambda s: PIPELINES["pil"](s).batched(6),
    "whole batches only": lambda s: PIPELINES["pil"](s).batched(6, partial=False),
    "of dicts": lambda s: PIPELINES["dict"](s).batched(6),
    "by torch": lambda s: PIPELINES["pil"](s).batched(6, collation_fn=default_collate),
    "as lists": lambda s: PIPELINES["pil"](s).listed(6),
    "changed": lambda s: PIPELINES["pil"](s).batched(6).map(halved),
    "shuffled": lambda s: PIPELINES["pil"](s).batched(5).shuffle(4, seed=3),
    "cached": lambda s: PIPELINES["pil"](s).compose(wds.Cached()).batched(6).map(halved),
    "unbatched": lambda s: PIPELINES["pil"](s).batched(5).unbatched().batched(7),
    "repeated": lambda s: PIPELINES["repeated"](s).batched(6).map(halved),
}


def batches_of(kind, dataset, batch_size, epochs=2):
    """All batches of some epochs, and the loader."""
    torch.manual_seed(8), random.seed(8), np.random.seed(8)
    loader = kind(dataset, batch_size, num_workers=2, persistent_workers=True)
    return [batch for _ in range(epochs) for batch in loader], loader


def arrays_as_tensors(batch):
    if isinstance(batch, np.ndarray):
        return torch.from_numpy(batch)
    if isinstance(batch, dict):
        return {key: arrays_as_tensors(value) for key, value in batch.items()}
    if isinstance(batch, (list, tuple)):
        return type(batch)(map(arrays_as_tensors, batch))
    return batch


@pytest.mark.parametrize("name", PIPELINES)
@pytest.mark.few(2)
def test_batches_are_dataloaders(shards, name):
    dataset = PIPELINES[name](shards)
    expected, _ = batches_of(DataLoader, dataset, 6)
    found, loader = batches_of(FusionLoader, dataset, 6)
    assert same_batches(found, expected)
    counted = loader.stats().deferred_images
    assert counted["files"] == 2 * SHARDS * (PER_SHARD - 1)  # but for the CMYK files
    assert counted["left_to_pillow"] == {"of mode CMYK": 2 * SHARDS}


@pytest.mark.parametrize("name", BATCHED)
@pytest.mark.few(2)
def test_batches_of_the_pipeline_are_dataloaders(shards, name):
    dataset = BATCHED[name](shards)
    expected, _ = batches_of(DataLoader, dataset, None)
    found, _ = batches_of(FusionLoader, dataset, None)
    assert same_batches(map(arrays_as_tensors, found), map(arrays_as_tensors, expected))


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Shards of JPEG files alone."""
    root, generator = tmp_path_factory.mktemp("photos"), np.random.default_rng(7)
    with wds.ShardWriter(str(root / "%02d.tar"), maxcount=32, verbose=0) as writer:
        for number in range(64):
            content = encoded(photo(generator, 60, 50), quality=90)
            writer.write({"__key__": f"{number:05}", "jpg": content, "cls": number})
    return sorted(str(path) for path in root.glob("*.tar"))


@pytest.mark.parametrize("how", ["by torch", "by the pipeline"])
def test_batches_are_made_in_place(photos, how):
    dataset = begun(photos).decode("pil").to_tuple("jpg", "cls").map_tuple(TRANSFORM)
    dataset, size = (dataset, 8) if how == "by torch" else (dataset.batched(8), None)
    loader = FusionLoader(dataset, size, num_workers=1, persistent_workers=True)
    for _ in range(2):
        assert sum(len(labels) for _, labels in loader) == 64
    # The transforms are learned first, then the batches.
    assert loader.stats().deferred_images["collated"]["in place"] >= 2 * 64 - 2 * 8
    assert "collated: in place" in loader.explain()
    loader.close()


def test_tensors_of_floats_are_made_without_an_array(photos):
    loader = FusionLoader(begun(photos).decode("torchrgb").to_tuple("jpg", "cls"), 8, num_workers=1)
    assert sum(len(labels) for _, labels in loader) == 64
    results = loader.stats().deferred_images["results"]
    assert results["tensor"] == 64 and "array" not in results
    loader.close()


@pytest.mark.parametrize("handler", HANDLERS)
@pytest.mark.few(1)
def test_broken_members_are_handled_as_the_pipeline_says(broken, handler):
    handled = getattr(wds, handler)
    dataset = begun(broken).decode("pil", handler=handled).to_tuple("jpg", "cls")
    dataset = dataset.map_tuple(TRANSFORM, handler=handled)

    def run(kind):
        torch.manual_seed(3)
        try:
            return list(kind(dataset, 4, num_workers=1))
        except Exception as error:
            return type(error).__name__

    expected, found = run(DataLoader), run(FusionLoader)
    if handler == "reraise_exception":
        assert expected == found == "DecodingError"
    else:
        assert same_batches(found, expected)
        assert 30 < sum(len(labels) for _, labels in found) < 40


def test_batches_that_are_kept_are_not_overwritten(photos):
    dataset = begun(photos).decode("pil").to_tuple("jpg", "cls").map_tuple(TRANSFORM).batched(8)
    loader = FusionLoader(dataset, None, num_workers=1, persistent_workers=True)
    kept = []
    for _ in range(3):
        for number, (images, _) in enumerate(loader):
            if number % 3 == 0:
                kept.append((images[3], images[3].clone()))
            else:
                images.zero_()
    loader.close()
    assert all(torch.equal(one, other) for one, other in kept)


def open_files(sample):
    return len(os.listdir("/proc/self/fd"))


def test_workers_open_no_more_files_from_batch_to_batch(photos):
    dataset = begun(photos, repeat=True).decode("pil").to_tuple("jpg", "__key__")
    dataset = dataset.map_tuple(TRANSFORM, open_files).with_epoch(480)
    counted = [int(files.max()) for _, files in FusionLoader(dataset, 8, num_workers=1)]
    assert len(counted) == 60
    # Files that the collector has yet to close come and go; one left by each batch would be 50.
    assert counted[-1] <= counted[10] + 10


class Photos(IterableDataset):
    """Dicts of images of a folder, some of them two at a time."""

    def __init__(self, contents):
        self.contents = contents

    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        for number in range(info.id, len(self.contents), info.num_workers):
            image = Image.open(io.BytesIO(self.contents[number])).convert("RGB")
            two = torch.randint(0, 2, ()).item()
            yield {"image": TRANSFORM(image), "number": number, "name": f"{number}.jpg", "two": two}


def test_a_stream_of_dicts_is_split_and_made_as_by_torch():
    generator = np.random.default_rng(9)
    dataset = Photos([encoded(photo(generator, 60, 50)) for _ in range(50)])
    expected, _ = batches_of(DataLoader, dataset, 6)
    found, loader = batches_of(FusionLoader, dataset, 6)
    assert same_batches(found, expected)
    assert sorted(sum((batch["number"].tolist() for batch in found[: len(found) // 2]), [])) == [
        *range(50)
    ]
    assert loader.stats().deferred_images["collated"]["in place"] > 0
