"""What a loader and a remote worker say to each other, as bytes.

A connection begins with ``SETUP``: what is to be made, as JSON; or with ``SETUP_CODE``, where it is
made by user code that Ray has brought to the worker. The worker answers ``READY``, or refuses and
says why. Each ``PREPARE`` then names samples of one tiny-batch, and is answered in
turn, by ``ROWS`` with what was made of all of them, or ``DECLINED``: this machine's own workers do
them then, so that whatever is wrong with a sample is found, and reported, where the user is.
"""

from __future__ import annotations

import enum
import json
import struct
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from fusionloader.system.transport.messages import FIRST_OF_SERVICE

SERVICE = "fusionloader worker 2"
"""What both ends say they are; the number changes with what is in this file."""

SETUP = FIRST_OF_SERVICE + 8
READY = FIRST_OF_SERVICE + 9
PREPARE = FIRST_OF_SERVICE + 10
ROWS = FIRST_OF_SERVICE + 11
DECLINED = FIRST_OF_SERVICE + 12
SETUP_CODE = FIRST_OF_SERVICE + 13

MOST_SAMPLES = 4096
"""Samples of one request."""
MOST_BODY = 1 << 28
"""Bytes of a request's or of an answer's body."""
OTHER_DATA = "this worker has not the same data"
"""How a refusal of ``SETUP`` begins whose known files are not there; the loader may ship them."""
LEAVING = "this worker leaves"
"""How a refusal begins of a worker that is about to end."""
NO_CODE = "this worker has not the dataset yet"
"""How a refusal of ``SETUP_CODE`` begins while Ray has not brought what it names."""
LAYOUT_BYTES = 16
"""Of the digest of a layout, with which the body of a request for ``DataMode.INDICES`` begins."""

_LONGEST_TEXT = 2000
_REQUEST = struct.Struct("<QQQB3xI")
_SAMPLE = struct.Struct("<QQQII")
_RANGE = struct.Struct("<QQ")
_ROWS = struct.Struct("<QQQ")
SAMPLE_BYTES = _SAMPLE.size
"""Bytes of a sample in a request's head; csrc/worker/remote_rows.cpp writes them, too."""
_DECLINED = struct.Struct("<QB")


class MalformedMessage(ValueError):
    """A message that cannot be understood."""


class DataMode(enum.IntEnum):
    """Where a worker finds what samples are made of."""

    PATHS = 0  # the body has paths of files, which the worker reads
    ENCODED = 1  # the body has the bytes of files
    PIXELS = 2  # the body has pixels, each image of the shape that SETUP gives
    INDICES = 3  # the body has a layout's digest, then indices as int64, for user code
    RANGES = 4  # the body has ranges of files, see encode_range(), which the worker reads


@dataclass(frozen=True, slots=True)
class RemoteFileKey:
    """A file of the dataset, by which a worker finds out whether it has the same data.

    ``digest`` is the hexadecimal BLAKE2b, of 16 bytes, of the file's first 64 KiB.
    """

    path: str
    nbytes: int
    digest: str


class _AsJson:
    """A dataclass that is sent as JSON."""

    __slots__ = ()

    def encode(self) -> bytes:
        """Returns it as JSON."""
        return json.dumps(asdict(self)).encode()  # type: ignore[call-overload]


@dataclass(frozen=True, slots=True)
class Setup(_AsJson):
    """What a worker is to make.

    Attributes:
        version: of fusionloader, the same on both ends.
        plan: as ``plan.exchange`` writes it.
        row_bytes: of the result of a sample.
        pillow: the release of Pillow whose pixels are wanted.
        max_pixels: Pillow's ``MAX_IMAGE_PIXELS``: larger images are declined.
        image: height, width and channels of ``DataMode.PIXELS``, else ``None``.
        known_files: to be there, for ``DataMode.PATHS``.
    """

    version: str
    plan: dict[str, Any]
    row_bytes: int
    pillow: str
    max_pixels: int | None = None
    image: tuple[int, int, int] | None = None
    known_files: tuple[RemoteFileKey, ...] = ()

    @classmethod
    def decode(cls, head: bytes) -> Setup:
        """Returns what a message's head says.

        Raises:
            MalformedMessage: it says something else.
        """
        fields = _fields(head, "version plan row_bytes pillow max_pixels image known_files")
        image, files = fields["image"], fields["known_files"]
        whole = (
            isinstance(fields["version"], str)
            and isinstance(fields["plan"], dict)
            and _is_count(fields["row_bytes"])
            and isinstance(fields["pillow"], str)
            and (fields["max_pixels"] is None or _is_count(fields["max_pixels"]))
            and (image is None or (_are_counts(image) and len(image) == 3))
            and isinstance(files, list)
        )
        if not whole:
            raise MalformedMessage("SETUP has fields of other types")
        fields["image"] = None if image is None else tuple(image)
        fields["known_files"] = tuple(map(_known_file, files))
        return cls(**fields)


