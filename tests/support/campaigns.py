"""How long random trials run: shortly in the suite, as long as asked in campaigns of their own."""

import os

# Of processes: `make kills` asks for more.
KILLS = int(os.environ.get("FUSIONLOADER_KILLS", "0"))
# Of processes with daemonic threads: `make ends` asks for more.
ENDS = int(os.environ.get("FUSIONLOADER_ENDS", "0"))
# Of loaders that are made and dropped: `make soak` asks for more.
LOADERS = int(os.environ.get("FUSIONLOADER_LOADERS", "0"))
# Of files that are damaged: `make corrupt` asks for more.
CORRUPT_FILES = int(os.environ.get("FUSIONLOADER_CORRUPT_FILES", "0"))
# Of another library, which ours are compared with: `make draws` asks for more.
DRAWS = int(os.environ.get("FUSIONLOADER_DRAWS", "6000"))
# Of properties that take long to try: `make matrix` asks for all.
THOROUGH = bool(os.environ.get("FUSIONLOADER_THOROUGH"))
SEED = int(os.environ.get("FUSIONLOADER_SEED", "0"))


def examples(few: int, many: int) -> int:
    """How many examples a property is tried with: ``few`` in the suite, ``many`` if thoroughly."""
    return many if THOROUGH else few


def seeds(few: int) -> range:
    """Where the trials of a test begin, at least ``few`` of them."""
    return range(SEED, SEED + max(few, KILLS // 10))
