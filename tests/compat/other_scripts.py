"""Runs training scripts of other projects with DataLoader and with FusionLoader, and compares.

    python tests/compat/other_scripts.py SOURCES [--only NAME] [--rounds 3] [--json FILE]

SOURCES is a folder with clones of the projects that ``TRAININGS`` names; they are no part of this
repository. Packages are those that are installed, or lie in ``SOURCES/packages``
(``pip install --target SOURCES/packages``). What is missing is left out, and said.

Each training runs on some dozens of images made on the spot, unchanged but for the name
``DataLoader`` in ``torch.utils.data``. Compared are the exit status, the batches (bit by bit, or
their labels where augmentations are drawn), the warnings, and the seconds waited in ``next()``.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image, ImageDraw

from fusionloader.cli.corpus import ensure_corpus
from fusionloader.cli.environment import provenance
from fusionloader.cli.measure.report import table, write_json

HERE = Path(__file__).parent
LOADERS = ("DataLoader", "FusionLoader")
SECONDS = 600  # that one run may take

Equal = Literal["all", "order", "count"]


@dataclass(frozen=True)
class Training:
    """A script, and what it needs.

    Attributes:
        name: of the training.
        script: path in the sources, file of this project, or ``entry:NAME``.
        clone: what to clone into the sources; empty for packages.
        packages: modules that it imports, by how they are installed.
        arguments: its arguments, with ``{data}`` for the folder of data.
        equal: what is equal of each loader's batches, in the order of their first ones: all bits;
            the order of labels, where augmentations are drawn; their number, where labels are, too.
    """

    name: str
    script: str
    arguments: str
    equal: tuple[Equal, ...]
    clone: str = ""
    packages: tuple[str, ...] = ()


EXAMPLES = "https://github.com/pytorch/examples"
VISION = "https://github.com/pytorch/vision"
TIMM = "https://github.com/huggingface/pytorch-image-models"

_CLASSIFICATION = (
    "--data-path {data}/folder --model shufflenet_v2_x0_5 --device cpu -b 16 -j 2 --epochs 2 "
    "--lr 0.001"
)
_TIMM = (
    "--data-dir {data}/folder --model mobilenetv3_small_050 --device cpu -b 16 -j 2 "
    "--num-classes 10 --epochs 2 --img-size 96 --warmup-epochs 0 --output out"
)

TRAININGS = (
    Training(
        "pytorch/examples imagenet",
        "examples/imagenet/main.py",
        "-a squeezenet1_1 -j 2 -b 16 --epochs 2 --lr 0.001 {data}/folder",
        ("order", "all"),
        EXAMPLES,
    ),
    Training(
        "pytorch/examples mnist",
        "examples/mnist/main.py",
        "--epochs 2 --batch-size 16 --test-batch-size 50",
        ("all", "all"),
        EXAMPLES,
    ),
    Training(
        "pytorch/examples vae",
        "examples/vae/main.py",
        "--epochs 2 --batch-size 16",
        ("all", "all"),
        EXAMPLES,
    ),
    Training(
        "torchvision classification",
        "vision/references/classification/train.py",
        _CLASSIFICATION,
        ("order", "all"),
        VISION,
    ),
    Training(
        "torchvision classification, v2 on tensors",
        "vision/references/classification/train.py",
        f"{_CLASSIFICATION} --use-v2 --backend tensor",
        ("order", "all"),
        VISION,
    ),
    Training(
        "torchvision classification, MixUp and CutMix",
        "vision/references/classification/train.py",
        f"{_CLASSIFICATION} --use-v2 --mixup-alpha 0.2 --cutmix-alpha 1",
        ("count", "all"),
        VISION,
    ),
    Training(
        "timm train.py",
        "pytorch-image-models/train.py",
        f"{_TIMM} --aa rand-m9-mstd0.5",
        ("order", "all"),
        TIMM,
    ),
    Training(
        "timm train.py, mixup",
        "pytorch-image-models/train.py",
        f"{_TIMM} --mixup 0.2",
        ("count", "all"),
        TIMM,
    ),
    Training(
        "MONAI",
        str(HERE / "trainings/monai_training.py"),
        "{data}/folder/train",
        ("order", "all"),
        packages=("monai",),
    ),
    Training(
        "fastai",
        str(HERE / "trainings/fastai_training.py"),
        "{data}/folder/train",
        ("order", "all"),
        packages=("fastai",),
    ),
    Training(
        "ultralytics yolo train",
        "entry:yolo",
        "train model=yolov8n.yaml imgsz=64 epochs=2 batch=8 workers=2 device=cpu plots=False "
        "amp=False save_dir=out data={data}/boxes/data.yaml",
        ("order", "all"),
        packages=("ultralytics",),
    ),
)


# ---- data ----------------------------------------------------------------------------------------


def make_data(root: Path) -> Path:
    """Makes an image folder, digits in MNIST's files, and boxes as ultralytics reads them."""
    if (root / "done").exists():
        return root
    root.mkdir(parents=True, exist_ok=True)
    corpus = ensure_corpus(64, val_images=24, folder=root)
    if not (root / "folder").exists():
        (root / "folder").symlink_to(corpus.root.name)
    random = np.random.default_rng(1)
    raw = root / "data/MNIST/raw"
    raw.mkdir(parents=True, exist_ok=True)
    for name, count in (("train", 400), ("t10k", 100)):
        labels = random.integers(10, size=count).astype(np.uint8)
        pixels = np.stack([_digit(label, *random.integers(4, 14, 2)) for label in labels])
        for kind, values in (("images-idx3", pixels), ("labels-idx1", labels)):
            magic = 0x0800 + values.ndim
            head = np.array([magic, *values.shape], ">i4").tobytes()
            (raw / f"{name}-{kind}-ubyte").write_bytes(head + values.tobytes())
    for part in ("train", "val"):
        for number, file in enumerate(sorted((root / "folder" / part).rglob("*.jpg"))):
            image = root / f"boxes/images/{part}/{number}.jpg"
            label = root / f"boxes/labels/{part}/{number}.txt"
            for path in (image, label):
                path.parent.mkdir(parents=True, exist_ok=True)
            image.write_bytes(file.read_bytes())
            x, y = random.uniform(0.3, 0.7, 2)
            label.write_text(f"{number % 3} {x:.3f} {y:.3f} 0.4 0.4\n")
    names = "".join(f"  {number}: kind{number}\n" for number in range(3))
    text = f"path: {root / 'boxes'}\ntrain: images/train\nval: images/val\nnames:\n{names}"
    (root / "boxes/data.yaml").write_text(text)
    (root / "done").touch()
    return root


