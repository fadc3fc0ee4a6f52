"""The GPU worker's work on a group of samples: from encoded bytes to rows of the batch.

Everything is built before the first group. A run only passes parameters, which are drawn from the
plan as on the CPU.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fusionloader._native import is_never_refused
from fusionloader.transforms.executors.decoders.decoder_head import DecodeGroup, DecoderHead
from fusionloader.transforms.executors.decoders.head_steps import (
    HeadCannot,
    HeadStep,
    split_head,
    split_window,
)
from fusionloader.transforms.executors.device.memory import Memory
from fusionloader.transforms.executors.device_errors import FileRefused, is_shortage
from fusionloader.transforms.executors.native import jpeg_size, make_executor
from fusionloader.transforms.plan.stages import Operation, Plan

if TYPE_CHECKING:  # that module imports this one
    from fusionloader.transforms.executors.device.fused_augment import FusedAugment

# A sample's pixels, height x width x channels: a uint8 array, or an object with
# ``__cuda_array_interface__`` on a device.
Image = Any
# A sample's row in a batch, in the slot or on a device.
Row = Memory


@dataclass(frozen=True, slots=True)
class EncodedSample:
    """A file's bytes, the key of its random draws, and its row of the batch.

    The caller identifies the sample by ``position``.
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
    """Divides memory into ``count`` rows."""
    nbytes = memory.nbytes // count
    return [memory.part(number * nbytes, nbytes) for number in range(count)]


Part = tuple[HeadStep, list[Operation]]
"""The head's step of a sample, and the operations after it."""


@dataclass(slots=True, eq=False)
class Launch:
    """Samples that are decoded together; ``failed`` says why some are not."""

    samples: Sequence[EncodedSample]
    parts: dict[int, Part]
    failed: list[str | None]
    group: DecodeGroup


@dataclass(slots=True, eq=False)
class BegunTask:
    """Samples to make, of which the first launch is being decoded."""

    samples: Sequence[EncodedSample]
    first: Launch | None


class GpuTask:
    """Runs the head and the augment part of one plan."""

    def __init__(
        self,
        plan: Plan,
        head: DecoderHead,
        augment: FusedAugment,
        most_samples: int,
        head_resizes: bool = False,
    ) -> None:
        """Takes a head and an augment part that are ready to run.

        With ``head_resizes`` the head also resizes and mirrors, by its own arithmetic. Otherwise it
        only decodes windows, and ``augment`` resizes.
        """
        self._most_samples = most_samples
        self._head_resizes = head_resizes
        self._executor = make_executor(plan)
        if not self._executor.result_bytes:
            raise ValueError("the plan's images have no size, so that their rows have none")
        self._head = head
        self._augment = augment

    def run(self, samples: Sequence[EncodedSample]) -> list[str | None]:
        """Writes the rows of ``samples``: ``begin`` and ``finish`` in one call."""
        return self.finish(self.begin(samples))

    def begin(self, samples: Sequence[EncodedSample]) -> BegunTask:
        """Starts to decode as many of ``samples`` as fit into a launch."""
        return BegunTask(samples, self._decode(samples[: self._most_samples]) if samples else None)

    def finish(
        self, begun: BegunTask, writing: Callable[[], AbstractContextManager[object]] = nullcontext
    ) -> list[str | None]:
        """Writes the rows of a begun task; tasks must be finished in the order of ``begin``.

        ``writing`` returns a context that is entered while rows are written; errors of it are
        passed on.

        Returns:
            For each sample ``None``, or in words why a CPU worker has to make it: the file is no
            JPEG that the native decoder reads and libjpeg accepts, the plan cannot transform an
            image of its size, or the decoder failed. It is a ``FileRefused`` if it will be the same
            the next time.
        """
        failed: list[str | None] = []
        launch, most = begun.first, self._most_samples
        while launch is not None:
            failed += self._write(launch, writing)
            left = begun.samples[len(failed) : len(failed) + most]
            launch = self._decode(left) if left else None
        return failed

    def give_up(self, begun: BegunTask) -> None:
        """Waits for the decoder to be done with a begun task, and drops what it has decoded.

        A shortage of memory is ignored. A task that follows would meet it as its own.
        """
        if begun.first is None:
            return
        try:
            self._head.finish(begun.first.group)
        except Exception as error:
            if not is_shortage(error):
                raise
        self._head.release(begun.first.group)

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
        if not is_never_refused(sample.encoded):  # a decoder may decode it without an error
            return FileRefused("libjpeg may refuse the file for its markers")
        try:
            operations = self._executor.draw(
                sample.seed, sample.epoch, sample.key, sample.occurrence, *size, sample.group
            )
        except ValueError as error:
            return str(error)
        if not self._head_resizes:
            return split_window(operations, *size)
        try:
            return split_head(operations, *size)
        except HeadCannot as why:
            if any(operation[0] == "resize" for operation in operations):
                return str(why)
            return split_window(
                operations, *size
            )  # a crop with a border is left to the augment part

    def warm_up(self, encoded: bytes, groups: int = 1) -> None:
        """Runs ``groups`` full launches of copies of an image at the same time.

        Everything is built then.
        """
        rows = self._augment.rows(self._most_samples, self._executor.result_bytes)
        samples = [EncodedSample(encoded, 0, 0, n, 0, 0, row, n) for n, row in enumerate(rows)]
        begun: deque[BegunTask] = deque()
        try:
            for _ in range(groups):
                begun.append(self.begin(samples))
            while begun:
                self.finish(begun.popleft())
        except BaseException:
            for each in begun:
                self.give_up(each)
            raise

    def close(self) -> None:
        self._head.close()
