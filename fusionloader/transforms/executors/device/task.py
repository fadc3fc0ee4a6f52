"""The GPU worker's work on a group of samples: from encoded bytes to rows of the batch.

Everything is built before the first group; a run only feeds parameters, which come from the
plan's draw, the same as on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fusionloader._native import is_never_refused
from fusionloader.transforms.executors.decoders.decoder_head import DecodeGroup, DecoderHead
from fusionloader.transforms.executors.decoders.head_steps import (
    HeadCannot,
    HeadStep,
    head_of,
    window_of,
)
from fusionloader.transforms.executors.device.memory import Memory
from fusionloader.transforms.executors.device_errors import FileRefused
from fusionloader.transforms.executors.native import jpeg_size, make_executor
from fusionloader.transforms.plan.stages import Operation, Plan

if TYPE_CHECKING:  # it is made of what is here
    from fusionloader.transforms.executors.device.fused_augment import FusedAugment

# A sample's pixels, height x width x channels: a uint8 array, or on a device what has
# ``__cuda_array_interface__``.
Image = Any
# A sample's row of the batch, in the slot or on a device.
Row = Memory


@dataclass(frozen=True, slots=True)
class EncodedSample:
    """A file's bytes, what its random draws are keyed by, and its row of the batch.

    ``position`` is for the caller to know it by.
    """

    encoded: bytes
    seed: int
    epoch: int
    key: int
    occurrence: int
    group: int
    row: Row
    position: int


def rows_in(memory: Memory, count: int) -> list[Row]:
    """Returns memory divided into rows."""
    nbytes = memory.nbytes // count
    return [memory.part(number * nbytes, nbytes) for number in range(count)]


Part = tuple[HeadStep, list[Operation]]
"""What of a sample's operations the head does, and what is left of them."""


@dataclass(slots=True, eq=False)
class Launch:
    """Samples that are decoded together, and why some of them are not."""

    samples: Sequence[EncodedSample]
    parts: dict[int, Part]
    failed: list[str | None]
    group: DecodeGroup


@dataclass(slots=True, eq=False)
class BegunTask:
    """Samples of which the first launch is being decoded."""

    samples: Sequence[EncodedSample]
    first: Launch | None


class GpuTask:
    """Head and augment of one plan."""

    def __init__(
        self,
        plan: Plan,
        head: DecoderHead,
        augment: FusedAugment,
        most_samples: int,
        head_resizes: bool = False,
    ) -> None:
        """Takes both as they are.

        With ``head_resizes`` the head also resizes and mirrors, by its own arithmetic. Otherwise it
        only decodes windows, and ``augment`` has to be able to resize.
        """
        self._most_samples = most_samples
        self._head_resizes = head_resizes
        self._executor = make_executor(plan)
        self._head = head
        self._augment = augment

    def run(self, samples: Sequence[EncodedSample]) -> list[str | None]:
        """Writes the rows of ``samples``; ``begin`` and ``finish`` in one."""
        return self.finish(self.begin(samples))

    def begin(self, samples: Sequence[EncodedSample]) -> BegunTask:
        """Lets the decoder begin with as many of ``samples`` as go into a launch."""
        return BegunTask(samples, self._decode(samples[: self._most_samples]) if samples else None)

    def finish(
        self,
        begun: BegunTask,
        writing: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> list[str | None]:
        """Writes the rows of what was begun, in the order in which it was.

        ``writing`` returns what is entered while rows are written; what it raises ends this.

        Returns:
            For each sample ``None``, or in words why a CPU worker has to do it: not a JPEG that
            the native decoder reads and libjpeg takes, an image that its plan cannot transform,
            or what the decoder says. A ``FileRefused`` where that will be the same the next time.
        """
        failed: list[str | None] = []
        launch, most = begun.first, self._most_samples
        while launch is not None:
            failed += self._write(launch, writing)
            left = begun.samples[len(failed) : len(failed) + most]
            launch = self._decode(left) if left else None
        return failed

    def _decode(self, samples: Sequence[EncodedSample]) -> Launch:
        failed: list[str | None] = [None] * len(samples)
        parts: dict[int, Part] = {}
        for place, sample in enumerate(samples):
            part = self._part(sample)
            if isinstance(part, str):
                failed[place] = part
            else:
                parts[place] = part
        encoded = [samples[place].encoded for place in parts]
        group = self._head.begin(encoded, [step for step, _ in parts.values()])
        return Launch(samples, parts, failed, group)

    def _write(
        self, launch: Launch, writing: Callable[[], AbstractContextManager[object]]
    ) -> list[str | None]:
        failed, parts = launch.failed, launch.parts
        decoded = []
        for place, made in zip(parts, self._head.finish(launch.group), strict=True):
            if made.image is None:
                failed[place] = made.reason
            else:
                decoded.append((place, made.image))
        with writing():
            written = self._augment.run(
                [image for _, image in decoded],
                [parts[place][1] for place, _ in decoded],
                [launch.samples[place].row for place, _ in decoded],
            )
        for (place, _), why in zip(decoded, written, strict=True):
            failed[place] = why
        self._head.release(launch.group)
        return failed

    def _part(self, sample: EncodedSample) -> Part | str:
        size = jpeg_size(self._executor, sample.encoded)
        if size is None:
            return FileRefused("not a JPEG that the native decoder reads")
        if not is_never_refused(sample.encoded):  # a decoder may take it, and say nothing
            return FileRefused("libjpeg may refuse the file for its markers")
        try:
            operations = self._executor.draw(
                sample.seed, sample.epoch, sample.key, sample.occurrence, *size, sample.group
            )
        except ValueError as error:
            return str(error)
        if not self._head_resizes:
            return window_of(operations, *size)
        try:
            return head_of(operations, *size)
        except HeadCannot as why:
            if any(operation[0] == "resize" for operation in operations):
                return str(why)
            return window_of(operations, *size)  # a border around the image is the augment task's

    def warm_up(self, encoded: bytes) -> None:
        """Runs a whole group of copies of an image, so that nothing is left to be built."""
        rows = self._augment.rows(self._most_samples, self._executor.result_bytes)
        samples = [EncodedSample(encoded, 0, 0, n, 0, 0, row, n) for n, row in enumerate(rows)]
        self.run(samples)

    def close(self) -> None:
        """Ends the decoder."""
        self._head.close()
