"""Tensors whose pixels are not made yet are torch's, whatever user code does with them."""

import numpy as np
import pytest
import torch
from deferred.tensor_uses import BEGINNINGS, COMPOSED, FLOAT, SIZES, STEPS, USES, decoded, opened
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from support.campaigns import examples
from support.images import NORMALIZE, photo
from torch.utils.data import Dataset
from torchvision import io as vision
from torchvision import transforms as v1
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional

from fusionloader import FusionLoader, WorkerPool
from fusionloader.data.deferred import core, counts, guard
from fusionloader.data.deferred.composed import compose, recorders, steps
from fusionloader.data.deferred.scope import deferring
from fusionloader.data.deferred.tensors import deferred_tensor, level_tables, tensor_view
from fusionloader.data.deferred.tensors.deferred_tensor import finish_sample, is_deferred

pytestmark = pytest.mark.filterwarnings("ignore:.*(TorchCodec|deprecated)")


@pytest.fixture(autouse=True)
def _as_in_a_worker(monkeypatch):
    monkeypatch.setattr(recorders, "is_alone", lambda: True)  # pytest has other threads
    monkeypatch.setattr(tensor_view.Uses, "FIRST", 1 << 30)
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
    with deferring(tensors=True):
        made = outcome(use)
    assert made == expected
    assert not counts.counts().failed


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
@pytest.mark.few(15)
def test_each_operation_is_torchs(name):
    for size in SIZES:
        assert_is_as_usual(lambda size=size: STEPS[name](FLOAT(decoded(size))))
        for begin in BEGINNINGS.values():
            assert_is_as_usual(lambda size=size, begin=begin: STEPS[name](begin(size)))


@pytest.mark.few(12)
@pytest.mark.parametrize("name", COMPOSED)
def test_lists_are_torchs(name):
    transform = (v1 if name == "v1" else v2).Compose(COMPOSED[name])
    for begin in BEGINNINGS.values():
        assert_is_as_usual(lambda begin=begin: [transform(begin()) for _ in range(8)])
        assert_is_as_usual(lambda begin=begin: [transform(begin((90, 24))) for _ in range(4)])
    if COMPOSED[name] and type(COMPOSED[name][0]) is v2.ToImage:
        assert_is_as_usual(lambda: [transform(opened()) for _ in range(8)])


@pytest.mark.few(14)
@pytest.mark.parametrize(
    ("first", "name"), [*((v2.ToImage, name) for name in COMPOSED), (v2.PILToTensor, "train")]
)
def test_lists_that_make_tensors_of_images_are_torchs_by_default(first, name):
    transform = v2.Compose([first(), *COMPOSED[name]])

    def use():
        made = [transform(opened(size)) for size in [(53, 37), (90, 24)] * 4]
        assert not any(map(is_deferred, made))
        return [(type(each), each.contiguous()) for each in made]

    expected = outcome(use)
    with deferring():
        made = outcome(use)
    assert made == expected
    assert not counts.counts().failed


def test_files_are_decoded_in_part_within_a_list_by_default():
    transform = v2.Compose([v2.ToImage(), *COMPOSED["train"]])
    with deferring():
        for _ in range(4):  # of which the last ones are analyzed
            transform(opened((90, 64)))
        counts.take()
        transform(opened((90, 64)))
    recorded = counts.take().recorded
    assert recorded["crop"] == recorded["resize"] == 1


@pytest.mark.parametrize("options", [{"progressive": True}, {"subsampling": 0}, {"quality": 20}])
def test_files_are_decoded_in_part(options):
    transform = v2.Compose(COMPOSED["train"])
    assert_is_as_usual(lambda: [transform(decoded((90, 64), **options)) for _ in range(6)])
    recorded = counts.take().recorded
    assert recorded["crop"] == recorded["resize"] == 6


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
    with deferring(tensors=True):
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
    for name, value in fresh.items():
        monkeypatch.setattr(tensor_view.Uses, name, value)
    with deferring(tensors=True):
        found = [is_deferred(decoded()) for _ in range(100)]
        assert all(found[:4]) and found[4:].count(True) == 1
        made = [decoded().flip(-1) for _ in range(100)]
    assert all(torch.equal(each, made[0]) for each in made)


def test_a_signal_handler_may_use_tensors_meanwhile(monkeypatch):
    swap, made = torch._C._swap_tensor_impl, []

    def interrupted(*tensors):
        if not made:
            made.append(None)
            made[0] = decoded().sum()  # as a handler or __del__ would, within the lock
        swap(*tensors)

    monkeypatch.setattr(torch._C, "_swap_tensor_impl", interrupted)
    with deferring(tensors=True):
        assert decoded().sum() == made[0]


def test_user_code_that_runs_while_pixels_are_made_has_torchs_functions(monkeypatch):
    write, seen = core.DeferredCore.write, []

    def noting(*arguments):
        seen.append(torch._C._is_torch_function_enabled())
        return write(*arguments)

    monkeypatch.setattr(core.DeferredCore, "write", noting)
    with deferring(tensors=True):
        FLOAT(decoded()).sum()
        finish_sample([FLOAT(decoded())])
    assert seen == [True, True]


def test_tables_have_a_budget(monkeypatch):
    monkeypatch.setattr(level_tables.LevelTable, "_count", 0)
    made = []

    def tables(level):
        return level.then(("x", len(made)), lambda levels: levels.float() + len(made))

    levels = [level_tables.LevelTable(torch.zeros(3, 16, 16)) for _ in range(20)]
    for _ in range(20):
        made += [tables(each) for each in levels]
    assert sum(each is not None for each in made) == level_tables._MOST_TABLES


