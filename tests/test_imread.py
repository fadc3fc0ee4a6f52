"""The study of JPEG decoders, and the adapter that enters ours in the imread benchmark."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.images import photo
from support.waiting import PATIENCE

from benchmarks.decode_memory import check, measured
from benchmarks.imread import camera_images, ratio
from benchmarks.jpeg_decoders import DECODERS, OURS

ADAPTER = Path(__file__).parents[1] / "benchmarks" / "imread_adapter"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    paths = []
    for number, how in enumerate([{}, {"progressive": True}, {"subsampling": "4:4:4"}]):
        paths.append(folder / f"{number}.jpg")
        photo(np.random.default_rng(number), 120, 80).save(paths[-1], "JPEG", quality=92, **how)
    return paths


# Each in a process of its own.
EACH_DECODER = [
    name if name == "simplejpeg" else pytest.param(name, marks=pytest.mark.studies)
    for name in DECODERS
]


@pytest.mark.parametrize("name", EACH_DECODER)
def test_decoders_have_pillows_pixels_or_close_ones(name, files):
    figures = measured(name, files, 2)
    if "missing" in figures:
        pytest.skip(f"{name} is not installed: {figures['missing']}")
    # Others upsample or transform otherwise; swapped channels would be further apart.
    assert figures["difference"] <= (0 if name == OURS else 50)
    assert len(figures["seconds"]) == len(figures["cpu_seconds"]) == 2
    assert min(figures["seconds"]) > 0


@pytest.mark.parametrize(
    ("pixels", "found"),
    [
        ([[0]], "list"),
        (np.zeros((2, 3), np.uint8), r"\(2, 3\)"),
        (np.zeros((2, 3, 3), np.float32), "float32"),
        (np.zeros((3, 2, 3), np.uint8).swapaxes(0, 1), "strides"),
    ],
)
def test_other_results_are_refused(pixels, found):
    with pytest.raises(TypeError, match=found):
        check(pixels)


@pytest.mark.studies
def test_a_decoder_that_fails_is_an_error_with_its_message(tmp_path):
    path = tmp_path / "text.jpg"
    path.write_text("no image")
    with pytest.raises(RuntimeError, match="UnidentifiedImageError"):
        measured(OURS, [path], 1)


def test_ratios_are_medians_of_those_within_the_rounds():
    times = [(2.0, 1.0), (9.0, 3.0), (8.0, 2.0)]
    rounds = [{"x": {"seconds": [a]}, OURS: {"seconds": [b]}} for a, b in times]
    assert ratio(rounds, "x", "seconds") == 3.0


def test_images_of_a_camera_have_one_size_in_every_encoding(tmp_path):
    made = camera_images(1, 0.1, tmp_path)
    assert set(made) == {"camera", "camera-444", "camera-progressive"}
    for name, (path,) in made.items():
        with Image.open(path) as image:
            assert image.size == (365, 274)
            assert ("progressive" in image.info) == (name == "camera-progressive")


@pytest.fixture(scope="module")
def installed_adapter(tmp_path_factory):
    """A folder that the adapter is installed in, alone, built from a copy."""
    folder = tmp_path_factory.mktemp("adapter")
    shutil.copytree(ADAPTER, folder / "source")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    command += ["--no-build-isolation", "--target", str(folder / "installed")]
    done = subprocess.run(
        [*command, str(folder / "source")], capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr
    return folder / "installed"


@pytest.mark.studies
def test_the_adapter_installs_as_a_decoder_of_the_benchmark(installed_adapter):
    (found,) = distributions(name="imread-fusionloader", path=[str(installed_adapter)])
    (point,) = found.entry_points.select(group="imread_benchmark.decoders")
    assert point.name == OURS
    assert (installed_adapter / f"{point.module}.py").is_file()


# What the benchmark itself does with a decoder: it lists it, checks its results and times it.
BY_THE_BENCHMARK = """
import json, sys
from pathlib import Path
from imread_benchmark.datasets.package import ResidentItem
from imread_benchmark.decoders import REGISTRY
from imread_benchmark.execution.measurement import configure_decoder, run_decode_memory_measurement
from imread_benchmark.plans import RunConfiguration

items = [
    ResidentItem(item_id=path, relative_path=path, sha256="", compressed_bytes=1,
                 data=Path(path).read_bytes())
    for path in sys.argv[1:]
]
configuration = RunConfiguration(
    protocol_id="decode-memory", decoder_id="fusionloader",
    package_id="0" * 64, manifest_id="0" * 64, selection_id="0" * 64,
    requested_threads=None, num_workers=None, batch_size=None,
    prefetch_factor=None, persistent_workers=False, multiprocessing_start_method=None,
    logical_repeat_factor=1, warmup_passes=1, timed_passes_per_run=2, minimum_timed_seconds=1e-9,
    output_contract="normalized-rgb", support_policy="operational",
)
decoder = REGISTRY["fusionloader"]()
threads = configure_decoder(decoder, None)
result = run_decode_memory_measurement(decoder, items, configuration, effective_threads=threads)
print(json.dumps([threads, [sample.items_processed for sample in result.samples]]))
"""


@pytest.mark.skipif(
    importlib.util.find_spec("imread_benchmark") is None,
    reason="the imread benchmark is not installed, and is on no registry",
)
def test_the_benchmark_measures_the_adapter(installed_adapter, files):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(installed_adapter), *sys.path])}
    command = [sys.executable, "-c", BY_THE_BENCHMARK, *map(str, files)]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [1, [3, 3]]
