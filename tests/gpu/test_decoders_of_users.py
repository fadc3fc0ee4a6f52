"""Decoders behind the GPU worker, in real processes on the CPU: the good and the bad."""

import importlib.util
import os
import re
import sys
import threading
from pathlib import Path

import pytest
from support import bad_decoders
from support.bad_decoders import PillowDecoder
from support.cropped_epochs import BATCHES, assert_epoch, assert_epochs_until
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder
from torchvision.transforms import InterpolationMode

from fusionloader import Decoder, FusionLoader, GpuWorker
from fusionloader.transforms.executors.decoders import by_name

EXAMPLES = Path(__file__).parents[2] / "examples"


def loader_with(dataset, decoder, **options):
    worker = GpuWorker(device="cpu", **{"sharing": "spatial", "decoder": decoder, **options})
    return FusionLoader(
        dataset,
        batch_sampler=BATCHES,
        num_workers=1,
        seed=5,
        persistent_workers=True,
        gpu_worker=worker,
    )


@pytest.fixture
def card(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    yield importlib.import_module("own_decoder")
    sys.modules.pop("own_decoder", None)


@pytest.mark.parametrize("sharing", ["spatial", pytest.param("temporal", marks=pytest.mark.matrix)])
@pytest.mark.few(1)
def test_a_card_that_finishes_in_any_order_fills_the_right_rows(dataset, expected, card, sharing):
    decoder: Decoder = card.CardDecoder(units=3)
    with loader_with(dataset, decoder, sharing=sharing, group_size=8) as loader:
        assert_epochs_until(loader, expected, lambda told: told["samples"] > 60)
        told = loader.stats().gpu_worker
        assert (told["decoder"], told["refused"], told["restarts"]) == ("CardDecoder", {}, 0)
    assert "decoded by CardDecoder" in loader.explain()


@pytest.mark.parametrize(
    "decoder", ["nvjpeg", pytest.param("torchvision", marks=pytest.mark.matrix)]
)
def test_named_decoders_give_the_same_bits_without_a_resize(dataset, expected, decoder):
    if by_name.missing_package(GpuWorker(device="cpu", decoder=decoder)):
        pytest.skip(f"{decoder} is not installed")
    with loader_with(dataset, decoder) as loader:
        assert_epochs_until(loader, expected, lambda told: told["samples"] > 20)


def test_refused_images_go_to_cpu_workers_and_are_counted_by_reason(dataset, expected):
    with loader_with(dataset, bad_decoders.Refuses()) as loader:
        assert_epochs_until(loader, expected, lambda told: told["refused"].get("odd", 0) > 5)
        assert set(loader.stats().gpu_worker["refused"]) == {"odd"}
        assert loader.stats().gpu_worker["gone"] is None
        pid = loader._iterator._workers[-1].pid
    with pytest.raises(ProcessLookupError):  # no decoder outlives its loader
        os.kill(pid, 0)


BROKEN = {
    "Raises": "Raises raised OSError in submit: the card has burnt",
    "WrongShape": r"uint8 of the shape \(63, 64, 3\) instead of uint8 of the shape \(64, 64, 3\)",
    "WrongType": r"float32 of the shape \(64, 64, 3\) instead of uint8",
    "Twice": r"Twice finished the ticket \d+ twice",
    "NeverAnswers": "NeverAnswers has finished nothing for 0.5 s",
}


@pytest.mark.parametrize(
    "name",
    [
        name if name == "NeverAnswers" else pytest.param(name, marks=pytest.mark.matrix)
        for name in BROKEN
    ],
)
def test_training_goes_on_without_one_that_breaks_the_rules(dataset, expected, name, tmp_path):
    decoder = getattr(bad_decoders, name)(tmp_path / "flag")
    with loader_with(dataset, decoder, decoder_timeout=0.5) as loader:
        assert_epochs_until(loader, expected, lambda told: told["samples"] > 0)
        (tmp_path / "flag").touch()
        with pytest.warns(RuntimeWarning, match=BROKEN[name]) as warned:
            assert_epochs_until(loader, expected, lambda told: told["gone"])
        (warning,) = [str(each.message) for each in warned if "GPU worker" in str(each.message)]
        assert re.fullmatch(r"FusionLoader goes on without its GPU worker, [^\n]*", warning)
        assert "choose another one: GpuWorker(decoder=...)" in warning
        assert loader.stats().gpu_worker["restarts"] == 0
        assert_epoch(loader, expected)


def test_a_decoder_that_cannot_start_is_told_in_a_line(dataset, expected):
    with loader_with(dataset, bad_decoders.RaisesAtStart()) as loader:
        with pytest.warns(RuntimeWarning, match="raised OSError in start: no such card"):
            assert_epochs_until(loader, expected, lambda told: told["gone"])
        assert_epoch(loader, expected)


def test_a_decoder_that_cannot_be_pickled_is_told_before_anything_starts(dataset):
    before = set(threading.enumerate())
    with pytest.raises(Exception, match="NotPickled cannot be sent to the GPU worker.*start"):
        iter(loader_with(dataset, bad_decoders.NotPickled()))
    assert set(threading.enumerate()) <= before


class OfATest(bad_decoders.PillowDecoder):
    """Its module cannot be imported in the worker."""


def test_a_class_that_the_worker_cannot_import_is_named(dataset, expected, monkeypatch):
    monkeypatch.setattr(OfATest, "__module__", "no_such_module")
    module = type(sys)("no_such_module")
    module.OfATest = OfATest
    monkeypatch.setitem(sys.modules, "no_such_module", module)
    named = pytest.warns(RuntimeWarning, match="No module named 'no_such_module'")
    with loader_with(dataset, OfATest()) as loader, named:
        assert_epochs_until(loader, expected, lambda told: told["gone"])


@pytest.mark.parametrize(
    ("option", "value", "told"),
    [
        ("decoder", "fpga", "decoder should be one of .*'nvjpeg'.*fusionloader.Decoder.*'fpga'"),
        ("decoder", bad_decoders.PillowDecoder, "an object: PillowDecoder"),
        ("decoder", object(), "start, submit, finished, close"),
        ("decoder", None, "decoder should be one of"),
        ("decoder_timeout", 0, "positive seconds, not 0"),
        ("decoder_timeout", "60", "positive seconds"),
    ],
)
def test_what_is_no_decoder_is_refused(option, value, told):
    with pytest.raises(ValueError, match=told):
        GpuWorker(device="cpu", **{option: value})


def test_memory_is_lent_to_dali_alone():
    with pytest.raises(ValueError, match='memory="share" needs decoder="dali"'):
        GpuWorker(decoder="torchvision", sharing="temporal", memory="share")


def test_explain_names_what_is_missing_for_a_decoder(dataset, monkeypatch):
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *rest: None if name == "nvidia.nvimgcodec" else real(name, *rest),
    )
    with pytest.raises(ImportError, match=r"decoder='nvjpeg'.*nvImageCodec: pip install nvidia-nv"):
        loader_with(dataset, "nvjpeg").explain()


def test_what_a_decoder_that_resizes_cannot_do_is_named(dataset):
    def told(decoder, *steps):
        resized = ImageFolder(dataset.root, v1.Compose([*steps, v1.ToTensor()]))
        return loader_with(resized, decoder).explain()

    box, own = v1.RandomResizedCrop(32, interpolation=InterpolationMode.BOX), PillowDecoder()
    assert "no GPU worker: RandomResizedCrop uses the box filter" in told(own, box)
    late = [v1.RandAugment(), v1.RandomResizedCrop(32)]
    assert "no GPU worker: RandomResizedCrop does not come first" in told(own, *late)
    assert "differ from those of the CPU workers by what the decoder" in told(own, late[1])
    assert "its pixels are those of the CPU workers" in told("torchvision", *late, box)


def test_the_decoder_of_the_docs_is_the_example():
    page = (EXAMPLES.parent / "docs" / "scale/gpu_decoders.md").read_text()
    (shown,) = re.findall(r"```python\n(class .*?)```", page, re.DOTALL)
    assert shown in (EXAMPLES / "own_decoder.py").read_text()
