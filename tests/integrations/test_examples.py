"""The example scripts run, on a few images."""

import ast
import importlib.util
import os
import re
from pathlib import Path

import pytest
import yaml
from support import warm_start

ROOT = Path(__file__).parents[2]
SCRIPTS = [
    (
        *(None, "bucketed_batches.py", []),
        r"padding: [3-9]\d% in random batches, 1?\d% in buckets\n.*the same: True",
    ),
    (None, "limited_memory.py", [], r"60 samples: .*\n60 samples: \d+ MiB of at most 4 MiB"),
    (None, "own_dataset.py", [], "120 files opened by user code"),
    (
        *("cv2", "video_frames.py", []),
        r"(?s)epoch 2: mean \d.*files opened, [1-9]\d* times one was open.*files of its own",
    ),
    (None, "own_source.py", [], "Records: read 60 ranges of 3 files: native"),
    (
        None,
        "trace_training.py",
        ["--folder", "{folder}"],
        "6 steps.*\n.* read: (?s:.*)both.json.gz",
    ),
    (None, "overlapped_validation.py", [], r"(?s)epoch 2: 0\.\d+ of .*3 of 3 ended"),
    ("accelerate", "validate_accelerate.py", [], r"(?s)epoch 0: .*epoch 1: .*accuracy"),
    (
        *(None, "log_metrics.py", ["--prometheus", "0"]),
        r'(?s)http://.*:[1-9]\d*/metrics\n.*"step": 12, .*"fusionloader/wait_share": 0\..*waits \d',
    ),
    (
        *("webdataset", "train_webdataset.py", []),
        "(?s)epoch 2: .*60 samples.*120 files opened by user code",
    ),
    (None, "shards_tar.py", [], r"(?s)60 samples of .*resumed: 50 samples.*TarFolder"),
    ("datasets", "shards_hugging_face.py", [], r"(?s)epoch 2: 30 samples.*HuggingFaceImages"),
    ("pyarrow", "shards_parquet.py", [], r"(?s)opened the second.*60 samples, .*parquet: row 0"),
    ("lmdb", "shards_folders.py", [], "30 of 60 samples\nthe last one is .*: image-000000059"),
    ("datasets", "train_hugging_face.py", [], "epoch 2: .*60 samples"),
]
# Run by `make examples`.
DEARER = [
    (None, "own_decoder.py", [], "[1-9][0-9]* images were decoded by the card\nrefused: {}"),
    (None, "train_compiled.py", ["--backend", "aot_eager"], "6 batches"),
    (
        *(None, "train_simclr.py", ["--data", "{data}", "--size", "32", "--epochs", "1"]),
        r"(?s)GaussianBlur.*: native\nToTensor\(\): native\n.*epoch 1: loss \d",
    ),
    ("timm", "train_timm.py", ["--data", "{data}"], r"RandAugment.*: native\n(?s:.*)loss \d"),
    ("lightning", "train_lightning.py", [], "8 batches"),
    ("accelerate", "train_accelerate.py", [], r"epoch 1: loss \d"),
    ("transformers", "train_transformers.py", [], r"8 steps, loss \d"),
    (
        *(None, "train_dino.py", ["--small", "2", "--epochs", "1"]),
        r"(?s)size=\(96, 96\).*: native.*size=\(48, 48\).*: native.*epoch 1: loss \d",
    ),
    (None, "train_detection.py", [], r"(?s)epoch 1: loss \d.*60 files opened by user code"),
    (None, "remote_workers.py", ["--epochs", "2"], r"epoch 1: loss \d"),
]
# Those that no folder of images is given to, and what others import.
WITHOUT_DATA = {
    *("sample_boxes.py", "sample_images.py", "served_model.py", "share_gpu_memory.py"),
    *("serve_fastapi.py", "serve_litserve.py", "serve_ray.py", "video_frames.py"),
    *("ci/test_training.py", "triton/classifier/1/model.py"),
}
EXAMPLES = sorted(path for path in (ROOT / "examples").rglob("*.py") if not path.is_symlink())


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


def run(package, script, arguments, told, cache, data):
    if package is not None and importlib.util.find_spec(package) is None:
        pytest.skip(f"pip install {package}")
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = warm_start.completed(
        *(f"examples/{script}", "--images", "60"),
        *(argument.format(folder=cache, data=data) for argument in arguments),
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path, "XDG_CACHE_HOME": str(cache)},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert re.search(told, done.stdout), done.stdout


@pytest.mark.parametrize("package, script, arguments, told", SCRIPTS)
@pytest.mark.few(3)
def test_an_example_runs(package, script, arguments, told, cache, image_folder):
    run(package, script, arguments, told, cache, image_folder)


@pytest.mark.examples
@pytest.mark.parametrize("package, script, arguments, told", DEARER)
def test_a_dearer_example_runs(package, script, arguments, told, cache, image_folder):
    run(package, script, arguments, told, cache, image_folder)


@pytest.mark.examples
def test_the_workflow_runs_tests_that_pass():
    """The example for projects on machines without a GPU: all but what it installs."""
    workflow = yaml.safe_load((ROOT / "examples/ci/workflow.yml").read_text())
    *_, command = (step["run"] for step in workflow["jobs"]["test"]["steps"] if "run" in step)
    python, *arguments = command.split()
    assert (python, arguments[0]) == ("python", "-m")
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = warm_start.completed(
        *arguments,
        cwd=ROOT / "examples/ci",
        env={**os.environ, "PYTHONPATH": path, "PYTEST_ADDOPTS": "-p no:cacheprovider"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "5 passed" in done.stdout


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_says_how_it_is_run_and_is_run_by_a_test(path, tests_of_examples):
    name = str(path.relative_to(ROOT / "examples"))
    said = ast.get_docstring(ast.parse(path.read_text())) or ""
    assert said.partition("\n")[0].rstrip().endswith((".", "?"))
    listed = (ROOT / "examples/README.md").read_text()
    assert f"({name})" in listed
    if name not in WITHOUT_DATA:
        assert "parser_of(__doc__" in path.read_text()  # which has --data
    if not name.startswith(("sample", "served", "triton")):
        assert f"examples/{name}" in said
        assert path.name in tests_of_examples


@pytest.fixture(scope="module")
def tests_of_examples():
    return "".join(path.read_text() for path in sorted((ROOT / "tests").rglob("test_*.py")))
