"""How far native pixels are from torchvision's: writes docs/how/fidelity.md."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.fidelity.cases import images
from benchmarks.fidelity.page import page


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path, help="the page to write (standard output)")
    parser.add_argument("--images", type=Path, help="a folder of images to try as well")
    options = parser.parse_args()
    text = page(images(options.images))
    if options.write is None:
        sys.stdout.write(text)
    else:
        options.write.write_text(text)


if __name__ == "__main__":
    main()
