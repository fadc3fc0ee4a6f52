"""Wheels as they are installed: into an environment of their own, without a compiler.

`make wheel` builds them, and runs these tests on what is in FUSIONLOADER_WHEELS.
"""

import os
import platform
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.images import photo

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).with_name("decode_files.py")
WHEELS = sorted(Path(os.environ.get("FUSIONLOADER_WHEELS", ROOT / "dist")).glob("*.whl"))
NATIVE = [wheel for wheel in WHEELS if wheel.stem.endswith(platform.machine())]
FOREIGN = [wheel for wheel in WHEELS if "_aarch64" in wheel.stem and wheel not in NATIVE]


def python_of(wheel):
    return wheel.name.split("-")[2]


def names(wheels):
    of_each = pytest.mark.parametrize("wheel", wheels, ids=[wheel.stem for wheel in wheels])
    return lambda test: pytest.mark.wheels(of_each(test))


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A folder of a file in each format that is decoded natively, and Pillow's pixels."""
    folder = tmp_path_factory.mktemp("files")
    image = photo(np.random.default_rng(0), 203, 151)
    image.save(folder / "baseline.jpg", quality=90)
    image.save(folder / "progressive.jpg", quality=80, progressive=True)
    image.convert("L").save(folder / "grey.jpg")
    image.save(folder / "flat.png")
    image.save(folder / "lossy.webp", quality=80)
    for file in list(folder.iterdir()):
        Path(f"{file}.rgb").write_bytes(Image.open(file).convert("RGB").tobytes())
    return folder


def run(*command, **environment):
    """Runs a command to which this machine has no other, a compiler among them."""
    assert shutil.which("g++", path=environment["PATH"]) is None
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def pythons():
    found = subprocess.run([ROOT / ".ci/pythons"], stdout=subprocess.PIPE, text=True, check=True)
    tag = "import sys; print('cp%d%d' % sys.version_info[:2])"
    paths = found.stdout.split()
    tags = [subprocess.check_output([path, "-c", tag], text=True).strip() for path in paths]
    return dict(zip(tags, paths, strict=True))


@pytest.mark.wheels
def test_there_are_wheels():
    assert NATIVE, "make wheel builds them"


@names(WHEELS)
def test_what_is_bundled_is_hidden_and_has_its_license(wheel, tmp_path):
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(tmp_path)
    (extension,) = (tmp_path / "fusionloader").glob("_native.*.so")
    symbols = subprocess.check_output(["readelf", "--dyn-syms", "--wide", extension], text=True)
    seen = {line.split()[-1] for line in symbols.splitlines() if " GLOBAL DEFAULT" in line}
    assert "PyInit__native" in seen
    assert not {name for name in seen if name.startswith(("jpeg_", "libdeflate_", "WebP"))}
    licenses = {file.name for file in (tmp_path / "fusionloader" / "licenses").iterdir()}
    assert licenses == {"libjpeg-turbo.txt", "libdeflate.txt", "libwebp.txt"}
    assert not list(tmp_path.glob("*.libs"))  # nothing that the loader would have to find


def assert_all_is_decoded(said):
    levels = said.split(" compared at ")[1].split()
    assert levels and said.startswith(f"{5 * len(levels)} compared")


def test_the_extension_of_this_environment_decodes_alone(files):
    assert_all_is_decoded(run(sys.executable, SCRIPT, files, PATH=""))


@names(NATIVE)
def test_a_wheel_decodes_with_nothing_else_installed(wheel, files, pythons, tmp_path):
    subprocess.run([pythons[python_of(wheel)], "-m", "venv", tmp_path / "venv"], check=True)
    bin = tmp_path / "venv" / "bin"
    install = [sys.executable, "-m", "pip", "--python", bin / "python", "install", "--no-deps"]
    subprocess.run([*install, wheel], check=True, stdout=subprocess.DEVNULL)
    assert_all_is_decoded(run(bin / "python", SCRIPT, files, PATH=str(bin)))


@names(FOREIGN)
def test_a_wheel_for_arm_decodes_under_emulation(wheel, files, tmp_path):
    if python_of(wheel) != "cp311":
        pytest.skip("Debian has Python 3.11 alone")
    root = ROOT / "build" / "arm64-python"
    subprocess.run([ROOT / ".ci/arm64-python", root], check=True)
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(tmp_path)
    emulator = shutil.which("qemu-aarch64-static")
    command = [emulator, "-L", root, root / "usr/bin/python3.11", SCRIPT, files]
    said = run(*command, PATH="", PYTHONPATH=str(tmp_path))
    assert said == "10 compared at scalar neon\n"


@pytest.mark.wheels
def test_a_bare_environment_trains(tmp_path):
    """Everything that pip brings for the wheel, which takes a minute and 5 GB for torch."""
    tag = "cp{}{}".format(*sys.version_info[:2])
    (wheel,) = (each for each in NATIVE if python_of(each) == tag)
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    bin = tmp_path / "venv" / "bin"
    subprocess.run([bin / "pip", "install", "--quiet", wheel], check=True)
    command = (bin / "fusionloader", "demo", "--cpu", "--images", "200", "--epochs", "1")
    home = {"HOME": str(tmp_path), "PATH": str(bin)}
    said = run(*command, "--data", tmp_path / "images", **home)
    assert "loading" in said and "training" in said
