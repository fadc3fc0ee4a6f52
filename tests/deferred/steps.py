"""Transforms as training scripts have them, by name."""

import random

import torch
from PIL import Image, ImageFilter
from support.images import NORMALIZE, eval_transform, train_transform
from torchvision import transforms
from torchvision.transforms import v2

STEPS = {
    "train": train_transform(48),
    "evaluation": eval_transform(56, 48),
    "v2": v2.Compose(
        [
            v2.RandomResizedCrop(48, antialias=True),
            v2.RandomHorizontalFlip(),
            v2.ToImage(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(*NORMALIZE),
        ]
    ),
    "jitter": transforms.Compose(
        [
            transforms.RandomResizedCrop(48),
            transforms.RandomApply([transforms.ColorJitter(0.4, 0.4, 0.4, 0.1)], p=0.8),
            transforms.RandomGrayscale(p=0.5),
            transforms.ToTensor(),
        ]
    ),
    "v2 jitter": v2.Compose(
        [
            v2.RandomResizedCrop(48),
            v2.ColorJitter(0.4, 0.4, 0.4, 0.1),
            v2.RandomGrayscale(p=0.5),
            v2.RandomSolarize(128, p=0.5),
            v2.PILToTensor(),
            v2.ToDtype(torch.float32, scale=True),
        ]
    ),
    "policies": transforms.Compose(
        [
            transforms.RandomResizedCrop(48),
            transforms.RandAugment(),
            transforms.TrivialAugmentWide(),
            transforms.ToTensor(),
        ]
    ),
    "warps": transforms.Compose(
        [
            transforms.Resize(64),
            transforms.RandomCrop(56),
            transforms.RandomAffine(20, (0.1, 0.1), (0.8, 1.2), 10, Image.Resampling.BILINEAR),
            transforms.RandomPerspective(p=0.7),
            transforms.RandomRotation(30),
            transforms.Pad(4),
            transforms.Pad(3, padding_mode="reflect"),
            transforms.ToTensor(),
        ]
    ),
    "grey": transforms.Compose(
        [
            transforms.Grayscale(),
            transforms.RandomCrop(40, pad_if_needed=True),
            transforms.ToTensor(),
        ]
    ),
    "no list": transforms.ToTensor(),
}


class PadToSquare:
    """A custom transform that pastes."""

    def __call__(self, image):
        side = max(image.size)
        square = Image.new(image.mode, (side, side))
        square.paste(image, ((side - image.width) // 2, (side - image.height) // 2))
        return square


class Marked:
    """A custom transform that needs pixels."""

    def __call__(self, image):
        image.putpixel((0, 0), (255, 0, 0))
        return image


class MocoBlur:
    """A custom transform that draws from Python's generator."""

    def __call__(self, image):
        return image.filter(ImageFilter.GaussianBlur(radius=random.uniform(0.1, 2.0)))


STEPS["letterbox"] = transforms.Compose(
    [PadToSquare(), transforms.Resize((40, 40)), transforms.ToTensor()]
)
STEPS["custom"] = transforms.Compose([Marked(), transforms.Resize((40, 40)), transforms.ToTensor()])
STEPS["moco"] = transforms.Compose(
    [transforms.RandomResizedCrop(48), MocoBlur(), transforms.ToTensor()]
)
