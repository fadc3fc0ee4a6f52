"""The decoders that come with FusionLoader, on the CPU: Pillow's pixels, and bad files by name."""

import importlib.util
import io
import re

import numpy as np
import pytest
from PIL import Image
from support import bad_decoders, encoded_images, warm_start
from support.images import photo

from fusionloader import DecodeCommand, GpuWorker
from fusionloader.transforms.executors.decoders import by_name
from fusionloader.transforms.executors.decoders.decoder_head import DecoderHead
from fusionloader.transforms.executors.decoders.head_steps import HeadStep
from fusionloader.transforms.executors.decoders.torchvision_decoder import TorchvisionDecoder
from fusionloader.transforms.executors.device_errors import FileRefused

MODULES = {"dali": "nvidia.dali", "nvjpeg": "nvidia.nvimgcodec", "torchvision": "torchvision"}
WIDTH, HEIGHT = 151, 117


@pytest.fixture(scope="module", params=MODULES)
def head(request):
    if by_name.missing_package(GpuWorker(device="cpu", decoder=request.param)):
        pytest.skip(f"{MODULES[request.param]} is not installed")
    decoder = by_name.make_decoder(request.param, 1, 1.0)
    head = DecoderHead(decoder, None, 16, 60, request.param)
    yield head
    head.close()


def encoded(mode="RGB", **options):
    return encoded_images.encoded(
        photo(np.random.default_rng(3), WIDTH, HEIGHT).convert(mode), **options
    )


def by_pillow(data, step):
    size = step.window, step.height, step.width
    command = DecodeCommand(0, data, *size, step.filter, step.hflip, step.vflip, lambda: None)
    return bad_decoders.pixels(command).astype(int)


def decoded(head, files, steps):
    group = head.begin(files, steps)
    found = head.finish(group)
    results = [
        (None if each.image is None else np.array(each.image), each.reason) for each in found
    ]
    head.release(group)
    return results


@pytest.mark.parametrize(
    "data",
    [
        encoded(),
        encoded("L"),
        encoded(progressive=True),
        encoded(subsampling=0),
        encoded(subsampling=1),
        encoded(quality=98, optimize=True),
    ],
    ids=["420", "grey", "progressive", "444", "422", "98"],
)
def test_windows_are_pillows_bit_for_bit(head, data):
    windows = [(0, 0, WIDTH, HEIGHT), (7, 5, 33, 41), (WIDTH - 1, HEIGHT - 1, 1, 1), (3, 0, 80, 9)]
    steps = [HeadStep(window, window[3], window[2]) for window in windows]
    for step, (image, _) in zip(steps, decoded(head, [data] * 4, steps), strict=True):
        assert np.array_equal(image, by_pillow(data, step))


def test_groups_that_are_decoded_at_the_same_time_keep_apart(head):
    window = (7, 5, 33, 41)
    files = [[encoded(), encoded("L")], [encoded(quality=20)[:900], encoded(quality=20)]]
    for _ in range(3):
        begun = [head.begin(each, [HeadStep(window, 41, 33)] * 2) for each in files]
        for group, given in zip(begun, files, strict=True):
            for found, file in zip(head.finish(group), given, strict=True):
                if len(file) == 900:
                    assert found.image is None
                else:
                    expected = by_pillow(file, HeadStep(window, 41, 33))
                    assert np.array_equal(np.array(found.image), expected)
            head.release(group)


def test_a_file_without_an_end_fails_alone_and_says_why(head):
    good = encoded()
    step = HeadStep((0, 0, WIDTH, HEIGHT), HEIGHT, WIDTH)
    files = [good, good[: len(good) // 2], good, good[:700], good]
    images = decoded(head, files, [step] * 5)
    assert [image is None for image, _ in images] == [False, True, False, True, False]
    reasons = [reason for image, reason in images if image is None]
    assert all(isinstance(reason, FileRefused) and "\n" not in reason for reason in reasons)
    for place in (0, 2, 4):
        assert np.array_equal(images[place][0], np.asarray(Image.open(io.BytesIO(good))))


def test_on_a_lost_device_no_file_is_blamed(monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    decoder = TorchvisionDecoder()
    head = DecoderHead(decoder, None, 4, 60)
    monkeypatch.setattr(decoder, "_decode_jpeg", fail)
    with pytest.raises(RuntimeError, match="^CUDA error: an illegal memory access"):
        head.begin([encoded()], [HeadStep((0, 0, WIDTH, HEIGHT), HEIGHT, WIDTH)])


@pytest.mark.parametrize(
    ("decoder", "wheel"),
    [("dali", "nvidia-dali-cuda1[23]0"), ("nvjpeg", r"nvidia-nvimgcodec-cu1[23]\[nvjpeg\]")],
)
def test_a_missing_package_is_named_with_how_to_get_it(decoder, wheel, monkeypatch):
    real = importlib.util.find_spec
    missing = MODULES[decoder]
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == missing else real(name)
    )
    package, command = by_name.missing_package(GpuWorker(decoder=decoder))
    assert package in ("DALI", "nvImageCodec")
    assert command.startswith("pip install ")
    assert re.search(wheel, command)
    assert by_name.missing_package(GpuWorker(decoder="torchvision")) is None


WITHOUT_DALI = """
import io, sys
sys.modules["nvidia.dali"] = None  # its import fails
import numpy as np
from PIL import Image
from torchvision import transforms
from fusionloader import compile_plan
from fusionloader.transforms.executors.device.make_task import HeadOptions, make_task
from fusionloader.transforms.executors.device.memory import of_buffer
from fusionloader.transforms.executors.device.task import EncodedSample, rows_in

steps = [transforms.RandomResizedCrop(8), transforms.ToTensor()]
plan = compile_plan(transforms.Compose(steps)).plan
task = make_task(plan, None, 4, HeadOptions("torchvision"))
file = io.BytesIO()
Image.new("RGB", (40, 30), (90, 120, 150)).save(file, "JPEG")
rows = np.zeros(2 * 3 * 8 * 8 * 4, np.uint8)
places = enumerate(rows_in(of_buffer(rows), 2))
samples = [EncodedSample(file.getvalue(), 0, 0, n, 0, 0, row, n) for n, row in places]
print(task.run(samples), bool(rows.any()))
"""


def test_other_decoders_need_no_dali():
    done = warm_start.completed("-c", WITHOUT_DALI)
    assert done.stdout.split() == ["[None,", "None]", "True"], done.stderr
