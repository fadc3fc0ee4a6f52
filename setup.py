"""Builds the native extension; everything else about the package is in pyproject.toml."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from pybind11.setup_helpers import ParallelCompile, Pybind11Extension
from pybind11.setup_helpers import build_ext as build_extensions
from setuptools import Command, setup

ROOT = Path(__file__).parent
WARNINGS = ["-Wall", "-Wextra", "-Wconversion", "-Werror"]
SANITIZERS = [
    "-fsanitize=address,undefined,float-cast-overflow",
    "-fno-omit-frame-pointer",
    "-g",
    "-O1",
]

# Code for these, and PTX for what comes after them. Devices between run the code of the one before.
CUDA_ARCHITECTURES = ["80", "90", "100"]
CUDA_SOURCE = ROOT / "csrc" / "device" / "augment.cu"
CUDA_LIBRARY = "_cuda_ops.so"


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


def find_nvcc() -> str | None:
    """Returns CUDA's compiler, ``None`` where there is none or FUSIONLOADER_CUDA=0 says so.

    Raises:
        SystemExit: there is none, and FUSIONLOADER_CUDA=1 asks for it.
    """
    wish = os.environ.get("FUSIONLOADER_CUDA", "")
    if wish == "0":
        return None
    home = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"))
    found = shutil.which("nvcc") or shutil.which("nvcc", path=home / "bin")
    if found is None and wish == "1":
        raise SystemExit(
            "fusionloader: FUSIONLOADER_CUDA=1, but CUDA's compiler (nvcc) was not found.\n"
            "  Install the CUDA toolkit, and put nvcc on the PATH or set CUDA_HOME."
        )
    return found


def build_cuda_library(nvcc: str, library: Path) -> None:
    """Compiles the CUDA library, unless it is newer than its sources.

    Raises:
        CalledProcessError: the compiler refuses it, and has said why.
    """
    sources = [Path(__file__), *ROOT.glob("csrc/arithmetic/*"), *ROOT.glob("csrc/device/*")]
    newest = max(source.stat().st_mtime for source in sources)
    if library.exists() and library.stat().st_mtime > newest:
        return
    library.parent.mkdir(parents=True, exist_ok=True)
    command = [nvcc, "-std=c++17", "-O3", "--threads", "2", "-shared", "-cudart", "static"]
    command += [f"-I{ROOT / 'csrc'}"]
    # As for the extension: contraction would change roundings.
    command += ["-fmad=false", "-Xcompiler", "-fPIC,-ffp-contract=off,-Wall,-Wextra"]
    query = subprocess.run([nvcc, "--list-gpu-arch"], capture_output=True, text=True, check=True)
    known = [f"compute_{number}" for number in CUDA_ARCHITECTURES]
    known = [architecture for architecture in known if architecture in query.stdout.split()]
    for architecture in known:
        code = architecture.replace("compute", "sm")
        command += ["-gencode", f"arch={architecture},code={code}"]
    command += ["-gencode", f"arch={known[-1]},code={known[-1]}"]
    # Renamed into place: a process that has loaded the old one keeps it.
    made = library.with_suffix(".new")
    subprocess.run([*command, "-o", str(made), str(CUDA_SOURCE)], check=True)
    made.replace(library)


class BuildCuda(Command):
    """Builds the CUDA library alone, into the source tree."""

    description = "build the CUDA library into the source tree (needs nvcc)"
    user_options: list[tuple[str, str, str]] = []

    def initialize_options(self) -> None:
        """Has no options."""

    def finalize_options(self) -> None:
        """Has no options."""

    def run(self) -> None:
        """Compiles it; its lack is an error here."""
        os.environ["FUSIONLOADER_CUDA"] = "1"
        nvcc = find_nvcc()
        assert nvcc is not None
        build_cuda_library(nvcc, ROOT / "fusionloader" / CUDA_LIBRARY)


class BuildExt(build_extensions):
    """The extension, and the CUDA library where there is a compiler for it."""

    def build_extensions(self) -> None:
        """Compiles what is out of date; the bindings, where no time is spent, in less of it."""
        compile_one = self.compiler._compile

        def compile_as_needed(made, source, kind, flags, extra, preprocessing):  # type: ignore[no-untyped-def]
            less = ["-O1"] if Path(source).parent.name == "bindings" else []
            compile_one(made, source, kind, flags, [*extra, *less], preprocessing)

        self.compiler._compile = compile_as_needed
        super().build_extensions()

    def run(self) -> None:
        """Builds both."""
        super().run()
        nvcc = find_nvcc()
        if nvcc is None:
            return
        root = ROOT if self.inplace else Path(self.build_lib)
        try:
            build_cuda_library(nvcc, root / "fusionloader" / CUDA_LIBRARY)
        except subprocess.CalledProcessError as error:
            if os.environ.get("FUSIONLOADER_CUDA") == "1":
                raise SystemExit(f"fusionloader: the CUDA library was not built: {error}") from None
            print(f"fusionloader: built without the CUDA library: {error}", file=sys.stderr)


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
                *sorted(str(p.relative_to(ROOT)) for p in ROOT.glob("csrc/*/*.hpp")),
            ],
        )
    ]
    if NATIVE
    else [],
    cmdclass={"build_ext": BuildExt, "build_cuda": BuildCuda},
)
