"""The kernel's code: compiled for each architecture without a device, kept, compiled again."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import subprocess
import sys

import pytest
from support.fake_cuda import compile_with
from support.other_users import without_home

from fusionloader import _native
from fusionloader.transforms.executors.device import kernel, nvrtc
from fusionloader.transforms.executors.device.nvrtc import Nvrtc, NvrtcError

NVRTC = nvrtc.find_library()
needs_nvrtc = pytest.mark.skipif(NVRTC is None, reason="no libnvrtc (torch's CUDA wheels have it)")
KNOWN = Nvrtc().architectures if NVRTC else []
# Each takes 3 s: the newest stands for all but in `make architectures`.
FUNCTION = "fusionloader_augment"


@needs_nvrtc
@pytest.mark.parametrize(
    "architecture",
    [*(pytest.param(a, marks=pytest.mark.architectures) for a in KNOWN[:-1]), *KNOWN[-1:]],
)
@pytest.mark.parametrize(
    ("file", "function", "most_spilled"),
    [
        (kernel.AUGMENT, FUNCTION, 400),
        # The address of a program is no argument, and takes registers.
        (kernel.AUGMENT_ROWS, kernel.ENTRIES[kernel.AUGMENT_ROWS], 600),
    ],
)
def test_it_compiles_and_its_registers_suffice_for_a_whole_block(
    file, function, most_spilled, architecture
):
    options = ["--ptxas-options=-v"]
    code, said = kernel.compile_kernel(Nvrtc(), f"sm_{architecture}", options, file)
    assert "warning" not in said
    assert code.startswith(b"\x7fELF")
    assert function.encode() in code
    assert int(re.findall(r"Used (\d+) registers", said)[0]) * 1024 <= 65536
    assert int(re.findall(r"(\d+) bytes smem", said)[0]) <= 48 * 1024
    assert sum(map(int, re.findall(r"(\d+) bytes spill", said))) < most_spilled


@needs_nvrtc
@pytest.mark.parametrize("architecture", KNOWN)
def test_the_conversion_of_levels_compiles(architecture):
    target = kernel.choose_target(architecture, KNOWN)
    code, said = kernel.compile_kernel(Nvrtc(), target, file=kernel.CONVERT_LEVELS)
    assert "warning" not in said
    assert b"fusionloader_convert_levels" in code


@needs_nvrtc
def test_every_step_of_its_arithmetic_is_rounded_as_written():
    ptx = kernel.compile_kernel(Nvrtc(), f"compute_{KNOWN[-1]}")[0].decode()
    used = re.findall(r"^\s+((?:add|sub|mul|div|fma|rcp|sqrt|cvt)\.[\w.]+)", ptx, re.MULTILINE)
    assert "div.rn.f64" in used and "mul.rn.f32" in used
    assert not [name for name in used if "approx" in name or "ftz" in name or ".full" in name]
    # Those that hue.hpp asks for by name, twice in each of three places.
    assert sum(name.startswith("fma") for name in used) == 6


def test_the_source_in_the_extension_is_complete():
    files = _native.device_source()
    for text in files.values():
        for name in re.findall(r'#include "(.+)"', text):
            assert name in files
        for name in re.findall(r"#include <(.+)>", text):
            assert name in kernel._STANDARD_HEADERS


@pytest.mark.parametrize(
    ("architecture", "target"),
    [(90, "sm_90"), (75, "sm_75"), (89, "compute_80"), (121, "compute_120"), (200, "compute_120")],
)
def test_a_device_that_the_compiler_does_not_know_gets_ptx_of_the_one_before(architecture, target):
    assert kernel.choose_target(architecture, [75, 80, 90, 120]) == target


def test_a_device_that_is_too_old_for_the_compiler_is_named():
    with pytest.raises(NvrtcError, match=r"sm_75 and later, not for this device \(sm_70\)"):
        kernel.choose_target(70, [75, 80])


@pytest.fixture
def compiler(tmp_path, monkeypatch):
    """A compiler of which only is known how often it was called."""

    class Counting:
        version = (13, 0)
        architectures = (80, 90)
        calls = 0

        def compile(self, source, name, headers, options):
            assert "__global__" in source and name == "device/kernel.cu"
            assert "--fmad=false" in options and "device/body.hpp" in headers
            self.calls += 1
            return f"{self.version} {options[0]}".encode(), ""

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return Counting()


def kept(tmp_path):
    return sorted((tmp_path / "fusionloader" / "kernels").iterdir())


def test_it_is_compiled_once(compiler, tmp_path):
    first = kernel.kernel_code(90, compiler)
    assert kernel.kernel_code(90, compiler) == first == b"(13, 0) --gpu-architecture=sm_90"
    assert compiler.calls == 1
    assert len(kept(tmp_path)) == 1


def test_the_log_says_that_it_is_compiled(compiler, caplog):
    with caplog.at_level(logging.INFO, "fusionloader.gpu"):
        kernel.kernel_code(90, compiler)
        kernel.kernel_code(90, compiler)
    said = [record.message for record in caplog.records if "NVRTC compiles" in record.message]
    assert said == ["NVRTC compiles device/kernel.cu for sm_90, which takes seconds the first time"]


def test_other_devices_compilers_and_sources_have_code_of_their_own(
    compiler, tmp_path, monkeypatch
):
    kernel.kernel_code(90, compiler)
    kernel.kernel_code(80, compiler)
    compiler.version = (13, 1)
    assert kernel.kernel_code(90, compiler).startswith(b"(13, 1)")
    monkeypatch.setitem(kernel._STANDARD_HEADERS, "cstddef", "#pragma once // new\n")
    kernel.kernel_code(90, compiler)
    assert compiler.calls == 4
    assert len(kept(tmp_path)) == 4


@pytest.mark.parametrize("damage", [b"", b"short", b"x" * 200, None])
def test_damaged_code_is_compiled_again(compiler, tmp_path, damage):
    whole = kernel.kernel_code(90, compiler)
    (file,) = kept(tmp_path)
    file.write_bytes(file.read_bytes()[:-1] if damage is None else damage)
    assert kernel.kernel_code(90, compiler) == whole
    assert kernel.kernel_code(90, compiler) == whole
    assert compiler.calls == 2
    content = file.read_bytes()
    assert content[:32] == hashlib.sha256(content[32:]).digest()


@pytest.mark.parametrize("reason", ["a file is in the way", "no home"])
def test_where_nothing_can_be_kept_it_is_compiled_each_time(
    compiler, tmp_path, monkeypatch, reason, caplog
):
    if reason == "no home":
        without_home(monkeypatch)
    else:
        (tmp_path / "fusionloader").write_text("")
    with caplog.at_level("INFO", "fusionloader.gpu"):
        assert kernel.kernel_code(90, compiler) == kernel.kernel_code(90, compiler)
    assert compiler.calls == 2
    assert "kept" in caplog.text


def test_ranks_that_start_together_leave_one_whole_file(tmp_path):
    program = """