def _digit(label: int, x: int, y: int) -> Any:
    image = Image.new("L", (28, 28))
    ImageDraw.Draw(image).text((x, y), str(label), fill=255)
    return np.asarray(image)


# ---- runs ----------------------------------------------------------------------------------------


def why_not(training: Training, sources: Path) -> str:
    """Returns why a training cannot run here; ``""`` if it can."""
    missing = [name for name in training.packages if importlib.util.find_spec(name) is None]
    if missing:
        return f"not installed: pip install {' '.join(missing)}"
    if training.clone and not (sources / training.script).exists():
        return f"{training.script} is not in {sources}: git clone {training.clone} there"
    return ""


def run_once(training: Training, loader: str, sources: Path, data: Path, out: Path) -> Any:
    """Runs a script with one loader; returns its record."""
    folder = out / "run"
    (folder / "results").mkdir(parents=True, exist_ok=True)  # of the example vae
    if not (out / "data").exists():  # MNIST's examples look for ../data
        (out / "data").symlink_to(data / "data")
    script = training.script
    if training.clone:
        script = str(sources / script)
    record, log = out / f"{loader}.json", out / f"{loader}.log"
    record.unlink(missing_ok=True)
    given = [each.format(data=data) for each in training.arguments.split()]
    command = [
        sys.executable,
        str(HERE / "recorded_script.py"),
        loader,
        str(record),
        script,
        *given,
    ]
    environment = {**os.environ, "YOLO_CONFIG_DIR": str(out), "YOLO_OFFLINE": "true"}
    paths = [sources / "packages", sources / "pytorch-image-models", HERE.parents[1]]
    environment["PYTHONPATH"] = os.pathsep.join(map(str, paths))
    started, before = time.perf_counter(), _cpu_seconds()
    with log.open("w") as file:
        ended = subprocess.run(
            command, cwd=folder, env=environment, stdout=file, stderr=file, timeout=SECONDS
        )
    found: Any = {"loaders": [], "warnings": []}
    if record.exists():
        found = json.loads(record.read_text())
    found |= {"status": ended.returncode, "seconds": time.perf_counter() - started}
    return found | {"cpu_seconds": _cpu_seconds() - before}


def _clone_of(training: Training) -> str:
    return training.script.partition("/")[0]


