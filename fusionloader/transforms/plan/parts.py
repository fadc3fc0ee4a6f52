"""Parts of a plan whose time is counted together, as in ``csrc/queue/parts.hpp``.

READ: files. PASSES: decoding, windows, resizes, flips and the conversion, which run together.
PYTHON: what follows in Python. WRITE: of what Python made. Stages have one each from FIRST_STAGE
on.
"""

READ, PASSES, PYTHON, WRITE, FIRST_STAGE = range(5)
