"""What the three runs do, the most important steps first.

A: the device and batches on it, without DALI. B: DALI, nvJPEG and the GPU worker. C: what the GPU
worker gains, and how large a batch trains beside it.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.gpu.steps import JSON, Run, Step


def _module(name: str, *arguments: str) -> Sequence[str]:
    return ("-m", f"benchmarks.{name}", *arguments, "--json", JSON)


def _tests(*arguments: str) -> Sequence[str]:
    return ("-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", *arguments)


_SMALL = ("--images", "64")
_ON_CPU = ("--device", "cpu", "--batch-size", "4", "--steps", "1", "--warm-up", "1")
_LIGHT = ("--models", "shufflenet_v2_x0_5", "--contenders")
_BRIEF = ("--rounds", "1", "--patience", "20")


def _training(*arguments: str) -> Sequence[str]:
    return _module("training", "--batch-size", "256", "--images", "1500", *arguments)


def _training_rehearsed(*arguments: str) -> Sequence[str]:
    return _module("training", *_SMALL, *_ON_CPU, *_BRIEF, "--workers", "2", *arguments)


_TORCHVISION = ("--only", "torchvision")
_MEMORY = "tests/on_device/memory_sharing.py"

A = Run(
    420,
    (
        Step("facts", _module("gpu.facts"), 60, _module("gpu.facts")),
        Step(
            "deliveries",
            _module("gpu.deliveries"),
            120,
            _module("gpu.deliveries", "--fake", "--side", "64", *_SMALL),
        ),
        Step(
            "fused kernel, tests",
            _tests("tests/on_device/test_device_program.py"),
            90,
            _tests("tests/on_device/test_device_program.py"),
        ),
        Step(
            "training, 14 workers",
            _training(
                *("--worker-counts", "14", "--models", "resnet18,resnet50", "--rounds", "1"),
                *("--contenders", "torch,fusion-off"),
            ),
            150,
            _training_rehearsed(*_LIGHT, "fusion-off"),
        ),
        Step(
            "memory sharing",
            (_MEMORY, "--limit", "40", "--json", JSON),
            100,
            (_MEMORY, "--fake", "--only", "cost", "--limit", "60", "--json", JSON),
        ),
        Step(
            "fused kernel",
            _module("device_program", "--brief"),
            60,
            _module("device_program", "--brief", "--rounds", "1"),
        ),
        Step(
            "torchvision's decoder",
            _module("gpu_decoders", *_TORCHVISION, "--images", "500", "--rounds", "3"),
            60,
            _module("gpu_decoders", *_TORCHVISION, "--files", "8", "--rounds", "1", *_SMALL),
        ),
    ),
)
B = Run(
    500,
    (
        Step(
            "loader, tests",
            _tests("tests/on_device/test_loader_on_device.py"),
            150,
            _tests("tests/on_device/test_loader_on_device.py"),
        ),
        Step("boot", _module("gpu.boot"), 100, _module("gpu.boot", "--device", "cpu", *_SMALL)),
        *(
            Step(
                f"decoders, groups of {group}",
                _module(
                    *("gpu_decoders", "--images", "500", "--rounds", "2", "--group", str(group)),
                    *("--threads", str(threads)),
                ),
                70,
                _module(
                    *("gpu_decoders", "--files", "8", "--rounds", "1", "--group", "4", *_SMALL),
                ),
            )
            for group, threads in ((16, 1), (64, 4), (4, 1))
        ),
        Step(
            "memory sharing with DALI",
            (_MEMORY, "--only", "dali", "--limit", "60", "--json", JSON),
            70,
            (_MEMORY, "--fake", "--only", "cost", "--limit", "60", "--json", JSON),
        ),
    ),
)
_LARGE = ("--corpus", "openimages-like", "--images", "800", "--models", "resnet18", "--rounds", "1")
C = Run(
    560,
    (
        *(
            Step(
                f"GPU worker beside {workers}",
                _module(
                    *("training", "--batch-size", "256", *_LARGE, "--worker-counts", str(workers)),
                    *("--steps", "25", "--warm-up", "8", "--patience", "30", "--contenders"),
                    "fusion-off,fusion-temporal,fusion-spatial,fusion-thread,dali-gpu",
                ),
                170,
                _training_rehearsed(
                    *_LIGHT, "fusion-off,fusion-temporal,fusion-spatial,fusion-thread"
                ),
            )
            for workers in (2, 4)
        ),
        Step(
            "largest batch",
            _module(
                *("largest_batch", "--workers", "4", "--device-gib", "8", "--grain", "128"),
                *("--images", "800"),
            ),
            240,
            _module(
                *("largest_batch", "--device", "cpu", "--most", "8", "--grain", "8"),
                *("--steps", "2", *_SMALL),
            ),
        ),
    ),
)
RUNS = {"a": A, "b": B, "c": C}
