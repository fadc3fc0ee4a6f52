"""What image processors made of an image, made again of others without their code."""

import functools
import io
import random
import sys
import textwrap
import types
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from deferred.test_image_processors import assert_equal, needs_contiguous, processor_of
from PIL import Image
from support.images import photo
from torchvision.transforms.v2 import functional

from fusionloader.data.deferred import processor_programs
from fusionloader.data.deferred.counts import counts, uncounted
from fusionloader.data.deferred.scope import deferring

transformers = pytest.importorskip("transformers")
QWEN = {"size": {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 16}}


@pytest.fixture(autouse=True)
def _nothing_known(monkeypatch):
    monkeypatch.setattr(processor_programs, "_codes", {})


@pytest.fixture(scope="module")
def files():
    generator = np.random.default_rng(3)
    sizes = (90, 70), (64, 64), (41, 160)
    made = [io.BytesIO() for _ in sizes]
    for file, size in zip(made, sizes, strict=True):
        photo(generator, *size).save(file, "JPEG", quality=90, comment=b"a photo")
    return made


def runs_of(call):
    """The result of a call, and how often code of processors ran in it."""
    runs = []

    def note(frame, event, argument):
        if event == "call" and frame.f_code.co_name == "_preprocess":
            runs.append(frame)

    sys.setprofile(note)
    try:
        return call(), len(runs)
    finally:
        sys.setprofile(None)


def assert_runs(runs, processor, files, **options):
    """Compares with what transformers makes, and counts the calls that ran its code."""
    options.setdefault("return_tensors", "pt")

    def make():
        return [processor(Image.open(file).convert("RGB"), **options) for file in files]

    with deferring(), uncounted():
        found, seen = runs_of(make)
        assert not counts().failed
    assert_equal(found, make())
    assert seen == runs


def test_images_of_any_size_need_no_code_where_it_reads_no_size(files):
    processor = processor_of("ViT", size={"height": 64, "width": 64})
    assert_runs(1, processor, files[:1])
    # Nothing is resized in the second, and so it is another program.
    assert_runs(1, processor, files)
    assert_runs(0, processor, files)
    assert_runs(0, processor_of("ViT", size={"height": 64, "width": 64}), files)


def test_images_of_known_sizes_need_no_code(files):
    processor = processor_of("Qwen2VL", **QWEN)
    assert_runs(3, processor, files)
    assert_runs(0, processor, files)


@needs_contiguous
def test_several_images_at_once(files):
    processor = processor_of("CLIP")

    def make():
        images = [Image.open(file).convert("RGB") for file in files]
        return processor(images, return_tensors="pt"), processor((*images,))

    for runs in (2, 0):
        with deferring():
            found, seen = runs_of(make)
        assert_equal(found, make())
        # As a list, the result has views of one memory.
        assert seen == runs


def replaced(patch, owner, name):
    original = getattr(owner, name)

    def replacement(*arguments, **named):
        return original(*arguments, **named) + 1

    patch.setattr(owner, name, replacement)


def decorated(decorate):
    """Replaces a method by one of the program within a decorator of a library."""

    def change(processor, patch):
        original = type(processor).normalize

        def normalize(self, image, *arguments, **named):
            return original(self, image, *arguments, **named) + 1

        patch.setattr(type(processor), "normalize", decorate(normalize))

    return change


def mocked(processor, patch):
    original = type(processor).normalize
    replacement = mock.create_autospec(original, side_effect=original)
    patch.setattr(type(processor), "normalize", replacement)


def loaded_again(processor, patch):
    def normalize(self, image, mean, std, inplace=False, **options):
        return (image - mean[:, None, None]) / std[:, None, None] + 1

    patch.setattr(type(processor).normalize, "__code__", normalize.__code__)


def with_other_results(processor, patch):
    def init(self, data=None, *arguments, **named):
        original(self, data, *arguments, **named)
        self["more"] = 1

    original = transformers.BatchFeature.__init__
    patch.setattr(transformers.BatchFeature, "__init__", init)


UserSizes = type("UserSizes", (transformers.image_utils.SizeDict,), {"__module__": "__main__"})

CHANGES = {
    "an attribute": lambda processor, patch: setattr(processor, "image_mean", (0.1, 0.2, 0.3)),
    "a size in place": lambda processor, patch: setattr(processor.size, "height", 24),
    "a method": lambda processor, patch: replaced(patch, type(processor), "normalize"),
    "a functional": lambda processor, patch: replaced(patch, functional, "normalize"),
    "a function of torch": lambda processor, patch: replaced(patch, torch, "stack"),
    "results": with_other_results,
    "code": loaded_again,
    "a mock": mocked,
    "a class": lambda processor, patch: patch.setattr(
        transformers.image_utils, "SizeDict", UserSizes
    ),
    "no_grad": decorated(torch.no_grad()),
    "partialmethod": decorated(functools.partialmethod),
    "singledispatch": decorated(functools.singledispatch),
    "lru_cache": decorated(functools.lru_cache(0)),
    "torch.compiler": decorated(torch.compiler.disable),
}


@pytest.mark.few(7)
@pytest.mark.parametrize("name", CHANGES)
def test_changes_are_noticed(name, files):
    processor = processor_of("ViT", size={"height": 32, "width": 32})
    is_patch = name not in ("an attribute", "a size in place")
    assert_runs(1, processor, files)
    with pytest.MonkeyPatch.context() as patch:
        CHANGES[name](processor, patch)
        assert_runs(3 if is_patch else 1, processor, files)
    assert_runs(1 if is_patch else 0, processor, files)


