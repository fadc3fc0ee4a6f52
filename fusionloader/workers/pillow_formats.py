"""Image formats that the training script added to Pillow, for workers that do not run the script.

A plugin such as pillow_heif registers its format by a call in the script. A forked worker inherits
the registration; a fresh interpreter has to repeat it, with functions pickled by name.
"""

from __future__ import annotations

import functools
import logging
import pickle
from dataclasses import dataclass

log = logging.getLogger("fusionloader.loader")

_Entry = tuple[str, str, object]
"""Kind (``open`` or ``decoder``), name, and registered functions."""


@dataclass(frozen=True, slots=True)
class AddedFormats:
    """The formats that were added to Pillow.

    Attributes:
        pickled: pickled entries.
        of_script: whether some entries are defined in the training script or cannot be pickled. A
            worker has them only if multiprocessing imports the script there, as torch's workers do.
    """

    pickled: tuple[bytes, ...] = ()
    of_script: bool = False

    @classmethod
    def here(cls) -> AddedFormats:
        """Returns the formats that were added in this process."""
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
        """Registers the formats in this process.

        Raises:
            Exception: a plugin cannot be imported here.
        """
        from PIL import Image

        if not self.pickled:
            return
        Image.init()  # built-in formats first, or they would replace those added
        for pickled in self.pickled:
            kind, name, entry = pickle.loads(pickled)
            if kind == "open":
                Image.register_open(name, *entry)
            else:
                Image.register_decoder(name, entry)


def _added() -> list[_Entry]:
    from PIL import Image

    opened = [("open", n, entry) for n, entry in Image.OPEN.items() if not _is_builtin(entry[0])]
    decoders = [("decoder", n, e) for n, e in Image.DECODERS.items() if not _is_builtin(e)]
    return [*opened, *decoders]


def _is_builtin(registered: object) -> bool:
    return str(getattr(registered, "__module__", "")).startswith("PIL.")


@functools.cache  # once for each name
def _warn(name: str) -> None:
    log.warning(
        "Pillow's format %s was added with a function that cannot be pickled: workers that are not "
        "forked have it only if importing the training script or the dataset's module adds it",
        name,
    )
