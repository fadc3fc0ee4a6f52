"""Decodes the files of a folder at each level of vectors, with the extension and nothing else.

Usage: decode_files.py FOLDER. Beside FILE.jpg, FILE.jpg.rgb has the pixels that are right.
"""

import sys
from pathlib import Path

from fusionloader import _native

# All that the native code brings is in the extension.
assert not {"torch", "numpy", "PIL"} & set(sys.modules)
compared = 0
for level in _native.simd_levels():
    executor = _native.Executor(
        (), None, 3, 3, 0, 0, fast_decode=False, strict=True, vertical_first="never", simd=level
    )
    for expected in sorted(Path(sys.argv[1]).glob("*.rgb")):
        encoded = expected.with_suffix("").read_bytes()
        width, height = executor.image_size(encoded)
        pixels = memoryview(bytearray(height * width * 3)).cast("B", (height, width, 3))
        assert executor.decode(encoded, pixels) is _native.RunStatus.OK, expected
        assert pixels.tobytes() == expected.read_bytes(), (level, expected)
        compared += 1
print(f"{compared} compared at {' '.join(_native.simd_levels())}")
