"""What datasets do with an image file, each as a function of its path that draws at random."""

import copy
import io
import pickle
import random
from pathlib import Path

import numpy as np
import torch
from deferred.steps import STEPS
from PIL import Image, ImageChops, ImageDraw, ImageEnhance, ImageFilter, ImageOps, ImageStat
from support.images import NORMALIZE
from timm.data.auto_augment import solarize_add
from torchvision import transforms
from torchvision.transforms import functional, v2


def rgb(path):
    return Image.open(path).convert("RGB")


def of_bytes(path):
    return Image.open(io.BytesIO(Path(path).read_bytes()))


def loaded(path):
    image = of_bytes(path)
    image.load()
    return image


def with_file(path):
    with open(path, "rb") as file:
        return Image.open(file).convert("RGB")


def with_image(path):
    with Image.open(path) as image:
        return image.convert("RGB")


def left_before_use(path):
    with Image.open(path) as image:
        pass
    return np.asarray(image)


def coloured(image):
    """An image of levels with a palette, in several ways."""
    image.putpalette([value for level in range(256) for value in (255 - level, level, 7)])
    shown = np.asarray(image.convert("RGB"))
    return shown, image.mode, image.getpalette(), np.asarray(image.resize((20, 16)))


def about(image):
    return (
        image.size,
        image.mode,
        sorted(map(str, image.info)),
        image.format,
        dict(image.getexif()),
        image.getbands(),
        image.readonly,
        image.palette is None,
        type(image),
        getattr(image, "tile", None),
    )


def on_both_sides_of_a_copy(path):
    image = rgb(path)
    other = image.copy()
    other.paste((9, 9, 9), (0, 0, 3, 3))
    return np.asarray(other), np.asarray(image)


def drawn_on(path):
    image = rgb(path)
    crop = image.crop((0, 0, 30, 30))
    ImageDraw.Draw(image).line((0, 0, 20, 20), fill=(1, 2, 3))
    return np.asarray(image), np.asarray(crop)


def enhanced_after_a_change(path):
    image = rgb(path)
    enhancers = [ImageEnhance.Color(image), ImageEnhance.Contrast(image)]
    image.putpixel((0, 0), (255, 0, 0))
    return [np.asarray(enhancer.enhance(0.3)) for enhancer in enhancers]


def degenerate(path):
    return [
        (np.asarray(kind(rgb(path)).degenerate), about(kind(rgb(path)).degenerate))
        for kind in (ImageEnhance.Color, ImageEnhance.Contrast, ImageEnhance.Sharpness)
    ]


def by_hand(path):
    image = rgb(path)
    top, left, height, width = transforms.RandomResizedCrop.get_params(image, (0.2, 1), (0.7, 1.4))
    crop = functional.resized_crop(image, top, left, height, width, [40, 40])
    return functional.normalize(functional.to_tensor(crop), *NORMALIZE)


def thumbnail(path):
    image = rgb(path)
    image.thumbnail((50, 50))
    return np.asarray(image)


def thumbnail_of_file(path, size=(40, 30), **options):
    image = Image.open(path)
    image.thumbnail(size, **options)
    return np.asarray(image), about(image)


def thumbnail_of_crop(path):
    image = rgb(path).crop((3, 4, 60, 50))
    pixels = image.load()
    image.thumbnail((20.7, 30), Image.Resampling.LANCZOS, 1.5)
    return np.asarray(image), image.getpixel((1, 1)), pixels[2, 3], about(image)


def letterbox(path, color=(114, 114, 114), place=(5, 7)):
    image = rgb(path).resize((40, 30))
    canvas = Image.new("RGB", (50, 44), color)
    canvas.paste(image, place)
    return np.asarray(canvas), about(canvas)


def pasted_twice(path):
    canvas = Image.new("L", (50, 44), 9)
    canvas.paste(rgb(path), (20, -3, 110, 67))
    canvas.paste(rgb(path).crop((0, 0, 9, 9)), (3, 3))
    return np.asarray(canvas)


def pasted_with_mask(path):
    canvas = Image.new("RGB", (90, 70), "#102030")
    canvas.paste(rgb(path), None, rgb(path).convert("L"))
    return np.asarray(canvas)


def changed_after_paste(path):
    canvas, other = Image.new("RGB", (99, 99), "white"), Image.new("RGB", (99, 99))
    image = rgb(path)
    canvas.paste(image, (1, 1))
    other.paste(canvas)
    canvas.putpixel((2, 2), (1, 2, 3))
    image.putpixel((2, 2), (4, 5, 6))
    return [np.asarray(each) for each in (canvas, other, image)]


