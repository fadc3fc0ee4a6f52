"""Tensors whose pixels are not made yet are torch's, whatever user code does with them."""

import copy
import functools
import io
import multiprocessing.reduction
import pickle
import threading
import weakref

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from support import encoded_images
from support.campaigns import examples
from support.images import NORMALIZE, photo
from torch.utils.data import Dataset, default_collate
from torchvision import io as vision
from torchvision import transforms as v1
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional

from fusionloader import FusionLoader
from fusionloader.data.deferred import core, counts, guard
from fusionloader.data.deferred.composed import compose, recorders
from fusionloader.data.deferred.scope import deferring
from fusionloader.data.deferred.tensors import deferred_tensor, level_tables
from fusionloader.data.deferred.tensors.deferred_tensor import finish_sample, is_deferred

pytestmark = pytest.mark.filterwarnings("ignore:.*(TorchCodec|deprecated)")

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


@pytest.fixture(autouse=True)
def _as_in_a_worker(monkeypatch):
    monkeypatch.setattr(recorders, "is_alone", lambda: True)  # pytest has other threads
    monkeypatch.setattr(deferred_tensor._Uses, "FIRST", 1 << 30)
    counts.take()


def about(value):
    """All that user code may see of a result."""
    if isinstance(value, torch.Tensor):
        value.data_ptr()  # makes it
        memory = value.untyped_storage().nbytes(), value.storage_offset(), value.stride()
        plain = value.detach().as_subclass(torch.Tensor)
        content = plain.reshape(-1).view(torch.uint8).numpy().tobytes()
        return type(value), value.dtype, tuple(value.shape), memory, content, value.requires_grad
    if isinstance(value, np.ndarray):
        return value.dtype, value.shape, value.strides, value.tobytes()
    if isinstance(value, dict):
        return {key: about(each) for key, each in value.items()}
    return [about(each) for each in value] if isinstance(value, (list, tuple)) else value


def outcome(use):
    torch.manual_seed(7)
    try:
        made = about(use())
    except Exception as error:
        made = type(error), str(error)
    return made, torch.get_rng_state().tolist()


def assert_is_as_usual(use):
    expected = outcome(use)
    with deferring():
        made = outcome(use)
    assert made == expected
    assert not counts.counts().failed


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
    "v1": [v1.RandomCrop(20), v1.ConvertImageDtype(torch.float32), v1.Normalize(*NORMALIZE)],
}


@settings(max_examples=examples(60, 3000), deadline=None)
@given(
    st.sampled_from(sorted(BEGINNINGS)),
    st.lists(st.sampled_from(sorted(STEPS)), max_size=6),
    st.sampled_from(SIZES),
    st.data(),
)
def test_chains_are_torchs(beginning, names, size, data):
    kept = data.draw(st.sets(st.integers(0, len(names))))

    def use():
        images = [BEGINNINGS[beginning](size)]
        for name in names:
            images.append(STEPS[name](images[-1]))
        made = [image if at in kept else None for at, image in enumerate(images)]
        return [*made, images[-1]]

    assert_is_as_usual(use)


@pytest.mark.parametrize("name", STEPS)
def test_each_operation_is_torchs(name):
    for size in SIZES:
        assert_is_as_usual(lambda size=size: STEPS[name](FLOAT(decoded(size))))
        for begin in BEGINNINGS.values():
            assert_is_as_usual(lambda size=size, begin=begin: STEPS[name](begin(size)))


@pytest.mark.parametrize("name", COMPOSED)
def test_lists_are_torchs(name):
    transform = (v1 if name == "v1" else v2).Compose(COMPOSED[name])
    for begin in BEGINNINGS.values():
        assert_is_as_usual(lambda begin=begin: [transform(begin()) for _ in range(8)])
        assert_is_as_usual(lambda begin=begin: [transform(begin((90, 24))) for _ in range(4)])
    if COMPOSED[name] and type(COMPOSED[name][0]) is v2.ToImage:
        assert_is_as_usual(lambda: [transform(opened()) for _ in range(8)])


@pytest.mark.parametrize("options", [{"progressive": True}, {"subsampling": 0}, {"quality": 20}])
def test_files_are_decoded_in_part(options):
    transform = v2.Compose(COMPOSED["train"])
    assert_is_as_usual(lambda: [transform(decoded((90, 64), **options)) for _ in range(6)])
    recorded = counts.take().recorded
    assert recorded["crop"] == recorded["resize"] == 6


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


@pytest.mark.parametrize("name", USES)
@pytest.mark.filterwarnings("ignore")
def test_other_uses_are_torchs(name):
    assert_is_as_usual(USES[name])


@pytest.mark.filterwarnings("ignore")
def test_a_compiled_function_gets_the_pixels():
    @torch.compile(backend="eager")
    def double(image):
        return image * 2

    assert_is_as_usual(lambda: double(FLOAT(decoded())))


def test_a_conversion_by_other_numbers_each_time_is_left_to_torch():
    assert_is_as_usual(lambda: [decoded() * (1.0 + number) for number in range(100)])


def test_a_sample_has_plain_tensors():
    with deferring():
        image = decoded()
        crop = image[:, 3:9]
        sample = {"image": [FLOAT(image)], "crops": (crop, crop), "other": image.flip(-1)}
        assert is_deferred(image)
        finish_sample(sample)
        assert type(sample["image"][0]) is type(crop) is type(sample["other"]) is torch.Tensor
        assert crop.data_ptr() - image.data_ptr() == 3 * 53 * 3  # the image shares its memory
    assert torch.equal(sample["image"][0], FLOAT(decoded()))
    assert torch.equal(sample["other"], decoded().flip(-1))


