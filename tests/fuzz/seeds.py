"""Writes what fuzzing starts from: ``python seeds.py FOLDER`` (see ``make fuzz``)."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from random import Random

from damaged_files import whole_files

# Of the window target: level, choice and the window's place, in front of the file.
CONTROL_BYTES = 10


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    random = Random(0)
    for file in whole_files():
        for choice in (0, 4, 13, 20):
            control = bytes((random.randrange(256), choice)) + random.randbytes(CONTROL_BYTES - 2)
            data = control + file
            (folder / hashlib.sha1(data).hexdigest()).write_bytes(data)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