def blank(path):
    canvas = Image.new("RGB", (9, 7), (1, 2, 3))
    copies = canvas.copy(), canvas.crop((2, 2, 20, 20)), pickle.loads(pickle.dumps(canvas))
    canvas.load()[0, 0] = 4, 5, 6
    return [(np.asarray(each), about(each)) for each in (canvas, *copies)], rgb(path).size


def images_made_of_it(path):
    image, canvas = rgb(path), Image.new("RGB", (99, 99), (1, 2, 3))
    canvas.paste(image, (3, 4))
    image.thumbnail((30, 30))
    return canvas, image, Image.new("L", (3, 2), 7), *image.split()


def drafted(path):
    image = Image.open(path)
    image.draft("L", None)
    return np.asarray(image), image.mode


def levels_of_chance(path):
    return np.asarray(rgb(path).point(lambda level: random.random() * 300 - 20))


def channels_apart(path):
    red, green, blue = rgb(path).split()
    other = rgb(path).getchannel("B")
    changed = green.copy()
    changed.putpixel((1, 1), 200)
    merged = [(blue, green, red), (red, red, blue), (red, other, other), (changed, blue, red)]
    merged += [(red.resize((9, 9)), blue.resize((9, 9)), red.resize((9, 9)))]
    return [np.asarray(Image.merge("RGB", each)) for each in merged]


def draft(path):
    image = Image.open(path)
    image.draft("RGB", (30, 30))
    return np.asarray(image.convert("RGB"))


def file_used_again(path):
    image = Image.open(path)
    first, second = image.convert("RGB"), image.convert("RGB")
    return [np.asarray(each) for each in (first, second, image, image.convert("L"))]


def another_where_damaged(path):
    try:
        image = Image.open(path).convert("RGB")
    except Exception:
        image = Image.new("RGB", (70, 60), (7, 7, 7))
    return STEPS["train"](image)


def default_dtype(path):
    torch.set_default_dtype(torch.float64)
    try:
        return functional.to_tensor(rgb(path))
    finally:
        torch.set_default_dtype(torch.float32)


def changed_conversion(path):
    steps = transforms.Compose([transforms.ToTensor(), transforms.Normalize([0.5] * 3, [0.5] * 3)])
    first = steps(rgb(path))
    steps.transforms[1].mean[0] = 0.25
    return first, steps(rgb(path))


def hooked_later(path):
    steps = v2.Compose([v2.ToImage(), v2.ToDtype(torch.float32), v2.Normalize([0.5], [0.5])])
    first = steps(rgb(path))
    steps.transforms[-1].register_forward_hook(lambda module, inputs, output: output + 1)
    return first, steps(rgb(path))


def another_default_dtype_later(path):
    steps = transforms.Compose([transforms.ToTensor(), transforms.Normalize([0.5], [0.5])])
    first = steps(rgb(path))
    torch.set_default_dtype(torch.float64)
    try:
        return first, steps(rgb(path))
    finally:
        torch.set_default_dtype(torch.float32)


def transparent(path):
    image = rgb(path)
    image.info["transparency"] = (1, 2, 3)
    return image.convert("L").info, ImageEnhance.Color(image).enhance(0.5).info


def pixels_of_before(path):
    image = rgb(path)
    pixels = image.load()
    image.thumbnail((9, 9))
    return pixels[30, 10], image.size


def pixels_of_a_closed_image(path):
    image = rgb(path)
    pixels = image.load()
    image.close()
    return pixels[3, 1]


def degenerate_of_the_user(path):
    image = rgb(path)
    enhancer = ImageEnhance.Contrast(image)
    enhancer.degenerate = Image.new("RGB", image.size, (255, 0, 0))
    return np.asarray(enhancer.enhance(0.5))


def enhancer_elsewhere(path):
    enhancer = pickle.loads(pickle.dumps(ImageEnhance.Sharpness(rgb(path))))
    return np.asarray(enhancer.enhance(0.3)), np.asarray(copy.copy(enhancer).enhance(1.7))


class ReadsInParts:
    """A file whose read() needs a size."""

    def __init__(self, path):
        self.file = open(path, "rb")  # noqa: SIM115

    def read(self, count):
        return self.file.read(count)

    def seek(self, *where):
        return self.file.seek(*where)

    def tell(self):
        return self.file.tell()


