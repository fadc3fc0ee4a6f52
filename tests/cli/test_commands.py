"""The commands, run as a user runs them, and what they leave behind."""

import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support import warm_start
from support.waiting import PATIENCE

import fusionloader
from fusionloader.__main__ import main
from fusionloader.cli.corpus import ensure_corpus

ROOT = Path(__file__).parents[2]


def run_python(*arguments: str, cache: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = dict(os.environ)
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), environment.get("PYTHONPATH", "")])
    if cache is not None:
        environment["XDG_CACHE_HOME"] = str(cache)
    return warm_start.completed(*arguments, cwd=ROOT, env=environment)


def run_fresh(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The same in an interpreter that has imported nothing before."""
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE)


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return ensure_corpus(60, folder=tmp_path_factory.mktemp("images"), processes=2)


def test_the_demo_trains_with_both_loaders_and_prints_the_speed_up(images):
    done = run_python(
        *("-m", "fusionloader", "demo"),
        *("--images", "60", "--data", str(images.root.parent), "--batch-size", "16"),
        "--workers", "2", "--rounds", "1", "--cpu",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for name in ("DataLoader", "FusionLoader"):
        lines = re.findall(rf"epoch \d {name} *: loss [\d.]+.*samples/s, waiting", done.stdout)
        assert len(lines) == 2
    assert re.search(r"speed-up of this training: +\d+\.\d\dx", done.stdout)
    assert re.search(r"speed-up of loading alone: +\d+\.\d\dx", done.stdout)


def test_arguments_are_checked_before_anything_is_made_or_imported(tmp_path):
    version = run_fresh("-m", "fusionloader", "--version")
    assert version.stdout.split() == ["fusionloader", fusionloader.__version__]
    known = (
        "import sys; from fusionloader.__main__ import main; print(main(['show', 'missing.jpg']))"
    )
    assert run_fresh("-c", f"{known}; assert 'torch' not in sys.modules").returncode == 0
    bench = "-m", "fusionloader", "bench", "--contenders", "nobody", "--cache", str(tmp_path)
    done = run_python(*bench)
    assert done.returncode == 1 and "no contender nobody" in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.studies
def test_the_bench_writes_every_figure_of_every_contender(images, tmp_path):
    out = tmp_path / "figures.json"
    done = run_python(
        *("-m", "fusionloader", "bench", "--data", str(images.train)),
        "--epochs", "2", "--batch-size", "8", "--retries", "0", "--json", str(out),
        "--contenders", "torch-pil,torch-v2,fusionloader,limit-decode",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    report = json.loads(out.read_text())
    assert {"python", "torch", "torchvision", "fusionloader", "pillow"} <= set(report["versions"])
    assert {"cpu", "cores", "gpu"} <= set(report["machine"])
    assert report["corpus"]["files"] == 60
    assert report["flags"]["batch_size"] == 8
    names = [entry["name"] for entry in report["contenders"]]
    assert names == ["torch-pil", "torch-v2", "fusionloader", "limit-decode"]
    for entry in report["contenders"]:
        assert [epoch["samples"] for epoch in entry["epochs"]] == [60, 60]
        assert entry["samples_per_second"] > 0
        assert entry["cpu_seconds_per_1000"] > 0
        assert entry["first_batch_cold_seconds"] > 0
        assert len(entry["worker_memory"]) >= 2
        assert entry["peak_rss_per_worker_mb"] >= entry["uss_per_worker_mb"] > 0
        assert len(entry["ratios"]) == 2
    assert report["contenders"][0]["ratios"] == [1.0, 1.0]
    assert [entry["limit"] for entry in report["contenders"]] == [False, False, False, True]


@pytest.mark.parametrize("workload", ["tiny", "tabular", "mnist", "handmade"])
@pytest.mark.few(1)
def test_the_bench_measures_workloads_without_files(workload, tmp_path):
    out = tmp_path / "figures.json"
    few = ["--samples", "500", "--epochs", "1", "--retries", "0"]
    main(["bench", "--workload", workload, *few, "--json", str(out)])
    contenders = json.loads(out.read_text())["contenders"]
    assert [entry["name"] for entry in contenders] == ["torch", "fusionloader"]
    assert all(entry["epochs"][0]["samples"] == 500 for entry in contenders)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--workload", "tiny", "--contenders", "quickest"], "there are: torch, fusionloader"),
        (["--data", "folder"], "Found no valid file for the classes cats"),
        (["--data", "folder/cats"], "Couldn't find any class folder"),
    ],
)
def test_the_bench_refuses(arguments, why, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder" / "cats").mkdir(parents=True)
    with pytest.raises(SystemExit, match=why):
        main(["bench", *arguments])


@pytest.mark.parametrize(
    ("arguments", "least"),
    [
        (["demo", "--images", "5"], 10),
        (["bench", "--epochs", "0"], 1),
        (["show", "photo.jpg", "--draws", "-1"], 1),
        (["trace", "--steps", "0", "train.py"], 1),
        (["worker", "--cores", "many"], 1),
    ],
)
def test_counts_that_cannot_be_used_are_refused(arguments, least, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert f"should be an int of {least} or more" in capsys.readouterr().err


def test_the_doctor_names_what_matters_and_finds_no_failure(images, monkeypatch):
    monkeypatch.setenv("FUSIONLOADER_LIBCUDA", "/nowhere/libcuda.so")
    done = run_python("-m", "fusionloader", "doctor", "--data", str(images.train))
    assert done.returncode == 0, done.stdout + done.stderr
    for name in ("torch", "shared memory", "instruction set", "cores allowed", "start method",
                 "DALI", "open files", "memory limit", "GPU", "decoding",
                 "storage, warm"):  # fmt: skip
        assert re.search(rf"^(ok|warn) +{re.escape(name)} +\S", done.stdout, re.MULTILINE), name


def test_a_command_loads_only_its_own_modules():
    code = (
        "import sys, fusionloader.__main__ as m\n"
        "try: m.main(['doctor', '--help'])\n"
        "except SystemExit: pass\n"
        "sys.exit('torch' in sys.modules or 'fusionloader.cli.demo' in sys.modules)"
    )
    assert run_fresh("-c", code).returncode == 0


EXAMPLES = {
    "train_cnn.py": (["--images", "40"], "epoch 2: loss"),
    "resume.py": (["--images", "60"], "2 batches before the checkpoint, 2 after it"),
    "shared_pool.py": (["--images", "40"], r"(?s)(accuracy.*){4}"),
    "shared_cache.py": (
        ["--images", "40"],
        r"(?s)(epoch 1: 40 samples.*){2}served by pid \d+\n.*\n.*\n\S+ +[0-9a-f]{12} +40 ",
    ),
    "cache_servers.py": (
        ["--images", "40"],
        r"(?s)epoch 0: 40 read from storage.*epoch 2: 0 read from storage",
    ),
    "share_preparation.py": (
        ["--images", "40", "--epochs", "2", "--rates", "0.1,0.01"],
        r"(?s)(batches of the group.*){2}",
    ),
    "stream_from_s3.py": (["--images", "100"], "100 samples in 4 shards; 52 were left"),
}
ALWAYS = ("train_cnn.py", "resume.py")


@pytest.mark.parametrize(
    "name",
    [*ALWAYS, *(pytest.param(n, marks=pytest.mark.examples) for n in EXAMPLES if n not in ALWAYS)],
)
def test_the_examples_run(name, tmp_path, monkeypatch):
    arguments, printed = EXAMPLES[name]
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    done = run_python(f"examples/{name}", *arguments, cache=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(printed, done.stdout), done.stdout


SHORT = {
    "webdataset_pipelines": ["--rounds", "1", "--only", "batched,iterable"],
    "breadth": ["--rounds", "1", "--only", "dict,hugging-face", "--exact", "4"],
    "whole_batches": ["--rounds", "1", "--only", "tabular,detection"],
    "collate": ["--rounds", "1", "--only", "MixUp,MixUp in the loop,timm", "--batch-size", "8"],
    "small_samples": ["--rounds", "1", "--lengths", "100", "--batch-sizes", "64"],
    "import_time": ["--rounds", "1"],
    "imread": ["--rounds", "1", "--camera-images", "1", "--megapixels", "0.3"],
    "startup": ["--rounds", "1", "--workers", "2"],
    "recovery": ["--rounds", "2", "--start-method", "fork", "--batch-size", "8"],
    "small_shm": ["--rounds", "1", "--epochs", "1", "--batch-size", "8"],
    "main_process": ["--rounds", "1"],
    "scaling": ["--rounds", "1"],
    "tracing": ["--rounds", "1"],
    "cache_servers": ["--rounds", "1"],
    "cache_sharing": ["--rounds", "1"],
    "cache_storage": ["--rounds", "1", "--rate", "500MB"],
    "cache_tiers": ["--rounds", "1", "--rates", "0", "--budgets", "4MiB"],
    "counters": ["--rounds", "1"],
    "hugging_face": ["--rounds", "1"],
    "parquet": ["--rounds", "1"],
    "tar_folder": ["--rounds", "1", "--gigabytes", "0.1", "--workers", "1"],
    "coordinated_prep": ["--rounds", "1", "--trials", "1", "--jobs", "2", "--batch-size", "8"],
    "memory": ["--epoch-samples", "2100", "--torch-samples", "2100"],
    "remote_requests": ["--rounds", "1"],
    "samplers": ["--rounds", "1", "--epoch-samples", "20000", "--padded-samples", "2000"],
    "streams": ["--rounds=1", "--stream-samples=600", "--naive-batches=2", "--workers=1"],
    "advice": ["--rounds", "1", "--seconds", "0.1", "--causes", "slow step"],
    "what_if": ["--rounds", "1", "--patience", "0", "--batch-size", "8", "--step-ms", "1"],
    "inference": ["--rounds", "1", "--seconds", "0.5", "--files", "20"],
    "large_dataset": ["--files", "4000", "--rounds", "1", "--workers", "2", "--batch-size", "8"],
}


@pytest.mark.studies
@pytest.mark.parametrize("study", SHORT)
def test_the_studies_run_and_write_their_figures(study, images, tmp_path):
    out = tmp_path / "figures.json"
    arguments = [*SHORT[study], "--data", str(images.train), "--json", str(out)]
    done = run_python("-m", f"benchmarks.{study}", *arguments)
    assert done.returncode == 0, done.stderr
    report = json.loads(out.read_text())
    assert report["table"] and report["versions"]["torch"]


@pytest.mark.parametrize("study", sorted(path.stem for path in (ROOT / "benchmarks").glob("*.py")))
def test_every_study_can_be_imported(study):
    importlib.import_module(f"benchmarks.{study}")