@dataclass(frozen=True, slots=True)
class CodeSetup(_AsJson):
    """Which user code is to make the samples, and where it would run otherwise.

    Attributes:
        version: of fusionloader, the same on both ends.
        digest: of what Ray has brought, see ``user_code.bundle``.
        packages: versions of Python and of packages, the same on both ends.
        base_seed: of the loader's iterator.
        workers: that the loader has on its own machine.
    """

    version: str
    digest: str
    packages: dict[str, str]
    base_seed: int
    workers: int

    @classmethod
    def decode(cls, head: bytes) -> CodeSetup:
        """Returns what a message's head says.

        Raises:
            MalformedMessage: it says something else.
        """
        fields = _fields(head, "version digest packages base_seed workers")
        packages, seed = fields["packages"], fields["base_seed"]
        whole = (
            isinstance(fields["version"], str)
            and isinstance(fields["digest"], str)
            and isinstance(packages, dict)
            and all(isinstance(version, str) for version in packages.values())
            and type(seed) is int
            and 0 <= seed < 1 << 63
            and _is_count(fields["workers"])
        )
        if not whole:
            raise MalformedMessage("SETUP_CODE has fields of other types")
        return cls(**fields)


@dataclass(frozen=True, slots=True)
class Ready(_AsJson):
    """What a worker is: a name for people, and how many requests it works on at once."""

    name: str
    cores: int

    @classmethod
    def decode(cls, head: bytes) -> Ready:
        """Returns what a message's head says.

        Raises:
            MalformedMessage: it says something else.
        """
        fields = _fields(head, "name cores")
        if not isinstance(fields["name"], str) or not _is_count(fields["cores"]):
            raise MalformedMessage("READY has fields of other types")
        return cls(fields["name"][:200], fields["cores"])


class WantedSample(NamedTuple):
    """What a sample's draws depend on, as in ``executors.python.SampleKey``, and its data.

    Attributes:
        key: index for the random draws.
        group: what the samples share that are drawn together, 0 where each is by itself.
        file_bytes: of the file, 0 where that is not known; of ``DataMode.PIXELS`` always. Of
            ``DataMode.RANGES`` the range's.
        occurrence: how often the index came up before in the epoch.
        body_bytes: of the request's body: of its path, or of what it is made of.
    """

    key: int
    group: int
    file_bytes: int
    occurrence: int
    body_bytes: int


class WorkRequest(NamedTuple):
    """Samples of one tiny-batch; ``number`` is repeated in the answer."""

    number: int
    seed: int
    epoch: int
    mode: DataMode
    samples: Sequence[WantedSample]

    def encode(self) -> bytes:
        """Returns the head of a ``PREPARE``."""
        samples = b"".join([_SAMPLE.pack(*sample) for sample in self.samples])
        return encode_request(self.number, self.seed, self.epoch, self.mode, samples)

    @classmethod
    def decode(cls, head: bytes, body_bytes: int) -> WorkRequest:
        """Returns what the head of a ``PREPARE`` says, whose body has so many bytes.

        Raises:
            MalformedMessage: it says something else.
        """
        if len(head) < _REQUEST.size:
            raise MalformedMessage(f"PREPARE has a head of {len(head)} bytes")
        number, seed, epoch, mode, count = _REQUEST.unpack_from(head)
        if not 0 < count <= MOST_SAMPLES or len(head) != _REQUEST.size + count * _SAMPLE.size:
            raise MalformedMessage(f"PREPARE has {len(head)} bytes for {count} samples")
        if mode not in list(DataMode):
            raise MalformedMessage(f"PREPARE has data of unknown kind {mode}")
        samples = [WantedSample(*each) for each in _SAMPLE.iter_unpack(head[_REQUEST.size :])]
        digest = LAYOUT_BYTES if mode == DataMode.INDICES else 0
        if digest + sum(sample.body_bytes for sample in samples) != body_bytes:
            raise MalformedMessage(f"PREPARE has a body of {body_bytes} bytes for other samples")
        return cls(number, seed, epoch, DataMode(mode), samples)