def info_of(path):
    image = Image.open(path)
    image.info["note"] = ["kept"]
    rgb_image = image.convert("RGB")
    made = {
        "crop": rgb_image.crop((1, 1, 9, 9)),
        "resize": rgb_image.resize((9, 9)),
        "flip": ImageOps.mirror(rgb_image),
        "brightness": ImageEnhance.Brightness(rgb_image).enhance(1.2),
        "contrast": ImageEnhance.Contrast(rgb_image).enhance(1.2),
        "color": ImageEnhance.Color(rgb_image).enhance(1.2),
        "sharpness": ImageEnhance.Sharpness(rgb_image).enhance(1.2),
        "hue": functional.adjust_hue(rgb_image, 0.1),
        "grey": functional.to_grayscale(rgb_image, 3),
        "one channel": functional.to_grayscale(rgb_image, 1),
        "pad": functional.pad(rgb_image, [2]),
        "reflect": functional.pad(rgb_image, [2], padding_mode="reflect"),
        "affine": functional.affine(rgb_image, 10, [1, 1], 1.1, [2]),
        "equalize": functional.equalize(rgb_image),
        "blur": rgb_image.filter(ImageFilter.GaussianBlur(2)),
        "blur of torchvision": functional.gaussian_blur(rgb_image, [3, 3], [1.0, 1.0]),
    }
    return {name: about(each) for name, each in made.items()}


