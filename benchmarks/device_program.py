"""Cost of device programs: flattening, the kernel's body on the host, and on a device if any.

    python -m benchmarks.device_program --json FILE

Prints JSON lines, and adds them to a file if asked to. Times are the least of several rounds,
in microseconds per sample.
"""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torchvision import transforms as v1

from benchmarks.study import append
from fusionloader import _native, compile_plan
from fusionloader.transforms.executors.device import kernel
from fusionloader.transforms.executors.device.launchers import CudaLauncher, HostLauncher
from fusionloader.transforms.executors.device.memory import allocator_of_torch
from fusionloader.transforms.executors.device.nvrtc import Nvrtc, NvrtcError
from fusionloader.transforms.executors.device.program import DeviceProgram, DeviceSample
from fusionloader.transforms.executors.native import make_executor
from fusionloader.transforms.executors.results import result_like

SIDE, SAMPLES = 224, 64
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def least(work: Callable[[], object], clock: Callable[[], float] = time.process_time) -> float:
    """Returns the least time of several rounds, in microseconds per sample."""
    times = []
    for _ in range(options().rounds):
        begin = clock()
        work()
        times.append(clock() - begin)
    return round(min(times) / SAMPLES * 1e6, 2)


def on_device(program: DeviceProgram, image: np.ndarray, drawn: list, row: int) -> dict[str, float]:
    """Returns the wall time of whole launches of one, 16 and all samples, from call to end."""
    stream = torch.cuda.Stream(0)
    launcher = CudaLauncher(0, stream.cuda_stream, allocator_of_torch(stream))
    pixels = torch.from_numpy(image).cuda()
    out = torch.empty(row * SAMPLES, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    samples = [
        DeviceSample(pixels.data_ptr(), *image.shape[:2], operations, out.data_ptr() + i * row)
        for i, operations in enumerate(drawn)
    ]

    def run(count: int) -> None:
        program.launch(launcher, samples[:count])
        launcher.wait()

    run(SAMPLES)
    return {
        f"launch of {count}": round(
            least(functools.partial(run, count), time.perf_counter) * SAMPLES, 1
        )
        for count in (1, 16, SAMPLES)
    }


@functools.cache
def options() -> argparse.Namespace:
    """Returns what the command line says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--brief", action="store_true", help="compile for one architecture alone")
    return parser.parse_args()


def compilation() -> dict[str, float] | str:
    """Returns the seconds that the kernel takes to be compiled, by architecture."""
    seconds = {}
    try:
        compiler = Nvrtc()
        known = compiler.architectures[-1:] if options().brief else compiler.architectures
        for architecture in known:
            begin = time.perf_counter()
            kernel.compile_kernel(compiler, f"sm_{architecture}")
            seconds[f"sm_{architecture}"] = round(time.perf_counter() - begin, 2)
    except NvrtcError as error:
        return str(error)
    return seconds


def measure(steps: list[object], width: int, height: int) -> dict[str, object]:
    """Returns the costs of a plan with those transforms, for decoded images of that size."""
    compiled = compile_plan(v1.Compose([*steps, v1.ToTensor(), v1.Normalize(MEAN, STD)]))
    image = np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)
    drawn = [compiled.draw(width, height, index=index) for index in range(SAMPLES)]
    executor, program = make_executor(compiled.plan), DeviceProgram(compiled.plan)
    scalar = make_executor(compiled.plan, simd="scalar")
    batch, staging = _native.DeviceBatch(executor), np.empty(1 << 22, np.uint8)
    out = result_like(compiled.plan).view(torch.uint8).numpy().reshape(-1)

    on_host = [
        DeviceSample(image.ctypes.data, height, width, operations, out.ctypes.data)
        for operations in drawn
    ]

    def flatten() -> None:
        batch.clear()
        for operations in drawn:
            batch.add(operations, 0, width, height, 0)

    def draw_and_flatten() -> None:
        batch.clear()
        for index in range(SAMPLES):
            batch.add_drawn(executor, 0, 0, index, 0, 0, 0, width, height, 0)

    flatten()
    report: dict[str, object] = {
        "bytes": batch.nbytes // SAMPLES,
        "working memory": batch.work_bytes // SAMPLES,
        "flatten tuples": least(flatten),
        "draw and flatten": least(draw_and_flatten),
        "write": least(lambda: batch.write(staging.ctypes.data)),
        "native": least(lambda: [executor.run_pixels_with(image, o, out) for o in drawn]),
        "native, scalar": least(lambda: [scalar.run_pixels_with(image, o, out) for o in drawn]),
        "body on the host": least(
            lambda: [_native.run_device_program_on_host(executor, image, o, out, 1) for o in drawn]
        ),
        "launch on the host": least(lambda: program.launch(HostLauncher(), on_host)),
    }
    if torch.cuda.is_available():
        report["device"] = on_device(program, image, drawn, out.nbytes)
    return report


def main() -> None:
    """Measures and prints."""
    crop, resize = v1.CenterCrop(SIDE), v1.RandomResizedCrop(SIDE)
    plans: dict[str, tuple[list[object], int, int]] = {
        "none": ([crop], SIDE, SIDE),
        "RandAugment": ([crop, v1.RandAugment()], SIDE, SIDE),
        "resize of 500 x 375": ([resize], 500, 375),
        "resize of 1024 x 768": ([resize], 1024, 768),
    }
    for name, plan in plans.items():
        append(options().json, plan=name, **measure(*plan))
    append(options().json, seconds_to_compile=compilation())


if __name__ == "__main__":
    main()
