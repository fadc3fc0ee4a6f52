"""Transforms that are recorded without torchvision's code: same draws, same results."""

import io
import threading
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from support import encoded_images
from support.campaigns import examples
from support.images import NORMALIZE, photo
from torch.nn.modules import module
from torchvision import transforms
from torchvision.transforms import v2

from fusionloader import _native
from fusionloader.data.deferred.composed import compose, recorders, trials
from fusionloader.data.deferred.composed.recorders import make_recorder
from fusionloader.data.deferred.composed.trials import tried_recorder
from fusionloader.data.deferred.core import deferred_core, wrap_pixels
from fusionloader.data.deferred.scope import deferring
from fusionloader.transforms.executors.python import locate_generators
from fusionloader.transforms.plan.stages import RandomResizedCrop

BICUBIC = transforms.InterpolationMode.BICUBIC
IS_ALONE = recorders.is_alone


def _of_both(make):
    return [make(transforms), make(v2)]


RECORDED = [
    *_of_both(lambda of: of.RandomResizedCrop(24)),
    *_of_both(lambda of: of.RandomResizedCrop((20, 31), (0.01, 0.02), (2.0, 3.0), BICUBIC)),
    *_of_both(lambda of: of.Resize(40)),
    *_of_both(lambda of: of.Resize((17, 29), BICUBIC)),
    *_of_both(lambda of: of.CenterCrop(16)),
    *_of_both(lambda of: of.RandomCrop((11, 13))),
    *_of_both(lambda of: of.RandomHorizontalFlip(0.7)),
    *_of_both(lambda of: of.RandomVerticalFlip()),
    *_of_both(lambda of: of.ColorJitter(0.8, (0.5, 2.0), 0.8, 0.2)),
    *_of_both(lambda of: of.ColorJitter(hue=0.5)),
    *_of_both(lambda of: of.RandomApply([of.ColorJitter(0.4), of.RandomGrayscale(0.5)], 0.8)),
    *_of_both(lambda of: of.RandomApply([of.GaussianBlur(9, (0.1, 2.0))])),
    *_of_both(lambda of: of.RandomGrayscale(0.2)),
    *_of_both(lambda of: of.Grayscale(3)),
    *_of_both(lambda of: of.GaussianBlur((3, 5))),
    *_of_both(lambda of: of.RandomSolarize(100)),
    *_of_both(lambda of: of.RandomPosterize(3)),
    *_of_both(lambda of: of.RandomInvert()),
    *_of_both(lambda of: of.RandomAutocontrast()),
    *_of_both(lambda of: of.RandomEqualize()),
    *_of_both(lambda of: of.RandomAdjustSharpness(1.7)),
]


class Shifted(transforms.RandomResizedCrop):
    """One that draws in its own way."""

    @staticmethod
    def get_params(img, scale, ratio):
        return 1, 2, 3, 4


def _hooked():
    step = transforms.RandomHorizontalFlip()
    step.register_forward_hook(lambda module, inputs, output: output)
    return step


def _with_own_draws():
    step = transforms.RandomResizedCrop(24)
    step.get_params = lambda img, scale, ratio: (1, 2, 3, 4)
    return step


NOT_RECORDED = {
    "subclass": Shifted(24),
    "hook": _hooked(),
    "replaced draws": _with_own_draws(),
    "one channel": transforms.Grayscale(),
    "the user's own": lambda image: image,
    "holds the user's own": transforms.RandomApply([lambda image: image]),
    "crop that pads": transforms.RandomCrop(40, pad_if_needed=True),
}


def _text(step):
    return f"{type(step).__module__.split('.')[2]} {step}"