USES = {
    **{f"steps: {name}": lambda path, name=name: STEPS[name](rgb(path)) for name in STEPS},
    "not converted": lambda path: STEPS["evaluation"](Image.open(path)),
    "of a file object": lambda path: STEPS["evaluation"](with_file(path)),
    "of an image in a with": lambda path: STEPS["evaluation"](with_image(path)),
    "of bytes": lambda path: STEPS["evaluation"](of_bytes(path).convert("RGB")),
    "loaded": lambda path: STEPS["evaluation"](loaded(path)),
    "two crops": lambda path: [STEPS["train"](image) for image in [rgb(path)] * 2],
    "six crops": lambda path: [STEPS["jitter"](image) for image in [rgb(path)] * 6],
    "about the file": lambda path: about(Image.open(path)),
    "about it once loaded": lambda path: about(loaded(path)),
    "about it converted": lambda path: about(rgb(path)),
    "info": info_of,
    "exif": lambda path: STEPS["evaluation"](ImageOps.exif_transpose(Image.open(path))),
    "array": lambda path: np.array(rgb(path)),
    "array of the file": lambda path: np.asarray(Image.open(path)),
    "array that may be written": lambda path: np.asarray(rgb(path)).flags.writeable,
    "floats": lambda path: np.asarray(rgb(path), dtype=np.float32),
    "bytes": lambda path: rgb(path).tobytes(),
    "bytes, BGR": lambda path: rgb(path).tobytes("raw", "BGR"),
    "a pixel": lambda path: rgb(path).getpixel((0, 0)),
    "a pixel of load()": lambda path: rgb(path).load()[0, 0],
    "both sides of a copy": on_both_sides_of_a_copy,
    "drawn on": drawn_on,
    "enhanced after a change": enhanced_after_a_change,
    "degenerate": degenerate,
    "parameters by hand": by_hand,
    "thumbnail": thumbnail,
    "thumbnail of the file": thumbnail_of_file,
    "thumbnail of the file, whole": lambda path: thumbnail_of_file(path, (60, 40)),
    "thumbnail of the file, without a gap": lambda path: thumbnail_of_file(path, reducing_gap=None),
    "thumbnail as large as the file": lambda path: thumbnail_of_file(path, (90, 70)),
    "thumbnail to nothing": lambda path: thumbnail_of_file(path, (0, 5)),
    "thumbnail by an unknown filter": lambda path: thumbnail_of_file(path, resample=77),
    "thumbnail of a crop": thumbnail_of_crop,
    "letterbox": letterbox,
    "letterbox of a color's name": lambda path: letterbox(path, "teal"),
    "letterbox of no color": lambda path: letterbox(path, None),
    "letterbox of an unknown color": lambda path: letterbox(path, "no color"),
    "letterbox of a level": lambda path: letterbox(path, 120),
    "letterbox of levels too high": lambda path: letterbox(path, (300, 2, 3)),
    "letterbox beyond": lambda path: letterbox(path, place=(-9, 30)),
    "letterbox far beyond": lambda path: letterbox(path, place=(-200, 300)),
    "letterbox at a box": lambda path: letterbox(path, place=(5, 7, 45, 37)),
    "letterbox at a box of another size": lambda path: letterbox(path, place=(5, 7, 45, 38)),
    "letterbox at fractions": lambda path: letterbox(path, place=(5.5, 7)),
    "letterbox at a list": lambda path: letterbox(path, place=[5, 7]),
    "letterbox nowhere": lambda path: letterbox(path, place=(5,)),
    "pasted twice": pasted_twice,
    "pasted with a mask": pasted_with_mask,
    "changed after it was pasted": changed_after_paste,
    "pasted on what it is made of": lambda path: rgb(path).paste(rgb(path), (3, 3)),
    "images made of it": images_made_of_it,
    "blank": blank,
    "blank of no size": lambda path: Image.new("RGB", (0, 9)).size,
    "blank of a negative size": lambda path: Image.new("RGB", (-1, 9)),
    "padded": lambda path: np.asarray(ImageOps.pad(rgb(path), (50, 50), color=(9, 8, 7))),
    "draft in gray": drafted,
    "a palette of levels": lambda path: coloured(Image.open(path).convert("L")),
    "a palette of an open file": lambda path: coloured(Image.open(path)),
    "a channel": lambda path: np.asarray(rgb(path).getchannel("G")),
    "a channel that is not": lambda path: rgb(path).getchannel("A"),
    "a channel beyond": lambda path: rgb(path).getchannel(3),
    "channels apart": channels_apart,
    "channels of other sizes": lambda path: Image.merge(
        "RGB", [rgb(path).resize((side, 9)).getchannel(0) for side in (9, 9, 8)]
    ),
    "gray to three channels": lambda path: np.asarray(
        Image.merge("RGB", [rgb(path).convert("L")] * 3)
    ),
    "gamma": lambda path: np.asarray(functional.adjust_gamma(rgb(path), 1.7, 0.9)),
    "solarize_add": lambda path: np.asarray(solarize_add(rgb(path), 60)),
    "point of floats": lambda path: np.asarray(rgb(path).point([0.5, 1.5, 300, -4] * 192)),
    "point of one table for three": lambda path: rgb(path).point([0] * 256),
    "point of texts": lambda path: rgb(path).point(["a"] * 768),
    "point of no number": lambda path: rgb(path).point([float("nan")] * 768),
    "point of infinity": lambda path: rgb(path).point(lambda level: float("inf")),
    "point by what raises": lambda path: rgb(path).point(lambda level: 1 // (level - 9)),
    "point by chance": levels_of_chance,
    "point by chance, of texts": lambda path: rgb(path).point(lambda level: str(random.random())),
    "point to another mode": lambda path: np.asarray(rgb(path).convert("L").point(range(256), "1")),
    "reduce to nothing": lambda path: rgb(path).reduce(0),
    "reduce a part": lambda path: np.asarray(rgb(path).reduce((3, 4), (1, 2, 31, 40))),
    "reduce too large a part": lambda path: rgb(path).reduce(2, (1, 2, 310, 40)),
    "resize with too large a box": lambda path: rgb(path).resize((9, 9), box=(0, 0, 90.1, 9)),
    "resize with a box of nothing": lambda path: np.asarray(
        rgb(path).resize((9, 9), box=(5, 5, 5, 9))
    ),
    "resize with a tiny box": lambda path: np.asarray(
        rgb(path).resize((9, 9), 4, box=(89.8, 5, 90, 9))
    ),
    "resize with a small gap": lambda path: rgb(path).resize((9, 9), reducing_gap=0.9),
    "resize a box with a gap": lambda path: np.asarray(
        rgb(path).resize((7, 9), 3, (3.3, 1.2, 80, 69.9), 1.3)
    ),
    "draft": draft,
    "resize with a box": lambda path: np.asarray(rgb(path).resize((30, 20), box=(1, 1, 9.5, 9))),
    "resize to the nearest": lambda path: np.asarray(rgb(path).resize((30, 20), 0)),
    "resize with a gap": lambda path: np.asarray(rgb(path).resize((9, 9), 2, reducing_gap=2.0)),
    "resize to nothing": lambda path: rgb(path).resize((0, 5)).size,
    "reduce": lambda path: np.asarray(rgb(path).reduce(2)),
    "crop beyond": lambda path: np.asarray(rgb(path).crop((-5, 3, 40, 200)).resize((70, 31), 1)),
    "crop of nothing": lambda path: rgb(path).crop((5, 5, 5, 9)).size,
    "crop turned round": lambda path: rgb(path).crop((9, 5, 5, 9)),
    "crop of floats": lambda path: np.asarray(rgb(path).crop((0.5, 1.5, 20.5, 11.4))),
    "rotate": lambda path: np.asarray(rgb(path).rotate(33, 2, True)),
    "half a turn": lambda path: np.asarray(rgb(path).rotate(180)),
    "transpose": lambda path: np.asarray(rgb(path).transpose(Image.Transpose.TRANSPOSE)),
    "split and merge": lambda path: np.asarray(Image.merge("RGB", rgb(path).split()[::-1])),
    "L": lambda path: np.asarray(Image.open(path).convert("L")),
    "L of RGB": lambda path: np.asarray(rgb(path).convert("L").resize((30, 20))),
    "L and back": lambda path: np.asarray(rgb(path).convert("L").convert("RGB")),
    "RGBA": lambda path: np.asarray(rgb(path).convert("RGBA")),
    "palette": lambda path: np.asarray(rgb(path).convert("P")),
    "chops": lambda path: np.asarray(ImageChops.invert(rgb(path))),
    "statistics": lambda path: ImageStat.Stat(rgb(path)).mean,
    "point": lambda path: np.asarray(rgb(path).point(lambda level: level // 2)),
    "expand": lambda path: np.asarray(ImageOps.expand(rgb(path), (3, 1), (1, 2, 3))),
    "fit, beyond": lambda path: ImageOps.fit(rgb(path), (0, 3)).size,
    "fit": lambda path: np.asarray(ImageOps.fit(rgb(path), (30, 20))),
    "pickle": lambda path: np.asarray(pickle.loads(pickle.dumps(rgb(path)))),
    "pickle of the file": lambda path: np.asarray(pickle.loads(pickle.dumps(Image.open(path)))),
    "deep copy": lambda path: np.asarray(copy.deepcopy(rgb(path))),
    "copy": lambda path: np.asarray(copy.copy(rgb(path))),
    "equal": lambda path: (rgb(path) == rgb(path), rgb(path) == rgb(path).resize((5, 5))),
    "hash": lambda path: hash(rgb(path)),
    "histogram": lambda path: rgb(path).histogram(),
    "extremes": lambda path: rgb(path).getextrema(),
    "file used again": file_used_again,
    "pasted": lambda path: np.asarray(Image.new("RGB", (9, 9)).paste(rgb(path))),
    "saved": lambda path: rgb(path).save(io.BytesIO(), "PNG"),
    "verified": lambda path: Image.open(path).verify(),
    "left before it is used": left_before_use,
    "conversion that is hooked later": hooked_later,
    "another default dtype later": another_default_dtype_later,
    "transparent color": transparent,
    "pixels of before": pixels_of_before,
    "pixels of a closed image": pixels_of_a_closed_image,
    "degenerate of the user": degenerate_of_the_user,
    "enhancer elsewhere": enhancer_elsewhere,
    "a file read in parts": lambda path: STEPS["evaluation"](
        Image.open(ReadsInParts(path)).convert("RGB")
    ),
    "size that can be read once": lambda path: rgb(path).resize(map(int, (9, 7)), 0).size,
    "enhanced beyond all": lambda path: np.asarray(
        ImageEnhance.Sharpness(rgb(path)).enhance(float("inf"))
    ),
    "resize with no filter": lambda path: (lambda image: image.resize(image.size, 99))(rgb(path)),
    "unknown argument": lambda path: rgb(path).convert("L", unknown=1),
    "border of a list": lambda path: ImageOps.expand(rgb(path), [1, 2]),
    "unknown padding": lambda path: functional.pad(rgb(path), [1], padding_mode="wrap"),
    "closed": lambda path: (lambda image: (image.close(), image.getpixel((0, 0))))(rgb(path)),
    "another where damaged": another_where_damaged,
    "an image": rgb,
    "floats of 64 bits": default_dtype,
    "a conversion that is changed": changed_conversion,
}
if Image.__version__ >= "13":  # earlier releases of Pillow crash
    USES["blur that is none"] = lambda path: rgb(path).filter(
        ImageFilter.GaussianBlur(float("nan"))
    )
# torch's convolution rounds as the processor's library sums: one level on one value in 100,000.
NEARLY = {
    "torchvision's blur": lambda path: functional.pil_to_tensor(
        functional.gaussian_blur(rgb(path), [5, 5], [1.0, 1.5])
    )
}
