"""Datasets as people write them: the workloads of ``breadth.py``, on a folder of JPEG files."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from torch.utils.data import Dataset
from torchvision import transforms, tv_tensors
from torchvision.datasets import ImageFolder
from torchvision.transforms import functional, v2

from fusionloader.cli.measure.workloads import MEAN, SIDE, STD

Sample = Any

_END = [transforms.ToTensor(), transforms.Normalize(MEAN, STD)]
_TENSOR = transforms.Compose(_END)
_TRAIN = transforms.Compose(
    [transforms.RandomResizedCrop(SIDE), transforms.RandomHorizontalFlip(), *_END]
)
_EVALUATION = transforms.Compose([transforms.Resize(256), transforms.CenterCrop(SIDE), *_END])
_V2 = v2.Compose(
    [
        v2.RandomResizedCrop(SIDE, antialias=True),
        v2.RandomHorizontalFlip(),
        v2.ToImage(),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize(MEAN, STD),
    ]
)
_TENSORS = v2.Compose(
    [
        v2.RandomResizedCrop(SIDE, antialias=True),
        v2.RandomHorizontalFlip(),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize(MEAN, STD),
    ]
)
_JITTERED = v2.Compose(
    [*_TENSORS.transforms[:2], v2.ColorJitter(0.4, 0.4, 0.4, 0.1), *_TENSORS.transforms[2:]]
)
_IMAGES = v2.Compose([v2.ToImage(), *_TENSORS.transforms])
_FLOATS = transforms.Compose(
    [
        transforms.ToTensor(),
        transforms.Resize(256),
        transforms.RandomCrop(SIDE),
        transforms.RandomHorizontalFlip(),
        transforms.Normalize(MEAN, STD),
    ]
)
_BOXES = v2.Compose(
    [
        v2.RandomHorizontalFlip(),
        v2.Resize((320, 320)),
        v2.ToImage(),
        v2.ToDtype(torch.float32, scale=True),
    ]
)


def _contrastive(size: int, scale: tuple[float, float], blur: int) -> transforms.Compose:
    jitter = transforms.ColorJitter(0.8, 0.8, 0.8, 0.2)
    return transforms.Compose(
        [
            transforms.RandomResizedCrop(size, scale),
            transforms.RandomHorizontalFlip(),
            transforms.RandomApply([jitter], p=0.8),
            transforms.RandomGrayscale(0.2),
            transforms.RandomApply([transforms.GaussianBlur(blur)], p=0.5),
            *_END,
        ]
    )


_SIMCLR = _contrastive(SIDE, (0.2, 1.0), 23)
_GLOBAL, _LOCAL = _contrastive(SIDE, (0.4, 1.0), 23), _contrastive(96, (0.05, 0.4), 9)


def _train(image: Image.Image, path: str) -> Sample:
    return _TRAIN(image), 1


def _dict(image: Image.Image, path: str) -> Sample:
    return {"image": _TRAIN(image), "label": 1, "path": path}


def _evaluation(image: Image.Image, path: str) -> Sample:
    return _EVALUATION(image), 1


def _two_crops(image: Image.Image, path: str) -> Sample:
    return [_SIMCLR(image), _SIMCLR(image)], 1


def _multi_crop(image: Image.Image, path: str) -> Sample:
    return [*(_GLOBAL(image) for _ in range(2)), *(_LOCAL(image) for _ in range(8))], 1


def _v2(image: Image.Image, path: str) -> Sample:
    return _V2(image), 1


def _boxes(image: Image.Image, path: str) -> Sample:
    corners = torch.tensor([[1.0, 1.0, 99.0, 99.0]])
    size = (image.height, image.width)
    boxes = tv_tensors.BoundingBoxes(corners, format="XYXY", canvas_size=size)
    pixels, boxes = _BOXES(image, boxes)
    return pixels, boxes.as_subclass(torch.Tensor)


def _letterbox(image: Image.Image, path: str) -> Sample:
    """As LLaVA has it: pasted on a square of the mean color, which is resized."""
    side = max(image.size)
    square = Image.new(image.mode, (side, side), tuple(int(255 * mean) for mean in MEAN))
    square.paste(image, ((side - image.width) // 2, (side - image.height) // 2))
    return _TENSOR(square.resize((336, 336), Image.Resampling.BICUBIC)), 1


def _fit(image: Image.Image, path: str) -> Sample:
    return _TENSOR(functional.adjust_gamma(ImageOps.fit(image, (SIDE, SIDE)), 1.5)), 1


def _thumbnail(image: Image.Image, path: str) -> Sample:
    image.thumbnail((160, 160))
    return _TENSOR(functional.center_crop(image, [112, 112])), 1


def _array(image: Image.Image, path: str) -> Sample:
    """As with albumentations: pixels as an array, cropped and normalized by numpy."""
    pixels = np.asarray(image)
    top, left = torch.randint(0, 10, (2,)).tolist()
    crop = pixels[top : top + 112, left : left + 112]
    return torch.from_numpy(crop.transpose(2, 0, 1).astype(np.float32) / 255), 1


class Files(Dataset[Sample]):
    """Image files, opened with Pillow; ``sample`` makes a sample of an image and its path."""

    def __init__(self, paths: list[str], sample: Callable[[Image.Image, str], Sample]) -> None:
        self.paths, self.sample = paths, sample

    def __len__(self) -> int:
        """Files."""
        return len(self.paths)

    def __getitem__(self, index: int) -> Sample:
        """As most people write it."""
        path = self.paths[index]
        return self.sample(Image.open(path).convert("RGB"), path)


def _converted(paths: list[str], folder: Path, kind: str, **options: Any) -> list[str]:
    """Writes the files once in another format."""
    made = []
    for number, path in enumerate(paths):
        target = folder / f"{number}.{kind}"
        if not target.exists():
            with Image.open(path) as image:
                image.save(target, **options)
        made.append(str(target))
    return made


def _hugging_face(paths: list[str], folder: Path) -> Any:
    import datasets

    table = datasets.Dataset.from_dict({"image": paths, "label": [1] * len(paths)})
    table = table.cast_column("image", datasets.Image())

    def transform(rows: dict[str, list[Any]]) -> dict[str, list[Any]]:
        images = [_TRAIN(image.convert("RGB")) for image in rows["image"]]
        return {"pixel_values": images, "label": rows["label"]}

    return table.with_transform(transform)


def _webdataset(paths: list[str], folder: Path) -> Any:
    import webdataset

    shards = []
    for first in range(0, len(paths), max(1, len(paths) // 8)):
        shard = folder / f"{first:06}.tar"
        shards.append(str(shard))
        if shard.exists():
            continue
        with tarfile.open(shard, "w") as archive:
            for path in paths[first : first + max(1, len(paths) // 8)]:
                content = Path(path).read_bytes()
                info = tarfile.TarInfo(f"{Path(path).stem}.jpg")
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    whole = webdataset.WebDataset(shards, shardshuffle=False).decode("pil")
    return whole.to_tuple("jpg").map_tuple(_TRAIN)


def _timm(paths: list[str], folder: Path) -> Any:
    from timm.data import ImageDataset, create_transform

    transform = create_transform(SIDE, is_training=True)
    return ImageDataset(str(folder), transform=transform)


class _TwoViews:
    """As MoCo and SimSiam have it."""

    def __call__(self, image: Image.Image) -> Sample:
        return [_SIMCLR(image), _SIMCLR(image)]


def _two_views_of_folder(paths: list[str], folder: Path) -> Any:
    return ImageFolder(str(folder), _TwoViews())


def _opencv(image: Any, path: str) -> Sample:
    """As mmpretrain has it: arrays in BGR, resized and normalized by OpenCV."""
    import cv2

    pixels = cv2.resize(cv2.imread(path), (SIDE, SIDE), interpolation=cv2.INTER_LINEAR)
    levels = cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB).astype(np.float32)
    cv2.subtract(levels, (123.675, 116.28, 103.53, 0), levels)
    cv2.multiply(levels, (1 / 58.395, 1 / 57.12, 1 / 57.375, 0), levels)
    return torch.from_numpy(np.ascontiguousarray(levels.transpose(2, 0, 1))), 1


def _torchcodec(image: Any, path: str) -> Sample:
    """As torchvision recommends since 0.29: pixels as a tensor from the beginning."""
    from torchcodec.decoders import decode_image

    return _TENSORS(decode_image(path)), 1


def _torchcodec_jitter(image: Any, path: str) -> Sample:
    from torchcodec.decoders import decode_image

    return _JITTERED(decode_image(path)), 1


def _to_image(image: Image.Image, path: str) -> Sample:
    return _IMAGES(image), 1


class Arrays(Files):
    """Image files that are read as arrays."""

    def __getitem__(self, index: int) -> Sample:
        """Without Pillow."""
        return self.sample(None, self.paths[index])  # type: ignore[arg-type]


def _processor(paths: list[str], folder: Path) -> Any:
    from transformers import ViTImageProcessor

    return _processed(paths, ViTImageProcessor())


def _detector(paths: list[str], folder: Path) -> Any:
    from transformers import RTDetrImageProcessor

    return _processed(paths, RTDetrImageProcessor())


def _processed(paths: list[str], processor: Any) -> Files:
    def sample(image: Image.Image, path: str) -> Sample:
        return {"pixel_values": processor(image, return_tensors="pt")["pixel_values"][0]}

    return Files(paths, sample)


class Patches(Files):
    """Image files as the patches that Qwen-VL's models take, as many as an image has."""

    def __init__(self, paths: list[str], folder: Path) -> None:
        from transformers import Qwen2VLImageProcessor

        processor = Qwen2VLImageProcessor()
        super().__init__(paths, lambda image, path: dict(processor(image, return_tensors="pt")))

    @staticmethod
    def collate_fn(samples: list[Sample]) -> Sample:
        """Joins the patches of all images."""
        names = "image_grid_thw", "pixel_values"
        return {name: torch.cat([sample[name] for sample in samples]) for name in names}


