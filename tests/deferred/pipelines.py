"""The pipelines of torchvision's documentation and references, timm, Hugging Face and lightly.

Each is a callable on an RGB image of Pillow's, of the sizes that ``CROP`` and ``RESIZE`` allow.
"""

import random

import numpy as np
import torch
from PIL import Image, ImageFilter, ImageOps
from support.frameworks import Lazy
from support.images import NORMALIZE
from torchvision import transforms as v1
from torchvision import tv_tensors
from torchvision.transforms import _presets as presets
from torchvision.transforms import functional, v2

timm = Lazy("timm.data")

CROP, RESIZE = 24, 32
BICUBIC = v1.InterpolationMode.BICUBIC
HALF = ([0.5] * 3, [0.5] * 3)
POLICIES = {
    "plain": [],
    "ra": ["RandAugment"],
    "ta_wide": ["TrivialAugmentWide"],
    "augmix": ["AugMix"],
    "imagenet": ["AutoAugment"],
}
# Policies take long on tensors: each is tried with one backend of v2.
BEGINNINGS = {"pil": [], "tensor": [v2.PILToTensor()], "tv_tensor": [v2.ToImage()]}
POLICIES_OF = {
    "pil": ["plain", "ra", "imagenet"],
    "tensor": ["plain", "ta_wide"],
    "tv_tensor": ["plain", "augmix"],
}


# torchvision's references


def classification_v1(policy):
    return v1.Compose(
        [
            v1.RandomResizedCrop(CROP),
            v1.RandomHorizontalFlip(),
            *(getattr(v1, name)() for name in POLICIES[policy]),
            v1.PILToTensor(),
            v1.ConvertImageDtype(torch.float),
            v1.Normalize(*NORMALIZE),
            v1.RandomErasing(0.5),
        ]
    )


def classification_v1_evaluation():
    return v1.Compose(
        [
            v1.Resize(RESIZE),
            v1.CenterCrop(CROP),
            v1.PILToTensor(),
            v1.ConvertImageDtype(torch.float),
            v1.Normalize(*NORMALIZE),
        ]
    )


def classification_v2(backend, policy):
    return v2.Compose(
        [
            *BEGINNINGS[backend],
            v2.RandomResizedCrop(CROP, antialias=True),
            v2.RandomHorizontalFlip(),
            *(getattr(v2, name)() for name in POLICIES[policy]),
            *([v2.PILToTensor()] if backend == "pil" else []),
            v2.ToDtype(torch.float, scale=True),
            v2.Normalize(*NORMALIZE),
            v2.RandomErasing(0.5),
            v2.ToPureTensor(),
        ]
    )


def classification_v2_evaluation(backend):
    return v2.Compose(
        [
            *BEGINNINGS[backend],
            v2.Resize(RESIZE, antialias=True),
            v2.CenterCrop(CROP),
            *([v2.PILToTensor()] if backend == "pil" else []),
            v2.ToDtype(torch.float, scale=True),
            v2.Normalize(*NORMALIZE),
            v2.ToPureTensor(),
        ]
    )