def _commit(clone: Path) -> str:
    """Returns the commit of a clone, with "+" if it was changed; "unknown" without one."""
    git = ["git", "-C", str(clone)]
    found = [
        subprocess.run([*git, *command], capture_output=True, text=True)
        for command in (["rev-parse", "HEAD"], ["diff", "--quiet", "HEAD"])
    ]
    return found[0].stdout.strip() + "+" * (found[1].returncode == 1) or "unknown"


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def compare(training: Training, runs: dict[str, list[Any]]) -> dict[str, Any]:
    """Returns a training's entry in the results; ``differences`` says what should not be."""
    theirs, ours = (runs[loader][0] for loader in LOADERS)
    differences = []
    if (theirs["status"], ours["status"]) != (0, 0):
        differences.append(f"exit status {theirs['status']} and {ours['status']}")
    counts = [[len(each["batches"]) for each in run["loaders"]] for run in (theirs, ours)]
    if counts[0] != counts[1] or len(counts[0]) != len(training.equal):
        differences.append(f"{counts[0]} and {counts[1]} batches of {len(training.equal)} loaders")
    loaders = []
    for equal, their, our in zip(training.equal, theirs["loaders"], ours["loaders"], strict=False):
        same = {
            name: sum(a == b for a, b in zip(their[name], our[name], strict=False))
            for name in ("order", "batches")
        }
        total = len(our["batches"])
        if equal != "count" and same["batches" if equal == "all" else "order"] < total:
            differences.append(f"{our['dataset']}: {same} of {total} batches are the same")
        entry = {"dataset": our["dataset"], "batches": total, "expected": equal}
        loaders.append(entry | {f"same_{name}": count for name, count in same.items()})
        loaders[-1]["served"] = our.get("served", [])
    added = [each for each in ours["warnings"] if each not in theirs["warnings"]]
    ratios = {
        name: statistics.median(
            value(their) / value(our)
            for their, our in zip(runs["DataLoader"], runs["FusionLoader"], strict=True)
        )
        for name, value in (("waited", _waited), ("cpu_seconds", lambda run: run["cpu_seconds"]))
        if all(value(run) > 0 for run in runs["FusionLoader"])
    }
    return {
        "training": training.name,
        "status": [theirs["status"], ours["status"]],
        "differences": differences,
        "warnings_added": added,
        "ratios": ratios,
        "waited": {loader: [_waited(run) for run in runs[loader]] for loader in LOADERS},
        "cpu_seconds": {loader: [r["cpu_seconds"] for r in runs[loader]] for loader in LOADERS},
        "loaders": loaders,
    }


def _waited(run: Any) -> float:
    return sum(each["waited"] for each in run["loaders"])


def row(entry: dict[str, Any]) -> tuple[str, ...]:
    """Returns an entry as a row of the table."""
    if "left_out" in entry:
        return entry["training"], "left out", "", "", "", entry["left_out"]
    same = ", ".join(
        f"{each['same_batches']}/{each['same_order']} of {each['batches']}"
        for each in entry["loaders"]
    )
    ratios = [f"{entry['ratios'].get(name, 0):.2f}" for name in ("waited", "cpu_seconds")]
    notes = "; ".join([*entry["differences"], *entry["warnings_added"]])
    return entry["training"], "/".join(map(str, entry["status"])), same, *ratios, notes[:90]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("sources", type=Path, help="folder with the clones")
    parser.add_argument("--only", default="", help="trainings whose names contain this")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each, alternating (3)")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    parser.add_argument("--work", type=Path, default=Path("build/scripts-work"))
    options = parser.parse_args()
    sources, work = options.sources.resolve(), options.work.resolve()
    sys.path.append(str(sources / "packages"))
    data, entries = make_data(work / "made"), []
    clones = {
        name: _commit(sources / name)
        for name in sorted({_clone_of(each) for each in TRAININGS if each.clone})
    }
    facts = {**provenance(), "rounds": options.rounds}
    facts["clones"] = clones
    for training in (each for each in TRAININGS if options.only in each.name):
        if why := why_not(training, sources):
            entries.append({"training": training.name, "left_out": why})
            print(f"{training.name}: left out, {why}", flush=True)
            continue
        runs: dict[str, list[Any]] = {loader: [] for loader in LOADERS}
        for number in range(options.rounds):
            for loader in LOADERS if number % 2 == 0 else LOADERS[::-1]:
                out = work / training.name.replace("/", "-").replace(" ", "-")
                runs[loader].append(run_once(training, loader, sources, data, out))
        entries.append(compare(training, runs))
        print(*row(entries[-1]), sep=" | ", flush=True)
        write_json({**facts, "trainings": entries}, options.json)  # what there is, if it is ended
    write_json({**facts, "trainings": entries}, options.json)
    header = ("training", "status", "same batches/labels", "waited x", "CPU x", "notes")
    print("\n" + table(header, [row(entry) for entry in entries]))
    ran = [entry for entry in entries if "left_out" not in entry]
    wrong = sum(bool(entry["differences"] or entry["warnings_added"]) for entry in ran)
    if not ran:
        print(f"fusionloader: no training of another project is in {sources}")
        return 77  # not a failure: benchmarks/campaigns.py
    print(f"\n{len(ran)} trainings, {wrong} of them not as with DataLoader")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
