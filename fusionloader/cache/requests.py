"""A loader's request to the holder, which both ends check."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from fusionloader.system.fd_messages import Fields
from fusionloader.system.job_identity import is_identified, job_identity

_MOST_FILES = 1 << 40
_MOST_BYTES = 1 << 62
_MOST_TIERS = 6  # a message has 8 descriptors, two of which are the ledger and the control page
_MOST_TEXT = {"token": 128, "fingerprint": 128, "path": 4096, "name": 4096}


@dataclass(frozen=True, slots=True)
class CacheRequest:
    """A dataset to be cached, and the budget to cache it under.

    Attributes:
        token: identifies the ledger, see ``ledger_token``.
        memory: budget of shared memory, in bytes.
        disk: budget on the disk, in bytes.
        fingerprint: digest of the dataset's files.
        files: number of records for the files.
        samples: number of samples in the dataset.
        tiers: names of the stores to make.
        path: absolute path of the folder of the disk tiers, ``None`` without them.
        name: name of the dataset for messages, such as its folder.

    Raises:
        ValueError: a value has the wrong type, or is out of range.
    """

    token: str
    memory: int
    disk: int
    fingerprint: str
    files: int
    samples: int
    tiers: tuple[str, ...]
    path: str | None
    name: str

    def __post_init__(self) -> None:
        _check_number("memory", self.memory, 0, _MOST_BYTES)
        _check_number("disk", self.disk, 0, _MOST_BYTES)
        _check_number("files", self.files, 1, _MOST_FILES)
        _check_number("samples", self.samples, 1, _MOST_FILES)
        for name in ("token", "fingerprint", "name"):
            _check_text(name, getattr(self, name))
        for name in ("token", "fingerprint"):
            if not getattr(self, name).isprintable():
                raise ValueError(f"{name} should be printable, not {getattr(self, name)!r}")
        if self.path is not None:
            _check_text("path", self.path)
            if not os.path.isabs(self.path) or "\0" in self.path:
                raise ValueError(f"path should be absolute, not {self.path!r}")
        tiers = self.tiers
        if not isinstance(tiers, tuple) or not all(isinstance(tier, str) for tier in tiers):
            raise ValueError(f"tiers should be a tuple of names, not {tiers!r}")
        if not 0 < len(tiers) <= _MOST_TIERS or len(set(tiers)) < len(tiers):
            raise ValueError(f"tiers should be 1 to {_MOST_TIERS} different names, not {tiers!r}")

    def fields(self) -> Fields:
        return asdict(self)

    @classmethod
    def of(cls, fields: Fields) -> CacheRequest:
        """Parses the fields of a message, which may have any contents.

        Raises:
            ValueError: they are no request.
        """
        try:
            values = {name: fields[name] for name in cls.__dataclass_fields__}
        except KeyError as error:
            raise ValueError(f"{error.args[0]} is missing") from error
        if isinstance(values["tiers"], list):  # JSON has no tuples
            values["tiers"] = tuple(values["tiers"])
        return cls(**values)


def ledger_token(own: str, value: str, environ: Mapping[str, str] = os.environ) -> str:
    """Returns the token that identifies the ledger of a cache.

    The ranks of a job share one ledger for caches of equal settings. Without a job, each cache has
    a ledger of its own.

    Args:
        own: random token of this cache.
        value: the cache's settings as text.
        environ: environment, with the variables that ``torchrun`` sets.
    """
    if "LOCAL_RANK" not in environ or not is_identified(environ):
        return own
    return hashlib.sha256(f"{job_identity(environ)}\0{value}".encode()).hexdigest()


def _check_number(name: str, value: object, least: int, most: int) -> None:
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{name} should be an int from {least} to {most}, not {value!r:.100}")


def _check_text(name: str, value: object) -> None:
    if not isinstance(value, str) or not 0 < len(value) <= _MOST_TEXT[name]:
        raise ValueError(
            f"{name} should be text of at most {_MOST_TEXT[name]} characters, not {value!r:.100}"
        )