def test_the_types_of_attributes_are_noticed(files):
    processor = processor_of("ViT", size={"height": 32, "width": 32})
    assert_runs(1, processor, files)
    processor.size.height = 32.0
    with deferring(), pytest.raises(TypeError):
        processor(Image.open(files[0]).convert("RGB"), return_tensors="pt")


def test_other_arguments_are_noticed(files):
    processor = processor_of("ViT", size={"height": 32, "width": 32})
    for options in ({}, {"do_normalize": False}, {"size": {"height": 8, "width": 9}}):
        assert_runs(1, processor, files, **options)
        assert_runs(0, processor, files, **options)
    for _ in range(2):
        assert_runs(3, processor, files, return_tensors="np")


def test_a_change_of_the_processor_after_its_attributes_were_read(files, monkeypatch):
    processor = processor_of("ViT", size={"height": 32, "width": 32})
    original, before = processor_programs.ProcessorCall.record, processor.image_mean

    def record(call, run):
        processor.image_mean = (0.1, 0.2, 0.3)
        try:
            return original(call, run)
        finally:
            processor.image_mean = before

    with monkeypatch.context() as patch, deferring():
        patch.setattr(processor_programs.ProcessorCall, "record", record)
        processor(Image.open(files[0]).convert("RGB"))
    assert_runs(1, processor, files)


def test_calls_that_are_never_alike_are_no_longer_recorded(files):
    processor = processor_of("ViT")
    with deferring():
        image = Image.open(files[0]).convert("RGB")
        for side in range(8, 80):
            processor(image, size={"height": side, "width": side}, return_tensors="pt")
    (code,) = processor_programs._codes.values()
    assert code.recorded == 64


def test_the_oldest_results_are_forgotten(files, monkeypatch):
    monkeypatch.setattr(processor_programs, "_MOST_MAKERS", 2)
    processor = processor_of("Qwen2VL", **QWEN)
    assert_runs(3, processor, files)
    assert_runs(0, processor, files[1:])
    assert_runs(1, processor, files[:1])


def test_another_generator_of_numpy(files):
    processor = processor_of("ViT", size={"height": 32, "width": 32})
    before = np.random.get_bit_generator()
    np.random.set_bit_generator(np.random.PCG64(1))
    try:
        assert_runs(1, processor, files)
    finally:
        np.random.set_bit_generator(before)


def test_files_are_not_loaded_before_arguments_are_checked(files):
    processor = processor_of("ViT", size={"height": 32, "width": 32})
    whole = io.BytesIO()
    Image.open(files[0]).save(whole, "PNG")
    cut = io.BytesIO(whole.getvalue()[:2000])
    with pytest.raises(Exception, match="do_resize") as expected:
        processor(Image.open(cut), do_resize="maybe")
    with deferring(), pytest.raises(type(expected.value), match="do_resize"):
        processor(Image.open(cut), do_resize="maybe")


def test_images_that_are_not_resized_natively(files):
    processor = processor_of("ViT", size={"height": 32, "width": 32})
    assert_runs(1, processor, files)
    thin = io.BytesIO()
    Image.new("RGB", (1, 20)).save(thin, "JPEG")
    for _ in range(2):
        assert_runs(1, processor, [thin])


STEPS = {
    "draws": "image + random.random()",
    "draws of numpy": "image + np.random.random()",
    "draws of torch": "image + torch.rand(1)",
    "looks at pixels": "image + (1 if image[0, 0, 0, 0] > 90 else 2)",
    "changes its class": "image + (setattr(type(self), 'other', object()) or 1)",
    "counts": "image + (setattr(self, 'calls', self.calls + 1) or self.calls)",
}


@pytest.fixture
def made_class(monkeypatch):
    """Makes a class as transformers may have one."""

    def make(source):
        module = types.ModuleType("transformers.tried")
        monkeypatch.setitem(sys.modules, module.__name__, module)
        vars(module).update(random=random, np=np, torch=torch, transformers=transformers)
        module.__file__ = str(Path(transformers.__file__).with_name("tried.py"))
        exec(compile(textwrap.dedent(source), module.__file__, "exec"), vars(module))
        return module.Tried

    return make


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_what_depends_on_anything_else_is_made_each_time(step, files, made_class):
    kind = made_class(f"""
        class Tried(transformers.ViTImageProcessor):
            calls = 0
            def rescale_and_normalize(self, image, *arguments):
                return {step}
    """)
    processor = kind(size={"height": 32, "width": 32})

    def make():
        random.seed(1)
        np.random.seed(1)
        torch.manual_seed(1)
        processor.calls = 0
        images = [Image.open(file).convert("RGB") for file in (*files, *files)]
        return [processor(image, return_tensors="pt") for image in images]

    with deferring():
        found, runs = runs_of(make)
    assert_equal(found, make())
    assert runs == 2 * len(files)
    assert processor_programs._codes[kind].is_known


def test_code_that_reads_other_attributes_of_images_runs_each_time(files, made_class):
    kind = made_class("""
        class Tried(transformers.ViTImageProcessor):
            def preprocess(self, images, **options):
                return super().preprocess(images, **options)
            def _preprocess_image_like_inputs(self, images, *arguments, **options):
                options["do_normalize"] = "comment" in images.info
                return super()._preprocess_image_like_inputs(images, *arguments, **options)
    """)
    processor = kind(size={"height": 32, "width": 32})
    plain = io.BytesIO()
    Image.open(files[0]).save(plain, "JPEG", comment=b"")
    for _ in range(2):
        assert_runs(2, processor, [files[0], plain])
    assert processor_programs._codes[kind].is_known
