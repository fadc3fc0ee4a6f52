"""Images as requests bring them, and what torchvision makes of them."""

import io

from PIL import Image


def encoded(image, format="JPEG", **options):
    file = io.BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


def expected(transform, image):
    """What torchvision makes of an encoded image."""
    return transform(Image.open(io.BytesIO(image)).convert("RGB"))