@pytest.fixture(scope="module", autouse=True)
def _as_in_a_worker():
    """Lists are taken apart at once, though there are other threads."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recorders, "is_alone", lambda: True)
        patch.setattr(compose, "_LEAST_CALLS", 1)
        yield


@pytest.fixture
def deferred():
    with deferring():
        yield


@pytest.mark.parametrize("step", RECORDED, ids=_text)
def test_a_known_transform_is_recorded(step, deferred):
    assert tried_recorder(step) is not None


ON_TENSORS = [
    *(v2.RandomResizedCrop(24), v2.Resize(41), v2.CenterCrop(16), v2.RandomCrop((11, 13))),
    *(v2.RandomHorizontalFlip(0.7), v2.RandomVerticalFlip(), v2.ColorJitter(0.4, 0.4, 0.4, 0.1)),
    *(
        v2.ColorJitter(0.5),
        v2.ColorJitter(0.5, hue=0.2),
        v2.RandomApply([v2.ColorJitter(0.5, 0.5)]),
    ),
    *(v2.RandomPosterize(3), v2.RandomAutocontrast(), v2.RandomAdjustSharpness(1.7)),
]


@pytest.mark.parametrize("step", ON_TENSORS, ids=_text)
def test_a_known_transform_of_tensors_is_recorded(step, deferred):
    assert tried_recorder(step, "tensor") is not None


@pytest.mark.parametrize("name", NOT_RECORDED)
def test_what_may_do_anything_is_not(name, deferred):
    assert tried_recorder(NOT_RECORDED[name]) is None


def test_the_trials_leave_generators_and_counters_as_they_were(deferred):
    from fusionloader.data.deferred import counts

    counts.take()
    torch.manual_seed(3)
    state = torch.get_rng_state()
    tried_recorder(transforms.ColorJitter(0.5))
    assert torch.equal(torch.get_rng_state(), state)
    assert not counts.take().recorded


def test_a_recorder_that_draws_otherwise_is_found_out(deferred, monkeypatch):
    step, other = (transforms.RandomResizedCrop(24, scale=(low, 1)) for low in (0.08, 0.09))
    assert tried_recorder(step) is not None
    recorder = make_recorder(other)
    monkeypatch.setattr(trials, "make_recorder", lambda step, held: recorder)
    assert tried_recorder(step) is None


def test_no_transform_is_recorded_where_torch_draws_otherwise(deferred, monkeypatch):
    monkeypatch.setattr(trials, "_known", [])
    recorder = make_recorder(transforms.ColorJitter(0.3000001, (0.5, 2.0), 0.7, 0.1))
    with monkeypatch.context() as patch:
        patch.setattr(trials, "make_recorder", lambda step, held="pil": recorder)
        assert not trials._draws_are_known()
    assert tried_recorder(transforms.RandomHorizontalFlip()) is None


def test_a_patched_transform_keeps_others_from_being_recorded_no_longer_than_it_is(
    deferred, monkeypatch
):
    monkeypatch.setattr(trials, "_known", [])
    forward = transforms.ColorJitter.forward
    with monkeypatch.context() as patch:
        patch.setattr(transforms.ColorJitter, "forward", lambda self, image: forward(self, image))
        assert tried_recorder(transforms.RandomHorizontalFlip()) is None
    assert tried_recorder(transforms.RandomHorizontalFlip()) is not None


def test_beside_another_thread_nothing_is_drawn_natively(deferred, monkeypatch):
    recorder = tried_recorder(transforms.RandomHorizontalFlip())
    image = Image.new("RGB", (30, 20))
    core = deferred_core(wrap_pixels(np.asarray(image), {}))
    assert recorder.record(core)[1] == 1
    monkeypatch.setattr(recorders, "is_alone", IS_ALONE)
    ended = threading.Event()
    thread = threading.Thread(target=ended.wait)
    thread.start()
    try:
        assert recorder.record(core) == (core, 0)
        assert tried_recorder(transforms.RandomVerticalFlip()) is None
    finally:
        ended.set()
        thread.join()


def test_the_last_bits_of_a_ratio_are_torchs():
    ratio, called = (0.75, 4 / 3), []

    def exp(value):
        called.append(value)
        return torch.exp(torch.tensor(value)).item()

    stage = RandomResizedCrop(8, 8, (0.08, 1.0), ratio, ("bilinear",))
    log_ratio = torch.log(torch.tensor(ratio)).tolist()
    recorder = _native.TorchRecorder(locate_generators()[0], (stage,), [log_ratio], exp)
    for seed in range(100_000):
        torch.manual_seed(seed)
        (crop, _), *_ = recorder.draw(640, 480)
        if called:
            torch.manual_seed(seed)
            image = torch.empty(3, 480, 640)
            top, left, height, width = transforms.RandomResizedCrop.get_params(
                image, stage.scale, ratio
            )
            assert crop[1:5] == (left, top, width, height)
            return
    raise AssertionError("torch.exp() was never needed")


@pytest.mark.matrix
@pytest.mark.properties
@settings(max_examples=examples(100, 300), deadline=None)
@given(
    steps=st.lists(st.sampled_from(RECORDED), min_size=1, max_size=5),
    size=st.tuples(st.integers(1, 90), st.integers(1, 90)),
    seed=st.integers(0, 10_000),
)
def test_a_list_gives_what_torchvision_gives(steps, size, seed):
    file = _file(*size)
    steps = transforms.Compose([*steps, transforms.ToTensor(), transforms.Normalize(*NORMALIZE)])
    expected = _made(file, steps, seed)
    with deferring():
        made = _made(file, steps, seed)
    assert made == expected


def _file(width, height):
    return encoded_images.encoded(photo(np.random.default_rng(width), width, height), quality=90)


def _made(file, steps, seed):
    """Returns the tensor's bytes or the error, and the generator's state."""
    torch.manual_seed(seed)
    image = Image.open(io.BytesIO(file)).convert("RGB")
    try:
        tensor = steps(image)
        result = tuple(tensor.shape), _rounded_where_blurred(steps, tensor)
    except Exception as error:
        result = type(error), str(error)
    return result, torch.get_rng_state().numpy().tobytes()


def _rounded_where_blurred(steps, tensor):
    """Of torchvision's blur some levels differ by one: only sizes and draws are compared."""
    return None if "GaussianBlur" in str(steps) else tensor.numpy().tobytes()


