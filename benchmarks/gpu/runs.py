"""What the four runs do, the most important steps first.

A: the device and batches on it, without DALI; paints the images for the others. Its steps are for
the calls that carry the pieces of a kit (``--only NAME``). B: the matrix, which is training with
each loader beside 2 to 14 CPU workers. C: decoders, starts, memory sharing, MPS. D: what training
scripts do, and faults.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.gpu.steps import JSON, Run, Step


def _module(name: str, *arguments: str) -> Sequence[str]:
    return ("-m", f"benchmarks.{name}", *arguments, "--json", JSON)


def _tests(*arguments: str) -> Sequence[str]:
    return ("-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", *arguments)


_IMAGES = ("--images", "1500")
_FEW = ("--images", "64")
_MEMORY = "tests/on_device/memory_sharing.py"
_TRAINING = (*_IMAGES, "--batch-size", "256")
_ON_CPU = ("--device", "cpu", "--models", "pooling")
_SHORT = (
    *(*_FEW, "--batch-size", "8", "--worker-counts", "2"),
    *("--seconds", "0.5", "--warm-up", "0.2", "--patience", "20"),
)

A = Run(
    420,
    (
        Step("facts", _module("gpu.facts"), 60),
        Step("corpora", _module("gpu.corpora", *_IMAGES), 300, brief=_FEW),
        Step(
            "deliveries", _module("gpu.deliveries", *_IMAGES), 90, ("--fake", "--side", "64", *_FEW)
        ),
        Step("fused kernel, tests", _tests("tests/on_device/test_device_program.py"), 90),
        Step("fused kernel", _module("device_program", "--brief"), 60, brief=("--rounds", "1")),
    ),
)
B = Run(
    540,
    (
        Step(
            "matrix, ResNet-50",
            _module(
                *("training", *_TRAINING, "--models", "resnet50"),
                *("--worker-counts", "2,4,8,14", "--limit", "410"),
            ),
            440,
            _ON_CPU,
            _SHORT,
        ),
        Step(
            "matrix, ResNet-18",
            _module(
                *("training", *_TRAINING, "--models", "resnet18", "--limit", "70"),
                *("--worker-counts", "2,14", "--contenders"),
                "fusion-off,fusion-thread,fusion-temporal,dali",
            ),
            100,
            _ON_CPU,
            (*_SHORT, "--contenders", "fusion-off"),
        ),
    ),
)
C = Run(
    420,
    (
        Step(
            "decoders",
            _module(
                *("gpu_decoders", *_IMAGES, "--files", "128", "--groups", "4,16,64"),
                *("--engine", "1,0", "--fancy", "1,0", "--threads", "4"),
            ),
            170,
            brief=(*_FEW, "--files", "8", "--groups", "4", "--seconds", "0.2"),
        ),
        Step(
            "augmentation on the device",
            _module(
                *("training", *_TRAINING, "--models", "resnet18", "--workload", "randaugment"),
                *("--worker-counts", "2,4", "--contenders", "fusion-off,fusion-workers"),
                *("--limit", "50"),
            ),
            60,
            _ON_CPU,
            _SHORT,
        ),
        Step("boot", _module("gpu.boot", *_IMAGES), 60, ("--device", "cpu"), _FEW),
        Step(
            "memory sharing",
            (_MEMORY, "--limit", "40", "--json", JSON),
            80,
            ("--fake",),
            ("--only", "cost"),
        ),
        Step(
            "training under MPS",
            _module(
                *("gpu.mps", *_TRAINING, "--models", "resnet50", "--worker-counts", "4"),
                *("--contenders", "fusion-off,fusion-temporal,fusion-spatial"),
            ),
            60,
            _ON_CPU,
            _SHORT,
        ),
        Step("loader, tests", _tests("tests/on_device/test_loader_on_device.py"), 120),
    ),
)
D = Run(
    540,
    (
        Step("training, tests", _tests("tests/on_device/test_training_on_device.py"), 200),
        Step("faults, tests", _tests("tests/on_device/test_faults_on_device.py"), 340),
    ),
)
RUNS = {"a": A, "b": B, "c": C, "d": D}