def encode_range(offset: int, file_bytes: int, path: bytes) -> bytes:
    """Returns where a range begins, as the body of a request for ``DataMode.RANGES`` has it."""
    return _RANGE.pack(offset, file_bytes) + path


def decode_range(data: bytes) -> tuple[int, int, bytes]:
    """Returns the offset of a range, and its file's bytes and path.

    Raises:
        MalformedMessage: there are fewer bytes.
    """
    if len(data) < _RANGE.size:
        raise MalformedMessage(f"PREPARE has a range of {len(data)} bytes")
    return *_RANGE.unpack_from(data), data[_RANGE.size :]


def encode_request(number: int, seed: int, epoch: int, mode: DataMode, samples: bytes) -> bytes:
    """Returns the head of a ``PREPARE`` for samples that are encoded."""
    return _REQUEST.pack(number, seed, epoch, mode, len(samples) // SAMPLE_BYTES) + samples


class Rows(NamedTuple):
    """The head of ``ROWS``; its body has the results one after the other, in the order asked for.

    ``busy_ns`` is wall time from the request to the answer, ``read_bytes`` were read from files.
    """

    number: int
    busy_ns: int
    read_bytes: int

    def encode(self) -> bytes:
        """Returns it as bytes."""
        return _ROWS.pack(*self)

    @classmethod
    def decode(cls, head: bytes) -> Rows:
        """Returns what a message's head says.

        Raises:
            MalformedMessage: it says something else.
        """
        if len(head) != _ROWS.size:
            raise MalformedMessage(f"ROWS has a head of {len(head)} bytes")
        return cls(*_ROWS.unpack(head))


class Reason(enum.IntEnum):
    """Why a request is declined."""

    SAMPLES = 0  # something about these samples: others may be asked for
    DATA = 1  # a file is not there, or another one: this worker has not the same data


class Declined(NamedTuple):
    """A request that is not done, and why, in words."""

    number: int
    reason: Reason
    text: str

    def encode(self) -> bytes:
        """Returns it as bytes."""
        text = self.text.encode(errors="replace")[:_LONGEST_TEXT]
        return _DECLINED.pack(self.number, self.reason) + text

    @classmethod
    def decode(cls, head: bytes) -> Declined:
        """Returns what a message's head says.

        Raises:
            MalformedMessage: it says something else.
        """
        if len(head) < _DECLINED.size:
            raise MalformedMessage(f"DECLINED has a head of {len(head)} bytes")
        number, reason = _DECLINED.unpack_from(head)
        if reason not in list(Reason):
            raise MalformedMessage(f"DECLINED has unknown reason {reason}")
        text = head[_DECLINED.size :].decode(errors="replace")
        return cls(number, Reason(reason), text)


def _fields(head: bytes, names: str) -> dict[str, Any]:
    try:
        found = json.loads(head)
    except (ValueError, RecursionError) as error:
        raise MalformedMessage(f"a message's head is not JSON: {error}") from None
    if not isinstance(found, dict) or set(found) != set(names.split()):
        raise MalformedMessage("a message's head has other fields than it should")
    return found


def _known_file(fields: Any) -> RemoteFileKey:
    try:
        known = RemoteFileKey(**fields)
    except TypeError:
        raise MalformedMessage("SETUP has files with other fields") from None
    if not (isinstance(known.path, str) and isinstance(known.digest, str)) or not (
        isinstance(known.nbytes, int) and known.nbytes >= 0
    ):
        raise MalformedMessage("SETUP has files with fields of other types")
    return known


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1 << 40


def _are_counts(values: object) -> bool:
    return isinstance(values, list) and all(map(_is_count, values))
