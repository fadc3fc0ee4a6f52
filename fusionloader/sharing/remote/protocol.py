"""The messages between a loader and a remote worker.

A connection begins with ``SETUP``, which describes the work as JSON, or with ``SETUP_CODE`` if user
code that Ray has brought to the worker makes the samples. The worker answers ``READY``, or refuses
with a reason. Each ``PREPARE`` then names samples of one or several neighbouring tiny-batches.
Answers come in the order of the requests: ``ROWS`` with the results of all samples, or
``DECLINED``. The loader's own workers make declined samples, so that errors are found and reported
on the user's machine.
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
"""Name of the service in the greeting; its number changes with the protocol."""

SETUP = FIRST_OF_SERVICE + 8
READY = FIRST_OF_SERVICE + 9
PREPARE = FIRST_OF_SERVICE + 10
ROWS = FIRST_OF_SERVICE + 11
DECLINED = FIRST_OF_SERVICE + 12
SETUP_CODE = FIRST_OF_SERVICE + 13

MOST_SAMPLES = 4096
"""Most samples of a request."""
MOST_BODY = 1 << 28
"""Most bytes of the body of a request or an answer."""
OTHER_DATA = "this worker has not the same data"
"""Beginning of the refusal of ``SETUP`` if known files differ; the loader may send files then."""
LEAVING = "this worker leaves"
"""Beginning of a refusal by a worker that is about to end."""
NO_CODE = "this worker has not the dataset yet"
"""Beginning of the refusal of ``SETUP_CODE`` while Ray has not brought the dataset."""
LAYOUT_BYTES = 16
"""Bytes of a layout's digest, with which the body of a ``DataMode.INDICES`` request begins."""

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
    """Where a worker finds the data of samples."""

    PATHS = 0  # the body has paths of files, which the worker reads
    ENCODED = 1  # the body has the bytes of files
    PIXELS = 2  # the body has pixels, each image of the shape that SETUP gives
    INDICES = 3  # the body has a layout's digest, then indices as int64, for user code
    RANGES = 4  # the body has ranges of files, see encode_range(), which the worker reads


@dataclass(frozen=True, slots=True)
class RemoteFileKey:
    """A file of the dataset, with which a worker checks that it has the same data.

    ``digest`` is the hexadecimal BLAKE2b, of 16 bytes, of the file's first 64 KiB.
    """

    path: str
    nbytes: int
    digest: str


class _AsJson:
    """A dataclass that is sent as JSON."""

    __slots__ = ()

    def encode(self) -> bytes:
        return json.dumps(asdict(self)).encode()  # type: ignore[call-overload]


@dataclass(frozen=True, slots=True)
class Setup(_AsJson):
    """The work of a worker that runs a plan.

    Attributes:
        version: version of fusionloader, which has to be equal on both ends.
        plan: the plan, as ``plan.exchange`` writes it.
        row_bytes: size of a sample's result.
        pillow: version of Pillow whose pixels are reproduced.
        max_pixels: Pillow's ``MAX_IMAGE_PIXELS``: larger images are declined.
        image: (height, width, channels) for ``DataMode.PIXELS``, else ``None``.
        known_files: files that the worker must have, for ``DataMode.PATHS``.
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
        """Decodes a message's head, or raises ``MalformedMessage``."""
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
    """The work of a worker that runs user code.

    Attributes:
        version: version of fusionloader, which has to be equal on both ends.
        digest: digest of the pickled dataset, ``CodeBundle.digest``.
        packages: versions of Python and of packages, which have to be equal on both ends.
        base_seed: seed of the loader's iterator.
        workers: number of workers on the loader's machine.
    """

    version: str
    digest: str
    packages: dict[str, str]
    base_seed: int
    workers: int

    @classmethod
    def decode(cls, head: bytes) -> CodeSetup:
        """Decodes a message's head, or raises ``MalformedMessage``."""
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
    """The name of a worker, for messages, and the number of requests that it works on at once."""

    name: str
    cores: int

    @classmethod
    def decode(cls, head: bytes) -> Ready:
        """Decodes a message's head, or raises ``MalformedMessage``."""
        fields = _fields(head, "name cores")
        if not isinstance(fields["name"], str) or not _is_count(fields["cores"]):
            raise MalformedMessage("READY has fields of other types")
        return cls(fields["name"][:200], fields["cores"])


class WantedSample(NamedTuple):
    """A sample of a request: what its draws depend on, as in ``SampleKey``, and its data.

    Attributes:
        key: sample index for the random draws.
        group: number that is the same in samples drawn together, 0 if each is drawn by itself.
        file_bytes: size of the file, or of the range for ``DataMode.RANGES``; 0 if unknown.
        occurrence: how often the index came up before in the epoch.
        body_bytes: size of the sample's part of the body: its path, or its data.
    """

    key: int
    group: int
    file_bytes: int
    occurrence: int
    body_bytes: int


class WorkRequest(NamedTuple):
    """A request for samples of one tiny-batch; its answer repeats ``number``."""

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
        """Decodes a head and checks the size of the body, or raises ``MalformedMessage``."""
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
    """Returns a sample's part of the body of a ``DataMode.RANGES`` request."""
    return _RANGE.pack(offset, file_bytes) + path


def decode_range(data: bytes) -> tuple[int, int, bytes]:
    """Returns the offset of a range, and the size and the path of its file.

    Raises:
        MalformedMessage: ``data`` is too short.
    """
    if len(data) < _RANGE.size:
        raise MalformedMessage(f"PREPARE has a range of {len(data)} bytes")
    return *_RANGE.unpack_from(data), data[_RANGE.size :]


def encode_request(number: int, seed: int, epoch: int, mode: DataMode, samples: bytes) -> bytes:
    """Returns the head of a ``PREPARE`` for samples that are already encoded."""
    return _REQUEST.pack(number, seed, epoch, mode, len(samples) // SAMPLE_BYTES) + samples


class Rows(NamedTuple):
    """The head of ``ROWS``; its body has the results, in the order of the request.

    ``busy_ns`` is the worker's wall time from request to answer, ``read_bytes`` is the number of
    bytes that it has read from files.
    """

    number: int
    busy_ns: int
    read_bytes: int

    def encode(self) -> bytes:
        return _ROWS.pack(*self)

    @classmethod
    def decode(cls, head: bytes) -> Rows:
        """Decodes a message's head, or raises ``MalformedMessage``."""
        if len(head) != _ROWS.size:
            raise MalformedMessage(f"ROWS has a head of {len(head)} bytes")
        return cls(*_ROWS.unpack(head))


class Reason(enum.IntEnum):
    """Why a request is declined."""

    SAMPLES = 0  # these samples alone: others may be requested
    DATA = 1  # a file is missing or differs: the worker does not have the same data


class Declined(NamedTuple):
    """The head of ``DECLINED``: the worker makes none of the samples, and why."""

    number: int
    reason: Reason
    text: str

    def encode(self) -> bytes:
        text = self.text.encode(errors="replace")[:_LONGEST_TEXT]
        return _DECLINED.pack(self.number, self.reason) + text

    @classmethod
    def decode(cls, head: bytes) -> Declined:
        """Decodes a message's head, or raises ``MalformedMessage``."""
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
