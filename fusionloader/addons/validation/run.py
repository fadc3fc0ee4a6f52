"""One running validation: a reader, and the parts that evaluate."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from fusionloader.addons.validation.part_batches import PartBatches, PartProgress
from fusionloader.addons.validation.replica import tensors_of
from fusionloader.addons.validation.results import ValidationResult
from fusionloader.addons.validation.settings import ValidationOptions
from fusionloader.addons.validation.streams import Isolation, isolation_on, mark
from fusionloader.addons.validation.sums import Sums, merged, metrics_of, read
from fusionloader.addons.validation.threads import ValidationThread, limited

_END_SECONDS = 5.0
_DEPTH = 2  # batches that wait for a part; the loader makes its own ahead


class Stopped(Exception):
    """Batches of a validation that was given up are requested."""


class BatchSplitter:
    """Passes batch *i* to part *i* modulo the number of parts.

    A part's batches therefore depend on the loader alone. One thread puts, one takes for each part.
    ``put`` waits while the part has ``_DEPTH`` batches, so that memory is bounded.
    """

    def __init__(self, parts: int) -> None:
        self._queues: list[deque[object]] = [deque() for _ in range(parts)]
        self._changed = threading.Condition()
        self._ended = False
        self._stopped = False

    def put(self, number: int, batch: object) -> None:
        """Passes batch ``number`` to its part, when that has room.

        Raises:
            Stopped: ``stop`` was called.
        """
        queue = self._queues[number % len(self._queues)]
        with self._changed:
            self._changed.wait_for(lambda: len(queue) < _DEPTH or self._stopped)
            if self._stopped:
                raise Stopped
            queue.append(batch)
            self._changed.notify_all()

    def end(self) -> None:
        """Ends the iterators of ``take`` behind the last batch."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def stop(self) -> None:
        """Makes all calls of ``put`` and ``take`` raise ``Stopped``."""
        with self._changed:
            self._stopped = True
            for queue in self._queues:
                queue.clear()
            self._changed.notify_all()

    def take(self, part: int) -> Iterator[object]:
        """Yields a part's batches.

        Raises:
            Stopped: ``stop`` was called.
        """
        queue = self._queues[part]
        while True:
            with self._changed:
                self._changed.wait_for(lambda: queue or self._ended or self._stopped)
                if self._stopped:
                    raise Stopped
                if not queue:
                    return
                batch = queue.popleft()
                self._changed.notify_all()
            yield batch
            del batch


