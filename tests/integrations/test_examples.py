"""The example scripts run, on a few images."""

import importlib.util
import os
import re
from pathlib import Path

import pytest
from support import warm_start

ROOT = Path(__file__).parents[2]
SCRIPTS = [
    (
        *(None, "bucketed_batches.py", []),
        r"padding: [3-9]\d% in random batches, 1?\d% in buckets\n.*the same: True",
    ),
    (None, "limited_memory.py", [], r"60 samples: .*\n60 samples: \d+ MiB of at most 4 MiB"),
    (None, "own_dataset.py", [], "120 files opened by user code"),
    (None, "own_source.py", [], "Records: read 60 ranges of 3 files: native"),
    (None, "own_decoder.py", [], "[1-9][0-9]* images were decoded by the card\nrefused: {}"),
    (
        None,
        "trace_training.py",
        ["--folder", "{folder}"],
        "6 steps.*\n.* read: (?s:.*)both.json.gz",
    ),
    (None, "overlapped_validation.py", [], r"(?s)epoch 2: 0\.\d+ of .*3 of 3 ended"),
    ("accelerate", "validate_accelerate.py", [], r"(?s)epoch 0: .*epoch 1: .*accuracy"),
    (None, "train_compiled.py", ["--backend", "aot_eager"], "6 batches"),
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


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.mark.parametrize("package, script, arguments, told", SCRIPTS)
def test_an_example_runs(package, script, arguments, told, cache):
    if package is not None and importlib.util.find_spec(package) is None:
        pytest.skip(f"pip install {package}")
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = warm_start.completed(
        *(f"examples/{script}", "--images", "60"),
        *(argument.format(folder=cache) for argument in arguments),
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path, "XDG_CACHE_HOME": str(cache)},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert re.search(told, done.stdout), done.stdout