def test_lists_of_labels_are_not_searched():
    class Labels(list):
        def __iter__(self):
            raise AssertionError

    with deferring(tensors=True):
        finish_sample([decoded(), Labels(range(1000))])


# Bugs


class Planted(Exception):
    """A bug."""


PLANTS = {
    "a record": (tensor_view.TensorView, "follow"),
    "a table": (level_tables.LevelTable, "then"),
    "a list's table": (level_tables.LevelTable, "after"),
    "pixels": (core.DeferredCore, "write"),
    "a tensor": (deferred_tensor, "deferred_tensor"),
    "a decoder": (deferred_tensor, "OpenedJpeg"),
    "a list": (steps.RecordedTensorSteps, "_recordable"),
    "a list's end": (steps.RecordedTensorSteps, "_converted"),
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
    with deferring(tensors=True):
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
        return {"image": made, "index": index, "mean": mean}


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


class Own(torch.Tensor):
    """A tensor of the user's own class."""


def _of_types(samples):
    images = [sample["image"] for sample in samples]
    assert all(type(image) is torch.Tensor for image in images)
    return torch.stack([Own(image).as_subclass(torch.Tensor) for image in images])


def _listed(samples):
    return [[sample["image"] for sample in samples], [sample["index"] for sample in samples]]


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("workers", "keeps", "collate", "read"),
    [
        (0, True, None, _decoded),
        (2, False, None, _decoded),
        (2, False, None, _as_image),
        (2, True, None, _decoded),
        (2, False, _listed, _decoded),
        (2, False, _boxed, _as_image),
        (2, False, _of_types, _decoded),
    ],
)
def test_loaders_deliver_what_they_do_without_it(workers, keeps, collate, read, photos):
    def make(**options):
        dataset = Photos(photos, keeps, read)
        options = {"deferred_images": "tensors", **options}
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


class Types(Photos):
    """The types that user code finds."""

    def __getitem__(self, index):
        images = self.read(self.paths[index]), _as_image(self.paths[index])
        opened = functional.pil_to_tensor(Image.open(self.paths[index]))
        first = functional.resize(images[0], [20, 20])
        return [is_deferred(each) for each in (*images, opened, first)]


class ManyTypes(Types):
    def __getitems__(self, indices):
        return [self[index] for index in indices]


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", [Types, ManyTypes])
def test_each_loader_of_a_pool_has_its_own_choice(kind, photos):
    with WorkerPool(1) as pool:
        for how in ("auto", "tensors", "auto", "off", "tensors"):
            loader = FusionLoader(kind(photos), 6, pool=pool, deferred_images=how)
            (batch, *_) = list(loader)
            assert all(bool(each.all()) is (how == "tensors") for each in batch)
            assert bool(loader.stats().deferred_images["files"]) is (how != "off")


@pytest.mark.parametrize("how", ["auto", "off"])
def test_tensors_are_deferred_only_if_asked_for(how, photos):
    for workers in (0, 1):
        (batch, *_) = FusionLoader(Types(photos), 6, num_workers=workers, deferred_images=how)
        assert not any(each.any() for each in batch)


class Typed(Photos):
    """User code that wants to know more of a tensor than a deferred one can show."""

    def __getitem__(self, index):
        image = vision.read_image(self.paths[index], vision.ImageReadMode.RGB)
        if type(image) is not torch.Tensor:
            raise TypeError("not a tensor")
        return self.transform(image)


class ManyTyped(Typed):
    def __getitems__(self, indices):
        return [self[index] for index in indices]


class Failing(Photos):
    """User code that fails by itself, and counts its calls."""

    def __init__(self, path, calls, error, again):
        super().__init__(path)
        self.calls, self.error, self.again = calls, error, again

    def __getitem__(self, index):
        image = None if self.again == "without" else self.read(self.paths[index])
        with open(self.calls, "a") as file:
            file.write("x")
        if self.again == "another" and not is_deferred(image):
            raise ValueError("another")
        raise self.error("bad")


@pytest.mark.parametrize(
    ("error", "again", "raised", "calls"),
    [
        (OSError, "same", OSError, 1),
        (ValueError, "without", ValueError, 1),
        (TypeError, "same", TypeError, 2),
        (TypeError, "another", ValueError, 2),
    ],
)
def test_other_errors_are_raised(error, again, raised, calls, photos):
    dataset = Failing(photos, str(photos / "calls"), error, again)
    with pytest.raises(raised) as caught:
        list(FusionLoader(dataset, 1, num_workers=1, deferred_images="tensors", sampler=[3]))
    assert "load_at_once" not in str(caught.value)
    assert len((photos / "calls").read_text()) == calls


@pytest.mark.parametrize("kind", [Typed, ManyTyped])
def test_what_a_deferred_tensor_cannot_show_is_decoded_at_once(kind, photos):
    def epoch(how):
        torch.manual_seed(1)
        loader = FusionLoader(kind(photos), 6, num_workers=1, deferred_images=how)
        return list(map(about, loader)), loader.stats().deferred_images["failed"]

    made, failed = epoch("tensors")
    assert failed == {"deferred tensors": "TypeError: not a tensor"}
    assert (made, {}) == epoch("off") == epoch("auto")


def test_the_registry_is_as_it_was_afterwards():
    kernels = [dict(each) for each in functional._utils._KERNEL_REGISTRY.values()]
    with deferring(tensors=True):
        assert [dict(each) for each in functional._utils._KERNEL_REGISTRY.values()] != kernels
        with deferring():  # a loader in the dataset
            assert not is_deferred(decoded())
        assert is_deferred(decoded())
    assert [dict(each) for each in functional._utils._KERNEL_REGISTRY.values()] == kernels
