"""The CUDA library: how it is built, and what is said where it or a device is missing."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.device_cases import pixel_plan

from fusionloader.executors.device import program as device_program
from fusionloader.executors.device.program import (
    DeviceProgram,
    DeviceSample,
    KernelError,
    Launcher,
    device_count,
)

ROOT = Path(__file__).parents[2]
NVCC = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """The library, for one architecture, and what the compiler said."""
    if NVCC is None:
        pytest.skip("no CUDA compiler (nvcc)")
    library = tmp_path_factory.mktemp("kernel") / device_program.LIBRARY.name
    command = [NVCC, "-std=c++17", "-O3", "-fmad=false", "-arch=sm_90", "-Xptxas", "-v"]
    command += ["-shared", "-cudart", "static", "-Xcompiler", "-fPIC,-ffp-contract=off"]
    command += ["-Werror", "all-warnings", f"-I{ROOT / 'csrc'}", "-o", str(library)]
    command += [str(ROOT / "csrc" / "device" / "augment.cu")]
    # nvcc does not run under a sanitizer.
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return library, done.stderr


@pytest.mark.timeout(300)
def test_the_kernel_compiles_and_its_registers_suffice_for_a_whole_block(compiled):
    _, said = compiled
    registers = int(re.findall(r"Used (\d+) registers", said)[0])
    shared = int(re.findall(r"(\d+) bytes smem", said)[0])
    spilled = sum(map(int, re.findall(r"(\d+) bytes spill", said)))
    assert registers * 1024 <= 65536
    assert shared <= 48 * 1024
    assert spilled < 300


def build(**environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "setup.py", "-q", "build_cuda"],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )


@pytest.mark.skipif(shutil.which("nvcc", path="/usr/bin:/bin") is not None, reason="nvcc is there")
def test_asking_for_the_library_without_a_compiler_is_an_error():
    done = build(PATH="/usr/bin:/bin", CUDA_HOME="/nowhere")
    assert done.returncode != 0
    assert "nvcc) was not found" in done.stderr


def test_the_library_lies_beside_the_extension():
    assert ROOT / "fusionloader" / "_cuda_ops.so" == device_program.LIBRARY


def test_a_missing_library_says_how_to_build_it(tmp_path, monkeypatch):
    monkeypatch.setattr(device_program, "LIBRARY", tmp_path / "none.so")
    with pytest.raises(KernelError, match="build it with `python setup.py build_cuda`"):
        device_count()


@pytest.mark.timeout(300)
def test_without_a_device_the_driver_says_why(compiled, monkeypatch):
    monkeypatch.setattr(device_program, "LIBRARY", compiled[0])
    try:
        count = device_count()
    except KernelError as error:
        assert re.search(r"CUDA: .+ \(error \d+\)", str(error))
        count = 0
    with pytest.raises(KernelError, match=r"CUDA: .+ \(error \d+\)"):
        Launcher(count)


class RecordingLauncher(Launcher):
    """Takes the place of a device."""

    def __init__(self) -> None:
        self.samples: list[int] = []
        self.work: list[int] = []

    def launch(self, batch, stream, work):
        self.samples.append(batch.samples)
        self.work.append(work)


def test_a_launch_says_which_samples_it_leaves_out_and_why():
    launcher, program = RecordingLauncher(), DeviceProgram(pixel_plan(3))
    good = DeviceSample(0, 10, 10, [("invert",)], 0)
    bad = DeviceSample(0, 10, 10, [("resize", 3, 3, "box")], 0)
    assert program.launch(launcher, [good, bad, good]) == [
        None,
        "a device program cannot do: resize",
        None,
    ]
    assert program.launch(launcher, [good]) == [None]
    assert program.launch(launcher, [bad])[0] is not None
    assert program.launch(launcher, []) == []
    assert launcher.samples == [2, 1]


def test_a_closed_launcher_is_refused():
    launcher = Launcher.__new__(Launcher)
    launcher._augmenter, launcher._library = None, None
    launcher.close()
    with pytest.raises(KernelError, match="closed"):
        DeviceProgram(pixel_plan(3)).launch(launcher, [DeviceSample(0, 4, 4, [], 0)])


def test_working_memory_is_the_caller_s_where_some_is_given():
    launcher, program, asked = RecordingLauncher(), DeviceProgram(pixel_plan(3)), []
    sample = DeviceSample(0, 10, 10, [("invert",)], 0)

    def work(nbytes):
        asked.append(nbytes)
        return 0xF00

    program.launch(launcher, [sample], work=work)
    program.launch(launcher, [sample, sample], work=work)
    program.launch(launcher, [sample])
    assert launcher.work == [0xF00, 0xF00, 0]
    assert 0 < asked[0] < asked[1]
