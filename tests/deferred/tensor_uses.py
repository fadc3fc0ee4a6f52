"""What datasets do with the tensors of image decoders, each as a function without arguments."""

import copy
import functools
import io
import multiprocessing.reduction
import pickle
import threading
import weakref

import numpy as np
import torch
from PIL import Image
from support import encoded_images
from support.images import NORMALIZE, photo
from torch.utils.data import default_collate
from torchvision import io as vision
from torchvision import transforms as v1
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional

SIZES = ((53, 37), (24, 90), (64, 64), (1, 9), (33, 1))


@functools.cache
def encoded(size=(53, 37), **options):
    return encoded_images.encoded(photo(np.random.default_rng(5), *size), **options)


def decoded(size=(53, 37), **options):
    data = torch.frombuffer(bytearray(encoded(size, **options)), dtype=torch.uint8)
    return vision.decode_image(data, "RGB")


def opened(size=(53, 37)):
    return Image.open(io.BytesIO(encoded(size)))


def decoded_png(size=(53, 37)):
    data = torch.frombuffer(bytearray(encoded(size, format="PNG")), dtype=torch.uint8)
    return vision.decode_image(data, "RGB")


BEGINNINGS = {
    "JPEG": decoded,
    "PNG": decoded_png,
    "image": lambda size=(53, 37): v2.ToImage()(decoded(size)),
    "image of PIL": lambda size=(53, 37): v2.ToImage()(opened(size)),
    "tensor of PIL": lambda size=(53, 37): functional.pil_to_tensor(opened(size)),
}


# Chains

