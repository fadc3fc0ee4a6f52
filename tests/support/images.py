"""Small photographs and the transforms of ImageNet recipes."""

import numpy as np
from PIL import Image

NORMALIZE = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def photo(generator, width, height):
    """Smooth colors with some noise, so that JPEGs of it are like those of photographs."""
    small = generator.integers(0, 256, (height // 16 + 2, width // 16 + 2, 3), dtype=np.uint8)
    image = np.asarray(Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC))
    noise = generator.integers(-12, 13, image.shape)
    return Image.fromarray(np.clip(image.astype(int) + noise, 0, 255).astype(np.uint8))


def uneven_images(root):
    """Writes 20 small images and 20 large ones, among them BMPs and a truncated file."""
    generator = np.random.default_rng(0)
    for number in range(40):
        folder = root / f"class{number % 2}"
        folder.mkdir(exist_ok=True)
        side = 900 if number % 4 < 2 else 60
        suffix = "bmp" if number in (8, 9) else "jpg"
        photo(generator, side, side).save(folder / f"{number:03}.{suffix}", quality=90)
    cut = root / "class0" / "016.jpg"
    cut.write_bytes(cut.read_bytes()[: cut.stat().st_size * 3 // 4])
    return root


def train_transform(size=32):
    from torchvision import transforms

    return transforms.Compose(
        [
            transforms.RandomResizedCrop(size),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize(*NORMALIZE),
        ]
    )


def eval_transform(resize=40, size=32):
    from torchvision import transforms

    return transforms.Compose(
        [
            transforms.Resize(resize),
            transforms.CenterCrop(size),
            transforms.ToTensor(),
            transforms.Normalize(*NORMALIZE),
        ]
    )