import sys
from fusionloader.transforms.executors.device import kernel
class Compiler:
    version, architectures = (13, 0), (90,)
    def compile(self, *_):
        return b"code" * 250_000, ""
print("ready", flush=True)
sys.stdin.readline()
for _ in range(20):
    assert kernel.kernel_code(90, Compiler()) == b"code" * 250_000
    for file in kernel.cache_folder().glob("kernels/sm_*"):
        file.unlink(missing_ok=True)
"""
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", program],
            env={**os.environ, "XDG_CACHE_HOME": str(tmp_path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    for rank in ranks:
        assert rank.stdout.readline() == "ready\n"
    for rank in ranks:
        rank.stdin.write("\n")
        rank.stdin.flush()
    assert [rank.communicate()[0] and 1 or rank.returncode for rank in ranks] == [0, 0, 0]
    assert all(file.name.startswith("sm_90") for file in kept(tmp_path))


@needs_nvrtc
def test_an_error_of_the_source_is_told_in_the_compiler_s_words():
    with pytest.raises(
        NvrtcError, match=r"wrong\.cu: NVRTC_ERROR_COMPILATION \(6\)(.|\n)*nonsense"
    ):
        Nvrtc().compile("nonsense", "wrong.cu", {}, ["--gpu-architecture=compute_90"])


@needs_nvrtc
def test_an_option_that_it_does_not_know_is_told():
    with pytest.raises(NvrtcError, match=r"NVRTC_ERROR_INVALID_OPTION.*--nonsense"):
        Nvrtc().compile("", "empty.cu", {}, ["--nonsense"])


@pytest.fixture
def nowhere(monkeypatch, tmp_path):
    """A folder that is the only one in which NVRTC may be."""
    monkeypatch.setattr(nvrtc, "folders", lambda: iter([tmp_path]))

    def load(name, *arguments):
        if str(name).startswith("libnvrtc"):
            raise OSError(f"{name}: cannot open shared object file")
        return found(name, *arguments)

    found = nvrtc.ctypes.CDLL
    monkeypatch.setattr(nvrtc.ctypes, "CDLL", load)
    return tmp_path


def test_without_a_compiler_it_is_said_what_to_install(nowhere):
    assert nvrtc.find_library() is None
    with pytest.raises(NvrtcError, match="libnvrtc.* is missing: pip install nvidia-cuda-nvrtc"):
        Nvrtc()


def test_the_compiler_of_torch_s_cuda_takes_precedence(nowhere, monkeypatch):
    for name in (
        "libnvrtc.so.12",
        "libnvrtc.so.13",
        "libnvrtc-builtins.so.13.2",
        "libnvrtc.alt.so.12",
    ):
        (nowhere / name).write_bytes(b"")
    for major, name in [(12, "libnvrtc.so.12"), (13, "libnvrtc.so.13"), (0, "libnvrtc.so.13")]:
        monkeypatch.setattr(nvrtc, "cuda_major", lambda major=major: major)
        assert nvrtc.find_library() == str(nowhere / name)


def test_a_compiler_that_does_not_load_is_told(nowhere):
    (nowhere / "libnvrtc.so.13").write_bytes(b"not a library")
    with pytest.raises(NvrtcError, match=r"does not load: .*libnvrtc\.so\.13.*pip install"):
        Nvrtc()


def test_a_compiler_that_fails_is_told(tmp_path):
    source, library = tmp_path / "fake.c", tmp_path / "libnvrtc.so.13"
    names = [
        name for name in nvrtc._ARGUMENTS if name not in ("nvrtcVersion", "nvrtcGetErrorString")
    ]
    lines = [f"int {name}() {{ return 0; }}" for name in names if "CreateProgram" not in name]
    lines += ["int nvrtcVersion(int* a, int* b) { *a = 13; *b = 0; return 0; }"]
    lines += ['const char* nvrtcGetErrorString(int code) { return "NVRTC_ERROR_BUILTIN"; }']
    lines += ["int nvrtcCreateProgram() { return 7; }"]
    source.write_text("\n".join(lines))
    compile_with(["gcc", "-shared", "-fPIC", "-w", str(source), "-o", str(library)])
    compiler = Nvrtc(str(library))
    assert compiler.version == (13, 0)
    with pytest.raises(NvrtcError, match=r"nvrtcCreateProgram failed: NVRTC_ERROR_BUILTIN \(7\)"):
        kernel.compile_kernel(compiler, "sm_90")


def test_a_library_that_is_none_of_nvrtc_is_told():
    with pytest.raises(NvrtcError, match="does not load: .*nvrtcVersion"):
        Nvrtc("libc.so.6")