FLOAT = v2.ToDtype(torch.float32, scale=True)
STEPS = {
    "crop": lambda image: functional.crop(image, 2, 3, 11, 7),
    "crop beyond": lambda image: functional.crop(image, -2, 30, 40, 40),
    "center crop": lambda image: functional.center_crop(image, [20]),
    "slice": lambda image: image[:, 1:-1, 2:],
    "rows": lambda image: image[:, 3:30],
    "all": lambda image: image[...],
    "other slices": lambda image: image[..., :9, :8],
    "empty": lambda image: image[:, 5:5],
    "steps": lambda image: image[:, ::2],
    "channel": lambda image: image[1:2],
    "resize": lambda image: functional.resize(image, [19, 23]),
    "resize to a side": lambda image: functional.resize(image, 16, max_size=40),
    "resize to the same": lambda image: functional.resize(image, list(image.shape[-2:])),
    "bicubic": lambda image: functional.resize(image, [41, 30], v2.InterpolationMode.BICUBIC),
    "nearest": lambda image: functional.resize(image, [9, 8], v2.InterpolationMode.NEAREST),
    "no antialias": lambda image: functional.resize(image, [9, 8], antialias=False),
    "resized crop": lambda image: functional.resized_crop(image, 1, 2, 9, 8, [12, 14]),
    "hflip": lambda image: functional.horizontal_flip(image),
    "vflip": lambda image: functional.vertical_flip(image),
    "flip": lambda image: image.flip((-1, -2)),
    "flip of channels": lambda image: torch.flip(image, [0]),
    "float": lambda image: image.float(),
    "to": lambda image: image.to(torch.float32),
    "to a dtype": lambda image: image.to(dtype=torch.bfloat16),
    "to a copy": lambda image: image.to(torch.uint8, copy=True),
    "to uint8": lambda image: image.to(torch.uint8),
    "half": lambda image: image.half(),
    "double": lambda image: image.double(),
    "int": lambda image: image.int(),
    "/": lambda image: image / 255,
    "/ 127.5 - 1": lambda image: image / 127.5 - 1,
    "1 -": lambda image: 1 - image,
    "* +": lambda image: image * 2 + 1,
    "div": lambda image: torch.div(image, 7, rounding_mode="floor"),
    "nan": lambda image: image * float("nan"),
    "contiguous": lambda image: image.contiguous(),
    "channels last": lambda image: image[None].contiguous(memory_format=torch.channels_last)[0],
    "clone": lambda image: image.clone(),
    "to_dtype": FLOAT,
    "to_dtype half": v2.ToDtype(torch.float16, scale=True),
    "to_dtype unscaled": v2.ToDtype(torch.float32),
    "normalize": v2.Normalize(*NORMALIZE),
    "normalize in place": v2.Normalize(*NORMALIZE, inplace=True),
    "normalize by one": v2.Normalize([0.5], [0.25]),
    "random resized crop": v2.RandomResizedCrop(21, antialias=True),
    "random crop": v2.RandomCrop(17),
    "random flip": v2.RandomHorizontalFlip(),
    "by type": v2.ToDtype(
        {torch.Tensor: torch.float64, tv_tensors.Image: torch.float32, "others": torch.float16},
        scale=True,
    ),
    "padded by type": v2.Pad(2, {torch.Tensor: 9, tv_tensors.Image: 7, "others": 5}),
    "pure": v2.ToPureTensor(),
    "wrapped": lambda image: tv_tensors.wrap(image + 1, like=tv_tensors.Image(image)),
    "wrapped like it": lambda image: tv_tensors.wrap(
        torch.ones(3, 4, 4), like=functional.to_image(image)
    ),
    "of its class": lambda image: torch.ones(3).as_subclass(type(functional.to_image(image))),
    "five crops": lambda image: torch.stack(v2.FiveCrop(8)(functional.to_image(image))),
    "jitter": v2.ColorJitter(0.3, 0.3, 0.3, 0.1),
    "brightness": lambda image: functional.adjust_brightness(image, 1.3),
    "contrast": lambda image: functional.adjust_contrast(image, 0.7),
    "saturation": lambda image: functional.adjust_saturation(image, 1.7),
    "hue": lambda image: functional.adjust_hue(image, hue_factor=-0.2),
    "negative": lambda image: functional.adjust_contrast(image, -1),
    "sharpness": lambda image: functional.adjust_sharpness(image, 1.4),
    "posterize": lambda image: functional.posterize(image, 3),
    "posterize to 8 bits": lambda image: functional.posterize(image, 8),
    "solarize": lambda image: functional.solarize(image, 100.3),
    "invert": lambda image: functional.invert(image),
    "autocontrast": lambda image: functional.autocontrast(image),
    "equalize": lambda image: functional.equalize(image),
    "grayscale": lambda image: functional.rgb_to_grayscale(image, 3),
    "blur": lambda image: functional.gaussian_blur(image, [3, 3]),
    "permute": lambda image: image.permute(0, 2, 1),
    "image": v2.ToImage(),
    "v1 crop": v1.RandomCrop(15),
    "v1 resize": v1.Resize(15),
    "v1 dtype": v1.ConvertImageDtype(torch.float32),
}
TRAIN = [v2.RandomResizedCrop(24, antialias=True), v2.RandomHorizontalFlip()]
COMPOSED = {
    "train": [*TRAIN, FLOAT, v2.Normalize(*NORMALIZE)],
    "train, flipped first": [v2.RandomVerticalFlip(), *TRAIN, FLOAT],
    "evaluation": [v2.Resize(32), v2.CenterCrop(24), FLOAT, v2.Normalize(*NORMALIZE)],
    "without a conversion": TRAIN,
    "crop": [v2.RandomCrop(20)],
    "crop of the same size": [v2.CenterCrop((37, 53))],
    "padded crop": [v2.CenterCrop(100), v2.RandomCrop(20, 4)],
    "erased": [*TRAIN, FLOAT, v2.RandomErasing(1.0)],
    "jitter": [*TRAIN, v2.ColorJitter(0.3, 0.3, 0.3, 0.1), FLOAT],
    "jitter first": [v2.ColorJitter(0.3, 0.3, 0.3, 0.1), *TRAIN, v2.ColorJitter(0, 0.5), FLOAT],
    "colors": [
        v2.RandomApply([v2.ColorJitter(0.4, 0.4, 0.2, 0.1)], 0.8),
        *(v2.RandomPosterize(3), v2.RandomSolarize(99), v2.RandomInvert(0.3)),
        *(v2.RandomAutocontrast(), v2.RandomEqualize(), v2.RandomAdjustSharpness(1.5)),
        FLOAT,
    ],
    "gray": [*TRAIN, v2.RandomGrayscale(0.5), FLOAT],
    "policy": [*TRAIN, v2.RandAugment(), FLOAT],
    "applied": [v2.RandomApply([v2.RandomHorizontalFlip(0.5)], 0.6), FLOAT],
    "user code": [v2.Resize(30), lambda image: image.flip(-1), v2.RandomCrop(17), FLOAT],
    "image": [v2.ToImage(), *TRAIN, FLOAT, v2.ToPureTensor()],
    "image, kept": [v2.ToImage(), v2.ToDtype(torch.uint8, scale=True), *TRAIN, FLOAT],
    "image at the end": [*TRAIN, v2.ToImage(), FLOAT],
    "by type": [v2.ToImage(), *TRAIN, STEPS["by type"]],
    "user code before": [v2.ToImage(), lambda image: image.flip(-1), *TRAIN, FLOAT],
    "nothing": [v2.ToPureTensor(), v2.ToDtype(torch.uint8)],
    "error": [*TRAIN, v2.Normalize(*NORMALIZE)],
    "in place": [*TRAIN, FLOAT, v2.Normalize(*NORMALIZE, inplace=True)],
    "to_tensor": [*TRAIN, v2.ToTensor()],
    "v1's in v2's": [v1.RandomCrop(20), STEPS["by type"]],
    "v1": [v1.RandomCrop(20), v1.ConvertImageDtype(torch.float32), v1.Normalize(*NORMALIZE)],
}