class WithTarget:
    """Gives a pipeline an image and what a detection or segmentation dataset has beside it."""

    def __init__(self, steps, kind):
        self.steps, self.kind = steps, kind

    def __call__(self, image):
        height, width = image.height, image.width
        if self.kind == "mask":
            mask = (torch.arange(height * width) % 5).view(height, width)
            return self.steps(image, tv_tensors.Mask(mask))
        boxes = [[0, 0, width // 2, height // 2], [3, 4, width - 2, height - 1]]
        canvas = {"format": "XYXY", "canvas_size": (height, width)}
        target = {
            "boxes": tv_tensors.BoundingBoxes(boxes, **canvas),
            "masks": tv_tensors.Mask(torch.ones(2, height, width, dtype=torch.uint8)),
            "labels": torch.arange(2),
        }
        return self.steps(image, target)


DETECTION = {
    "hflip": [],
    "lsj": [v2.ScaleJitter((60, 60)), v2.RandomCrop(60, pad_if_needed=True)],
    "multiscale": [v2.RandomShortestSize([30, 40, 50], max_size=70)],
    "ssd": [
        v2.RandomPhotometricDistort(),
        v2.RandomZoomOut({tv_tensors.Image: (123.0, 117.0, 104.0), "others": 0}),
        v2.RandomIoUCrop(),
    ],
    "ssdlite": [v2.RandomIoUCrop()],
}


def detection(backend, augmentation):
    steps = v2.Compose(
        [
            *BEGINNINGS[backend],
            *DETECTION[augmentation],
            v2.RandomHorizontalFlip(),
            *([v2.ToImage()] if backend == "pil" else []),
            v2.ToDtype(torch.float, scale=True),
            v2.ConvertBoundingBoxFormat("XYXY"),
            v2.SanitizeBoundingBoxes(),
            v2.ToPureTensor(),
        ]
    )
    return WithTarget(steps, "boxes")


def segmentation(backend):
    images = {torch.Tensor if backend == "tensor" else tv_tensors.Image: torch.float}
    steps = v2.Compose(
        [
            *BEGINNINGS[backend],
            v2.RandomResize(20, 60),
            v2.RandomHorizontalFlip(),
            v2.RandomCrop(CROP, pad_if_needed=True, fill={tv_tensors.Mask: 255, "others": 0}),
            *([v2.ToImage()] if backend == "pil" else []),
            v2.ToDtype({**images, tv_tensors.Mask: torch.int64, "others": None}, scale=True),
            v2.Normalize(*NORMALIZE),
        ]
    )
    return WithTarget(steps, "mask")


class Clip:
    """Gives a pipeline a video: the image's frames, time first."""

    def __init__(self, steps):
        self.steps = steps

    def __call__(self, image):
        frames = [functional.pil_to_tensor(image.crop((at, at, at + 40, at + 40))) for at in (0, 3)]
        return self.steps(torch.stack(frames))


def _channels_first(clip):
    return clip.permute(1, 0, 2, 3)


def video_v1():
    return v1.Compose(
        [
            v1.ConvertImageDtype(torch.float32),
            v1.Resize((RESIZE, RESIZE + 4), antialias=False),
            v1.RandomHorizontalFlip(),
            v1.Normalize(*NORMALIZE),
            v1.RandomCrop((CROP, CROP)),
            _channels_first,
        ]
    )


def video_v2():
    return v2.Compose(
        [
            v2.RandomShortestSize([26, 30], antialias=True),
            v2.RandomCrop(CROP),
            v2.RandomHorizontalFlip(),
            v2.TrivialAugmentWide(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(*NORMALIZE),
        ]
    )


def references():
    yield "classification evaluation v1", classification_v1_evaluation()
    for policy in POLICIES:
        yield f"classification v1 {policy}", classification_v1(policy)
    for backend in BEGINNINGS:
        yield f"classification evaluation v2 {backend}", classification_v2_evaluation(backend)
        yield f"segmentation {backend}", segmentation(backend)
        for policy in POLICIES_OF[backend]:
            yield f"classification v2 {backend} {policy}", classification_v2(backend, policy)
        for augmentation in DETECTION:
            yield f"detection {backend} {augmentation}", detection(backend, augmentation)
    yield "video v1", Clip(video_v1())
    yield "video v2", Clip(video_v2())


# torchvision's documentation


def _stacked(crops):
    return torch.stack([functional.to_tensor(crop) for crop in crops])


def _five_crops(of):
    return of.Compose([of.Resize(RESIZE), of.FiveCrop(CROP), _stacked])


def documentation():
    floats, normal = v2.ToDtype(torch.float32, scale=True), v2.Normalize(*NORMALIZE)
    uint8 = v2.ToDtype(torch.uint8, scale=True)
    crop, flip = v2.RandomResizedCrop((CROP, CROP), antialias=True), v2.RandomHorizontalFlip(0.5)
    yield "recommended", v2.Compose([v2.ToImage(), uint8, crop, flip, floats, normal])
    yield (
        "recommended evaluation",
        v2.Compose([v2.ToImage(), v2.Resize(RESIZE), v2.CenterCrop(CROP), floats, normal]),
    )
    yield "on images", v2.Compose([crop, flip, v2.ToImage(), floats, normal])
    yield "as v1 was", v2.Compose([crop, flip, v2.ToTensor(), normal])
    yield (
        "photometric",
        v2.Compose(
            [v2.ToImage(), v2.RandomPhotometricDistort(p=1), v2.RandomEqualize(), crop, floats]
        ),
    )
    yield (
        "geometric",
        v2.Compose(
            [
                v2.Pad(3),
                v2.RandomRotation(30),
                v2.RandomAffine(20, (0.1, 0.3), (0.5, 0.75)),
                v2.RandomPerspective(0.6),
                v2.ElasticTransform(20.0),
                v2.ToImage(),
                crop,
            ]
        ),
    )
    yield "JPEG", v2.Compose([v2.PILToTensor(), v2.JPEG((5, 50)), crop, floats])
    for of in (v1, v2):
        name = of.__name__.rpartition(".")[2].replace("transforms", "v1")
        yield f"five crops {name}", _five_crops(of)
        yield (
            f"tensor first {name}",
            of.Compose(
                [of.PILToTensor(), of.Resize((CROP, CROP)), of.ConvertImageDtype(torch.float)]
            ),
        )
        yield (
            f"floats first {name}",
            of.Compose([of.ToTensor(), of.Resize((CROP, CROP)), of.Normalize(*NORMALIZE)]),
        )
        yield (
            f"floats all along {name}",
            of.Compose(
                [
                    of.ToTensor(),
                    of.Resize(RESIZE, antialias=True),
                    of.RandomCrop(CROP),
                    of.ColorJitter(0.2, 0.2, 0.2),
                    of.Normalize(*NORMALIZE),
                ]
            ),
        )
        yield f"no list {name}", of.PILToTensor()
        yield (
            f"to an image and back {name}",
            of.Compose([of.ToTensor(), of.ToPILImage(), of.RandomCrop(CROP), of.ToTensor()]),
        )
    yield "modules", torch.nn.Sequential(crop, flip, v2.ToImage(), floats)
    yield "weights, classification", presets.ImageClassification(crop_size=CROP, resize_size=RESIZE)
    yield "weights, detection", presets.ObjectDetection()
    yield "weights, segmentation", presets.SemanticSegmentation(resize_size=RESIZE)
    yield (
        "weights, video",
        Clip(presets.VideoClassification(crop_size=(CROP, CROP), resize_size=(RESIZE, RESIZE))),
    )


# timm


def of_timm():
    def train(**options):
        return timm.create_transform(CROP, is_training=True, **options)

    yield "timm", train()
    yield "timm without augmentation", train(no_aug=True)
    yield "timm rand", train(auto_augment="rand-m9-mstd0.5-inc1", re_prob=0.5, re_mode="pixel")
    yield "timm original", train(auto_augment="original", interpolation="random", vflip=0.5)
    yield "timm augmix", train(auto_augment="augmix-m3-w3", color_jitter=None)
    yield "timm grey and blurred", train(grayscale_prob=0.3, gaussian_blur_prob=0.5)
    yield "timm keeping ratio", train(train_crop_mode="rkrc", color_jitter_prob=0.5)
    yield "timm prefetched", train(use_prefetcher=True)
    yield "timm in parts", train(auto_augment="rand-m5", separate=True)
    for mode in ("center", "squash", "border"):
        evaluation = {"crop_mode": mode, "interpolation": "bicubic"}
        yield f"timm evaluation {mode}", timm.create_transform(CROP, **evaluation)


class InParts:
    """timm's ``AugMixDataset`` has these three and goes through them itself."""

    def __init__(self, parts):
        self.parts = parts

    def __call__(self, image):
        first, second, last = self.parts
        image = first(image)
        return [last(image), last(second(image))]


# Hugging Face


class Processed:
    """An image processor's steps on tensors, by functions and not by a ``Compose``."""

    def __call__(self, image):
        tensor = v2.functional.pil_to_tensor(image)
        tensor = v2.functional.resize(tensor, [CROP, CROP], BICUBIC, antialias=True)
        return v2.functional.normalize(tensor.float() / 255, *HALF)


class ProcessedArray:
    """An image processor's steps on arrays."""

    def __call__(self, image):
        levels = np.array(image).transpose(2, 0, 1)
        resized = Image.fromarray(levels.transpose(1, 2, 0)).resize((CROP, CROP), 2)
        return {"pixel_values": (np.array(resized) / 127.5 - 1).astype(np.float32)}


def _converted(image):
    return image.convert("RGB") if image.mode != "RGB" else image


def of_hugging_face():
    end = [v1.ToTensor(), v1.Normalize(*HALF)]
    flip = v1.RandomHorizontalFlip()
    yield "image classification", v1.Compose([v1.RandomResizedCrop(CROP), flip, *end])
    yield (
        "image classification evaluation",
        v1.Compose([v1.Resize(RESIZE), v1.CenterCrop(CROP), *end]),
    )
    yield (
        "masked autoencoder",
        v1.Compose(
            [
                v1.Lambda(_converted),
                v1.RandomResizedCrop(CROP, (0.2, 1.0), interpolation=BICUBIC),
                flip,
                *end,
            ]
        ),
    )
    yield "diffusers", v1.Compose([v1.Resize(RESIZE), v1.RandomCrop(CROP), flip, *end])
    yield "diffusers evaluation", v1.Compose([v1.Resize(RESIZE), v1.CenterCrop(CROP), *end])
    yield "image processor", Processed()
    yield "image processor of arrays", ProcessedArray()


# lightly


class Blur:
    """Draws from numpy's generator."""

    def __init__(self, probability):
        self.probability = probability

    def __call__(self, image):
        if np.random.random_sample() >= self.probability:
            return image
        return image.filter(ImageFilter.GaussianBlur(np.random.uniform(0.1, 2.0)))


class Turn:
    """A quarter of a turn, sometimes."""

    def __call__(self, image):
        return functional.rotate(image, 90) if np.random.random_sample() < 0.5 else image


class Solarize:
    """Draws from Python's generator."""

    def __call__(self, image):
        return ImageOps.solarize(image, threshold=128) if random.random() < 0.5 else image


class Views:
    """Several views of one image."""

    def __init__(self, *views):
        self.views = views

    def __call__(self, image):
        return [view(image) for view in self.views]


def view(size=CROP, scale=(0.08, 1.0), strength=1.0, blur=0.5, before=(), after=()):
    jitter = v1.ColorJitter(0.8 * strength, 0.8 * strength, 0.8 * strength, 0.2 * strength)
    return v1.Compose(
        [
            v1.RandomResizedCrop(size, scale),
            v1.RandomHorizontalFlip(),
            v1.RandomVerticalFlip(0.1),
            *before,
            v1.RandomApply([jitter], 0.8),
            v1.RandomGrayscale(0.2),
            Blur(blur),
            *after,
            v1.ToTensor(),
            v1.Normalize(*NORMALIZE),
        ]
    )


class Held:
    """A view as lightly has it: an object that calls a ``Compose``."""

    def __init__(self, steps):
        self.transform = steps

    def __call__(self, image):
        return self.transform(image)


def of_lightly():
    yield "SimCLR", Views(*[Held(view(before=[Turn()]))] * 2)
    yield "MoCo", Views(*[Held(view(scale=(0.2, 1.0), strength=0.5))] * 2)
    yield "BYOL", Views(Held(view(blur=1.0)), Held(view(blur=0.1, after=[Solarize()])))
    small = Held(view(12, (0.05, 0.4), 0.5))
    large = [Held(view(CROP, (0.4, 1.0), 0.5, blur)) for blur in (1.0, 0.1)]
    yield "DINO", Views(*large, *[small] * 6)
    yield "SwAV", Views(*[Held(view())] * 2, *[Held(view(12, (0.05, 0.14)))] * 3)
    steps = [v1.RandomResizedCrop(CROP, (0.2, 1.0), interpolation=BICUBIC), v1.ToTensor()]
    yield "MAE", Views(v1.Compose(steps))
    jitter = v1.RandomApply([v1.ColorJitter(0.4)])
    patches = [jitter, v1.RandomGrayscale(), v1.ToTensor(), v1.Normalize(*NORMALIZE)]
    yield "jigsaw", Views(v1.Compose([v1.RandomCrop(9), *patches]), v1.Compose(patches))


def pipelines():
    """Returns all, by name."""
    made = dict(references())
    made.update((f"docs: {name}", steps) for name, steps in documentation())
    made.update(of_timm())
    made["timm in parts"] = InParts(made["timm in parts"])
    made.update((f"Hugging Face: {name}", steps) for name, steps in of_hugging_face())
    made.update((f"lightly: {name}", steps) for name, steps in of_lightly())
    return made


# torch's convolution rounds as the processor's library sums: one level on one value in 100,000.
BLURRED = ("timm grey and blurred",)