def _hooked_flip(steps):
    steps[1].register_forward_hook(lambda module, inputs, output: output.rotate(90))


CHANGES = {
    "size": lambda steps: setattr(steps[0], "size", (20, 30)),
    "probability": lambda steps: setattr(steps[1], "p", 1.0),
    "inside": lambda steps: setattr(steps[2].transforms[0], "brightness", (2.0, 2.0)),
    "list": lambda steps: steps[2].transforms.append(transforms.RandomInvert(1.0)),
    "step": lambda steps: steps.__setitem__(0, transforms.Resize((24, 24))),
    "mean": lambda steps: steps[-1].mean.__setitem__(0, 0.1),
    "nested list": lambda steps: steps[3].transforms.append(transforms.RandomInvert(1.0)),
    "hook": _hooked_flip,
}


def _seeded(steps, seeds=range(6)):
    return [_made(_file(60, 50), steps, seed) for seed in seeds]


def changed(change):
    steps = transforms.Compose(
        [
            transforms.RandomResizedCrop(24),
            transforms.RandomHorizontalFlip(0.0),
            transforms.RandomApply([transforms.ColorJitter((0.5, 0.5))], 1.0),
            transforms.Compose([transforms.RandomGrayscale(0.5)]),
            transforms.ToTensor(),
            transforms.Normalize(*map(list, NORMALIZE)),
        ]
    )
    before = _seeded(steps, range(2))
    change(steps.transforms)
    after = _seeded(steps, range(2))
    assert after != before
    return before, after


def changed_with_every_image():
    flip = transforms.RandomHorizontalFlip()
    steps = transforms.Compose([transforms.RandomResizedCrop(24), flip, transforms.ToTensor()])
    made = []
    for number in range(40):
        flip.p = number / 40
        made += _seeded(steps, [number])
    return made


def hooked_with_all_modules(register):
    def invert(step, images, *output):
        return transforms.functional.invert((*output, *images)[0])

    flip = transforms.RandomHorizontalFlip(0.0)
    steps = transforms.Compose([transforms.RandomResizedCrop(24), flip, transforms.ToTensor()])
    before = _seeded(steps)
    handle = register(lambda *seen: invert(*seen) if seen[0] is flip else None)
    try:
        after = _seeded(steps)
    finally:
        handle.remove()
    assert after != before
    return before, after, _seeded(steps)


class Cut:
    """Changes the image that it gets."""

    def __call__(self, image):
        image.paste((0, 0, 0), (0, 0, 9, 9))
        return image


def cut(of, make, **options):
    """The image that the step got, too, which is whole where the step leaves nothing out."""
    steps = of.Compose([getattr(of, make)(40, **options), Cut(), transforms.ToTensor()])
    image = Image.open(io.BytesIO(_file(40, 40))).convert("RGB")
    return steps(image).numpy().tobytes(), np.asarray(image).tobytes()


class PickScale:
    """Changes the step behind it for each image."""

    def __init__(self, resize):
        self.resize = resize

    def __call__(self, image):
        self.resize.size = int(torch.randint(20, 50, ()))
        return image


def changed_by_another(nested):
    resize = transforms.Resize(30)
    inner = transforms.Compose([resize]) if nested else resize
    made = _seeded(transforms.Compose([PickScale(resize), inner, transforms.ToTensor()]))
    assert len({result[0] for result, _ in made}) > 1
    return made