class _Subset:
    """Up to three of a list of transforms, as LeRobot's ``ImageTransforms`` draws them."""

    def __init__(self, *steps: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self.steps = steps

    def __call__(self, frames: torch.Tensor) -> torch.Tensor:
        drawn = torch.multinomial(torch.ones(len(self.steps)), 3)
        for index in drawn.sort().values.tolist():
            frames = self.steps[index](frames)
        return frames


def _sharpness(frames: torch.Tensor) -> torch.Tensor:
    factor = torch.empty(1).uniform_(0.5, 1.5).item()
    return v2.functional.adjust_sharpness(frames, factor)


_FRAMES = _Subset(
    v2.ColorJitter(brightness=(0.8, 1.2)),
    v2.ColorJitter(contrast=(0.8, 1.2)),
    v2.ColorJitter(saturation=(0.5, 1.5)),
    v2.ColorJitter(hue=(-0.05, 0.05)),
    _sharpness,
)


class Frames(Dataset[Sample]):
    """Decoded frames of two cameras, four of 256 x 256 each, augmented as LeRobot does it."""

    FILES = 32

    def __init__(self, paths: list[str], folder: Path) -> None:
        self.length, self.files = len(paths), []
        for number in range(self.FILES):
            self.files.append(folder / f"{number}.npy")
            chosen = [paths[(number * 8 + at) % len(paths)] for at in range(8)]
            images = [Image.open(path).convert("RGB").resize((256, 256)) for path in chosen]
            np.save(self.files[-1], np.stack([np.asarray(image) for image in images]))

    def __len__(self) -> int:
        """Samples, some of the same frames."""
        return self.length

    def __getitem__(self, index: int) -> Sample:
        """Frames as torchcodec returns them, channels last in memory, as floats of 0 to 1."""
        levels = torch.from_numpy(np.load(self.files[index % self.FILES])).permute(0, 3, 1, 2)
        return {f"camera {at}": _FRAMES(levels[4 * at : 4 * at + 4] / 255) for at in range(2)}


def _image_folder(paths: list[str], folder: Path) -> Any:
    return ImageFolder(str(folder), _TRAIN)


# A function of the paths of JPEG files and a folder: for its own files, or, for those in _FOLDERS,
# the one that the files are in, by class.
DATASETS: dict[str, Callable[[list[str], Path], Any]] = {
    "own": lambda paths, folder: Files(paths, _train),
    "dict": lambda paths, folder: Files(paths, _dict),
    "evaluation": lambda paths, folder: Files(paths, _evaluation),
    "simclr": lambda paths, folder: Files(paths, _two_crops),
    "dino": lambda paths, folder: Files(paths, _multi_crop),
    "v2": lambda paths, folder: Files(paths, _v2),
    "boxes": lambda paths, folder: Files(paths, _boxes),
    "letterbox": lambda paths, folder: Files(paths, _letterbox),
    "fit": lambda paths, folder: Files(paths, _fit),
    "thumbnail": lambda paths, folder: Files(paths, _thumbnail),
    "timm": _timm,
    "hugging-face": _hugging_face,
    "processor": _processor,
    "processor-rt-detr": _detector,
    "processor-qwen-vl": Patches,
    "webdataset": _webdataset,
    "array": lambda paths, folder: Files(paths, _array),
    "progressive": lambda paths, folder: Files(
        _converted(paths, folder, "jpg", progressive=True, quality=91), _train
    ),
    "png": lambda paths, folder: Files(_converted(paths, folder, "png"), _train),
    "webp": lambda paths, folder: Files(_converted(paths, folder, "webp", quality=90), _train),
    "opencv": lambda paths, folder: Arrays(paths, _opencv),
    "torchcodec": lambda paths, folder: Arrays(paths, _torchcodec),
    "torchcodec-png": lambda paths, folder: Arrays(_converted(paths, folder, "png"), _torchcodec),
    "torchcodec-jitter": lambda paths, folder: Arrays(paths, _torchcodec_jitter),
    "to-image": lambda paths, folder: Files(paths, _to_image),
    "frames": Frames,
    "image-folder": _image_folder,
    "image-folder-simclr": _two_views_of_folder,
    "image-folder-floats": lambda paths, folder: ImageFolder(str(folder), _FLOATS),
}
FOLDERS = {"timm", "image-folder", "image-folder-simclr", "image-folder-floats"}
# The tensors of decoders are deferred.
TENSORS = {"torchcodec", "torchcodec-png", "torchcodec-jitter"}


def first_samples(dataset: Any, count: int) -> Iterator[Sample]:
    """Yields the first samples, each made with generators that were seeded for it."""
    import random

    samples = iter(dataset) if isinstance(dataset, torch.utils.data.IterableDataset) else None
    for index in range(count):
        random.seed(index), torch.manual_seed(index), np.random.seed(index)
        yield dataset[index] if samples is None else next(samples)
