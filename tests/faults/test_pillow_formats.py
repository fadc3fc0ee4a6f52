"""Formats that the training script adds to Pillow work in workers however they are started."""

from pathlib import Path

import pytest
from PIL import Image
from support import warm_start

# A custom format: pixels after a signature. It is defined in a plugin, and in a script.
PLUGIN = """
from PIL import Image, ImageFile

class {name}File(ImageFile.ImageFile):
    format = "{name}"

    def _open(self):
        self.fp.seek(4)
        side = self.fp.read(1)[0]
        self._size, self._mode = (side, side), "RGB"
        self.tile = [("{name}", (0, 0, side, side), 5, None)]

class {name}Decoder(ImageFile.PyDecoder):
    _pulls_fd = True

    def decode(self, buffer):
        self.fd.seek(5)
        self.set_as_raw(self.fd.read())
        return -1, 0

def accepts(prefix):
    return prefix[:4] == b"{name}"

def register(accept=accepts):
    Image.register_open("{name}", {name}File, accept)
    Image.register_decoder("{name}", {name}Decoder)
"""
SCRIPT = """
import logging
{definitions}
from torch.utils.data import DataLoader
from torchvision import transforms as v1
from torchvision.datasets.folder import DatasetFolder, default_loader
from fusionloader import FusionLoader
import torch

def main():
    {register}
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    steps = v1.Compose([v1.CenterCrop(4), v1.ToTensor()])
    dataset = DatasetFolder({folder!r}, default_loader, (".own",), steps)
    theirs = DataLoader(dataset, 2)
    ours = FusionLoader(dataset, 2, num_workers=1, multiprocessing_context="spawn")
    assert "python" not in ours.explain()
    assert all(torch.equal(a[0], b[0]) for a, b in zip(theirs, ours, strict=True))

if __name__ == "__main__":
    main()
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "data" / "class").mkdir(parents=True)
    pixels = Image.linear_gradient("L").convert("RGB").resize((8, 8)).tobytes()
    for number, name in enumerate([b"OWNF", b"OWNP", b"OWNF"]):
        (tmp_path / "data" / "class" / f"{number}.own").write_bytes(name + b"\x08" + pixels)
    return tmp_path


def run(folder, definitions, register):
    script = folder / "train.py"
    text = SCRIPT.format(definitions=definitions, register=register, folder=str(folder / "data"))
    script.write_text(text)
    root = str(Path(__file__).parents[2])
    return warm_start.completed(script, env={"PYTHONPATH": root, "PATH": "/usr/bin:/bin"})


def test_formats_of_a_plugin_and_of_the_script_itself_are_known(folder):
    (folder / "plugin.py").write_text(PLUGIN.format(name="OWNP"))
    own = f"import plugin\n{PLUGIN.format(name='OWNF')}"
    done = run(folder, own, "plugin.register(), register()")
    assert done.returncode == 0, done.stderr


@pytest.mark.matrix
def test_a_format_that_cannot_be_carried_is_named_before_the_file_is(folder):
    (folder / "data" / "class" / "1.own").unlink()  # of the other format
    (folder / "plugin.py").write_text(PLUGIN.format(name="OWNF"))
    register = "plugin.register(lambda prefix: plugin.accepts(prefix))"
    done = run(folder, "import plugin", register)
    assert done.returncode != 0
    assert "Pillow's format OWNF was added with a function that cannot be pickled" in done.stderr
    assert "UnidentifiedImageError" in done.stderr and "0.own" in done.stderr