class Shuffled(list):
    """A list that is gone through in another order each time."""

    def __iter__(self):
        order = torch.randperm(len(self)).tolist()
        return iter([self[place] for place in order])


class InAnyOrder(transforms.Compose):
    """Draws which transforms it has whenever it is asked for them."""

    @property
    def transforms(self):
        keep = 1 + int(torch.randint(0, len(self.known), ()))
        return self.known[:keep]

    @transforms.setter
    def transforms(self, known):
        self.known = known


FLIPS = [transforms.RandomHorizontalFlip(), transforms.RandomResizedCrop((50, 60))]
LISTS = {
    "shuffled": transforms.Compose([transforms.Compose(Shuffled(FLIPS)), transforms.ToTensor()]),
    "modules": transforms.Compose(
        [transforms.Compose(torch.nn.ModuleList(FLIPS)), transforms.ToTensor()]
    ),
    "drawn": transforms.Compose([InAnyOrder(FLIPS), transforms.ToTensor()]),
}


class Wrapper:
    """Has the attributes of an image, and is none."""

    def __init__(self, image):
        self._wrapped = image

    def __getattr__(self, name):
        return getattr(self._wrapped, name)


WRAPPED = [
    lambda image: transforms.functional.to_tensor(Wrapper(image)),
    lambda image: transforms.functional.hflip(Wrapper(image)),
    transforms.Compose([Wrapper, transforms.RandomHorizontalFlip(1.0), transforms.ToTensor()]),
    v2.Compose([Wrapper, v2.RandomResizedCrop(9), v2.ToImage()]),
    transforms.Compose([transforms.ToTensor(), Wrapper, transforms.Normalize(*NORMALIZE)]),
]


def wrapped(use):
    image = Image.open(io.BytesIO(_file(40, 30)))
    image.load()
    try:
        return type(use(image))
    except Exception as error:
        return type(error), str(error)


WHOLE = {"scale": (1.0, 1.0), "ratio": (1.0, 1.0)}
CROPS = [("CenterCrop", {}), ("RandomResizedCrop", WHOLE), ("Resize", {}), ("RandomCrop", {})]
PROGRAMS = {
    **{f"changed {name}": partial(changed, CHANGES[name]) for name in CHANGES},
    "changed with every image": changed_with_every_image,
    **{
        f"hook of all modules, by {register.__name__}": partial(hooked_with_all_modules, register)
        for register in (
            module.register_module_forward_hook,
            module.register_module_forward_pre_hook,
        )
    },
    "changed by another step": partial(changed_by_another, nested=False),
    "changed by another step, nested": partial(changed_by_another, nested=True),
    **{
        f"cut after {of.__name__}.{make}": partial(cut, of, make, **options)
        for of in (transforms, v2)
        for make, options in CROPS
    },
    **{f"list that is {name}": partial(_seeded, LISTS[name], range(12)) for name in LISTS},
    **{f"wrapper {number}": partial(wrapped, use) for number, use in enumerate(WRAPPED)},
}


@pytest.mark.few(12)
@pytest.mark.parametrize("name", PROGRAMS)
def test_steps_that_change_lists_of_other_kinds_and_what_is_no_image_are_as_without(name):
    expected = PROGRAMS[name]()
    with deferring():
        assert PROGRAMS[name]() == expected


def test_a_list_that_is_made_for_one_image_is_not_taken_apart(monkeypatch):
    monkeypatch.setattr(compose, "_LEAST_CALLS", 3)
    monkeypatch.setattr(compose, "RecordedSteps", None)  # to call it is an error
    with deferring():
        for seed in range(4):
            steps = transforms.Compose([transforms.RandomResizedCrop(24), transforms.ToTensor()])
            assert _made(_file(60, 50), steps, seed)[0][0] == (3, 24, 24)


def test_an_image_between_steps_is_what_torchvision_gives():
    seen = []

    def look(image):
        core = deferred_core(image)
        seen.append((image.size, image.mode, dict(image.info), type(image), core is not None))
        return image

    steps = transforms.Compose(
        [transforms.Resize(30), look, transforms.ColorJitter(0.5), look, transforms.ToTensor()]
    )
    expected = _made(_file(60, 50), steps, 1)
    plain, seen = seen, []
    with deferring():
        assert _made(_file(60, 50), steps, 1) == expected
    assert [each[:4] for each in seen] == [each[:4] for each in plain]
    assert all(each[4] for each in seen)
