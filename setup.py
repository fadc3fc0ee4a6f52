"""Builds the native extension; everything else about the package is in pyproject.toml."""

import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from pybind11.setup_helpers import ParallelCompile, Pybind11Extension
from pybind11.setup_helpers import build_ext as build_extensions
from setuptools import setup

ROOT = Path(__file__).parent
WARNINGS = ["-Wall", "-Wextra", "-Wconversion", "-Werror"]
SANITIZERS = [
    "-fsanitize=address,undefined,float-cast-overflow",
    "-fno-omit-frame-pointer",
    "-g",
    "-O1",
]

# NVRTC compiles them where a device is.
KERNELS = [str(file.relative_to(ROOT / "csrc")) for file in sorted(ROOT.glob("csrc/*/*.cu"))]

# What has to compile, and the packages that help: of Debian and Ubuntu, Fedora, conda.
LIBRARIES = {
    "libjpeg-turbo (jpeglib.h)": (
        "#include <cstdio>\n#include <jpeglib.h>\nint x = JCS_EXT_RGBX;\n",
        ("libjpeg62-turbo-dev (or libjpeg-turbo8-dev)", "libjpeg-turbo-devel", "libjpeg-turbo"),
    ),
    "libdeflate (libdeflate.h)": (
        "#include <libdeflate.h>\nauto x = libdeflate_zlib_decompress_ex;\n",
        ("libdeflate-dev", "libdeflate-devel", "libdeflate"),
    ),
    "libwebp (webp/decode.h, webp/demux.h)": (
        "#include <webp/decode.h>\n#include <webp/demux.h>\nauto x = WebPDemuxGetFrame;\n",
        ("libwebp-dev", "libwebp-devel", "libwebp"),
    ),
}


def require_glibc() -> None:
    """Stops where the C library is another one, as musl is in Alpine Linux."""
    found, _ = platform.libc_ver()
    if found != "glibc":
        raise SystemExit(
            f"fusionloader: needs glibc, and this Python runs on {found or 'another C library'} "
            "(musl, as in Alpine Linux, is not supported, nor is it by torch).\n"
            "  In containers take an image of Debian, Ubuntu or Fedora, such as python:3.12-slim."
        )


def require_libraries() -> None:
    """Stops with the command that helps when a library's headers are missing."""
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        raise SystemExit(f"fusionloader: no C++ compiler ({compiler}); try: apt-get install g++")
    for name, (probe, (debian, fedora, conda)) in LIBRARIES.items():
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder, "probe.cpp")
            source.write_text(probe)
            flags = os.environ.get("CPPFLAGS", "").split()
            command = [compiler, *flags, "-fsyntax-only", str(source)]
            done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(
                f"fusionloader: the header of {name} was not found.\n"
                f"  Debian, Ubuntu: apt-get install {debian}\n"
                f"  Fedora: dnf install {fedora}    conda: conda install {conda}\n"
                "  elsewhere: set CPPFLAGS=-I... and LDFLAGS=-L..."
            )


def kernel_source() -> dict[str, str]:
    """Returns the CUDA kernels and the headers they include, by the names they have there."""
    texts: dict[str, str] = {}
    left = [*KERNELS]
    while left:
        name = left.pop()
        if name not in texts:
            texts[name] = (ROOT / "csrc" / name).read_text()
            left += re.findall(r'^#include "(.+)"$', texts[name], re.MULTILINE)
    return dict(sorted(texts.items()))


def write_kernel_source(file: Path) -> None:
    """Writes the definition of csrc/device/source.hpp, if it is another one than is there."""
    items = (
        f'    {{"{name}", R"fusion({text})fusion"}},' for name, text in kernel_source().items()
    )
    lines = ["// Made by setup.py.", '#include "device/source.hpp"', ""]
    lines += ["namespace fusionloader::device {", "", "const SourceFile source_files[] = {", *items]
    lines += ["};", "const size_t source_count = sizeof source_files / sizeof *source_files;", ""]
    made = "\n".join([*lines, "}  // namespace fusionloader::device", ""])
    if not file.exists() or file.read_text() != made:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(made)


class BuildExt(build_extensions):
    """The extension, with the CUDA kernel's source in it."""

    def build_extensions(self) -> None:
        """Compiles what is out of date; the bindings, where no time is spent, in less of it."""
        compile_one = self.compiler._compile

        def compile_as_needed(made, source, kind, flags, extra, preprocessing):  # type: ignore[no-untyped-def]
            less = ["-O1"] if Path(source).parent.name == "bindings" else []
            compile_one(made, source, kind, flags, [*extra, *less], preprocessing)

        self.compiler._compile = compile_as_needed
        # Made where objects are: by every kind of build, and nothing is left in the sources.
        made = Path(self.build_temp, "kernel_source.cpp")
        write_kernel_source(made)
        for extension in self.extensions:
            extension.sources.append(str(made))
        super().build_extensions()


def is_out_of_date(made: str, source: str) -> bool:
    """Returns whether an object is older than a file it is made of, which the compiler noted."""
    noted = Path(made).with_suffix(".d")
    if not Path(made).exists() or not noted.exists():
        return True
    files = noted.read_text().replace("\\\n", " ").split(": ", 1)[1].split()
    time = Path(made).stat().st_mtime
    return any(not Path(f).exists() or Path(f).stat().st_mtime > time for f in [__file__, *files])


# Elsewhere torch's own workers serve: the native part is of Linux. FUSIONLOADER_NATIVE=0 leaves it
# to a later build_ext --inplace.
NATIVE = sys.platform == "linux" and os.environ.get("FUSIONLOADER_NATIVE") != "0"
if NATIVE:
    require_glibc()
    require_libraries()
ParallelCompile("FUSIONLOADER_BUILD_JOBS", needs_recompile=is_out_of_date).install()
sanitize = SANITIZERS if os.environ.get("FUSIONLOADER_SANITIZE") else []
setup(
    ext_modules=[
        Pybind11Extension(
            "fusionloader._native",
            # The bindings come last: of a function that they share with others, the linker takes
            # the first, which is compiled for speed.
            sorted(
                (str(p.relative_to(ROOT)) for p in ROOT.glob("csrc/*/*.cpp")),
                key=lambda source: ("/bindings/" in source, source),
            ),
            include_dirs=["csrc"],
            libraries=["jpeg", "deflate", "webp", "webpdemux", "dl"],
            cxx_std=17,
            # Contraction to fused multiply-adds would change roundings that have to match.
            extra_compile_args=["-O3", "-ffp-contract=off", "-MMD", *WARNINGS, *sanitize],
            extra_link_args=sanitize,
            depends=[
                "setup.py",
                *(f"csrc/{kernel}" for kernel in KERNELS),
                *sorted(str(p.relative_to(ROOT)) for p in ROOT.glob("csrc/*/*.hpp")),
            ],
        )
    ]
    if NATIVE
    else [],
    cmdclass={"build_ext": BuildExt},
)
