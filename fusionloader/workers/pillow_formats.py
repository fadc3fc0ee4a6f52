"""Image formats that the training script added to Pillow, for workers that do not run the script.

A plugin such as pillow_heif tells Pillow of its format by a call in the script. A forked worker
knows it; an interpreter that was started afresh has to be told by name of the functions.
"""

from __future__ import annotations

import functools
import logging
import pickle
from dataclasses import dataclass
from typing import Any

log = logging.getLogger("fusionloader.loader")

_Entry = tuple[str, str, Any]
"""Kind of entry (``open`` or ``decoder``), name, and what is registered under it."""


@dataclass(frozen=True, slots=True)
class AddedFormats:
    """What was added to Pillow.

    Attributes:
        pickled: the entries that can be carried to another process, each pickled by itself.
        of_script: whether some are defined in the script or cannot be carried: a worker knows
            them only when multiprocessing imports the script there, as it does for torch's.
    """

    pickled: tuple[bytes, ...] = ()
    of_script: bool = False

    @classmethod
    def here(cls) -> AddedFormats:
        """Returns what this process has added to the formats that Pillow comes with."""
        pickled, of_script = [], False
        for entry in _added():
            try:
                pickled.append(pickle.dumps(entry))
            except Exception:  # a lambda, a class made inside a function
                of_script = True
                _warn(entry[1])
            else:
                of_script |= b"__main__" in pickled[-1]
        return cls(tuple(pickled), of_script)

    def register(self) -> None:
        """Adds them to this process's Pillow.

        Raises:
            Exception: a plugin cannot be imported here.
        """
        from PIL import Image

        if not self.pickled:
            return
        Image.init()  # Pillow's own come first, or they would take the place of those added
        for pickled in self.pickled:
            kind, name, entry = pickle.loads(pickled)
            if kind == "open":
                Image.register_open(name, *entry)
            else:
                Image.register_decoder(name, entry)


def _added() -> list[_Entry]:
    from PIL import Image

    opened = [("open", name, entry) for name, entry in Image.OPEN.items() if not _own(entry[0])]
    decoders = [("decoder", n, entry) for n, entry in Image.DECODERS.items() if not _own(entry)]
    return [*opened, *decoders]


def _own(registered: Any) -> bool:
    return str(getattr(registered, "__module__", "")).startswith("PIL.")


@functools.cache  # once for each name
def _warn(name: str) -> None:
    log.warning(
        "Pillow's format %s was added with a function that cannot be pickled: workers that are not "
        "forked know it only if importing the training script or the dataset's module adds it",
        name,
    )