class ModelWatch:
    """Finds changes of a model's parameters, buffers and modes since this was made."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._tensors = tensors_of(model)
        self._versions = {name: tensor._version for name, tensor in self._tensors.items()}
        self._modes = {name: module.training for name, module in model.named_modules()}

    def check(self) -> None:
        """Checks the model.

        Raises:
            RuntimeError: ``evaluate`` has changed it; the message names what.
        """
        now = tensors_of(self._model)
        changed = [
            name
            for name in now.keys() | self._tensors.keys()
            if now.get(name) is not self._tensors.get(name)
            or now[name]._version != self._versions[name]
        ]
        if changed:
            raise RuntimeError(
                f"evaluate changed {', '.join(sorted(changed))} of the model that it validates: "
                "parts and batches would see different models. It should leave the model in "
                "evaluation mode (BatchNorm writes its statistics in training mode) and write to "
                "no parameter or buffer"
            )
        modes = {name: module.training for name, module in self._model.named_modules()}
        switched = [name or "the model" for name in modes if modes[name] != self._modes.get(name)]
        if switched:
            raise RuntimeError(
                f"evaluate switched {', '.join(sorted(switched))} between training and evaluation "
                "mode: the model comes in evaluation mode, and should stay there"
            )


class ThreadTeam:
    """The threads of validations: a reader, and one for each part."""

    def __init__(self, options: ValidationOptions, compute_on: torch.device | None) -> None:
        names = [f"fusionloader-validation-{part}" for part in range(options.parts)]
        reader, *self.parts = limited(
            ["fusionloader-validation-reader", *names], options.threads_per_part
        )
        self.reader: ValidationThread = reader
        self.isolations: list[Isolation] = [isolation_on(compute_on) for _ in names]
        self.compute_on = compute_on

    def close(self) -> None:
        """Ends the threads; waits up to 5 s for those that still evaluate."""
        deadline = time.monotonic() + _END_SECONDS
        for worker in (self.reader, *self.parts):
            worker.end()
        for worker in (self.reader, *self.parts):
            worker.join(max(0.0, deadline - time.monotonic()))


class Run:
    """A validation, which begins when it is made.

    Attributes:
        epoch: number of the epoch.
        parts: progress of each part.
        ended: set when no thread works on the validation any more.
    """

    def __init__(
        self,
        epoch: int,
        model: nn.Module,
        batches: Iterator[Any],
        options: ValidationOptions,
        team: ThreadTeam,
        alternating: bool = False,
    ) -> None:
        """``alternating`` has one part compute at a time."""
        self.epoch = epoch
        self.parts = [PartProgress() for _ in team.parts]
        self.ended = threading.Event()
        self._options, self._team, self._model = options, team, model
        self._began = time.monotonic()
        self._turn: AbstractContextManager[object] = (
            threading.Lock() if alternating else nullcontext()
        )
        self._watch = ModelWatch(model)
        self._copied = mark(team.compute_on)
        self._splitter = BatchSplitter(len(team.parts))
        self._sums: list[Sums | None] = [None] * len(team.parts)
        self._left = threading.Semaphore(0)
        self._error: BaseException | None = None
        self._errors = threading.Lock()
        self._result: ValidationResult | None = None
        for number, part in enumerate(team.parts):
            part.submit(_bound(self._evaluate_part, number))
        team.reader.submit(_bound(self._read, batches))

    @property
    def failed(self) -> bool:
        return self.ended.is_set() and self._error is not None

    def remaining(self) -> float | None:
        """Returns the seconds until the timeout, ``None`` without one."""
        if self._options.timeout is None:
            return None
        return max(0.0, self._began + self._options.timeout - time.monotonic())

    def wait(self) -> None:
        """Waits for the end.

        Raises:
            TimeoutError: the timeout has passed; the message has the epoch and the parts' progress.
        """
        if not self.ended.wait(self.remaining()):
            self.stop()
            taken = [f"part {n} took {part.batches}" for n, part in enumerate(self.parts)]
            raise TimeoutError(
                f"the validation of epoch {self.epoch} has not ended after "
                f"{self._options.timeout:g} s: of its batches {', '.join(taken)}. Does evaluate "
                "end when its batches do, and does val_loader? Or give a longer timeout"
            )

    def result(self) -> ValidationResult:
        """Returns the result after the end, or raises the error of the validation."""
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result

    def stop(self) -> None:
        """Gives up the validation: ``evaluate`` gets no more batches."""
        self._splitter.stop()

    # ---- the reader ----------------------------------------------------------------------------

    def _read(self, batches: Iterator[Any]) -> None:
        try:
            for number, batch in enumerate(batches):
                self._splitter.put(number, (batch, mark(self._team.compute_on)))
            self._splitter.end()
        except BaseException as error:
            self._fail(error)
        finally:
            del batches
        for _ in self.parts:
            self._left.acquire()
        try:
            if self._error is None:
                self._result = self._merged()
        except BaseException as error:
            self._fail(error)
        del self._model, self._watch
        self.ended.set()

    def _merged(self) -> ValidationResult:
        self._watch.check()
        sums = merged([part for part in self._sums if part is not None])
        return ValidationResult(
            self.epoch,
            metrics_of(sums),
            sums,
            sum(part.batches for part in self.parts),
            sum(part.samples for part in self.parts),
            time.monotonic() - self._began,
        )

    def _fail(self, error: BaseException) -> None:
        with self._errors:
            if self._error is None:
                if hasattr(error, "add_note") and not isinstance(error, Stopped):  # Python 3.11
                    error.add_note(f"In the validation of epoch {self.epoch}.")
                self._error = error
        self._splitter.stop()

    # ---- a part --------------------------------------------------------------------------------

    def _evaluate_part(self, number: int) -> None:
        try:
            isolation = self._team.isolations[number]
            with torch.no_grad(), isolation.entered(self._copied):
                batches = PartBatches(
                    self._splitter.take(number),
                    self.parts[number],
                    isolation,
                    self._options.device,
                    self._turn,
                )
                if batches.peek():
                    self._sums[number] = self._evaluated(number, batches)
                isolation.synchronize()
        except BaseException as error:
            self._fail(error)
        finally:
            self._left.release()

    def _evaluated(self, number: int, batches: PartBatches) -> Sums:
        with batches.computing():
            sums = read(self._options.evaluate(self._model, batches))
        if batches.peek():
            taken = self.parts[number].batches
            raise RuntimeError(
                f"evaluate returned after {taken} batches of part {number}, and there are more: "
                "its result would be of a part of the data. It should read all; to validate on "
                "less, give a val_loader that has fewer batches"
            )
        return sums


def _bound(method: Any, argument: Any) -> Any:
    """Returns a job that drops its argument when it runs."""
    arguments: list[Any] = [argument]
    return lambda: method(arguments.pop())
