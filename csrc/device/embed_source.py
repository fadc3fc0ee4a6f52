"""Writes the definition of device/source.hpp: the CUDA kernels and their headers, as text.

Usage: embed_source.py OUT
"""

import re
import sys
from pathlib import Path

CSRC = Path(__file__).parents[1]


def kernel_source() -> dict[str, str]:
    """Returns the CUDA kernels and the headers they include, by the names they have there."""
    texts: dict[str, str] = {}
    left = [str(file.relative_to(CSRC)) for file in sorted(CSRC.glob("*/*.cu"))]
    while left:
        name = left.pop()
        if name not in texts:
            texts[name] = (CSRC / name).read_text()
            left += re.findall(r'^#include "(.+)"$', texts[name], re.MULTILINE)
    return dict(sorted(texts.items()))


items = (f'    {{"{name}", R"fusion({text})fusion"}},' for name, text in kernel_source().items())
lines = ["// Made by device/embed_source.py.", '#include "device/source.hpp"', ""]
lines += ["namespace fusionloader::device {", "", "const SourceFile source_files[] = {", *items]
lines += ["};", "const size_t source_count = sizeof source_files / sizeof *source_files;", ""]
made = "\n".join([*lines, "}  // namespace fusionloader::device", ""])
out = Path(sys.argv[1])
# Written only if it changed, so that nothing is compiled anew for a comment in another header.
if not out.exists() or out.read_text() != made:
    out.write_text(made)