# What no operation is recorded for


def written():
    image = decoded()
    crop, flipped = image[:, 2:9, 3:20], image.flip(-1)
    image[:, 4:6] = 0
    return image, crop, flipped, crop.flip(-1)


def written_to_a_crop():
    image = decoded()
    crop = image[:, 2:9, 3:20]
    later = image.float()
    crop += 3
    return image, crop, later, image.float()


def shared_with_numpy():
    image = decoded()
    crop = image[:, 2:9]
    array = image.numpy()
    array[:, 3] = 7
    return image, array, crop, np.asarray(crop)


def with_gradient():
    image = FLOAT(decoded()).requires_grad_()
    (image * 2).sum().backward()
    return image, image.grad


def in_a_thread():
    image, made = FLOAT(decoded()), []
    threads = [threading.Thread(target=lambda: made.append(image.numpy())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return image, made, len({array.ctypes.data for array in made})


def of_a_changed_buffer():
    data = torch.frombuffer(bytearray(encoded()), dtype=torch.uint8)
    image = vision.decode_image(data, "RGB")
    data.zero_()
    return image


def recorded_of_images():
    image = v2.ToImage()(decoded())
    made = (
        image.to(torch.float32),
        image.to(torch.uint8),
        image / 255,
        image[:, 3:9],
        image.flip(-1),
    )
    with tv_tensors.set_return_type("TVTensor"):
        return *made, image / 255, image[:, 3:9], image.float()


def written_of_images():
    image = decoded()
    wrapped = v2.ToImage()(image)
    same, crop = functional.resize(wrapped, [37, 53]), functional.crop(wrapped, 2, 3, 9, 9)
    image[:, 3] = 0
    return image, wrapped, same, crop, functional.pil_to_tensor(opened())[:, 3:9]


@torch.jit.script
def _scripted(image: torch.Tensor):
    image += 1
    return image.float() + image.sum(), image


def saved():
    file = io.BytesIO()
    torch.save({"image": decoded(), "crop": decoded()[:, 3:9]}, file)
    return torch.load(io.BytesIO(file.getvalue()), weights_only=True)


def named():
    image = FLOAT(decoded())
    image.name = "a"
    reference, mark = weakref.ref(image), hash(image)
    image.numpy()
    return image.name, reference() is image, mark == hash(image), list(vars(image))


class Own(torch.Tensor):
    """A tensor of the user's own class."""


def of_own_types():
    made = (
        Own(decoded()),
        torch.Tensor._make_subclass(Own, decoded()),
        torch.Tensor.as_subclass(FLOAT(decoded()), Own),
        decoded().as_subclass(Own),
    )
    return [(type(each).__name__, each.detach().as_subclass(torch.Tensor)) for each in made]


def with_copied_attributes():
    image = decoded()
    image.path = "a"
    crop, plain = image[:, 3:9], torch.ones(2)
    for name, value in vars(image).items():
        setattr(crop, name, value)
    plain.__dict__.update(vars(image))
    copied = pickle.loads(pickle.dumps(plain))
    shown = image, crop.clone(), crop.path, copied.path
    return *shown, list(vars(crop))


def of_the_same_type():
    image = decoded()
    kind = type(image)
    made = isinstance(torch.ones(2), kind), issubclass(torch.Tensor, kind), kind([1.0, 2.0])
    return *made, kind(FLOAT(image)), issubclass(kind, torch.Tensor)


def after_inference():
    image = FLOAT(decoded())
    with torch.inference_mode():
        image.mean()
        inner = decoded() / 255
    image.requires_grad_()
    (image * image).sum().backward()
    return image.grad, inner.is_inference(), inner.sum(), inner.is_inference()


def of_other_types():
    image = decoded()
    boxes = tv_tensors.BoundingBoxes([[1, 2, 9, 9]], format="XYXY", canvas_size=(37, 53))
    mask = tv_tensors.Mask(torch.ones(37, 53))
    made = v2.RandomHorizontalFlip(1.0)(image, {"boxes": boxes, "mask": mask})
    return [made[0], made[1]["boxes"], made[1]["mask"]]


USES = {
    "written": written,
    "written to a crop": written_to_a_crop,
    "shared with numpy": shared_with_numpy,
    "with gradient": with_gradient,
    "in a thread": in_a_thread,
    "of a changed buffer": of_a_changed_buffer,
    "recorded of images": recorded_of_images,
    "written of images": written_of_images,
    "an equal type": lambda: (
        type(decoded()) == torch.Tensor,  # noqa: E721
        type(decoded()) in (torch.Tensor, int),
        {torch.Tensor: 1}[type(decoded())],
        {type(v2.ToImage()(decoded())): 1}[tv_tensors.Image],
        type(v2.ToImage()(decoded())) == torch.Tensor,  # noqa: E721
    ),
    "images": lambda: (copy.deepcopy(v2.ToImage()(decoded())), repr(v2.ToImage()(opened()))),
    "pickled images": lambda: pickle.loads(pickle.dumps(v2.ToImage()(decoded()))),
    "saved": saved,
    "scripted": lambda: _scripted(decoded()),
    "named": named,
    "of other types": of_other_types,
    "of own types": of_own_types,
    "with copied attributes": with_copied_attributes,
    "of the same type": of_the_same_type,
    "after inference": after_inference,
    "an index of arrays": lambda: (decoded()[:, np.arange(4)], decoded()[..., np.arange(4)]),
    "negative zeros": lambda: (
        *(torch.copysign(torch.ones(()), decoded() * zero)[0, 0] for zero in (0.0, -0.0)),
    ),
    "compared": lambda: (decoded() == decoded(), decoded() is None, decoded()[0, 0, 0] == 3),
    "compared with itself": lambda: torch.equal(decoded(), decoded()),
    "copied": lambda: (copy.copy(decoded()), copy.deepcopy(FLOAT(decoded()))),
    "pickled": lambda: pickle.loads(pickle.dumps([decoded(), decoded()[:, 3:9]])),
    "sent": lambda: pickle.loads(multiprocessing.reduction.ForkingPickler.dumps(decoded())),
    "in a set": lambda: len({decoded(), decoded()}),
    "iterated": lambda: list(decoded()),
    "stacked": lambda: torch.stack([FLOAT(decoded()), FLOAT(decoded())]),
    "collated": lambda: default_collate([{"a": decoded()}, {"a": decoded()}]),
    "out": lambda: torch.add(torch.ones(3, 37, 53), 1, out=FLOAT(decoded())),
    "an index": lambda: torch.arange(256)[decoded().long()],
    "a mask": lambda: torch.arange(3 * 37 * 53).view(3, 37, 53)[decoded() > 100],
    "copied into": lambda: torch.zeros(3, 37, 53).copy_(decoded()),
    "converted": lambda: (torch.as_tensor(decoded()), np.asarray(decoded()), decoded().tolist()),
    "an argument": lambda: torch.where(decoded() > 9, 1.0, FLOAT(decoded())),
    "set": lambda: decoded().set_(torch.ones(3)),
    "data": lambda: setattr(image := decoded(), "data", torch.ones(3)) or image,
    "attributes": lambda: (
        (image := FLOAT(decoded())).T.shape,
        *(image.shape, image.ndim, len(image), image.size(1), image.dim(), image.is_contiguous()),
        *(image.numel(), image.dtype, image.device, image.nbytes, image.grad, image.is_leaf),
        *(image.stride(), image.is_floating_point(), torch.is_tensor(image), image._version),
    ),
    "printed": lambda: (str(decoded()), repr(FLOAT(decoded())), f"{decoded().sum()}"),
    "a dlpack": lambda: torch.from_dlpack(decoded()),
    "an image": lambda: tv_tensors.Image(decoded()),
    "a PIL image": lambda: np.asarray(functional.to_pil_image(decoded())),
    "a type": lambda: (str(type(decoded())), isinstance(decoded(), torch.Tensor)),
    "a typed check": lambda: isinstance(decoded(), torch.ByteTensor),
    "to another device": lambda: decoded().to("meta").shape,
    "a vmap": lambda: torch.vmap(lambda plane: plane.float().mean())(decoded()),
    "in inference mode": lambda: torch.inference_mode()(lambda: FLOAT(decoded()).numpy())(),
}