def test_nothing_is_deferred_where_nothing_is_recorded(monkeypatch):
    fresh = {"FIRST": 4, "decoded": 0, "deferred": 0, "recorded": 0}
    monkeypatch.setattr(deferred_tensor, "_Uses", type("_Uses", (deferred_tensor._Uses,), fresh))
    with deferring():
        found = [is_deferred(decoded()) for _ in range(100)]
        assert all(found[:4]) and found[4:].count(True) == 1
        made = [decoded().flip(-1) for _ in range(100)]
    assert all(torch.equal(each, made[0]) for each in made)


# Bugs


class Planted(Exception):
    """A bug."""


PLANTS = {
    "a record": (deferred_tensor.TensorView, "follow"),
    "a table": (level_tables.LevelTable, "then"),
    "a list's table": (level_tables.LevelTable, "after"),
    "pixels": (core.DeferredCore, "write"),
    "a tensor": (deferred_tensor, "deferred_tensor"),
    "a decoder": (deferred_tensor, "OpenedJpeg"),
    "a list": (compose._TensorSteps, "_recordable"),
    "a list's end": (compose._TensorSteps, "_converted"),
}


@pytest.mark.parametrize("where", PLANTS)
def test_torch_does_what_a_bug_prevents(where, monkeypatch):
    monkeypatch.delenv(guard._STRICT)
    monkeypatch.setattr(compose, "_LEAST_CALLS", 1)
    level_tables.LEVELS._following.clear()
    transform = v2.Compose(COMPOSED["train"])

    def use():
        values = [transform(decoded()), FLOAT(decoded()).flip(-1), decoded()[:, 3:9] / 255]
        return [(each.dtype, each.tolist()) for each in values]

    def wrong(*arguments, **named):
        raise Planted("planted")

    expected = outcome(use)
    monkeypatch.setattr(*PLANTS[where], wrong)
    with deferring():
        assert outcome(use) == expected
    assert counts.take().failed


# Loaders


def _decoded(path):
    return vision.read_image(path, vision.ImageReadMode.RGB)


def _as_image(path):
    return v2.ToImage()(Image.open(path))


class Photos(Dataset):
    """Images as torchvision recommends it."""

    def __init__(self, path, keeps=False, read=_decoded):
        self.read = read
        self.paths = [str(path / f"{number}.jpg") for number in range(24)]
        self.transform = v2.Compose(
            [
                v2.RandomResizedCrop(128, antialias=True),
                v2.RandomHorizontalFlip(),
                FLOAT,
                v2.Normalize(*NORMALIZE),
            ]
        )
        self.kept = [] if keeps else None

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        image = self.read(self.paths[index])
        made = self.transform(image)
        mean = made.mean() if index % 2 else torch.zeros(())
        if self.kept is not None:
            self.kept.append((made, image))
        return {
            "image": made,
            "index": index,
            "mean": mean,
        }


@pytest.fixture
def photos(tmp_path):
    for number in range(24):
        size = 200 + 7 * number, 160
        photo(np.random.default_rng(number), *size).save(tmp_path / f"{number}.jpg")
    return tmp_path


class Boxed:
    """A batch of a class of the user's own."""

    def __init__(self, samples):
        self.samples = samples


def _boxed(samples):
    return Boxed(samples)


def _listed(samples):
    return [[sample["image"] for sample in samples], [sample["index"] for sample in samples]]


@pytest.mark.parametrize(
    ("workers", "keeps", "collate", "read"),
    [
        (0, True, None, _decoded),
        (2, False, None, _decoded),
        (2, False, None, _as_image),
        (2, True, None, _decoded),
        (2, False, _listed, _decoded),
        (2, False, _boxed, _as_image),
    ],
)
def test_loaders_deliver_what_they_do_without_it(workers, keeps, collate, read, photos):
    def make(**options):
        dataset = Photos(photos, keeps, read)
        return FusionLoader(dataset, 6, num_workers=workers, collate_fn=collate, **options)

    def epoch(loader):
        torch.manual_seed(1)
        return [about(getattr(batch, "samples", batch)) for batch in loader]

    loader = make()
    assert epoch(loader) == epoch(make(deferred_images="off"))
    found = loader.stats().deferred_images
    assert found["recorded"]["resize"] >= 24  # a claim is made again when the layout is known
    if workers and not keeps and collate is None:
        assert found["results"]["tensor"] >= 12
        assert found["collated"]["in place"] > 0


class Typed(Photos):
    """User code that wants to know more of a tensor than a deferred one can show."""

    def __getitem__(self, index):
        image = vision.read_image(self.paths[index], vision.ImageReadMode.RGB)
        if type(image) is not torch.Tensor:
            raise TypeError("not a tensor")
        return self.transform(image)


def test_what_a_deferred_tensor_cannot_show_is_decoded_at_once(photos, caplog):
    def epoch(**options):
        torch.manual_seed(1)
        loader = FusionLoader(Typed(photos), 6, num_workers=1, **options)
        return list(map(about, loader)), loader.stats().deferred_images["failed"]

    made, failed = epoch()
    assert failed == {"an image decoder": "TypeError: not a tensor"}
    assert (made, {}) == epoch(deferred_images="off")


def test_the_registry_is_as_it_was_afterwards():
    kernels = [dict(each) for each in functional._utils._KERNEL_REGISTRY.values()]
    with deferring():
        assert [dict(each) for each in functional._utils._KERNEL_REGISTRY.values()] != kernels
    assert [dict(each) for each in functional._utils._KERNEL_REGISTRY.values()] == kernels
